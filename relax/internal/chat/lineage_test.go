package chat

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// A talker makes random conversations as agents hold them. Every text begins and ends with a
// word of its own, so that it can be found in what was rendered.
type talker struct {
	rng    *rand.Rand
	traits traits
	tools  []canon.ToolSpec
	ids    func(n int) string // the n-th call's id
	// bare: responses with calls have no text of their own.
	bare bool
	// What the template can print in the middle of a conversation.
	asksAfterTools, laterSystem, written bool
	words, calls                         int
}

// findWord is where the first word of [talker.word] in text begins and ends, -1 if none does.
func findWord(text string) (from, to int) {
	for at := 0; ; at += 2 {
		k := strings.Index(text[at:], "wq")
		if k < 0 {
			return -1, -1
		}
		at += k
		end := at + 2
		for end < len(text) && text[end] >= '0' && text[end] <= '9' {
			end++
		}
		if end > at+2 && strings.HasPrefix(text[end:], "qw") {
			return at, end + 2
		}
	}
}

// findWords are all words in text, in order.
func findWords(text string) []string {
	var out []string
	for {
		from, to := findWord(text)
		if from < 0 {
			return out
		}
		out = append(out, text[from:to])
		text = text[to:]
	}
}

// word is a word that stands nowhere else.
func (k *talker) word() string {
	k.words++
	return fmt.Sprintf("wq%dqw", k.words)
}

func (k *talker) text() string {
	middle := []string{"a", "hello world", "é世 \U0001F642", `{"k": 1.0, "l": [true, null]}`, "<b>&amp;</b> 'y'", "line\n\nline", "a  b\tc", "\\n {{ x }} {% y %}"}
	return k.word() + " " + middle[k.rng.IntN(len(middle))] + " " + k.word()
}

// A talk is a conversation and which of its assistant messages the agent wrote itself.
type talk struct {
	conversation
	written map[int]bool
}

// talk is a conversation of one to three questions. It ends in what a model must answer.
func (k *talker) talk() talk {
	c := talk{conversation{options: canon.ObjectOf()}, map[int]bool{}}
	if k.traits.System && k.rng.IntN(2) == 0 {
		c.turns = append(c.turns, system(k.text()))
	}
	useTools := k.traits.Calls && k.traits.Results && k.rng.IntN(4) > 0
	if useTools {
		c.tooling = k.tools
	}
	for i := range 1 + k.rng.IntN(3) {
		if i > 0 && k.laterSystem && k.rng.IntN(6) == 0 {
			c.turns = append(c.turns, system(k.text()))
		}
		if i > 0 && k.written && k.rng.IntN(6) == 0 {
			c.written[len(c.turns)+1] = true
			c.turns = append(c.turns, user(k.text()), assistant(k.text()))
		}
		c.turns = append(c.turns, user(k.text()))
		for useTools && k.rng.IntN(2) == 0 {
			c.turns = append(c.turns, k.loop()...)
			if k.asksAfterTools && k.rng.IntN(6) == 0 {
				c.turns = append(c.turns, user(k.text()))
			}
		}
		c.turns = append(c.turns, k.answer())
	}
	if useTools && k.rng.IntN(2) == 0 {
		c.turns = append(c.turns, user(k.text()))
		c.turns = append(c.turns, k.loop()...)
		return c
	}
	c.turns = append(c.turns, user(k.text()))
	return c
}

func (k *talker) answer() *canon.Message {
	m := assistant(k.text())
	if k.traits.Reasoning && k.rng.IntN(2) == 0 {
		m = thinking(m, k.text())
	}
	return m
}

