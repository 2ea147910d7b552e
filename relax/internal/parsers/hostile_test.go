package parsers

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

// hostilePieces are what the grammars are made of, whole and cut off. A family is tried with
// those its own cases hold.
var hostilePieces = []string{
	"<", "[", "{", "<|", `"`, "\n", " ", "[f(", "[f(a=", `{"name":`, `{"name":[`, `{'a':`, "<tool_call>", "<tool_call>\n{", "</tool_call>",
	"<function=f>", "<parameter=a>", "<arg_key>", "<arg_key>a</arg_key>", "<arg_key>a</arg_key><arg_value>", "[TOOL_CALLS]", "[TOOL_CALLS] [",
	"[TOOL_CALLS]f{", "[TOOL_CALLS]f[ARGS]", minimaxNS, minimaxNS + "<a>", minimaxNS + "   ", harmonyStart, harmonyChannel, harmonyMessage,
	"<|channel|>a<|message|>", "<|channel|>a<|message|>b<|end|>", "<|start|>assistant to=functions.f<|message|>", " to=a<|message|>",
	"<function name=\"f\"><param name=\"a\"><![CDATA[", "<![CDATA[", "<param name=\"s\">", inklingHeader, inklingToolJSON, inklingEnd,
	"<invoke name=\"f\">", "<parameter name=\"s\">", "<｜DSML｜invoke name=\"f\">", xtmlOpen + "call ", xtmlOpen + "argument ", xtmlSep,
	"<tool_calls:", "<tool_calls", "<ifm|tool_call>", "<ifm|arg_key>a</ifm|arg_key>", gemma4Quote, "call:f{a:", "to=", "f(a=x),", "{a:",
	deepseekCallOpen, deepseekSep, kimiCallOpen, kimiArgument, lfm2Open + "[", apertusToolsOpen,
}

// thinkPieces are what the reasoning grammars are made of.
var thinkPieces = []string{
	"<", "<|", "\n", "<think>", "</think>", "<think:", "<tool_call>", "[THINK]", "◁think▷", apertusInnerOpen, apertusToolsOpen, cohereTextOpen, cohereActionOpen,
	harmonyStart, harmonyChannel, harmonyMessage, "<|channel|>a<|message|>", "<|channel|>analysis<|message|>b<|end|>", " to=self<|message|>", "to=",
	inklingHeader, inklingThinking, inklingToolJSON, inklingEnd, xtmlOpen, xtmlClose, kimiK3ToolsOpen, kimiK3ResponseOpen, "<mm:think>", "<ifm|think>",
}

// hostile calls try with texts of about size bytes: each piece the family knows repeated
// alone, behind the family's marker, together with it, and inside a call.
func hostile(name string, size int, try func(what, text string)) {
	known := markers[name]
	sample := ""
	for _, c := range familyCases {
		if c.parser == name {
			known += c.text
			if len(c.text) > len(sample) {
				sample = c.text
			}
		}
	}
	for _, piece := range hostilePieces {
		if !strings.Contains(known, piece[:min(len(piece), 6)]) {
			continue
		}
		many := strings.Repeat(piece, size/len(piece))
		try(piece, many)
		try(piece, markers[name]+many)
		both := markers[name] + piece
		try(both, strings.Repeat(both, size/len(both)))
		half := len(sample) / 2
		try("inside a call: "+piece, sample[:half]+many+sample[half:])
	}
}

// TestHostileInput reads a quarter of a megabyte of each family's own pieces. Nothing is timed:
// a grammar whose time grows with the square of the text does not come to its end before the
// test binary's timeout. BenchmarkHostileInput shows the growth.
func TestHostileInput(t *testing.T) {
	const size = 1 << 18
	offer := typedTools(t)
	seen := map[any]bool{} // several names may share a grammar
	for name, p := range toolCallFamilies {
		if seen[p] {
			continue
		}
		seen[p] = true
		hostile(name, size, func(what, text string) {
			if got := p.Find(text, offer); len(got.ParseError) > 4096 {
				t.Errorf("%s %q: a ParseError of %d bytes", name, what, len(got.ParseError))
			}
		})
	}
	for _, p := range reasoningFamilies {
		if seen[p] {
			continue
		}
		seen[p] = true
		for _, piece := range thinkPieces {
			text := strings.Repeat(piece, size/len(piece))
			split := p.Split(Turn{Text: text, ThinkOpen: true})
			if n := len(split.Reasoning) + len(split.Content); n > len(text)+16 { // one family puts its start tag back
				t.Errorf("%q: %d bytes became %d", piece, len(text), n)
			}
		}
	}
}

// BenchmarkHostileInput prints, for each family's slowest piece, how much longer four times the
// text takes: 4 is linear, 16 quadratic.
func BenchmarkHostileInput(b *testing.B) {
	offer := typedTools(b)
	for _, name := range slices.Sorted(maps.Keys(toolCallFamilies)) {
		b.Run(name, func(b *testing.B) {
			p := toolCallFamilies[name]
			for b.Loop() {
				small, worst := slowest(name, 1<<18, func(text string) { p.Find(text, offer) })
				large := small
				hostile(name, 1<<20, func(what, text string) {
					if what == worst {
						large = max(large, timed(func() { p.Find(text, offer) }))
					}
				})
				b.ReportMetric(float64(large)/float64(small), "x/4x-text")
			}
		})
	}
}

func slowest(name string, size int, find func(text string)) (longest time.Duration, worst string) {
	hostile(name, size, func(what, text string) {
		if took := timed(func() { find(text) }); took > longest {
			longest, worst = took, what
		}
	})
	return longest, worst
}

func timed(f func()) time.Duration {
	began := time.Now()
	f()
	return time.Since(began)
}
