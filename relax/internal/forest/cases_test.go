package forest

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// elsewhere are the cases of the sections below that no test names, and why.
var elsewhere = map[string]string{
	"H13": "a cost: BenchmarkReplay and BenchmarkReplayGrowth",
	"H15": "request kinds (fresh, resumed, protected) belong to partial rollout",
	"H22": "the model is not given images yet, so it has no placeholders to sample",
	"I23": "there is no eval mode yet",
	"S8":  "the trace is a document of its own: TestTraceOfABranchingSession of the observe room",
	"S11": "routed experts are a column of the trainer's batch",
	"S12": "the model is not given images yet",
	"S14": "sample_index_mask_sums is a column of the trainer's batch",
	"S15": "the trainer's conversion",

	"3a-10": "templates: TestLineageIsTheRender and TestFamilies of the chat room",
	"3a-11": "templates: no processor is probed, the model is not given images yet",
	"3a-12": "templates: TestFamilies of the chat room",
	"3a-14": "templates: TestLineageIsTheRender and TestEndsOfTurns of the chat room",
	"3a-16": "templates: TestLineageIsTheRender of the chat room",
	"3a-17": "templates: the tools are printed as the client wrote them; fixtures of the jinja room",
	"3a-18": "templates: arguments become an object before they are rendered; the chat room's dialects",
	"3a-20": "templates: body and generation prompt are encoded apart; the chat room's shield",
	"3a-21": "templates: fixtures of the jinja room",
	"3a-23": "templates: nothing is rebuilt from parsed text; TestReal of the chat room",
	"3a-24": "a documented invariant and a metric: the trace and the divergence counters",
	"3a-27": "a checklist of templates: TestEveryScenarioIsSettled of the chat room",
	"3a-28": "templates: sampled ids are never rendered again; TestReal of the chat room",

	"3b-34": "ids come from the backend's own answer: the sglang room",
	"3b-39": "normalisation over logical Sessions: the credit room",
	"3b-40": "the trainer broadcasts advantages, we give one for each row",
	"3b-41": "the trainer's loss; masked places have logprob 0 in every row",
	"3b-44": "routed experts are a column of the trainer's batch",
	"3b-46": "the model is not given images yet",
	"3b-47": "the model is not given images yet",
}

// sections are the numbered cases of spec/reference-cases.md 1.H and 1.I and of
// spec/field-cases.md 3a and 3b (which skip some numbers).
func sections() []string {
	var ids []string
	for prefix, last := range map[string]int{"H": 22, "I": 26, "S": 15} {
		for i := range last {
			ids = append(ids, fmt.Sprintf("%s%d", prefix, i+1))
		}
	}
	for _, i := range []int{1, 2, 3, 5, 6, 8, 9, 10, 11, 12, 14, 15, 16, 17, 18, 20, 21, 23, 24, 25, 27, 28} {
		ids = append(ids, fmt.Sprintf("3a-%d", i))
	}
	for i := 29; i <= 47; i++ {
		if i != 42 {
			ids = append(ids, fmt.Sprintf("3b-%d", i))
		}
	}
	return ids
}

// A test names its cases in a comment "Case H1." or "Cases H1, 3a-2 (why it differs).", or a
// subtest by a name that begins with one: "I2: reward and metadata".
var (
	caseList = regexp.MustCompile(`\bCases? ((?:[HIS]\d+|3[ab]-\d+)(?:, (?:[HIS]\d+|3[ab]-\d+))*)`)
	caseName = regexp.MustCompile("[\"`]((?:[HIS]\\d+|3[ab]-\\d+)(?:, (?:[HIS]\\d+|3[ab]-\\d+))*): ")
)

// testFunc finds the declarations of tests, testName their names.
var (
	testFunc = regexp.MustCompile(`(?m)^func ((?:Test|Benchmark)\w+)\(`)
	testName = regexp.MustCompile(`\b(?:Test|Benchmark)[A-Z]\w+`)
)