// loop is a response with calls and the results.
func (k *talker) loop() []*canon.Message {
	n := 1
	if k.traits.ParallelCalls && k.rng.IntN(2) == 0 {
		n = 2 + k.rng.IntN(2)
	}
	m := canon.Message{Role: canon.Assistant}
	reasons := k.traits.Reasoning && k.rng.IntN(2) == 0
	if reasons {
		m.Reasoning = k.text()
	}
	if !k.bare && !reasons && k.rng.IntN(3) == 0 {
		m.Content = k.text()
	}
	var results []*canon.Message
	for range n {
		id := k.ids(k.calls)
		k.calls++
		name := k.tools[k.rng.IntN(len(k.tools))].Name
		arguments := fmt.Sprintf(`{"n":7,"q":%q}`, k.word()+" é 'x' "+k.word())
		m.ToolCalls = append(m.ToolCalls, canon.ToolCall{ID: id, Name: name, Arguments: arguments})
		text := k.text()
		if k.rng.IntN(8) == 0 {
			text = ""
		}
		results = append(results, result(id, text))
	}
	return append([]*canon.Message{canon.NewMessage(m)}, results...)
}

// wordsOf are the words of a message, in any order.
func wordsOf(m *canon.Message) []string {
	text := m.Content + " " + m.Reasoning
	for _, c := range m.ToolCalls {
		text += " " + c.Arguments
	}
	return findWords(text)
}

// A piece is one part of a lineage.
type piece struct {
	kind string // "body", "prompt" or "said"
	text script
}

// A lineage is a conversation as its tokens grew, and what is said of each step.
type lineage struct {
	format  *Format
	talk    talk
	asks    []int // the number of messages of each request
	pieces  []piece
	ids     []int32
	renders map[int]script
}

// grow observes and answers a whole conversation.
func grow(t *testing.T, f *Format, c talk) *lineage {
	t.Helper()
	l := &lineage{format: f, talk: c, renders: map[int]script{}}
	from, prev := 0, Prev{}
	for k := range len(c.turns) + 1 {
		if k < len(c.turns) && (c.turns[k].Role != canon.Assistant || c.written[k]) {
			continue
		}
		l.observe(t, k, from, prev)
		if k < len(c.turns) {
			prev = Prev{IDs: l.answer(t, k)}
			from = k + 1
		}
	}
	return l
}

func (l *lineage) observe(t *testing.T, k, from int, prev Prev) {
	t.Helper()
	req := &canon.Request{Messages: l.talk.turns[:k], Tools: l.talk.tooling, Kwargs: l.talk.options}
	obs, err := l.format.Observe(req, from, prev)
	if err != nil {
		t.Fatalf("observe %d to %d of %s: %v", from, k, describe(l.talk), err)
	}
	if from > 0 && len(obs.Body)+len(obs.Prompt) == 0 {
		t.Fatalf("observe %d to %d of %s: nothing", from, k, describe(l.talk))
	}
	l.asks = append(l.asks, k)
	l.pieces = append(l.pieces, piece{"body", l.read(t, obs.Body)}, piece{"prompt", l.read(t, obs.Prompt)})
	l.ids = append(append(l.ids, obs.Body...), obs.Prompt...)
}

// answer samples what the template shows of the response, with the token that ends a turn by
// opening the next one where the template has no other.
func (l *lineage) answer(t *testing.T, k int) []int32 {
	t.Helper()
	tpl := l.format.template(l.talk.tooling)
	said := l.said(t, tpl, k)
	ids, err := l.format.encodeScript(&said)
	if err != nil {
		t.Fatal(err)
	}
	if shared := tpl.turnEnd.Shared; len(tpl.turnEnd.Own) == 0 && len(shared) > 0 {
		ids = append(ids, nextOpener(l.format, shared, l.talk.turns[k+1]))
		said = l.read(t, ids)
	}
	l.pieces = append(l.pieces, piece{"said", said})
	l.ids = append(l.ids, ids...)
	return ids
}

// nextOpener is the shared token that opens the next message.
func nextOpener(f *Format, shared []int32, next *canon.Message) int32 {
	want := "<|user|>"
	if next.Role == canon.Tool {
		want = "<|observation|>"
	}
	for _, id := range shared {
		if f.TokenText(id) == want {
			return id
		}
	}
	return shared[0]
}

