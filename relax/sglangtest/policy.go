package sglangtest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"regexp"
	"strings"
)

// DefaultClass is the name under which Policy.Default's candidates are known to [Policy.Class]
// and to weights documents.
const DefaultClass = "default"

// maxWeight bounds a logit's absolute value, so that mass stays finite at any temperature
// above the greedy threshold.
const maxWeight = 1e6

// A Policy says what the simulated model replies. Read it with [ParsePolicy]; a Policy is
// immutable after that and safe for concurrent use.
//
// The classes are tried in order and the first whose Match holds gives the candidates; if
// none does, Default gives them. A candidate is sampled with probability softmax(weight)
// over its class.
type Policy struct {
	// Classes are the kinds of prompts the policy tells apart.
	Classes []Class `json:"classes"`
	// Default answers every other prompt. Required: at least one candidate.
	Default []CandidateSpec `json:"default"`
	// Format says how a chat prompt is recognised. The zero value is ChatML, Qwen's format.
	Format Format `json:"format,omitzero"`
	// TailTokens bounds how many tokens before the reply are decoded for matching. Default 4096.
	TailTokens int `json:"tail_tokens,omitempty"`

	classes []compiledClass // Classes, then Default
}

// A Class is a kind of prompt and what is replied to it.
type Class struct {
	// Name is unique in the policy and not "default".
	Name string `json:"name"`
	// Match says which prompts belong to the class.
	Match Match `json:"match"`
	// Candidates are the replies. At least one.
	Candidates []CandidateSpec `json:"candidates"`
}

// A CandidateSpec is one reply of a class.
type CandidateSpec struct {
	// Text is the reply. ${name} is a capture of the class's regular expressions, ${a+b*2}
	// an integer expression over captures (+ - * and parentheses, any size); $${ is a literal
	// ${. Spellings of control tokens in it, but not those in captured text, become control
	// tokens.
	Text string `json:"text"`
	// Weight is the logit. Default 0. At most 1e6 in absolute value.
	Weight float64 `json:"weight"`
	// Stop is the spelling of the token that ends the reply. Default: the first EOS.
	Stop string `json:"stop,omitempty"`
}

// A Match is a set of conditions; all that are given must hold. No condition holds always.
//
// The tail is the decoded text of the last TailTokens tokens before the reply, control
// tokens spelled out. The last message is the part of the tail after the last message start,
// which begins with the role and a newline, without its closing marker and the white space
// around it.
type Match struct {
	// Contains and ContainsAll are substrings of the tail.
	Contains    string   `json:"contains,omitempty"`
	ContainsAll []string `json:"contains_all,omitempty"`
	// Regex (RE2) is searched in the tail. The last match gives the named captures.
	Regex string `json:"regex,omitempty"`
	// LastContains is a substring of the last message, LastRegex is searched in it. Its
	// captures win over Regex's.
	LastContains string `json:"last_contains,omitempty"`
	LastRegex    string `json:"last_regex,omitempty"`
	// Role is the role of the last message.
	Role string `json:"role,omitempty"`
	// Turn is the number of the reply in the conversation, from 1. 0: any.
	Turn int `json:"turn,omitempty"`
}

// A Format says how a chat prompt is laid out, in spellings of tokens and text.
type Format struct {
	// MessageStart opens a message. Default "<|im_start|>".
	MessageStart string `json:"message_start,omitempty"`
	// MessageEnd closes one. Default "<|im_end|>".
	MessageEnd string `json:"message_end,omitempty"`
	// ReplyHeader ends a prompt that asks for a reply. Default "<|im_start|>assistant\n".
	ReplyHeader string `json:"reply_header,omitempty"`
	// ReplySkip are texts a template may add after the header and which are not part of the
	// reply. Default: the empty think block "<think>\n\n</think>\n\n" and "<think>\n".
	ReplySkip []string `json:"reply_skip,omitempty"`
}

func (f Format) withDefaults() Format {
	if f.MessageStart == "" {
		f.MessageStart = "<|im_start|>"
	}
	if f.MessageEnd == "" {
		f.MessageEnd = "<|im_end|>"
	}
	if f.ReplyHeader == "" {
		f.ReplyHeader = "<|im_start|>assistant\n"
	}
	if f.ReplySkip == nil {
		f.ReplySkip = []string{"<think>\n\n</think>\n\n", "<think>\n"}
	}
	return f
}

type compiledClass struct {
	name       string
	match      Match
	regex      *regexp.Regexp
	lastRegex  *regexp.Regexp
	candidates []CandidateSpec
	templates  []template
	fixed      bool // no candidate depends on captures
}

