//go:build cgo && !relax_nohf

package hf

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// realModels are the directories that `make` fetches below RELAX_CHECKPOINTS.
var realModels = []string{"deepseek_v3", "gemma3", "gptoss", "llama3_1", "qwen3"}

// pythonEncode reads one JSON string a line and answers each with its ids and what they decode
// to, by the Python package tokenizers. Exit code 3: the package is absent.
const pythonEncode = `
import json, sys
try:
    import tokenizers
except ImportError as error:
    sys.exit(print(error, file=sys.stderr) or 3)
tok = tokenizers.Tokenizer.from_file(sys.argv[1])
tok.no_truncation()
tok.no_padding()
tok.encode_special_tokens = True
for line in sys.stdin.buffer:
    ids = tok.encode(json.loads(line), add_special_tokens=False).ids
    print(json.dumps([ids, tok.decode(ids, skip_special_tokens=False)]))
`

// A pythonAnswer is a line of pythonEncode's output.
type pythonAnswer struct {
	ids     []int32
	decoded string
}

func (a *pythonAnswer) UnmarshalJSON(data []byte) error {
	return json.Unmarshal(data, &[]any{&a.ids, &a.decoded})
}

// The ids of real tokenizers are those of the tokenizers package that transformers uses, in its
// newest release, for whatever text.
func TestParityWithPython(t *testing.T) {
	texts := parityTexts()
	for _, model := range realModels {
		t.Run(model, func(t *testing.T) {
			t.Parallel()
			file := realTokenizer(t, model)
			tok, err := Load(file, Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := tok.Close(); err != nil {
					t.Error(err)
				}
			}()
			texts := slices.Concat(lookAlikes(tok), texts)
			for i, want := range askPython(t, file, texts) {
				text := texts[i]
				if ids := mustEncode(t, tok, text); !slices.Equal(ids, want.ids) {
					t.Errorf("text %d: Encode(%s) differs: %s", i, shown(text), firstDifference(ids, want.ids))
				}
				if got, err := tok.Decode(want.ids); err != nil || got != want.decoded {
					t.Errorf("text %d: Decode of the ids of %s = %s, %v; want %s", i, shown(text), shown(got), err, shown(want.decoded))
				}
			}
		})
	}
}

// need skips a test that lacks something, loudly, and fails it where nothing may be lacking.
func need(t *testing.T, format string, args ...any) {
	t.Helper()
	message := "PARITY WITH PYTHON'S TOKENIZERS IS NOT CHECKED: " + fmt.Sprintf(format, args...)
	if os.Getenv("CI") == "true" {
		t.Fatal(message)
	}
	t.Skip(message)
}

func realTokenizer(t *testing.T, model string) string {
	t.Helper()
	root := os.Getenv("RELAX_CHECKPOINTS")
	if root == "" {
		root = "../../../../.cache/checkpoints"
	}
	file := filepath.Join(root, model, "tokenizer.json")
	if _, err := os.Stat(file); err != nil {
		need(t, "%v (`make deps` fetches it; RELAX_CHECKPOINTS names another place)", err)
	}
	return file
}

// askPython encodes texts in one run of Python.
func askPython(t *testing.T, file string, texts []string) []pythonAnswer {
	t.Helper()
	python := os.Getenv("RELAX_PYTHON")
	if python == "" {
		python = "../../../../.venv/bin/python"
	}
	if _, err := exec.LookPath(python); err != nil {
		need(t, "%v (`make deps` installs it; RELAX_PYTHON names another)", err)
	}
	var in bytes.Buffer
	lines := json.NewEncoder(&in)
	for _, text := range texts {
		if err := lines.Encode(text); err != nil {
			t.Fatal(err)
		}
	}
	var stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), python, "-c", pythonEncode, file)
	cmd.Stdin, cmd.Stderr = &in, &stderr
	cmd.Env = append(os.Environ(), "PYTHONIOENCODING=utf-8", "TOKENIZERS_PARALLELISM=false")
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == 3 {
		need(t, "%s has no package tokenizers: %s", python, &stderr)
	}
	if err != nil {
		t.Fatalf("%s: %v\n%s", python, err, &stderr)
	}
	answers := make([]pythonAnswer, 0, len(texts))
	for dec := json.NewDecoder(bufio.NewReader(bytes.NewReader(out))); ; {
		var answer pythonAnswer
		if err := dec.Decode(&answer); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("%s printed: %v", python, err)
		}
		answers = append(answers, answer)
	}
	if len(answers) != len(texts) {
		t.Fatalf("%s answered %d of %d texts\n%s", python, len(answers), len(texts), &stderr)
	}
	return answers
}

