package forest

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
	"github.com/relax-rollout/relax-rollout/relax/internal/wire"
)

var rewrite = flag.Bool("rewrite", false, "write what the stories do into testdata/forest instead of checking it")

// stories lie at the repository's root.
const stories = "../../../testdata/forest"

// TestStories runs the scripts of testdata/forest. A script is a list of blocks: a command
// line, its input lines, "----", and what it prints up to a blank line. Lines that begin with
// # between blocks are remarks.
//
//	request NAME     a Chat request body: match and attach
//	                 (request NAME tolerant: by the tolerant policy)
//	match NAME       a Chat request body: match only; "attach NAME" follows later
//	reply NAME ...   an assistant message (JSON, or bare text): commit. Options: ids=x other ids
//	                 for the same text, truncated, version=N or N@i,M@j, aborts=N, rollout=N
//	tree             the dump
//	tokens #N        the tokens sent to the model after node N
//	row #N           the training row of node N, sampled tokens in [brackets]
//	implicit         the implicit export
//	record           an explicit record {messages, tools, chat_template_kwargs}
//	account #N ...   the fate of all sampled tokens when these nodes are exported
func TestStories(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(stories, "*.txt"))
	if err != nil || len(files) < 10 {
		t.Fatalf("found %d stories in %s, %v", len(files), stories, err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txt")
		t.Run(name, func(t *testing.T) { runStory(t, file, name) })
	}
}

