package forest

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
	"github.com/relax-rollout/relax-rollout/relax/internal/wire"
)

// A story is the state of one script.
type story struct {
	forest   *Forest
	cache    *canon.Cache
	defaults canon.Value
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
	return &story{
		forest: New(name), cache: canon.NewCache(0), defaults: canon.ObjectOf(),
		vocab: map[string]int32{}, requests: map[string]*pending{},
	}
}

func (s *story) run(command, body string) string {
	args := strings.Fields(command)
	name, options := "", []string(nil)
	if len(args) > 1 {
		name, options = args[1], args[2:]
	}
	switch args[0] {
	case "request":
		out, ok := s.match(name, options, body)
		if ok {
			out += s.attach(s.requests[name])
		}
		return out
	case "match":
		out, _ := s.match(name, options, body)
		return out
	case "attach":
		return s.attach(s.requests[name])
	case "reply":
		return s.reply(name, options, body)
	case "defaults":
		v, err := canon.ParseValue([]byte(body))
		if err != nil {
			return err.Error()
		}
		s.defaults = v
		return "kwargs " + string(v.AppendCanonical(nil))
	case "undelivered":
		s.forest.Undelivered(s.node(name))
		return s.delivery(name)
	case "delivered":
		s.forest.Delivered(s.node(name))
		return s.delivery(name)
	default:
		return s.show(args, name, body)
	}
}

// show runs the commands that leave the forest as it is.
func (s *story) show(args []string, name, body string) string {
	switch args[0] {
	case "tree":
		var b strings.Builder
		if err := s.forest.Dump(&b); err != nil {
			return err.Error()
		}
		return b.String()
	case "tokens":
		return s.text(s.node(name).Prefix(nil)...)
	case "row":
		return s.row(s.forest.Row(s.node(name)))
	case "rows":
		return s.rows(args[1], args[2:])
	case "implicit":
		return s.exported(s.forest.Implicit())
	case "main":
		return s.main()
	case "record":
		return s.record(body, name == "tolerant")
	case "account":
		return s.account(args[1:])
	default:
		return "unknown command " + strings.Join(args, " ")
	}
}

// match parses a request and finds what it continues; ok is false if it is refused.
func (s *story) match(name string, options []string, body string) (out string, ok bool) {
	dialect := wire.Chat
	switch {
	case slices.Contains(options, "messages"):
		dialect = wire.Messages
	case slices.Contains(options, "responses"):
		dialect = wire.Responses
	}
	req, e := dialect.Parse([]byte(body), s.cache)
	if e != nil {
		return "refused: " + e.Message + "\n", false
	}
	req.Kwargs = canon.MergeKwargs(s.defaults, req.Kwargs)
	m := s.forest.Match(req)
	if slices.Contains(options, "tolerant") {
		var replaced int
		req, m, replaced = s.forest.MatchTolerant(req)
		out = fmt.Sprintf("tolerates %d messages", replaced)
		if len(m.Forgiven) > 0 {
			out += " in " + strings.Join(m.Forgiven, ", ")
		}
		out += "\n"
	}
	if d := s.forest.Explain(m, req); d != nil {
		out += fmt.Sprintf("diverges from #%d: %s\n", d.Node.ID(), d)
	}
	s.requests[name] = &pending{req: req, match: m}
	out += fmt.Sprintf("extends %s #%d at message %d", m.Parent.Kind(), m.Parent.ID(), m.From)
	if m.Observation != nil {
		out += fmt.Sprintf(", observation #%d is there", m.Observation.ID())
	}
	return out + "\n", true
}

func (s *story) attach(p *pending) string {
	var body []int32
	if g := p.match.Parent.Generation(); g != nil && !s.ended(g) {
		body = s.encode(body, "<end>")
	}
	for _, m := range p.req.Messages[p.match.From:] {
		body = s.message(s.encode(body, "<"+string(m.Role)+">"), m)
	}
	p.obs = s.forest.Attach(p.match, body, s.encode(nil, "<assistant>"), p.req)
	s.keep(p.obs)
	return fmt.Sprintf("observation #%d\n", p.obs.ID())
}

