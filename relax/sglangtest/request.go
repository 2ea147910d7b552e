package sglangtest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"

	"github.com/bytedance/sonic"
)

// A GenerateRequest is a parsed body of /generate. Fields the simulator has no use for are
// not here; see [Record] for the body as received.
type GenerateRequest struct {
	RID                 string
	Text                string  // used if InputIDs is nil
	InputIDs            []int32 // the prompt, before images are expanded
	Sampling            SamplingParams
	ReturnLogprob       bool
	ReturnText          bool // return_text_in_logprobs
	ReturnPromptIDs     bool // return_prompt_token_ids
	Stream              bool
	Images              int // number of image_data items
	SessionID           string
	RoutedExperts       bool // return_routed_experts
	ExpertsStart        int  // routed_experts_start_len
	RoutedDPRank        *int
	PathMethod          string // the HTTP method, POST or PUT
	AuthorizationHeader string
	RoutingKeyHeader    string // X-SMG-Routing-Key
}

// A refusal is an answer other than a generation.
type refusal struct {
	status  int
	message string
	plain   bool // a bare text, as an unexpected exception gives
	schema  bool // the shape of a body that does not parse
}

func (r *refusal) Error() string { return r.message }

func badValue(format string, args ...any) *refusal {
	return &refusal{status: 400, message: fmt.Sprintf(format, args...)}
}

func badBody(format string, args ...any) *refusal {
	return &refusal{status: 400, message: fmt.Sprintf(format, args...), schema: true}
}

// generateBody is what is read of a body. The polymorphic fields are looked at by hand.
type generateBody struct {
	RID               json.RawMessage `json:"rid"`
	Text              json.RawMessage `json:"text"`
	InputIDs          idList          `json:"input_ids"`
	InputEmbeds       json.RawMessage `json:"input_embeds"`
	SamplingParams    json.RawMessage `json:"sampling_params"`
	ReturnLogprob     json.RawMessage `json:"return_logprob"`
	LogprobStartLen   *int            `json:"logprob_start_len"`
	TopLogprobsNum    *int            `json:"top_logprobs_num"`
	TokenIDsLogprob   json.RawMessage `json:"token_ids_logprob"`
	ReturnText        *bool           `json:"return_text_in_logprobs"`
	ReturnPromptIDs   *bool           `json:"return_prompt_token_ids"`
	Stream            *bool           `json:"stream"`
	ImageData         json.RawMessage `json:"image_data"`
	VideoData         json.RawMessage `json:"video_data"`
	AudioData         json.RawMessage `json:"audio_data"`
	SessionParams     json.RawMessage `json:"session_params"`
	SessionID         *string         `json:"session_id"`
	LoraPath          json.RawMessage `json:"lora_path"`
	RoutedDPRank      *int            `json:"routed_dp_rank"`
	DataParallelRank  *int            `json:"data_parallel_rank"`
	HiddenStates      json.RawMessage `json:"return_hidden_states"`
	RoutedExperts     *bool           `json:"return_routed_experts"`
	ExpertsStart      int             `json:"routed_experts_start_len"`
	LogitProcessor    json.RawMessage `json:"custom_logit_processor"`
	ReturnSamplingSet *bool           `json:"return_sampling_mask"`
}

// bodyJSON reads bodies: strict about strings and the case of keys, like the real server.
var bodyJSON = sonic.Config{ValidateString: true, CaseSensitive: true, CopyString: true}.Froze()