// casesIn returns the ids a text names.
func casesIn(text string) []string {
	var ids []string
	for _, pattern := range []*regexp.Regexp{caseList, caseName} {
		for _, found := range pattern.FindAllStringSubmatch(text, -1) {
			ids = append(ids, strings.Split(found[1], ", ")...)
		}
	}
	return ids
}

// TestCasesHaveTests: each case of the specifications' lists about matching and export is shown
// by a story or a Go test, or is known to be tested elsewhere.
func TestCasesHaveTests(t *testing.T) {
	found, funcs := map[string]string{}, map[string]bool{}
	note := func(file string) error {
		raw, err := os.ReadFile(file)
		for _, f := range testFunc.FindAllStringSubmatch(string(raw), -1) {
			funcs[f[1]] = true
		}
		for _, id := range casesIn(string(raw)) {
			found[id] = file
		}
		return err
	}
	for _, file := range storyFiles(t) {
		if err := note(file); err != nil {
			t.Fatal(err)
		}
	}
	err := filepath.WalkDir("../..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		return note(path)
	})
	if err != nil {
		t.Fatal(err)
	}
	known := sections()
	for _, id := range known {
		if reason, ok := elsewhere[id]; found[id] == "" && !ok {
			t.Errorf("case %s has no test: name it in one, or in elsewhere with the reason", id)
		} else if found[id] != "" && ok {
			t.Errorf("case %s is named in %s: take it out of elsewhere (%s)", id, found[id], reason)
		}
	}
	for id, file := range found {
		if !slices.Contains(known, id) {
			t.Errorf("%s names case %s, which is none", file, id)
		}
	}
	for id, reason := range elsewhere {
		if !slices.Contains(known, id) {
			t.Errorf("elsewhere has case %s, which is none", id)
		}
		for _, name := range testName.FindAllString(reason, -1) {
			if !funcs[name] {
				t.Errorf("elsewhere names %s for case %s, which is no test", name, id)
			}
		}
	}
	t.Logf("%d cases, %d of them tested elsewhere", len(known), len(elsewhere))
}

func TestCasesInText(t *testing.T) {
	for text, want := range map[string][]string{
		"// Cases H1, 3a-2 (why). Case S3.":     {"H1", "3a-2", "S3"},
		`{"I2, I9: reward", "x"}`:               {"I2", "I9"},
		"in case of S3, or SSE3; Cases 1.E E1.": nil,
	} {
		if got := casesIn(text); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	}
}

// twoTurns is a forest of one conversation with two answers.
func twoTurns(t *testing.T, first, second Generation) (*Forest, *Node) {
	t.Helper()
	f := New("s")
	req := request(user("q"))
	first.Message, second.Message = assistant("a"), assistant("b")
	if _, err := f.Commit(f.Attach(f.Match(req), []int32{1, 2}, []int32{3}, req), first); err != nil {
		t.Fatal(err)
	}
	req = request(user("q"), assistant("a"), user("r"))
	n, err := f.Commit(f.Attach(f.Match(req), []int32{4}, []int32{5}, req), second)
	if err != nil {
		t.Fatal(err)
	}
	return f, n
}

// Cases S9, S10: seconds are summed over the responses, waits apart from the backend's, and each
// response has its half-open place in the row.
func TestRowPlacesAndTimesItsTurns(t *testing.T) {
	f, n := twoTurns(t,
		Generation{IDs: []int32{6, 7}, Logprobs: logprobs(2), Seconds: 1, WallSeconds: 4},
		Generation{IDs: []int32{8}, Logprobs: logprobs(1), Seconds: 2, WallSeconds: 2.5})
	row := f.Row(n)
	if row.Seconds != 3 || row.WallSeconds != 6.5 {
		t.Errorf("%v s in the backend of %v s, want 3 of 6.5", row.Seconds, row.WallSeconds)
	}
	var ids []int32
	for _, p := range row.Pieces {
		ids = append(ids, p.Tokens...)
	}
	for i, want := range [][]int32{{6, 7}, {8}} {
		turn := row.TurnTable[i]
		if !slices.Equal(ids[turn.Start:turn.End], want) || turn.Start < row.PromptLen {
			t.Errorf("turn %d is at [%d, %d) of %v", i, turn.Start, turn.End, ids)
		}
	}
}