// parityTexts is the corpus: texts worth a thought, megabytes, and random strings.
func parityTexts() []string {
	texts := slices.Clone(handPicked)
	texts = append(texts,
		repeatTo(1<<20, handPicked...),
		repeatTo(1<<20, "中文、日本語 と 한국어。", "👩‍👩‍👧‍👦🏳️‍🌈 \x00\u0301e"),
		repeatTo(1<<20, "for (int i = 0; i < n; ++i) {\n\t\tsum += a[i] * 0x1F;  // 'tis\r\n}\n\n\n"),
		strings.Repeat(" ", 1<<20),
		strings.Repeat("\n", 1<<14)+strings.Repeat("\t ", 1<<14),
		strings.Repeat("a", 1<<16),
		strings.Repeat("1234567890", 1<<12),
	)
	for n := range 70 { // runs of white space of any length, alone and between words
		texts = append(texts, strings.Repeat(" ", n), "a"+strings.Repeat(" ", n)+"b", strings.Repeat("\n", n)+"\t",
			"x\n"+strings.Repeat(" ", n)+"\n y")
	}
	r := rand.New(rand.NewPCG(3, 2026))
	for range 2000 {
		texts = append(texts, randomText(r))
	}
	return texts
}

var handPicked = []string{
	"", " ", "\n", "\t", "\r\n", "\r", "\x00", "a\x00b", "\x00\x00\x00", " \x00 ", "\u00a0", "\u3000", "\u2028\u2029", "\u200b", "\ufeff",
	"Hello, world!", " leading", "trailing ", "  two  spaces  ", "don't DON'T I'LL we've 'tis O'Neill's", "naïve café cafe\u0301 Å A\u030a ﬁ",
	"def f(x: int) -> str:\n    \"\"\"Doc.\"\"\"\n    return f\"{x!r:>10}\"  # comment\n\n\nclass A:\n\tpass\n",
	"#include <stdio.h>\nint main(void) { printf(\"%d\\n\", 1 << 3); return 0; }\n",
	"SELECT * FROM t WHERE a >= 10 AND b LIKE '%x%' -- c\n", "{\"a\": [1, 2.5e-7, null, true], \"b\": \"\\u00e9\\n\"}",
	"<div class=\"a\">&amp; &#x27;</div>", "$\\int_0^1 x^2\\,dx = \\frac{1}{3}$", "a_b-c.d/e\\f:g;h@i#j%k^l&m*n+o=p~q`r|s",
	"1 12 123 1234 12345 1234567890 3.14159 1,000,000 0xDEADBEEF 1e-10", "١٢٣ ४५६ 一二三 Ⅷ ½ ²",
	"中文测试，标点。「引号」", "日本語のテキスト、カタカナ ひらがな", "한국어 텍스트 조합형 한글", "ไทย ພາສາລາວ မြန်မာ", "العربية עברית हिन्दी বাংলা தமிழ்",
	"Ελληνικά Русский Українська Türkçe İıIi ẞß", "👋🌍🎉", "👩‍👩‍👧‍👦", "👍🏽👍🏿", "🏳️‍🌈🏴‍☠️", "🇩🇪🇯🇵", "1️⃣#️⃣", "☺︎☺️", "e\u0301\u0302\u0303\u0304", "\u0301alone",
	"\u202eRTL\u202c", "\ufdd0\uffff\U0010ffff\U0001fffe", "\ue000\uf8ff", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟙𝟚𝟛", "Z͑ͫa̴l͝g̷o",
	"<think>\nhm\n</think>\n\nanswer", "<tool_call>\n{\"name\": \"f\"}\n</tool_call>", "<tool_response>x</tool_response>",
	"<|im_start|>system\n<|im_end|>", "<|eot_id|><|start_header_id|>", "<｜User｜>x<｜Assistant｜><｜end▁of▁sentence｜>", "<start_of_turn>model\n<end_of_turn>",
	"<|start|>assistant<|channel|>final<|message|>", "<bos><eos><pad><unk><mask>[multimodal]<unused7>", "<|im_start", "|>", "<|", "<｜", "▁", "▁▁▁ ▁", "Ġ Ċ ĉ", "<0x0A><0xFF>",
	"<|im_start|><|im_start|", "< |im_end|>", "<|IM_END|>", "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>", "[INST] [/INST] <s> </s>",
}

