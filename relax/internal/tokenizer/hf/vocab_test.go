package hf

import (
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/relax-rollout/relax-rollout/relax/internal/tokenizer"
)

func TestParseVocabulary(t *testing.T) {
	cases := []struct {
		name, json string
		ids        map[string]int32
		added      []tokenizer.AddedToken
		kinds      []kind
	}{
		{
			"added tokens behind the model",
			`{"added_tokens":[{"id":2,"content":"<s>","special":true},{"id":3,"content":"<t>","special":false}],
			  "model":{"vocab":{"a":0,"b":1}}}`,
			map[string]int32{"a": 0, "b": 1, "<s>": 2, "<t>": 3},
			[]tokenizer.AddedToken{{ID: 2, Content: "<s>", Special: true}, {ID: 3, Content: "<t>"}},
			[]kind{ordinary, ordinary, control, ordinary},
		},
		{
			"an added token of the model keeps its id, the unknown token may come from text",
			`{"added_tokens":[{"content":"<unk>","special":true},{"content":"</s>","special":true}],
			  "model":{"vocab":{"<unk>":0,"</s>":1,"a":2},"unk_token":"<unk>"}}`,
			map[string]int32{"<unk>": 0, "</s>": 1, "a": 2},
			[]tokenizer.AddedToken{{ID: 0, Content: "<unk>", Special: true}, {ID: 1, Content: "</s>", Special: true}},
			[]kind{ordinary, control, ordinary},
		},
		{
			"the file's ids are not read, as in the library",
			`{"added_tokens":[{"id":90,"content":"<s>","special":true}],"model":{"vocab":{"a":0}}}`,
			map[string]int32{"a": 0, "<s>": 1},
			[]tokenizer.AddedToken{{ID: 1, Content: "<s>", Special: true}},
			[]kind{ordinary, control},
		},
		{
			"twice listed and empty",
			`{"added_tokens":[{"content":"<s>"},{"content":""},{"content":"<s>","special":true}],"model":{"vocab":{"a":0}}}`,
			map[string]int32{"a": 0, "<s>": 1},
			[]tokenizer.AddedToken{{ID: 1, Content: "<s>", Special: true}},
			[]kind{ordinary, control},
		},
		{
			"unigram",
			`{"added_tokens":[{"content":"<s>","special":true}],"model":{"vocab":[["<unk>",0],["a",-1.5]],"unk_id":0}}`,
			map[string]int32{"<unk>": 0, "a": 1, "<s>": 2},
			[]tokenizer.AddedToken{{ID: 2, Content: "<s>", Special: true}},
			[]kind{ordinary, ordinary, control},
		},
		{
			"a gap is not in the vocabulary",
			`{"model":{"vocab":{"a":0,"b":3}}}`,
			map[string]int32{"a": 0, "b": 3},
			nil,
			[]kind{ordinary, unknown, unknown, ordinary},
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			v, _, err := parse(c.json, Options{})
			if err != nil {
				t.Fatal(err)
			}
			if len(v.ids) != len(c.ids) || v.size() != len(c.ids) {
				t.Errorf("ids = %v, want %v", v.ids, c.ids)
			}
			for token, id := range c.ids {
				if got, ok := v.ids[token]; !ok || got != id {
					t.Errorf("id of %q = %d, %v; want %d", token, got, ok, id)
				}
			}
			if !slices.Equal(v.added, c.added) || !slices.Equal(v.kinds, c.kinds) {
				t.Errorf("added = %v, kinds = %v; want %v, %v", v.added, v.kinds, c.added, c.kinds)
			}
		})
	}
}

func FuzzParseVocabulary(f *testing.F) {
	for _, s := range []string{
		`{}`, `{"model":{"vocab":{}}}`, `{"model":{"vocab":[["a",0],[]],"unk_id":7}}`, `{"model":{"vocab":[[1,2]]}}`,
		`{"added_tokens":[{"content":"x","special":true}],"model":{"vocab":{"a":16777215},"unk_token":"x"}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		v, _, err := parse(string(data), Options{})
		if err != nil {
			return
		}
		for token, id := range v.ids {
			if v.kind(uint32(id)) == unknown {
				t.Fatalf("token %q has id %d, which has no kind", token, id)
			}
		}
	})
}

// parse reads a tokenizer.json without the native library.
func parse(data string, opts Options) (*vocabulary, string, error) {
	doc, err := newDocument([]byte(data))
	if err != nil {
		return nil, "", err
	}
	t, patched, err := read(doc, &opts)
	if err != nil {
		return nil, "", err
	}
	return t.vocab, string(patched), nil
}

// A blocking core holds Encode inside the library.
type blockingCore struct {
	entered, release chan struct{}
	closed           bool
}

func (c *blockingCore) encode(string, bool) ([]int32, error) {
	c.entered <- struct{}{}
	<-c.release
	if c.closed {
		return nil, errors.New("freed under a running call")
	}
	return []int32{0}, nil
}
func (c *blockingCore) decode([]uint32) (string, error) { return "", nil }
func (c *blockingCore) vocabSize() int                  { return 1 }
func (c *blockingCore) close() error                    { c.closed = true; return nil }

func TestCloseWaitsForRunningCalls(t *testing.T) {
	vocab, _, err := parse(`{"model":{"vocab":{"a":0}}}`, Options{})
	if err != nil {
		t.Fatal(err)
	}
	core := &blockingCore{entered: make(chan struct{}), release: make(chan struct{})}
	tok := &Tokenizer{file: "t", vocab: vocab, core: core}
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := tok.Encode("a"); err != nil {
			t.Errorf("Encode that began before Close: %v", err)
		}
	})
	<-core.entered
	wg.Go(func() {
		if err := tok.Close(); err != nil {
			t.Error(err)
		}
	})
	for tok.mu.TryRLock() { // fails once Close waits
		tok.mu.RUnlock()
		runtime.Gosched()
	}
	close(core.release) // Encode reports an error if Close has already freed the core
	wg.Wait()
	if !core.closed {
		t.Error("Close did not free the tokenizer")
	}
	if _, err := tok.Encode("a"); !errors.Is(err, ErrClosed) {
		t.Errorf("Encode after Close: %v", err)
	}
}

// A core that breaks its word must not put ids into training data.
type lyingCore struct{ blockingCore }

func (*lyingCore) encode(string, bool) ([]int32, error) { return []int32{0, -1 << 31}, nil }

func TestEncodeChecksTheLibrary(t *testing.T) {
	vocab, _, err := parse(`{"model":{"vocab":{"a":0}}}`, Options{})
	if err != nil {
		t.Fatal(err)
	}
	tok := &Tokenizer{file: "t", vocab: vocab, core: &lyingCore{}}
	if ids, err := tok.Encode("a"); err == nil || !strings.Contains(err.Error(), "2147483648") {
		t.Errorf("Encode = %v, %v", ids, err)
	}
}
