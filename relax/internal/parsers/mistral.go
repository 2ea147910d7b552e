package parsers

import (
	"strings"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// mistral reads [TOOL_CALLS] with a JSON list of calls, or once for each call
// [TOOL_CALLS]NAME[ARGS]{json}, also with [CALL_ID]ID before the arguments, whose id is kept.
// The markers are special tokens. Content is the text before and after, joined by a space and
// stripped.
//
// Fixed against SGLang, which loses these: a list without a space before it, and
// NAME{json} without [ARGS].
type mistral struct{}

const (
	mistralOpen   = "[TOOL_CALLS]"
	mistralArgs   = "[ARGS]"
	mistralCallID = "[CALL_ID]"
)

func (mistral) Find(text string, tools []canon.ToolSpec) Found {
	first := markerAt(text, mistralOpen, tools)
	if first < 0 {
		return Found{Content: text}
	}
	got := harvest{tools: tools}
	scan := newJSONScanner(text)
	after := len(text) // where the text after the last call begins
	for i := first; i >= 0; {
		end, ok := got.mistralCall(scan, i+len(mistralOpen))
		if ok {
			after = end
		} else {
			end = i + len(mistralOpen)
			after = len(text)
		}
		next := strings.Index(text[end:], mistralOpen)
		if next < 0 {
			break
		}
		i = end + next
	}
	return got.result(text, pyStrip(pyStrip(text[:first])+" "+pyStrip(text[after:])))
}

// mistralCall takes what begins at index i, behind a marker, and returns where it ends.
func (h *harvest) mistralCall(scan *jsonScanner, i int) (end int, ok bool) {
	text := scan.text
	for i < len(text) && strings.IndexByte(" \t\r\n", text[i]) >= 0 {
		i++
	}
	if i == len(text) {
		h.fault("nothing follows %s", mistralOpen)
		return 0, false
	}
	name, id := "", ""
	if text[i] != '[' && text[i] != '{' {
		n := strings.IndexAny(text[i:], "[{")
		if n < 0 {
			h.fault("no arguments follow %s", mistralOpen)
			return 0, false
		}
		name = pyStrip(text[i : i+n])
		i += n
		if rest, cut := strings.CutPrefix(text[i:], mistralCallID); cut {
			n = strings.IndexAny(rest, "[{")
			if n < 0 {
				h.fault("no arguments follow %s", mistralCallID)
				return 0, false
			}
			id = mistralID(rest[:n])
			i += len(mistralCallID) + n
		}
		if strings.HasPrefix(text[i:], mistralArgs) {
			i += len(mistralArgs)
			i += len(text[i:]) - len(strings.TrimLeft(text[i:], " \t\r\n"))
		}
	}
	v, end, ok := scan.at(i)
	if !ok {
		h.fault("no valid JSON follows %s", mistralOpen)
		return 0, false
	}
	var err error
	if name == "" {
		err = h.acts(v)
	} else {
		err = h.add(name, id, v)
	}
	if err != nil {
		h.fault("%v", err)
	}
	return end, true
}

// mistralID is s if it is an id as the templates ask for: nine letters and digits.
func mistralID(s string) string {
	s = pyStrip(s)
	if len(s) != 9 {
		return ""
	}
	for i := range len(s) {
		if !isAlnum(s[i]) {
			return ""
		}
	}
	return s
}