// parseGenerate reads a /generate body. Errors are *refusal.
func parseGenerate(body []byte) (*GenerateRequest, error) {
	var b generateBody
	if err := b.decode(body); err != nil {
		return nil, badBody("the body does not parse: %s", firstLine(err.Error()))
	}
	req := &GenerateRequest{Stream: isTrue(b.Stream), ReturnText: isTrue(b.ReturnText), ReturnPromptIDs: isTrue(b.ReturnPromptIDs), RoutedDPRank: b.RoutedDPRank,
		RoutedExperts: isTrue(b.RoutedExperts), ExpertsStart: b.ExpertsStart}
	if req.RoutedDPRank == nil {
		req.RoutedDPRank = b.DataParallelRank
	}
	if b.SessionID != nil {
		req.SessionID = *b.SessionID
	}
	if err := b.unsupported(); err != nil {
		return nil, err
	}
	if err := single("rid", b.RID, &req.RID); err != nil {
		return nil, err
	}
	if err := single("return_logprob", b.ReturnLogprob, &req.ReturnLogprob); err != nil {
		return nil, err
	}
	if err := b.prompt(req); err != nil {
		return nil, err
	}
	var err error
	req.Images, err = countItems(b.ImageData)
	if err != nil {
		return nil, err
	}
	return req, parseSampling(b.SamplingParams, &req.Sampling)
}

func (b *generateBody) decode(body []byte) error {
	if rest, ids, ok := liftIDs(body); ok {
		err := bodyJSON.Unmarshal(rest, b)
		if err == nil && b.InputIDs.marked {
			b.InputIDs.ids = ids
			return nil
		}
		*b = generateBody{} // another key's list, or an error that should name the real body
	}
	err := bodyJSON.Unmarshal(body, b)
	if b.InputIDs.marked {
		b.InputIDs.bad = badBody("input_ids item 0 is not a token id")
	}
	return err
}

// unsupported refuses what the simulator cannot answer truthfully.
func (b *generateBody) unsupported() error {
	for _, f := range []struct {
		name  string
		given bool
	}{
		{"input_embeds", given(b.InputEmbeds)},
		{"top_logprobs_num", b.TopLogprobsNum != nil && *b.TopLogprobsNum != 0},
		{"token_ids_logprob", given(b.TokenIDsLogprob)},
		{"video_data", given(b.VideoData)},
		{"audio_data", given(b.AudioData)},
		{"session_params", given(b.SessionParams)},
		{"lora_path", given(b.LoraPath)},
		{"return_hidden_states", given(b.HiddenStates) && string(b.HiddenStates) != "false"},
		{"custom_logit_processor", given(b.LogitProcessor)},
		{"return_sampling_mask", isTrue(b.ReturnSamplingSet)},
	} {
		if f.given {
			return badValue("%s is not supported by the simulator; leave it out", f.name)
		}
	}
	if b.LogprobStartLen != nil && *b.LogprobStartLen != -1 {
		return badValue("logprob_start_len %d is not supported by the simulator; expected -1", *b.LogprobStartLen)
	}
	return nil
}

func (b *generateBody) prompt(req *GenerateRequest) error {
	switch {
	case b.InputIDs.set:
		if b.InputIDs.bad != nil {
			return b.InputIDs.bad
		}
		if b.InputIDs.nested {
			return badValue("input_ids holds several prompts; the simulator takes one prompt a request")
		}
		if len(b.InputIDs.ids) == 0 {
			return badValue("input_ids cannot be empty")
		}
		req.InputIDs = b.InputIDs.ids
		return nil
	case given(b.Text):
		return single("text", b.Text, &req.Text)
	}
	return badValue("either text, input_ids or input_embeds should be provided")
}

func given(raw json.RawMessage) bool { return len(raw) > 0 && string(raw) != "null" }

func isTrue(b *bool) bool { return b != nil && *b }

// single decodes a field that may be a list in a batch.
func single(name string, raw json.RawMessage, into any) error {
	if !given(raw) {
		return nil
	}
	if raw[0] == '[' {
		return badValue("%s is a list; the simulator takes one prompt a request", name)
	}
	if err := bodyJSON.Unmarshal(raw, into); err != nil {
		return badBody("%s: %s", name, firstLine(err.Error()))
	}
	return nil
}

