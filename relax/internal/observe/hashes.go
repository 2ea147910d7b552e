package observe

import (
	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
	"github.com/relax-rollout/relax-rollout/relax/internal/forest"
)

// Hashes are the reference's state hashes of a forest's nodes (reference session service 3.1).
type Hashes map[*forest.Node]string

// HashForest hashes all nodes. It costs one pass over the tree's messages, and the tools once
// more for each node.
func HashForest(f *forest.Forest) Hashes {
	h := Hashes{}
	root := f.Root()
	h[root] = canon.ReferenceHash(nil, nil, root.Kwargs())
	for _, top := range root.Children() {
		h.below(top, canon.NewReferenceChain(top.Tools(), top.Kwargs()))
	}
	return h
}

// below hashes n and what lies below it. The chain is that of n's parent, and used up.
func (h Hashes) below(n *forest.Node, chain *canon.ReferenceChain) {
	for {
		h.add(n, chain)
		children := n.Children()
		if len(children) == 0 {
			return
		}
		for _, child := range children[1:] {
			h.below(child, chain.Fork())
		}
		n = children[0] // a straight conversation is no recursion
	}
}

func (h Hashes) add(n *forest.Node, chain *canon.ReferenceChain) {
	for _, m := range n.Messages() {
		chain.Add(m)
	}
	h[n] = chain.Sum()
}

// HashLineages hashes the nodes down to each of the given ones.
func HashLineages(ends ...*forest.Node) Hashes {
	h := Hashes{}
	for _, end := range ends {
		if h[end] != "" {
			continue
		}
		chain := canon.NewReferenceChain(end.Tools(), end.Kwargs())
		for _, n := range path(end) {
			h.add(n, chain)
		}
	}
	return h
}

// path returns the nodes from the first below the root down to n.
func path(n *forest.Node) []*forest.Node {
	if n.Kind() == forest.Root {
		return nil
	}
	return append(path(n.Parent()), n)
}