// Cases 3b-29, 3b-30, 3b-31, 3b-32, 3b-33: logprobs are neither padded nor made up. A
// generation has one for each id or is refused with both numbers; a row has them for what it
// trains and none for the rest. Only an explicit empty generation has none.
func TestLogprobsAreNeverMadeUp(t *testing.T) {
	f := New("s")
	req := request(user("q"))
	obs := f.Attach(f.Match(req), []int32{1}, []int32{2}, req)
	for ids, probabilities := range map[int]int{3: 0, 2: 1, 1: 2, 0: 1} {
		g := Generation{IDs: make([]int32, ids), Logprobs: logprobs(probabilities), Message: assistant("a")}
		_, err := f.Commit(obs, g)
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%d token ids but %d logprobs", ids, probabilities)) {
			t.Errorf("%d ids, %d logprobs: %v", ids, probabilities, err)
		}
	}
	if f.Stats().Sampled != 0 {
		t.Error("a refused generation was counted")
	}
	if _, err := f.Commit(obs, Generation{Message: assistant("")}); err != nil {
		t.Errorf("an empty turn: %v", err)
	}
	f, n := twoTurns(t, Generation{IDs: []int32{6}, Logprobs: []float32{-1}}, Generation{IDs: []int32{8}, Logprobs: []float32{-2}})
	for _, p := range f.Row(n).Pieces {
		if (p.Logprobs != nil) != (p.Node.Kind() == Response) || p.Logprobs != nil && len(p.Logprobs) != len(p.Tokens) {
			t.Errorf("%s %v has logprobs %v", p.Node.Kind(), p.Tokens, p.Logprobs)
		}
	}
}

// Case 3a-15: the tokens of a row and of the next prompt are the very ids that were sampled, be
// they no encoding of the text they stand for.
func TestSampledIDsAreNeverEncodedAgain(t *testing.T) {
	sampled := []int32{900, 901, 902}
	f, n := twoTurns(t, Generation{IDs: sampled, Logprobs: logprobs(3)}, Generation{IDs: []int32{8}, Logprobs: logprobs(1)})
	var prefix, row []int32
	for _, part := range n.Parent().Prefix(nil) {
		prefix = append(prefix, part...)
	}
	for _, p := range f.Row(n).Pieces {
		row = append(row, p.Tokens...)
	}
	for name, ids := range map[string][]int32{"prompt": prefix, "row": row} {
		if !slices.Equal(ids[3:6], sampled) {
			t.Errorf("%s %v does not have %v", name, ids, sampled)
		}
	}
}

// Case H16: tools and template arguments are kept once for a subtree; every node has them.
func TestContextIsSharedBelow(t *testing.T) {
	f := New("s")
	kwargs := canon.ObjectOf(canon.Member{Key: "k", Value: canon.StringValue("v")})
	tools := []canon.ToolSpec{canon.NewToolSpec("f", nil, canon.Value{})}
	ask := func(messages ...*canon.Message) *Node {
		req := &canon.Request{Messages: messages, Tools: slices.Clone(tools), Kwargs: kwargs}
		obs := f.Attach(f.Match(req), []int32{1}, []int32{2}, req)
		n, err := f.Commit(obs, Generation{Message: assistant("a"), IDs: []int32{3}, Logprobs: logprobs(1)})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	first := ask(user("q"))
	second := ask(user("q"), assistant("a"), user("r"))
	if second.Parent().Parent() != first || &first.Tools()[0] != &second.Tools()[0] {
		t.Error("the second turn has tools of its own")
	}
	if !second.Kwargs().Equal(kwargs) {
		t.Errorf("kwargs %s", second.Kwargs().AppendCanonical(nil))
	}
}