// ParsePolicy reads a policy document: the JSON of a [Policy]. Unknown fields, bad regular
// expressions, bad templates and references to captures that do not exist are errors.
func ParsePolicy(document []byte) (*Policy, error) {
	p := new(Policy)
	if err := decodeStrict(document, p); err != nil {
		return nil, fmt.Errorf("policy: %w", err)
	}
	if err := p.compile(); err != nil {
		return nil, fmt.Errorf("policy: %w", err)
	}
	return p, nil
}

// NewPolicy checks a policy built in Go. The argument's slices must not be changed after it.
func NewPolicy(p Policy) (*Policy, error) {
	if err := p.compile(); err != nil {
		return nil, fmt.Errorf("policy: %w", err)
	}
	return &p, nil
}

// decodeStrict decodes exactly one JSON value without unknown fields.
func decodeStrict(document []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(document))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return fmt.Errorf("text after the end of the document at byte %d", d.InputOffset())
	}
	return nil
}

func (p *Policy) compile() error {
	if p.TailTokens < 0 {
		return fmt.Errorf("tail_tokens is %d, expected a positive number", p.TailTokens)
	}
	if p.TailTokens == 0 {
		p.TailTokens = 4096
	}
	seen := map[string]bool{DefaultClass: true}
	p.classes = make([]compiledClass, 0, len(p.Classes)+1)
	for i, c := range p.Classes {
		if c.Name == "" {
			return fmt.Errorf("class %d has no name", i)
		}
		if seen[c.Name] {
			return fmt.Errorf("class name %q is taken", c.Name)
		}
		seen[c.Name] = true
		if err := p.add(c); err != nil {
			return fmt.Errorf("class %q: %w", c.Name, err)
		}
	}
	if err := p.add(Class{Name: DefaultClass, Candidates: p.Default}); err != nil {
		return fmt.Errorf("default: %w", err)
	}
	return nil
}

func (p *Policy) add(c Class) error {
	cc := compiledClass{name: c.Name, match: c.Match, candidates: c.Candidates, fixed: true}
	known := map[string]bool{}
	var err error
	if cc.regex, err = compileRegex("regex", c.Match.Regex, known); err != nil {
		return err
	}
	if cc.lastRegex, err = compileRegex("last_regex", c.Match.LastRegex, known); err != nil {
		return err
	}
	if c.Match.Turn < 0 {
		return fmt.Errorf("turn is %d, expected 1 or more, or 0 for any", c.Match.Turn)
	}
	if len(c.Candidates) == 0 {
		return fmt.Errorf("no candidates; give at least one")
	}
	for i, spec := range c.Candidates {
		t, err := compileCandidate(spec, known)
		if err != nil {
			return fmt.Errorf("candidate %d: %w", i, err)
		}
		t.names(func(string) { cc.fixed = false })
		cc.templates = append(cc.templates, t)
	}
	p.classes = append(p.classes, cc)
	return nil
}

func compileRegex(field, text string, known map[string]bool) (*regexp.Regexp, error) {
	if text == "" {
		return nil, nil
	}
	re, err := regexp.Compile(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", field, err)
	}
	for _, name := range re.SubexpNames() {
		known[name] = true
	}
	return re, nil
}

func compileCandidate(spec CandidateSpec, known map[string]bool) (template, error) {
	if err := checkWeight(spec.Weight); err != nil {
		return nil, err
	}
	t, err := parseTemplate(spec.Text)
	if err != nil {
		return nil, err
	}
	t.names(func(name string) {
		if err == nil && !known[name] {
			err = fmt.Errorf("${%s}: no regular expression of the class captures %q", name, name)
		}
	})
	return t, err
}

func checkWeight(w float64) error {
	if math.IsNaN(w) || math.Abs(w) > maxWeight {
		return fmt.Errorf("weight is %v, expected a number between -1e6 and 1e6", w)
	}
	return nil
}

// Document is the policy's JSON.
func (p *Policy) Document() []byte {
	document, err := json.Marshal(p)
	if err != nil {
		panic("sglangtest: a checked policy has no JSON: " + err.Error())
	}
	return document
}

// Weights returns every class's logits in the order of its candidates.
func (p *Policy) Weights() map[string][]float64 {
	weights := make(map[string][]float64, len(p.classes))
	for _, c := range p.classes {
		for _, spec := range c.candidates {
			weights[c.name] = append(weights[c.name], spec.Weight)
		}
	}
	return weights
}

// WithWeights returns a copy of the policy with the given classes' logits replaced. A class
// that is not named keeps its own; an unknown class or a wrong count is an error.
func (p *Policy) WithWeights(weights map[string][]float64) (*Policy, error) {
	next := *p
	next.Classes = make([]Class, len(p.Classes))
	copy(next.Classes, p.Classes)
	left := len(weights)
	for i := range next.Classes {
		c := &next.Classes[i]
		values, ok := weights[c.Name]
		if !ok {
			continue
		}
		left--
		var err error
		if c.Candidates, err = reweigh(c.Candidates, values); err != nil {
			return nil, fmt.Errorf("weights of class %q: %w", c.Name, err)
		}
	}
	if values, ok := weights[DefaultClass]; ok {
		left--
		var err error
		if next.Default, err = reweigh(next.Default, values); err != nil {
			return nil, fmt.Errorf("weights of class %q: %w", DefaultClass, err)
		}
	}
	if left > 0 {
		return nil, fmt.Errorf("weights: %w", p.unknownClass(weights))
	}
	if err := next.compile(); err != nil {
		return nil, err
	}
	return &next, nil
}