// countItems counts images: a list's items, else the one item.
func countItems(raw json.RawMessage) (int, error) {
	if !given(raw) {
		return 0, nil
	}
	if raw[0] != '[' {
		return 1, nil
	}
	var items []json.RawMessage
	if err := bodyJSON.Unmarshal(raw, &items); err != nil {
		return 0, badBody("image_data: %s", firstLine(err.Error()))
	}
	return len(items), nil
}

func firstLine(s string) string {
	line, _, _ := bytes.Cut([]byte(s), []byte("\n"))
	return string(line)
}

// An idList is input_ids. It is read by hand because it is most of the body.
type idList struct {
	ids    []int32
	set    bool
	nested bool
	marked bool  // it was idsMark
	bad    error // kept here: a decoder may not hand an error on unchanged
}

// UnmarshalJSON implements json.Unmarshaler.
func (l *idList) UnmarshalJSON(raw []byte) error {
	raw = bytes.TrimSpace(raw)
	*l = idList{}
	if len(raw) == 0 || string(raw) == "null" {
		return nil
	}
	l.set = true
	if l.marked = string(raw) == idsMark; l.marked {
		return nil
	}
	if raw[0] != '[' {
		l.bad = badBody("input_ids is not a list")
		return nil
	}
	raw = bytes.TrimLeft(raw[1:], " \t\r\n")
	if len(raw) > 0 && raw[0] == '[' {
		l.nested = true
		return nil
	}
	ids, _, ok := readIDs(raw)
	if !ok {
		l.bad = badBody("input_ids item %d is not a token id", len(ids))
		return nil
	}
	l.ids = ids
	return nil
}

// readIDs reads a list of ids behind its opening bracket, strictly as JSON has it, and
// returns what stands behind the list. If ok is false the item after ids is something else.
func readIDs(raw []byte) (ids []int32, rest []byte, ok bool) {
	ids = make([]int32, 0, len(raw)/4)
	at := skipSpace(raw, 0)
	if at < len(raw) && raw[at] == ']' {
		return ids, raw[at+1:], true
	}
	for {
		start, value := at, int64(0)
		for ; at < len(raw) && isDigit(raw[at]) && value <= math.MaxInt32; at++ {
			value = value*10 + int64(raw[at]-'0')
		}
		if at == start || value > math.MaxInt32 || raw[start] == '0' && at > start+1 {
			return ids, nil, false
		}
		if at = skipSpace(raw, at); at == len(raw) {
			return ids, nil, false
		}
		switch raw[at] {
		case ',':
			ids = append(ids, int32(value))
			at = skipSpace(raw, at+1)
		case ']':
			return append(ids, int32(value)), raw[at+1:], true
		default:
			return ids, nil, false
		}
	}
}

func skipSpace(raw []byte, at int) int {
	for at < len(raw) && (raw[at] == ' ' || raw[at] == '\n' || raw[at] == '\r' || raw[at] == '\t') {
		at++
	}
	return at
}

// idsMark stands for a list of ids that was read already. No list of ids looks like it.
const idsMark = "[-7.125]"

// liftIDs takes a plain list of ids out of a body before the decoder walks through it number
// by number: for a long prompt it is nearly the whole body. An unescaped "input_ids" is a
// JSON string wherever it stands, so at worst the list is that of another key of the name;
// the caller sees that by the mark's place.
func liftIDs(body []byte) (rest []byte, ids []int32, ok bool) {
	const key = `"input_ids"`
	at := bytes.Index(body, []byte(key))
	if at < 0 || bytes.Contains(body, []byte(idsMark)) {
		return nil, nil, false
	}
	at = skipSpace(body, at+len(key))
	if at == len(body) || body[at] != ':' {
		return nil, nil, false
	}
	at = skipSpace(body, at+1)
	if at == len(body) || body[at] != '[' {
		return nil, nil, false
	}
	ids, tail, ok := readIDs(body[at+1:])
	if !ok {
		return nil, nil, false
	}
	rest = make([]byte, 0, at+len(idsMark)+len(tail))
	return append(append(append(rest, body[:at]...), idsMark...), tail...), ids, true
}