// ended reports whether a generation ends in the token that ends a turn; the observation behind
// it brings the token otherwise.
func (s *story) ended(g *Generation) bool {
	return len(g.IDs) > 0 && s.words[g.IDs[len(g.IDs)-1]] == "<end>"
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
	g := Generation{RequestID: name, Spans: []VersionSpan{{Version: 1}}}
	if body == "" {
		g.Message = canon.NewMessage(canon.Message{Role: canon.Assistant})
	} else {
		if !strings.HasPrefix(body, "{") {
			raw, _ := json.Marshal(map[string]string{"role": "assistant", "content": body})
			body = string(raw)
		}
		parsed, err := wire.ParseRecord([]byte("["+body+"]"), nil, nil)
		if err != nil {
			return err.Error()
		}
		g.Message = parsed.Messages[0]
	}
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
	case "empty":
		g.IDs, g.Spans, g.ParseError = nil, nil, "empty turn"
	case "silent":
		g.ParseError = "empty turn"
	case "unparsed":
		g.ParseError = "a call without its end"
	case "aborts":
		g.Aborts = number
	case "rollout":
		g.Rollout = int64(number)
	case "version":
		g.Spans = versions(value)
	default:
		panic("unknown option " + option)
	}
}

// versions reads N or N@i,M@j.
func versions(text string) []VersionSpan {
	var out []VersionSpan
	for _, span := range strings.Split(text, ",") {
		version, start, _ := strings.Cut(span, "@")
		v, _ := strconv.ParseInt(version, 10, 64)
		at, _ := strconv.Atoi(start)
		out = append(out, VersionSpan{Start: at, Version: v})
	}
	return out
}

func (s *story) exported(n *Node, err error) string {
	if err != nil {
		return "error: " + err.Error()
	}
	return fmt.Sprintf("%s #%d\n%s", n.Kind(), n.ID(), s.row(s.forest.Row(n)))
}

// delivery says how a response stands after a command.
func (s *story) delivery(name string) string {
	if s.node(name).IsUndelivered() {
		return "response " + name + " is undelivered"
	}
	return "response " + name + " is delivered"
}

func (s *story) main() string {
	n, side, err := s.forest.Main()
	out := s.exported(n, err)
	for _, other := range side {
		out += fmt.Sprintf("\nleft out: #%d", other.ID())
	}
	return out
}

func (s *story) rows(loss string, names []string) string {
	shared := map[string]SharedLoss{"each": SharedEach, "first": SharedFirst}[loss]
	var nodes []*Node
	for _, name := range names {
		nodes = append(nodes, s.node(name))
	}
	var out []string
	for i, row := range s.forest.Rows(nodes, shared) {
		out = append(out, names[i]+": "+s.row(row))
	}
	return strings.Join(out, "\n")
}

func (s *story) record(body string, tolerant bool) string {
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
	req.Kwargs = canon.MergeKwargs(s.defaults, req.Kwargs)
	if tolerant {
		return s.exported(s.forest.FindTolerant(req))
	}
	return s.exported(s.forest.Find(req))
}

func (s *story) row(row Lineage) string {
	var parts []string
	length := 0
	trained := 0
	for _, p := range row.Pieces {
		length += len(p.Tokens)
		text := s.text(p.Tokens)
		switch {
		case p.Logprobs != nil:
			if len(p.Logprobs) != len(p.Tokens) {
				panic("logprobs are not aligned")
			}
			trained += len(p.Tokens)
			text = "[" + text + "]"
		case p.TrainedBefore:
			text = "(" + text + ")"
		}
		parts = append(parts, text)
	}
	if length != row.Len || trained != row.Trained {
		panic("the row's counts are wrong")
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

// account shows every fate that some token has.
func (s *story) account(names []string) string {
	var nodes []*Node
	for _, name := range names {
		nodes = append(nodes, s.node(name))
	}
	fates := s.forest.Fates(nodes...)
	out := fmt.Sprintf("%d sampled = %d trained", fates.Sampled, fates.Trained)
	for _, dropped := range []struct {
		tokens int
		reason string
	}{{fates.Repeated, "repeated"}, {fates.Undelivered, "undelivered"}, {fates.Unexported, "not exported"}} {
		if dropped.tokens != 0 {
			out += fmt.Sprintf(" + %d %s", dropped.tokens, dropped.reason)
		}
	}
	return out
}
