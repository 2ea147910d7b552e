package relax

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strconv"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
	"github.com/relax-rollout/relax-rollout/relax/internal/chat"
	"github.com/relax-rollout/relax-rollout/relax/internal/wire"
)

// DoctorOptions say which model [Doctor] looks at.
type DoctorOptions struct {
	// HFCheckpoint is a directory with tokenizer.json and a chat template. Required.
	HFCheckpoint string `json:"hf_checkpoint"`
	// ReasoningParser and ToolCallParser are SGLang parser names, empty for none.
	ReasoningParser string `json:"agentic_reasoning_parser"`
	ToolCallParser  string `json:"agentic_tool_call_parser"`
	// Messages and Tools are those of a Chat Completions request. With Messages the report has
	// the first prompt of the conversation, as an engine makes it by default.
	Messages json.RawMessage `json:"messages"`
	Tools    json.RawMessage `json:"tools"`
	// ChatTemplateKwargs are further template arguments of that prompt.
	ChatTemplateKwargs json.RawMessage `json:"chat_template_kwargs"`
	// Conversations are more requests of the same kind, each an object with messages and perhaps
	// tools and chat_template_kwargs. The report has the first prompt of each.
	Conversations []json.RawMessage `json:"conversations"`
}

// ParseDoctorOptions reads the options from one JSON object, as [ParseConfig] does for an engine.
func ParseDoctorOptions(data []byte) (DoctorOptions, error) {
	var opts DoctorOptions
	err := parseOptions(data, reflect.ValueOf(&opts).Elem())
	return opts, err
}

// Doctor loads a model's chat format as [Open] does, self-check and all, and says what was
// found. It opens no engine, starts nothing and reaches no backend. A format that an engine
// would refuse is an [*OptionError] that says why.
func Doctor(opts DoctorOptions) (*FormatReport, error) {
	req, err := opts.request()
	if err != nil {
		return nil, err
	}
	format, err := opts.load()
	if err != nil {
		return nil, err
	}
	defer format.Close()
	found, err := format.Report()
	if err != nil {
		return nil, &OptionError{Option: "hf_checkpoint", Problem: "the model's chat format cannot be shown", Err: err}
	}
	report := reportOf(found)
	for _, body := range opts.Conversations {
		report.Prompts = append(report.Prompts, promptOf(format, body))
	}
	if req == nil {
		return report, nil
	}
	if report.Text, report.IDs, err = format.First(req); err != nil {
		return nil, &OptionError{Option: "messages", Problem: "the chat template cannot print them", Err: err}
	}
	return report, nil
}

// promptOf is the first prompt of a request, or why there is none.
func promptOf(format *chat.Format, body []byte) FormatPrompt {
	refused := func(err error) FormatPrompt { return FormatPrompt{Error: err.Error(), IDs: []int32{}} }
	req, wrong := wire.Chat.Parse(body, nil)
	if wrong != nil {
		return refused(wrong)
	}
	req.Kwargs = canon.MergeKwargs(canon.Value{}, req.Kwargs)
	text, ids, err := format.First(req)
	if err != nil {
		return refused(err)
	}
	return FormatPrompt{Text: text, IDs: ids}
}

func (o *DoctorOptions) load() (*chat.Format, error) {
	if o.HFCheckpoint == "" {
		return nil, &OptionError{Option: "hf_checkpoint",
			Problem: "required: a directory with tokenizer.json, tokenizer_config.json and a chat template"}
	}
	return loadFormat(o.HFCheckpoint, chat.Options{ReasoningParser: o.ReasoningParser, ToolCallParser: o.ToolCallParser})
}

// request is the conversation to print, nil for none. It goes through the same door as an
// agent's, so that what is printed is what the agent's would be.
func (o *DoctorOptions) request() (*canon.Request, error) {
	body := []byte("{")
	for _, f := range []struct {
		name string
		raw  json.RawMessage
	}{{"messages", o.Messages}, {"tools", o.Tools}, {"chat_template_kwargs", o.ChatTemplateKwargs}} {
		if absent(f.raw) {
			continue
		}
		if absent(o.Messages) {
			return nil, &OptionError{Option: f.name, Problem: "of no use without messages, whose prompt is shown; add them"}
		}
		if !json.Valid(f.raw) {
			return nil, &OptionError{Option: f.name, Problem: "not one JSON value"}
		}
		if len(body) > 1 {
			body = append(body, ',')
		}
		body = strconv.AppendQuote(body, f.name)
		body = append(append(body, ':'), f.raw...)
	}
	if absent(o.Messages) {
		return nil, nil
	}
	req, wrong := wire.Chat.Parse(append(body, '}'), nil)
	if wrong != nil {
		option := wrong.Param
		if option == "" {
			option = "messages"
		}
		return nil, &OptionError{Option: option, Problem: "an agent's request with this would be refused", Err: errors.New(wrong.Message)}
	}
	req.Kwargs = canon.MergeKwargs(canon.Value{}, req.Kwargs)
	return req, nil
}

func absent(raw json.RawMessage) bool {
	raw = bytes.TrimSpace(raw)
	return len(raw) == 0 || string(raw) == "null"
}
