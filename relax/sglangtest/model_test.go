package sglangtest

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

const threeWays = `{"default":[
  {"text":"yes, it is","weight":1.5},
  {"text":"yes, it was","weight":0.25},
  {"text":"no","weight":-0.5}]}`

func modelOf(t testing.TB, document string) *Model {
	t.Helper()
	m, err := NewModel(policyOf(t, document), ByteTokenizer(), []int32{258, 256})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func close32(a, b float64) bool { return math.Abs(a-b) <= 1e-6*math.Max(1, math.Abs(a)) }

// TestDistributionIsExact: candidates have their softmax, probabilities add up to one, and
// the token probabilities multiply to a candidate's, at any temperature.
func TestDistributionIsExact(t *testing.T) {
	m := modelOf(t, threeWays)
	ask := tokens(t, m, "<|im_start|>user\nIs it?<|im_end|>\n<|im_start|>assistant\n")
	z := math.Exp(1.5) + math.Exp(0.25) + math.Exp(-0.5)
	want := []float64{1.5 - math.Log(z), 0.25 - math.Log(z), -0.5 - math.Log(z)}
	for _, temperature := range []float64{1, 0.3, 0.7, 2, 100, 0} {
		d, err := m.DistributionAt(ask, temperature)
		if err != nil {
			t.Fatal(err)
		}
		sum := 0.0
		for i, c := range d {
			sum += math.Exp(c.LogProb)
			if c.Index != i || (temperature == 1 && math.Abs(c.LogProb-want[i]) > 1e-12) {
				t.Errorf("candidate %d: %+v, want log probability %v", i, c, want[i])
			}
			lps, err := m.TokenLogprobsAt(ask, c.IDs, temperature)
			if err != nil {
				t.Fatal(err)
			}
			total := 0.0
			for _, lp := range lps {
				total += float64(lp)
			}
			if !close32(c.LogProb, total) {
				t.Errorf("temperature %v, candidate %d: its tokens multiply to %v, want %v", temperature, i, total, c.LogProb)
			}
		}
		if math.Abs(sum-1) > 1e-12 {
			t.Errorf("temperature %v: probabilities add up to %v", temperature, sum)
		}
	}
	// At temperature T a node's choice is the softmax of log mass / T.
	lps, err := m.TokenLogprobsAt(ask, tokens(t, m, "no<|im_end|>"), 0.5)
	if err != nil {
		t.Fatal(err)
	}
	yes := math.Log(math.Exp(1.5) + math.Exp(0.25))
	first := -0.5/0.5 - math.Log(math.Exp(-0.5/0.5)+math.Exp(yes/0.5))
	if !close32(float64(lps[0]), first) || lps[1] != 0 || lps[2] != 0 {
		t.Errorf("got %v, want [%v 0 0]", lps, first)
	}
}

// TestDistributionOfRandomPolicies checks the same on random candidate sets.
func TestDistributionOfRandomPolicies(t *testing.T) {
	const seed = 7
	rng := rand.New(rand.NewPCG(seed, seed))
	for round := range 50 {
		var spec []CandidateSpec
		for range 1 + rng.IntN(12) {
			var text strings.Builder
			for range rng.IntN(6) {
				text.WriteByte("ab<é"[rng.IntN(3)])
			}
			spec = append(spec, CandidateSpec{Text: text.String(), Weight: rng.NormFloat64() * 3})
		}
		p, err := NewPolicy(Policy{Default: spec})
		if err != nil {
			t.Fatal(err)
		}
		m, err := NewModel(p, ByteTokenizer(), []int32{258})
		if err != nil {
			t.Fatal(err)
		}
		mass, z := map[string]float64{}, 0.0
		for _, s := range spec {
			mass[s.Text] += math.Exp(s.Weight)
			z += math.Exp(s.Weight)
		}
		d, err := m.Distribution([]int32{'q'})
		if err != nil {
			t.Fatal(err)
		}
		if len(d) != len(mass) {
			t.Fatalf("seed %d round %d: %d candidates, want %d", seed, round, len(d), len(mass))
		}
		for _, c := range d {
			if want := math.Log(mass[c.Text] / z); math.Abs(c.LogProb-want) > 1e-9 {
				t.Errorf("seed %d round %d: %q has %v, want %v", seed, round, c.Text, c.LogProb, want)
			}
		}
	}
}

func TestExtremeWeights(t *testing.T) {
	m := modelOf(t, `{"default":[{"text":"a","weight":1000000},{"text":"b","weight":-1000000},{"text":"c","weight":1000000}]}`)
	d, err := m.DistributionAt([]int32{'q'}, 2e-6)
	if err != nil {
		t.Fatal(err)
	}
	if !close32(d[0].LogProb, -math.Ln2) || !close32(d[2].LogProb, -math.Ln2) || math.IsNaN(d[1].LogProb) || d[1].LogProb > -1e6 {
		t.Errorf("got %+v", d)
	}
}

// TestResume: a prompt that ends with a partial reply continues in the trie, with the
// conditional distribution.
func TestResume(t *testing.T) {
	m := modelOf(t, threeWays)
	for _, opened := range []string{"", "<think>\n\n</think>\n\n", "<think>\n"} {
		ask := tokens(t, m, "<|im_start|>user\nIs it?<|im_end|>\n<|im_start|>assistant\n"+opened)
		whole, err := m.Distribution(ask)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range whole {
			lps, err := m.TokenLogprobs(ask, c.IDs)
			if err != nil {
				t.Fatal(err)
			}
			for cut := range len(c.IDs) {
				resumed := append(slices.Clone(ask), c.IDs[:cut]...)
				rest, err := m.TokenLogprobs(resumed, c.IDs[cut:])
				if err != nil {
					t.Fatalf("%q cut at %d: %v", c.Text, cut, err)
				}
				if !slices.Equal(rest, lps[cut:]) {
					t.Errorf("%q cut at %d: %v, want %v", c.Text, cut, rest, lps[cut:])
				}
				d, err := m.Distribution(resumed)
				if err != nil {
					t.Fatal(err)
				}
				sum, found := 0.0, false
				for _, r := range d {
					sum += math.Exp(r.LogProb)
					found = found || r.Index == c.Index && slices.Equal(r.IDs, c.IDs[cut:])
				}
				if math.Abs(sum-1) > 1e-12 || !found {
					t.Errorf("%q cut at %d: %+v", c.Text, cut, d)
				}
			}
		}
	}
}

func TestOffTrie(t *testing.T) {
	m := modelOf(t, threeWays)
	const header = "<|im_start|>assistant\n"
	for name, text := range map[string]string{
		"other words":   "<|im_start|>user\nx<|im_end|>\n" + header + "maybe",
		"ended":         "<|im_start|>user\nx<|im_end|>\n" + header + "no<|im_end|>",
		"beyond an end": "<|im_start|>user\nx<|im_end|>\n" + header + "no<|im_end|>\n",
	} {
		ids := tokens(t, m, text)
		d, err := m.Distribution(ids)
		if err != nil {
			t.Fatal(err)
		}
		if len(d) != 1 || d[0].Index != -1 || !slices.Equal(d[0].IDs, []int32{258}) || d[0].LogProb != 0 {
			t.Errorf("%s: %+v", name, d)
		}
		if lps, err := m.TokenLogprobs(ids, []int32{258, 258}); err != nil || lps[0] != 0 || lps[1] != 0 {
			t.Errorf("%s: %v %v", name, lps, err)
		}
		if _, err := m.TokenLogprobs(ids, []int32{'x'}); err == nil {
			t.Errorf("%s: no error for a token that cannot come", name)
		}
	}
	// An earlier reply is context when nobody asks for another one after it.
	ids := tokens(t, m, "<|im_start|>user\nx<|im_end|>\n"+header+"maybe<|im_end|>\n<|im_start|>user\ny<|im_end|>\n")
	if d, err := m.Distribution(ids); err != nil || len(d) != 3 {
		t.Errorf("without a header: %+v %v", d, err)
	}
	if _, err := m.TokenLogprobs(ids, []int32{'x'}); err == nil {
		t.Error("no error for a token that is in no candidate")
	}
	if _, err := m.TokenLogprobs(ids, tokens(t, m, "no<|im_end|>x")); err == nil {
		t.Error("no error for a token after the end")
	}
}

// TestControlTokens: a policy can write control tokens, captured text cannot.
func TestControlTokens(t *testing.T) {
	m := modelOf(t, `{"classes":[{"name":"echo","match":{"last_regex":"say (?P<w>\\S+)"},
	  "candidates":[{"text":"<think>${w}</think>${w}"}]}],"default":[{"text":"a","stop":"<|endoftext|>"}]}`)
	d, err := m.Distribution(tokens(t, m, "<|im_start|>user\nsay <|im_start|>x"))
	if err != nil {
		t.Fatal(err)
	}
	if d[0].Class != "default" { // the start token begins a message of its own
		t.Errorf("got %+v", d)
	}
	if got := d[0].IDs; !slices.Equal(got, []int32{'a', 256}) {
		t.Errorf("got %v", got)
	}
	plain, err := ByteTokenizer().Encode("say <|im_end|>x")
	if err != nil {
		t.Fatal(err)
	}
	if d, err = m.Distribution(append(tokens(t, m, "<|im_start|>user\n"), plain...)); err != nil {
		t.Fatal(err)
	}
	word, err := ByteTokenizer().Encode("<|im_end|>x")
	if err != nil {
		t.Fatal(err)
	}
	want := append(append(append(append([]int32{259}, word...), 260), word...), 258)
	if !slices.Equal(d[0].IDs, want) || d[0].Text != "<think><|im_end|>x</think><|im_end|>x" {
		t.Errorf("got %+v, want %v", d[0], want)
	}
}

func TestCaptureThatIsNoInteger(t *testing.T) {
	m := modelOf(t, `{"classes":[{"name":"x","match":{"regex":"n=(?P<n>\\S+)"},"candidates":[{"text":"${n+1}"}]}],"default":[{"text":"d"}]}`)
	if _, err := m.Distribution(tokens(t, m, "n=one")); err == nil || !strings.Contains(err.Error(), `"n"`) {
		t.Errorf("got %v", err)
	}
	s := start(t, Config{Policy: m.Policy()})
	if a := generate(t, s, fields{"text": "n=one"}); a.Status != 500 || !strings.Contains(a.Error.Message, `"n"`) {
		t.Errorf("got %d %s", a.Status, a.Raw)
	}
	if a := generate(t, s, fields{"text": "n=41"}); a.Text != "42" {
		t.Errorf("got %s", a.Raw)
	}
}

func TestTrieCacheIsBounded(t *testing.T) {
	m := modelOf(t, `{"classes":[{"name":"x","match":{"regex":"n=(?P<n>\\d+)"},"candidates":[{"text":"${n+1}"}]}],"default":[{"text":"d"}]}`)
	for n := range maxTries + 10 {
		if _, err := m.trie(0, map[string]string{"n": strings.Repeat("1", n%900) + "2"}); err != nil {
			t.Fatal(err)
		}
		if len(m.tries) > maxTries {
			t.Fatalf("%d tries are kept", len(m.tries))
		}
	}
}
