package forest

// Undelivered says that one answer of the response n could not be handed to its client: it was
// gone while the answer was written. Call it once for each such answer. The response is
// undelivered when all its commits, repeats included, were lost. It stays delivered if it was
// replayed before, or if an observation already extends it: then somebody has read it.
//
// An undelivered response keeps its tokens and its place. What it means for exports is said at
// [Forest.Contexts].
func (f *Forest) Undelivered(n *Node) {
	if n.kind != Response || n.read || n.lost > n.duplicates {
		return
	}
	n.lost++
	if n.IsUndelivered() {
		f.undelivered++
		f.undeliveredTokens += len(n.generation.IDs)
		n.unheard()
	}
}

// Delivered says that a client has the response n for certain: a retry got it. From then on [Forest.Undelivered] leaves it alone.
func (f *Forest) Delivered(n *Node) {
	if n.kind != Response || n.read {
		return
	}
	was := n.IsUndelivered()
	n.read = true
	f.found(n, was)
}

// found counts a response that is delivered now and was not.
func (f *Forest) found(n *Node, was bool) {
	if !was {
		return
	}
	f.undelivered--
	f.undeliveredTokens -= len(n.generation.IDs)
	n.heard()
}

// IsUndelivered reports whether the node is a response that no client has received. Only the
// forest's owner may call it. Nothing lies below such a node.
func (n *Node) IsUndelivered() bool { return n.kind == Response && !n.read && n.lost > n.duplicates }

// heard marks the nodes above a delivered response.
func (n *Node) heard() {
	for above := n.parent; above != nil && !above.followed; above = above.parent {
		above.followed = true
	}
}

// unheard takes the marks back after n's answer was lost.
func (n *Node) unheard() {
	for above := n.parent; above != nil && above.followed; above = above.parent {
		for _, child := range above.children {
			if child.followed || child.kind == Response && !child.IsUndelivered() {
				return
			}
		}
		above.followed = false
	}
}
