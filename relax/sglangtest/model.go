package sglangtest

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/relax-rollout/relax-rollout/relax/internal/tokenizer"
)

// A Tokenizer turns text into ids and back. It is the engine's own interface under a name
// that code outside of the module can write; see [ByteTokenizer].
type Tokenizer = tokenizer.Tokenizer

const (
	// maxTries bounds the compiled candidate sets a Model keeps.
	maxTries = 1024
	// maxTrieKey bounds the captured text a kept set may be known by.
	maxTrieKey = 1024
)

// control finds what may be the spelling of a control token.
var control = regexp.MustCompile(`<[^<>\s]{1,40}>`)

// A Model is a policy in the tokens of one tokenizer. It is immutable but for its cache, and
// safe for concurrent use.
//
// The reply is what stands after the last reply header of the prompt (and after an empty
// think block, if the template wrote one). In a fresh prompt it is empty. In a resumed one
// it is the partial reply, and the model continues exactly there: the class is chosen by
// what stands before the header, so it stays the same, and the partial reply leads to a
// place in the trie. A partial reply that no candidate begins with cannot be continued; the
// model then says EOS with log probability 0. So it does after a reply's end.
//
// A prompt without a reply header is all context: it gets a reply from its beginning.
type Model struct {
	policy *Policy
	tok    Tokenizer
	eos    []int32
	format Format

	header      []int32
	messageMark int32 // the token that opens a message; -1: text, not one token
	skips       [][]int32

	needTail, needLast, needTurn bool

	mu    sync.Mutex
	tries map[string]*trie
}

// NewModel puts a policy into tokens. eos are the ids that end a reply, the first being the
// default; it must not be empty. A stop spelling that is not a token is an error, and so is
// a candidate with a stop token inside.
func NewModel(policy *Policy, tok Tokenizer, eos []int32) (*Model, error) {
	if policy == nil || policy.classes == nil {
		return nil, fmt.Errorf("model: the policy is not ready; read it with ParsePolicy or NewPolicy")
	}
	if len(eos) == 0 {
		return nil, fmt.Errorf("model: no EOS id given")
	}
	m := &Model{policy: policy, tok: tok, eos: eos, format: policy.Format.withDefaults(),
		messageMark: -1, tries: map[string]*trie{}}
	m.needTail, m.needLast, m.needTurn = policy.needs()
	var err error
	if m.header, err = m.markup(m.format.ReplyHeader); err != nil {
		return nil, fmt.Errorf("model: reply_header: %w", err)
	}
	if id, ok := tok.TokenID(m.format.MessageStart); ok {
		m.messageMark = id
	}
	for _, skip := range m.format.ReplySkip {
		ids, err := m.markup(skip)
		if err != nil {
			return nil, fmt.Errorf("model: reply_skip: %w", err)
		}
		m.skips = append(m.skips, ids)
	}
	for i := range policy.classes {
		if c := &policy.classes[i]; c.fixed {
			if _, err := m.trie(i, nil); err != nil {
				return nil, fmt.Errorf("model: %w", err)
			}
		}
	}
	return m, nil
}

// Policy is what the model was made from.
func (m *Model) Policy() *Policy { return m.policy }

// markup encodes text whose control tokens are spelled out.
func (m *Model) markup(text string) ([]int32, error) {
	return m.encode(template{{literal: text}}, nil, nil)
}

// encode appends the ids of a template. Only control tokens of literal text are written as
// such: a captured text is data.
func (m *Model) encode(t template, captures map[string]string, text *strings.Builder) ([]int32, error) {
	var ids []int32
	var plain strings.Builder
	flush := func() error {
		more, err := m.tok.Encode(plain.String())
		if err != nil {
			return err
		}
		ids = append(ids, more...)
		if text != nil {
			text.WriteString(plain.String())
		}
		plain.Reset()
		return nil
	}
	for _, p := range t {
		if p.name != "" || p.expr != nil {
			value, err := p.value(captures)
			if err != nil {
				return nil, err
			}
			plain.WriteString(value)
			continue
		}
		rest := p.literal
		for _, span := range control.FindAllStringIndex(p.literal, -1) {
			spelling := p.literal[span[0]:span[1]]
			id, ok := m.tok.TokenID(spelling)
			if !ok {
				continue
			}
			plain.WriteString(rest[:span[0]-(len(p.literal)-len(rest))])
			if err := flush(); err != nil {
				return nil, err
			}
			ids = append(ids, id)
			if text != nil {
				text.WriteString(spelling)
			}
			rest = p.literal[span[1]:]
		}
		plain.WriteString(rest)
	}
	err := flush()
	return ids, err
}

