package forest

// SampledTokens is the number of tokens of all commits, repeats included.
func (f *Forest) SampledTokens() int { return f.sampled }

// Fates says what became of the sampled tokens of a Session: Sampled is the sum of the others.
// A token that several rows hold counts once.
type Fates struct {
	// Sampled counts the tokens of all commits, Trained those with loss mask 1 in a row.
	Sampled, Trained int
	// Repeated were dropped as duplicates of a recorded turn, Undelivered because no client
	// received them, Unexported because no row holds their turn.
	Repeated, Undelivered, Unexported int
}

// Fates accounts for all sampled tokens when the rows of these nodes are trained.
func (f *Forest) Fates(exported ...*Node) Fates {
	a := Fates{Sampled: f.sampled, Repeated: f.duplicateTokens, Undelivered: f.undeliveredTokens}
	for n := range ancestry(exported) {
		a.Trained += len(n.generation.IDs)
		if n.IsUndelivered() {
			a.Undelivered -= len(n.generation.IDs)
		}
	}
	a.Unexported = a.Sampled - a.Trained - a.Repeated - a.Undelivered
	return a
}

// ancestry has the responses of the lineages of nodes, each once.
func ancestry(nodes []*Node) map[*Node]bool {
	seen, responses := map[*Node]bool{}, map[*Node]bool{}
	for _, n := range nodes {
		for ; n.kind != Root && !seen[n]; n = n.parent {
			seen[n] = true
			if n.kind == Response {
				responses[n] = true
			}
		}
	}
	return responses
}