func runStory(t *testing.T, file, name string) {
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s := newStory(name)
	var out strings.Builder
	for _, block := range strings.Split(strings.TrimRight(string(raw), "\n"), "\n\n") {
		block = strings.Trim(block, "\n")
		if strings.HasPrefix(block, "#") {
			fmt.Fprintf(&out, "%s\n\n", block)
			continue
		}
		input, want, _ := strings.Cut(block, "\n----")
		want = strings.TrimPrefix(want, "\n")
		command, body, _ := strings.Cut(input, "\n")
		got := strings.TrimRight(s.run(command, body), "\n")
		if got != want && !*rewrite {
			t.Errorf("%s\n%s\n got: %s\nwant: %s", name, command, got, want)
		}
		fmt.Fprintf(&out, "%s\n----\n%s\n\n", input, got)
	}
	if *rewrite {
		if err := os.WriteFile(file, []byte(strings.TrimRight(out.String(), "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// A story is the state of one script.
type story struct {
	forest   *Forest
	cache    *canon.Cache
	vocab    map[string]int32
	words    []string
	requests map[string]*pending
	nodes    []*Node
}

type pending struct {
	req   *canon.Request
	match Match
	obs   *Node
}

func newStory(name string) *story {
	return &story{forest: New(name), cache: canon.NewCache(0), vocab: map[string]int32{}, requests: map[string]*pending{}}
}

func (s *story) run(command, body string) string {
	args := strings.Fields(command)
	name := ""
	if len(args) > 1 {
		name = args[1]
	}
	switch args[0] {
	case "request":
		out := s.match(name, body, slices.Contains(args, "tolerant"))
		if p := s.requests[name]; p != nil {
			out += s.attach(p)
		}
		return out
	case "match":
		return s.match(name, body, false)
	case "attach":
		return s.attach(s.requests[name])
	case "reply":
		return s.reply(name, args[2:], body)
	case "tree":
		var b strings.Builder
		if err := s.forest.Dump(&b); err != nil {
			return err.Error()
		}
		return b.String()
	case "tokens":
		return s.text(s.node(name).Prefix(nil)...)
	case "row":
		return s.row(s.node(name))
	case "implicit":
		return s.exported(s.forest.Implicit())
	case "record":
		return s.record(body)
	case "account":
		return s.account(args[1:])
	default:
		return "unknown command " + command
	}
}

func (s *story) match(name, body string, tolerant bool) string {
	req, e := wire.Chat.Parse([]byte(body), s.cache)
	if e != nil {
		return e.Error()
	}
	var out strings.Builder
	if tolerant {
		stored, replaced := s.forest.Tolerate(req)
		fmt.Fprintf(&out, "tolerates %d messages\n", replaced)
		req = stored
	}
	if d := s.forest.Divergence(req); d != nil {
		fmt.Fprintf(&out, "diverges from #%d: %s\n", d.Node.ID(), d)
	}
	m := s.forest.Match(req)
	s.requests[name] = &pending{req: req, match: m}
	fmt.Fprintf(&out, "extends %s #%d at message %d", m.Parent.Kind(), m.Parent.ID(), m.From)
	if m.Observation != nil {
		fmt.Fprintf(&out, ", observation #%d is there", m.Observation.ID())
	}
	return out.String() + "\n"
}

func (s *story) attach(p *pending) string {
	var body []int32
	if g := p.match.Parent.Generation(); g != nil && g.Truncated {
		body = s.encode(body, "<end>")
	}
	for _, m := range p.req.Messages[p.match.From:] {
		body = s.message(s.encode(body, "<"+string(m.Role)+">"), m)
	}
	p.obs = s.forest.Attach(p.match, body, s.encode(nil, "<assistant>"), p.req)
	s.keep(p.obs)
	return fmt.Sprintf("observation #%d\n", p.obs.ID())
}

func (s *story) keep(n *Node) {
	for len(s.nodes) <= n.ID() {
		s.nodes = append(s.nodes, nil)
	}
	s.nodes[n.ID()] = n
}

func (s *story) node(name string) *Node {
	id, err := strconv.Atoi(strings.TrimPrefix(name, "#"))
	if err != nil || id >= len(s.nodes) || s.nodes[id] == nil {
		panic("no node " + name)
	}
	return s.nodes[id]
}

// message appends the words of a message with its end marker.
func (s *story) message(ids []int32, m *canon.Message) []int32 {
	if m.Reasoning != "" {
		ids = s.encode(ids, "<think> "+m.Reasoning+" </think>")
	}
	ids = s.encode(ids, m.Content)
	for _, c := range m.ToolCalls {
		ids = s.encode(ids, c.Name+c.Arguments)
	}
	return s.encode(ids, "<end>")
}

// encode appends one id a word.
func (s *story) encode(ids []int32, text string) []int32 {
	for _, word := range strings.Fields(text) {
		id, ok := s.vocab[word]
		if !ok {
			id = int32(len(s.words))
			s.vocab[word] = id
			s.words = append(s.words, word)
		}
		ids = append(ids, id)
	}
	return ids
}

func (s *story) text(segments ...[]int32) string {
	var words []string
	for _, ids := range segments {
		for _, id := range ids {
			words = append(words, s.words[id])
		}
	}
	return strings.Join(words, " ")
}

func (s *story) reply(name string, options []string, body string) string {
	if !strings.HasPrefix(body, "{") {
		raw, _ := json.Marshal(map[string]string{"role": "assistant", "content": body})
		body = string(raw)
	}
	parsed, err := wire.ParseRecord([]byte("["+body+"]"), nil, nil)
	if err != nil {
		return err.Error()
	}
	g := Generation{Message: parsed.Messages[0], RequestID: name, Spans: []VersionSpan{{Version: 1}}}
	g.IDs = s.message(nil, g.Message)
	for _, option := range options {
		s.option(&g, option)
	}
	for i := range g.IDs {
		g.Logprobs = append(g.Logprobs, -float32(i+1)/8)
	}
	before := s.forest.Stats().Nodes
	n, err := s.forest.Commit(s.requests[name].obs, g)
	if err != nil {
		return err.Error()
	}
	s.keep(n)
	if s.forest.Stats().Nodes == before {
		return fmt.Sprintf("response #%d again", n.ID())
	}
	return fmt.Sprintf("response #%d", n.ID())
}

func (s *story) option(g *Generation, option string) {
	key, value, _ := strings.Cut(option, "=")
	number, _ := strconv.Atoi(value)
	switch key {
	case "ids":
		for i, id := range g.IDs {
			if word := s.words[id]; word != "<end>" {
				g.IDs[i] = s.encode(nil, word+value)[0]
			}
		}
	case "truncated":
		g.Truncated = true
		g.IDs = g.IDs[:len(g.IDs)-1]
	case "aborts":
		g.Aborts = number
	case "rollout":
		g.Rollout = int64(number)
	case "version":
		g.Spans = nil
		for _, span := range strings.Split(value, ",") {
			version, start, _ := strings.Cut(span, "@")
			v, _ := strconv.ParseInt(version, 10, 64)
			at, _ := strconv.Atoi(start)
			g.Spans = append(g.Spans, VersionSpan{Start: at, Version: v})
		}
	default:
		panic("unknown option " + option)
	}
}

func (s *story) exported(n *Node, err error) string {
	if err != nil {
		return "error: " + err.Error()
	}
	return fmt.Sprintf("%s #%d\n%s", n.Kind(), n.ID(), s.row(n))
}

func (s *story) record(body string) string {
	var record struct {
		Messages, Tools json.RawMessage
		Kwargs          json.RawMessage `json:"chat_template_kwargs"`
	}
	if err := json.Unmarshal([]byte(body), &record); err != nil {
		return err.Error()
	}
	req, err := wire.ParseRecord(record.Messages, record.Tools, record.Kwargs)
	if err != nil {
		return "error: " + err.Error()
	}
	return s.exported(s.forest.Find(req))
}

func (s *story) row(n *Node) string {
	row := s.forest.Row(n)
	var parts []string
	length := 0
	for _, p := range row.Pieces {
		length += len(p.Tokens)
		text := s.text(p.Tokens)
		if p.Logprobs != nil {
			if len(p.Logprobs) != len(p.Tokens) {
				panic("logprobs are not aligned")
			}
			text = "[" + text + "]"
		}
		parts = append(parts, text)
	}
	if length != row.Len {
		panic("row length is wrong")
	}
	out := fmt.Sprintf("prompt %d of %d tokens, %d turns, %d messages", row.PromptLen, row.Len, row.Turns, len(row.Messages))
	if row.Aborts > 0 {
		out += fmt.Sprintf(", %d aborts", row.Aborts)
	}
	if row.StartRollout > 0 {
		out += fmt.Sprintf(", started in rollout %d", row.StartRollout)
	}
	if row.Truncated {
		out += ", truncated"
	}
	for _, span := range row.Spans {
		out += fmt.Sprintf(", v%d@%d", span.Version, span.Start)
	}
	return out + "\n" + strings.Join(parts, " ")
}

func (s *story) account(names []string) string {
	var nodes []*Node
	for _, name := range names {
		nodes = append(nodes, s.node(name))
	}
	trained, sampled := s.forest.TrainedTokens(nodes...), s.forest.SampledTokens()
	return fmt.Sprintf("%d sampled = %d trained + %d dropped", sampled, trained, sampled-trained)
}