func (p *Policy) unknownClass(weights map[string][]float64) error {
	known := p.Weights()
	for name := range weights {
		if _, ok := known[name]; !ok {
			return fmt.Errorf("the policy has no class %q", name)
		}
	}
	return fmt.Errorf("a class is named twice")
}

func reweigh(old []CandidateSpec, weights []float64) ([]CandidateSpec, error) {
	if len(weights) != len(old) {
		return nil, fmt.Errorf("got %d numbers for %d candidates", len(weights), len(old))
	}
	next := make([]CandidateSpec, len(old))
	copy(next, old)
	for i, w := range weights {
		if err := checkWeight(w); err != nil {
			return nil, fmt.Errorf("number %d: %w", i, err)
		}
		next[i].Weight = w
	}
	return next, nil
}

// Class says which class the text of a prompt falls into and what its regular expressions
// capture. It looks at the text as the server looks at the tokens; a partial reply at the
// end of the prompt is not part of what is matched. TailTokens counts bytes here.
func (p *Policy) Class(prompt string) (name string, captures map[string]string) {
	f := p.Format.withDefaults()
	v := promptView{turn: 1}
	context := prompt
	if at := strings.LastIndex(prompt, f.ReplyHeader); at >= 0 {
		rest := prompt[at+len(f.ReplyHeader):]
		v.turn = strings.Count(prompt, f.ReplyHeader)
		if strings.Contains(rest, f.MessageStart) {
			v.turn++ // the last header belongs to an earlier reply
		} else {
			context = prompt[:at]
		}
	}
	v.tail = context[max(0, len(context)-p.TailTokens):]
	v.last = v.tail
	if at := strings.LastIndex(v.tail, f.MessageStart); at >= 0 {
		v.last = v.tail[at+len(f.MessageStart):]
	}
	v.last = trimMessage(v.last, f.MessageEnd)
	index, captures := p.classify(v)
	return p.classes[index].name, captures
}

// trimMessage cuts the closing marker and the white space around it.
func trimMessage(text, end string) string {
	text = strings.TrimRight(text, " \r\n\t")
	text = strings.TrimSuffix(text, end)
	return strings.TrimRight(text, " \r\n\t")
}

// A promptView is what conditions are checked against.
type promptView struct {
	tail string
	last string
	turn int
}

// classify returns the index of the first class that matches, and its captures.
func (p *Policy) classify(v promptView) (int, map[string]string) {
	for i := range p.classes[:len(p.classes)-1] {
		if captures, ok := p.classes[i].matches(v); ok {
			return i, captures
		}
	}
	return len(p.classes) - 1, nil
}

func (c *compiledClass) matches(v promptView) (map[string]string, bool) {
	m := &c.match
	if m.Turn != 0 && m.Turn != v.turn {
		return nil, false
	}
	if m.Role != "" && !strings.HasPrefix(v.last, m.Role+"\n") && v.last != m.Role {
		return nil, false
	}
	if !strings.Contains(v.last, m.LastContains) || !strings.Contains(v.tail, m.Contains) {
		return nil, false
	}
	for _, s := range m.ContainsAll {
		if !strings.Contains(v.tail, s) {
			return nil, false
		}
	}
	captures := map[string]string{}
	if !capture(c.regex, v.tail, captures) || !capture(c.lastRegex, v.last, captures) {
		return nil, false
	}
	return captures, true
}

// capture adds the named groups of the last match of re in text. A nil re matches.
func capture(re *regexp.Regexp, text string, into map[string]string) bool {
	if re == nil {
		return true
	}
	all := re.FindAllStringSubmatch(text, -1)
	if len(all) == 0 {
		return false
	}
	last := all[len(all)-1]
	for i, name := range re.SubexpNames() {
		if name != "" {
			into[name] = last[i]
		}
	}
	return true
}

// needs says what of a prompt any class looks at, so that the rest is not decoded.
func (p *Policy) needs() (tail, last, turn bool) {
	for _, c := range p.classes {
		m := c.match
		tail = tail || m.Contains != "" || len(m.ContainsAll) > 0 || m.Regex != ""
		last = last || m.LastContains != "" || m.LastRegex != "" || m.Role != ""
		turn = turn || m.Turn != 0
	}
	return tail, last, turn
}
