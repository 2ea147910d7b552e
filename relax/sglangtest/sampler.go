package sglangtest

import (
	"math"
	"slices"

	"github.com/cespare/xxhash/v2"
)

// greedyBelow is the temperature under which sampling is greedy and logprobs are those of
// temperature 1.
const greedyBelow = 1e-6

// A sampler picks the tokens of one request.
type sampler struct {
	model       *Model
	place       place
	temperature float64 // of the logprobs
	topK        int     // ≤ 0: all
	topP, minP  float64
	key         uint64 // of the request's random numbers
	stops       []int32
	filler      int32 // said where nothing else is left

	// scratch
	lps   []float64
	order []int
}

func newSampler(m *Model, sp *SamplingParams, key uint64, filler int32) *sampler {
	s := &sampler{model: m, temperature: sp.Temperature, topK: sp.TopK, topP: sp.TopP, minP: sp.MinP, key: key, filler: filler}
	if sp.Temperature < greedyBelow {
		s.temperature, s.topK = 1, 1
	}
	s.stops = append(append(s.stops, m.eos...), sp.StopTokenIDs...)
	return s
}

// start puts the sampler behind a prompt and what was already said after it, under a model.
func (s *sampler) start(m *Model, prompt, said []int32) error {
	s.model = m
	p, err := m.locate(prompt)
	if err != nil {
		return err
	}
	p.at, _ = p.trie.walk(p.at, said)
	s.place = p
	return nil
}

// next picks the token at a position of the whole sequence. With noStop no stop token may
// come, as min_new_tokens asks: their logits are masked before the softmax.
func (s *sampler) next(position int, noStop bool) (id int32, logprob float64) {
	at := s.place.at
	if at == offTrie || len(s.place.trie.nodes[at].edges) == 0 {
		s.place.at = offTrie
		if noStop {
			return s.filler, 0
		}
		return s.model.eos[0], 0
	}
	edges := s.place.trie.nodes[at].edges
	pick, logprob := 0, 0.0
	if len(edges) > 1 || noStop {
		pick, logprob = s.choose(edges, position, noStop)
	}
	if pick < 0 {
		s.place.at = offTrie
		return s.filler, 0
	}
	s.place.at = edges[pick].node
	return edges[pick].id, logprob
}

// choose picks one of several edges. −1: all of them are masked.
func (s *sampler) choose(edges []trieEdge, position int, noStop bool) (int, float64) {
	s.lps = s.place.trie.logprobs(s.place.at, s.temperature, s.lps[:0])
	if noStop && !s.mask(edges) {
		return -1, 0
	}
	s.order = s.order[:0]
	for i := range edges {
		s.order = append(s.order, i)
	}
	slices.SortStableFunc(s.order, func(a, b int) int {
		switch {
		case s.lps[a] > s.lps[b]:
			return -1
		case s.lps[a] < s.lps[b]:
			return 1
		}
		return 0
	})
	kept := s.restrict()
	total := 0.0
	for _, i := range kept {
		total += math.Exp(s.lps[i])
	}
	u := uniform(s.key, position) * total
	for _, i := range kept {
		if u -= math.Exp(s.lps[i]); u < 0 {
			return i, s.lps[i]
		}
	}
	last := kept[len(kept)-1] // rounding only
	return last, s.lps[last]
}

// mask takes the stop tokens out of lps and renormalises. false: nothing is left.
func (s *sampler) mask(edges []trieEdge) bool {
	total := math.Inf(-1)
	for i, e := range edges {
		if slices.Contains(s.stops, e.id) {
			s.lps[i] = math.Inf(-1)
		}
		total = logAdd(total, s.lps[i])
	}
	if math.IsInf(total, -1) {
		return false
	}
	for i := range s.lps {
		s.lps[i] -= total
	}
	return true
}

// restrict applies top_k, top_p and min_p to the sorted order. At least one is kept, and
// none of probability zero beside it.
func (s *sampler) restrict() []int {
	n := len(s.order)
	if s.topK > 0 {
		n = min(n, s.topK)
	}
	first := s.lps[s.order[0]]
	sum := 0.0
	for i := range n {
		lp := s.lps[s.order[i]]
		if i > 0 && (sum >= s.topP || math.Exp(lp-first) < s.minP || math.IsInf(lp, -1)) {
			return s.order[:i]
		}
		sum += math.Exp(lp)
	}
	return s.order[:n]
}

// requestKey derives a request's random numbers from the server's seed and sampling_seed,
// or else the rid.
func requestKey(seed uint64, samplingSeed *int64, rid string) uint64 {
	if samplingSeed != nil {
		return mix(seed ^ mix(uint64(*samplingSeed)+1))
	}
	return mix(seed ^ mix(xxhash.Sum64String(rid)))
}

// uniform is a number in [0, 1) for a position of a request. It depends on nothing else, so
// a request that was cut and goes on under the same sampling_seed says the same words.
func uniform(key uint64, position int) float64 {
	return float64(mix(key+uint64(position)*0x9e3779b97f4a7c15)>>11) / (1 << 53)
}

// mix is the finaliser of splitmix64.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