// lookAlikes spells the tokens that the file lists beside its vocabulary, in several ways: what
// is special stays text, what is not becomes its id.
func lookAlikes(tok *Tokenizer) []string {
	added := tok.AddedTokens()
	var texts []string
	for i, token := range added {
		if i >= 40 && i < len(added)-40 {
			continue // hundreds of reserved places
		}
		s := token.Content
		texts = append(texts, s, "a"+s+"b", " "+s+" ", s+s, "\n"+s+"\n", s[:len(s)-1], s+"\x00", "日本"+s+"👍🏽")
	}
	return texts
}

// repeatTo repeats the parts to a text of about size bytes.
func repeatTo(size int, parts ...string) string {
	part := strings.Join(parts, " ")
	return strings.Repeat(part, size/len(part)+1)
}

// alphabets are the ranges that randomText draws from: scripts, controls, whatever.
var alphabets = [][2]rune{
	{'a', 'z'}, {'A', 'Z'}, {'0', '9'}, {' ', '/'}, {' ', ' '}, {'\t', '\r'}, {0, 0x1f}, {0x80, 0xff}, {0x100, 0x24f}, {0x300, 0x36f}, {0x370, 0x5ff},
	{0x600, 0x6ff}, {0x900, 0xdff}, {0x1100, 0x11ff}, {0x2000, 0x206f}, {0x2190, 0x2bff}, {0x3000, 0x30ff}, {0x4e00, 0x9fff}, {0xac00, 0xd7a3},
	{0xe000, 0xf8ff}, {0xf900, 0xfaff}, {0xfb00, 0xffff}, {0x1d400, 0x1d7ff}, {0x1f300, 0x1faff}, {0x20000, 0x2ffff}, {0, utf8.MaxRune},
}

// randomText mixes words of a few alphabets.
func randomText(r *rand.Rand) string {
	var b strings.Builder
	for range 1 + r.IntN(12) {
		alphabet := alphabets[r.IntN(len(alphabets))]
		for range 1 + r.IntN(8) {
			c := alphabet[0] + r.Int32N(alphabet[1]-alphabet[0]+1)
			if utf8.ValidRune(c) {
				b.WriteRune(c)
			}
		}
		if r.IntN(3) == 0 {
			b.WriteString(handPicked[r.IntN(len(handPicked))])
		}
	}
	return b.String()
}

func shown(text string) string {
	if len(text) <= 120 {
		return fmt.Sprintf("%q", text)
	}
	return fmt.Sprintf("%d bytes from %q", len(text), text[:120])
}

func firstDifference(got, want []int32) string {
	at := 0
	for at < min(len(got), len(want)) && got[at] == want[at] {
		at++
	}
	near := func(ids []int32) []int32 { return ids[at:min(at+8, len(ids))] }
	return fmt.Sprintf("%d ids, want %d; from position %d on %v, want %v", len(got), len(want), at, near(got), near(want))
}