// trie returns the candidates of a class for given captures.
func (m *Model) trie(class int, captures map[string]string) (*trie, error) {
	c := &m.policy.classes[class]
	key := trieKey(class, c, captures)
	m.mu.Lock()
	t := m.tries[key]
	m.mu.Unlock()
	if t != nil {
		return t, nil
	}
	t, err := m.build(c, captures)
	if err != nil {
		return nil, fmt.Errorf("policy class %q: %w", c.name, err)
	}
	if len(key) > maxTrieKey {
		return t, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.tries) >= maxTries {
		clear(m.tries)
	}
	m.tries[key] = t
	return t, nil
}

func trieKey(class int, c *compiledClass, captures map[string]string) string {
	key := []byte{byte(class), byte(class >> 8), byte(class >> 16)}
	if c.fixed {
		return string(key)
	}
	for _, t := range c.templates {
		t.names(func(name string) {
			key = append(append(key, captures[name]...), 0)
		})
	}
	return string(key)
}

func (m *Model) build(c *compiledClass, captures map[string]string) (*trie, error) {
	candidates := make([]trieCandidate, len(c.candidates))
	weights := make([]float64, len(c.candidates))
	for i, spec := range c.candidates {
		var text strings.Builder
		ids, err := m.encode(c.templates[i], captures, &text)
		if err != nil {
			return nil, fmt.Errorf("candidate %d: %w", i, err)
		}
		stop := m.eos[0]
		if spec.Stop != "" {
			id, ok := m.tok.TokenID(spec.Stop)
			if !ok {
				return nil, fmt.Errorf("candidate %d: stop %q is not a token of the tokenizer", i, spec.Stop)
			}
			stop = id
		}
		for _, id := range ids {
			if id == stop || slices.Contains(m.eos, id) {
				return nil, fmt.Errorf("candidate %d: a stop token stands inside the text; it may only end a reply", i)
			}
		}
		candidates[i] = trieCandidate{index: i, text: text.String(), ids: append(ids, stop)}
		weights[i] = spec.Weight
	}
	return newTrie(candidates, weights)
}

// A place is where a reply stands: a node of a class's trie, or off it.
type place struct {
	class int
	trie  *trie
	at    int32
}

// locate finds the place a prompt leads to.
func (m *Model) locate(prompt []int32) (place, error) {
	contextEnd, replyStart := m.split(prompt)
	view, err := m.view(prompt, contextEnd)
	if err != nil {
		return place{}, fmt.Errorf("matching the prompt: %w", err)
	}
	class, captures := m.policy.classify(view)
	t, err := m.trie(class, captures)
	if err != nil {
		return place{}, err
	}
	return place{class: class, trie: t, at: m.enter(t, prompt[replyStart:])}, nil
}

// split finds where the context ends and where the reply begins. Without a reply header
// both are the prompt's end.
func (m *Model) split(prompt []int32) (contextEnd, replyStart int) {
	for at := len(prompt) - 1; at >= 0; at-- {
		if m.isHeader(prompt, at) {
			return at, at + len(m.header)
		}
		if m.messageMark >= 0 && prompt[at] == m.messageMark {
			break // a later message of someone else: nobody asked for a reply
		}
	}
	return len(prompt), len(prompt)
}

func (m *Model) isHeader(prompt []int32, at int) bool {
	return prompt[at] == m.header[0] && len(prompt)-at >= len(m.header) &&
		slices.Equal(prompt[at:at+len(m.header)], m.header)
}

// enter walks a partial reply. What a template may have added before it is skipped if the
// reply does not fit without.
func (m *Model) enter(t *trie, reply []int32) int32 {
	if at, ok := t.walk(0, reply); ok {
		return at
	}
	for _, skip := range m.skips {
		if len(reply) < len(skip) || !slices.Equal(reply[:len(skip)], skip) {
			continue
		}
		if at, ok := t.walk(0, reply[len(skip):]); ok {
			return at
		}
	}
	return offTrie
}

// view decodes what the policy's conditions look at.
func (m *Model) view(prompt []int32, contextEnd int) (promptView, error) {
	v := promptView{}
	if m.needTurn {
		v.turn = m.turn(prompt[:contextEnd])
	}
	if !m.needTail && !m.needLast {
		return v, nil
	}
	tail := prompt[max(0, contextEnd-m.policy.TailTokens):contextEnd]
	if !m.needTail && m.messageMark >= 0 {
		if at := lastIndex(tail, m.messageMark); at >= 0 {
			tail = tail[at:]
		}
	}
	text, err := m.tok.Decode(tail)
	if err != nil {
		return v, err
	}
	v.tail, v.last = text, text
	if at := strings.LastIndex(text, m.format.MessageStart); at >= 0 {
		v.last = text[at+len(m.format.MessageStart):]
	}
	v.last = trimMessage(v.last, m.format.MessageEnd)
	return v, nil
}