// said is the template's own text of a finished turn behind the prompt, up to the first
// terminator behind its last word, or to where the template goes on with another turn of its own
// (Command-R+).
func (l *lineage) said(t *testing.T, tpl *template, k int) script {
	t.Helper()
	closed, err := tpl.print(conversation{tpl.dialect.adapt(l.talk.turns[:k+1], true), l.talk.tooling, l.talk.options}, false)
	if err != nil {
		t.Fatalf("%s: %v", describe(l.talk), err)
	}
	first, last := span(closed.text, l.talk.turns[k])
	if first < 0 {
		t.Fatalf("%s: response %d is not in its own render %q", describe(l.talk), k, closed.text)
	}
	prompt := l.full(t, k)
	turn := closed.from(begins(prompt.text, closed.text, first))
	opener := int32(-1)
	if p := l.pieces[len(l.pieces)-1].text; len(p.marks) > 0 {
		opener = p.marks[0].id
	}
	for _, m := range turn.marks {
		switch {
		case m.start < last-(len(closed.text)-len(turn.text)):
		case m.id == opener:
			return turn.upTo(m.start)
		case slices.Contains(tpl.turnEnd.Own, m.id):
			return turn.upTo(m.end)
		}
	}
	return turn
}

// begins is where a turn begins in closed: behind the prompt. Where the template prints a
// finished turn otherwise than its prompt began it, that is where the prompt's end stands once
// more before the first word, else where the two differ.
func begins(prompt, closed []byte, first int) int {
	if bytes.HasPrefix(closed, prompt) {
		return len(prompt)
	}
	n := 0
	for n < len(prompt) && n < first && prompt[n] == closed[n] {
		n++
	}
	at := n
	for best, x := 7, n; x <= first; x++ {
		k := 0
		for k < x && k < len(prompt) && closed[x-1-k] == prompt[len(prompt)-1-k] {
			k++
		}
		if k > best {
			best, at = k, x
		}
	}
	for at > 0 && bytes.LastIndexByte(closed[:at], '<') > bytes.LastIndexByte(closed[:at], '>') {
		at = bytes.LastIndexByte(closed[:at], '<')
	}
	return at
}

// read is ids as a script, its control tokens marked.
func (l *lineage) read(t *testing.T, ids []int32) script {
	t.Helper()
	var out script
	run := 0
	flush := func(end int) {
		out.text = append(out.text, decoded(t, l.format.tok, ids[run:end])...)
	}
	for i, id := range ids {
		token := l.format.controls.token(id)
		if token == nil {
			continue
		}
		flush(i)
		out.marks = append(out.marks, mark{len(out.text), len(out.text) + len(token.Content), id})
		out.text = append(out.text, token.Content...)
		run = i + 1
	}
	flush(len(ids))
	return out
}

// span is where the first word of a message begins and its last one ends, -1 if none is there.
func span(text []byte, m *canon.Message) (first, last int) {
	first, last = -1, -1
	for _, w := range wordsOf(m) {
		at := bytes.LastIndex(text, []byte(w))
		if at < 0 {
			continue
		}
		if first < 0 || at < first {
			first = at
		}
		last = max(last, at+len(w))
	}
	return first, last
}

func describe(c talk) string {
	var b strings.Builder
	for i, m := range c.turns {
		fmt.Fprintf(&b, "[%s", m.Role)
		if c.written[i] {
			b.WriteString(" written")
		}
		if m.Reasoning != "" {
			b.WriteString("+reasoning")
		}
		if m.Content == "" {
			b.WriteString("+empty")
		}
		if n := len(m.ToolCalls); n > 0 {
			fmt.Fprintf(&b, "+%d calls", n)
		}
		b.WriteString("]")
	}
	if len(c.tooling) > 0 {
		b.WriteString(" with tools")
	}
	return b.String()
}

// full is a render of the first k messages with the prompt, as one text.
func (l *lineage) full(t *testing.T, k int) script {
	t.Helper()
	if out, ok := l.renders[k]; ok {
		return out
	}
	tpl := l.format.template(l.talk.tooling)
	out, err := tpl.print(conversation{tpl.dialect.adapt(l.talk.turns[:k], true), l.talk.tooling, l.talk.options}, true)
	if err != nil {
		t.Fatalf("%s: %v", describe(l.talk), err)
	}
	l.renders[k] = out
	return out
}

// text is the whole lineage as text.
func (l *lineage) text() string {
	var b strings.Builder
	for _, p := range l.pieces {
		b.Write(p.text.text)
	}
	return b.String()
}
