package sglangtest

import (
	"fmt"
	"math"
	"slices"
)

// offTrie is the place after a reply's end, and of a prefix no candidate has. There the
// model says EOS with probability one.
const offTrie int32 = -1

// A trie holds the token sequences of a class's candidates. Every node knows the log of the
// mass below it (the sum of exp(weight) of the candidates there), so a token's probability
// is a quotient of two masses.
type trie struct {
	nodes []trieNode
	// candidates are the distinct sequences, in the order of the policy.
	candidates []trieCandidate
}

type trieNode struct {
	edges   []trieEdge // sorted by id
	logMass float64
}

type trieEdge struct {
	id   int32
	node int32
}

type trieCandidate struct {
	index int // in the class
	text  string
	ids   []int32
	leaf  int32
}

// newTrie builds the trie. Each sequence ends with a token that no sequence has elsewhere,
// so none is a prefix of another; equal sequences share one leaf and add up.
func newTrie(candidates []trieCandidate, weights []float64) (*trie, error) {
	t := &trie{nodes: []trieNode{{logMass: math.Inf(-1)}}}
	for i, c := range candidates {
		leaf := t.insert(c.ids)
		if math.IsInf(t.nodes[leaf].logMass, -1) {
			c.leaf = leaf
			t.candidates = append(t.candidates, c)
		}
		t.nodes[leaf].logMass = logAdd(t.nodes[leaf].logMass, weights[i])
	}
	for _, c := range t.candidates {
		if len(t.nodes[c.leaf].edges) > 0 {
			return nil, fmt.Errorf("candidate %d is the beginning of another one; a stop token must not occur inside a reply", c.index)
		}
	}
	// A child is always made after its parent, so going backwards sees children first.
	for i := len(t.nodes) - 1; i >= 0; i-- {
		n := &t.nodes[i]
		for _, e := range n.edges {
			n.logMass = logAdd(n.logMass, t.nodes[e.node].logMass)
		}
	}
	return t, nil
}

func (t *trie) insert(ids []int32) int32 {
	at := int32(0)
	for _, id := range ids {
		edges := t.nodes[at].edges
		i, found := slices.BinarySearchFunc(edges, id, compareEdge)
		if !found {
			next := int32(len(t.nodes))
			t.nodes[at].edges = slices.Insert(edges, i, trieEdge{id: id, node: next})
			t.nodes = append(t.nodes, trieNode{logMass: math.Inf(-1)})
			at = next
			continue
		}
		at = edges[i].node
	}
	return at
}

func compareEdge(e trieEdge, id int32) int { return int(e.id) - int(id) }

// logAdd is log(exp(a) + exp(b)).
func logAdd(a, b float64) float64 {
	if a < b {
		a, b = b, a
	}
	if math.IsInf(b, -1) {
		return a
	}
	return a + math.Log1p(math.Exp(b-a))
}

// child is the place after id, or offTrie.
func (t *trie) child(at, id int32) int32 {
	if at == offTrie {
		return offTrie
	}
	i, found := slices.BinarySearchFunc(t.nodes[at].edges, id, compareEdge)
	if !found {
		return offTrie
	}
	return t.nodes[at].edges[i].node
}

// walk is the place after ids, and whether all of them lie in the trie.
func (t *trie) walk(at int32, ids []int32) (int32, bool) {
	for _, id := range ids {
		if at = t.child(at, id); at == offTrie {
			return offTrie, false
		}
	}
	return at, true
}

// logprobs appends, for each edge of the node, the log probability at a temperature: the
// softmax of mass^(1/temperature), as a language model scales its logits.
func (t *trie) logprobs(at int32, temperature float64, out []float64) []float64 {
	most, total := math.Inf(-1), math.Inf(-1)
	for _, e := range t.nodes[at].edges {
		most = max(most, t.nodes[e.node].logMass)
	}
	for _, e := range t.nodes[at].edges {
		scaled := (t.nodes[e.node].logMass - most) / temperature // small numbers stay exact
		out = append(out, scaled)
		total = logAdd(total, scaled)
	}
	for i := len(out) - len(t.nodes[at].edges); i < len(out); i++ {
		out[i] -= total
	}
	return out
}

// logprob is the log probability of id at a node. ok is false if it cannot come there.
func (t *trie) logprob(at, id int32, temperature float64) (value float64, ok bool) {
	edges := t.nodes[at].edges
	i, found := slices.BinarySearchFunc(edges, id, compareEdge)
	if !found {
		return 0, false
	}
	if len(edges) == 1 {
		return 0, true
	}
	return t.logprobs(at, temperature, nil)[i], true
}
