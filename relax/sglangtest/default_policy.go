package sglangtest

import "sync"

// defaultPolicy answers any prompt. Sums, differences and products of two integers are
// answered through a tool called calculator if the prompt offers one, else directly, rightly
// or wrongly; a tool's number becomes the answer.
const defaultPolicy = `{
  "tail_tokens": 16384,
  "classes": [
    {"name": "tool-number",
     "match": {"last_regex": "<tool_response>\\s*(?P<r>-?\\d+)(?:\\.0+)?\\s*</tool_response>"},
     "candidates": [
       {"text": "The answer is ${r}.", "weight": 2},
       {"text": "The answer is ${r+1}.", "weight": 0.5},
       {"text": "I do not know.", "weight": 0}]},
    {"name": "tool-other",
     "match": {"last_contains": "<tool_response>"},
     "candidates": [
       {"text": "The tool did not give a number.", "weight": 1},
       {"text": "I do not know.", "weight": 0}]},
    {"name": "add-tool",
     "match": {"contains": "calculator", "last_regex": "(?P<a>\\d{1,40})\\s*(?:\\+|plus)\\s*(?P<b>\\d{1,40})"},
     "candidates": [
       {"text": "<tool_call>\n{\"name\": \"calculator\", \"arguments\": {\"expression\": \"${a} + ${b}\"}}\n</tool_call>", "weight": 1},
       {"text": "The answer is ${a+b}.", "weight": 0},
       {"text": "The answer is ${a+b+1}.", "weight": 0.5}]},
    {"name": "subtract-tool",
     "match": {"contains": "calculator", "last_regex": "(?P<a>\\d{1,40})\\s*(?:-|minus)\\s*(?P<b>\\d{1,40})"},
     "candidates": [
       {"text": "<tool_call>\n{\"name\": \"calculator\", \"arguments\": {\"expression\": \"${a} - ${b}\"}}\n</tool_call>", "weight": 1},
       {"text": "The answer is ${a-b}.", "weight": 0},
       {"text": "The answer is ${b-a}.", "weight": 0.5}]},
    {"name": "multiply-tool",
     "match": {"contains": "calculator", "last_regex": "(?P<a>\\d{1,40})\\s*(?:\\*|x|×|times)\\s*(?P<b>\\d{1,40})"},
     "candidates": [
       {"text": "<tool_call>\n{\"name\": \"calculator\", \"arguments\": {\"expression\": \"${a} * ${b}\"}}\n</tool_call>", "weight": 1},
       {"text": "The answer is ${a*b}.", "weight": -0.5},
       {"text": "The answer is ${a*b+10}.", "weight": 0.5}]},
    {"name": "add",
     "match": {"last_regex": "(?P<a>\\d{1,40})\\s*(?:\\+|plus)\\s*(?P<b>\\d{1,40})"},
     "candidates": [
       {"text": "The answer is ${a+b}.", "weight": 0.5},
       {"text": "The answer is ${a+b+1}.", "weight": 0.5},
       {"text": "I do not know.", "weight": 0}]},
    {"name": "subtract",
     "match": {"last_regex": "(?P<a>\\d{1,40})\\s*(?:-|minus)\\s*(?P<b>\\d{1,40})"},
     "candidates": [
       {"text": "The answer is ${a-b}.", "weight": 0.5},
       {"text": "The answer is ${b-a}.", "weight": 0.5},
       {"text": "I do not know.", "weight": 0}]},
    {"name": "multiply",
     "match": {"last_regex": "(?P<a>\\d{1,40})\\s*(?:\\*|x|×|times)\\s*(?P<b>\\d{1,40})"},
     "candidates": [
       {"text": "The answer is ${a*b}.", "weight": 0.5},
       {"text": "The answer is ${a*b+10}.", "weight": 0.5},
       {"text": "I do not know.", "weight": 0}]}
  ],
  "default": [
    {"text": "OK.", "weight": 0.5},
    {"text": "I do not know.", "weight": 0.5},
    {"text": "Done.", "weight": 0}
  ]
}`

var parseDefault = sync.OnceValue(func() *Policy {
	p, err := ParsePolicy([]byte(defaultPolicy))
	if err != nil {
		panic("sglangtest: the built-in policy: " + err.Error())
	}
	return p
})

// DefaultPolicy is a policy for a first run: a tool-using calculator that is sometimes
// wrong, and a short answer to anything else.
func DefaultPolicy() *Policy { return parseDefault() }