// turn is the number of the reply: one more than the replies before it.
func (m *Model) turn(context []int32) int {
	n := 1
	for at := range context {
		if m.isHeader(context, at) {
			n++
		}
	}
	return n
}

func lastIndex(ids []int32, id int32) int {
	for i := len(ids) - 1; i >= 0; i-- {
		if ids[i] == id {
			return i
		}
	}
	return -1
}

// A Candidate is one way a reply can go on.
type Candidate struct {
	// Class is the prompt's class and Index the candidate's number in it.
	Class string `json:"class"`
	Index int    `json:"index"`
	// Text is the whole reply without its stop token.
	Text string `json:"text"`
	// IDs are the tokens still to come, with the stop token.
	IDs []int32 `json:"ids"`
	// LogProb is the natural log of the probability of IDs after the prompt.
	LogProb float64 `json:"logprob"`
}

// Distribution returns every reply that is possible after a prompt with its log probability
// at temperature 1. Candidates of equal tokens are one. Off the trie it is the EOS alone,
// with index -1.
func (m *Model) Distribution(prompt []int32) ([]Candidate, error) {
	return m.DistributionAt(prompt, 1)
}

// DistributionAt is Distribution at another temperature, which scales each token's choice,
// not the choice of a candidate as a whole. Below 1e-6 it counts as 1, as logprobs do.
func (m *Model) DistributionAt(prompt []int32, temperature float64) ([]Candidate, error) {
	temperature = logprobTemperature(temperature)
	p, err := m.locate(prompt)
	if err != nil {
		return nil, err
	}
	name := m.policy.classes[p.class].name
	if p.at == offTrie || len(p.trie.nodes[p.at].edges) == 0 {
		return []Candidate{{Class: name, Index: -1, IDs: []int32{m.eos[0]}}}, nil
	}
	var out []Candidate
	p.trie.leaves(p.at, temperature, func(leaf int32, logprob float64, ids []int32) {
		for _, c := range p.trie.candidates {
			if c.leaf == leaf {
				out = append(out, Candidate{Class: name, Index: c.index, Text: c.text, IDs: slices.Clone(ids), LogProb: logprob})
			}
		}
	})
	slices.SortFunc(out, func(a, b Candidate) int { return a.Index - b.Index })
	return out, nil
}

// leaves calls yield for each leaf below a node with the log probability of the way to it.
func (t *trie) leaves(at int32, temperature float64, yield func(leaf int32, logprob float64, ids []int32)) {
	type step struct {
		at      int32
		depth   int
		id      int32
		logprob float64
	}
	stack := []step{{at: at}}
	var path []int32
	for len(stack) > 0 {
		s := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if s.depth > 0 {
			path = append(path[:s.depth-1], s.id)
		}
		edges := t.nodes[s.at].edges
		if len(edges) == 0 {
			yield(s.at, s.logprob, path)
			continue
		}
		for i, lp := range t.logprobs(s.at, temperature, nil) {
			stack = append(stack, step{at: edges[i].node, depth: s.depth + 1, id: edges[i].id, logprob: s.logprob + lp})
		}
	}
}

// TokenLogprobs returns the log probability, at temperature 1, of each of ids as the
// continuation of a prompt. A token the model cannot say there is an error.
func (m *Model) TokenLogprobs(prompt, ids []int32) ([]float32, error) {
	return m.TokenLogprobsAt(prompt, ids, 1)
}

// TokenLogprobsAt is TokenLogprobs at another temperature. Below 1e-6 (greedy) it counts as
// 1, as in the server's replies.
func (m *Model) TokenLogprobsAt(prompt, ids []int32, temperature float64) ([]float32, error) {
	temperature = logprobTemperature(temperature)
	p, err := m.locate(prompt)
	if err != nil {
		return nil, err
	}
	out := make([]float32, 0, len(ids))
	for i, id := range ids {
		if p.at == offTrie || len(p.trie.nodes[p.at].edges) == 0 {
			if id != m.eos[0] {
				return nil, fmt.Errorf("token %d (id %d): after the end of the reply only EOS (id %d) can come", i, id, m.eos[0])
			}
			out = append(out, 0)
			p.at = offTrie
			continue
		}
		lp, ok := p.trie.logprob(p.at, id, temperature)
		if !ok {
			return nil, fmt.Errorf("token %d (id %d) is in no candidate of class %q there", i, id, m.policy.classes[p.class].name)
		}
		out = append(out, float32(lp))
		p.at = p.trie.child(p.at, id)
	}
	return out, nil
}

func logprobTemperature(t float64) float64 {
	if t < greedyBelow {
		return 1
	}
	return t
}
