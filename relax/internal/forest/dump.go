package forest

import (
	"bufio"
	"fmt"
	"io"
	"strings"
)

// Stats counts what a forest holds.
type Stats struct {
	// Nodes counts observations and responses, Responses the latter, Subtrees the first
	// observations.
	Nodes, Responses, Subtrees int
	// Sampled counts the tokens of all commits.
	Sampled int
	// Duplicates counts commits that repeated a node, DuplicateTokens their tokens. They are
	// part of Sampled and can never be trained.
	Duplicates, DuplicateTokens int
	// Undelivered counts responses no client has received, UndeliveredTokens their tokens, one
	// commit each. They are trained only where exported.
	Undelivered, UndeliveredTokens int
	// Tolerated counts the attached requests of the tolerant policy in which messages were
	// replaced, Replaced those messages.
	Tolerated, Replaced int
}

// Stats returns the counts.
func (f *Forest) Stats() Stats {
	return Stats{
		Nodes:           f.count,
		Responses:       len(f.responses),
		Subtrees:        len(f.root.children),
		Sampled:         f.sampled,
		Duplicates:      f.duplicates,
		DuplicateTokens: f.duplicateTokens,

		Undelivered:       f.undelivered,
		UndeliveredTokens: f.undeliveredTokens,
		Tolerated:         f.tolerated,
		Replaced:          f.replaced,
	}
}

// Dump writes the tree as text, the same for the same calls.
func (f *Forest) Dump(w io.Writer) error {
	b := bufio.NewWriter(w)
	s := f.Stats()
	fmt.Fprintf(b, "session %s: %d nodes, %d responses, %d sampled tokens", f.session, s.Nodes, s.Responses, s.Sampled)
	if s.Duplicates > 0 {
		fmt.Fprintf(b, ", %d duplicates of %d tokens", s.Duplicates, s.DuplicateTokens)
	}
	fmt.Fprintln(b)
	for _, n := range f.root.children {
		n.dump(b, 1)
	}
	return b.Flush()
}

func (n *Node) dump(b *bufio.Writer, depth int) {
	fmt.Fprintf(b, "%s#%d %s, %d tokens", strings.Repeat("  ", depth), n.id, n.kind, n.length)
	if n.context != nil {
		n.context.dump(b)
	}
	if n.kind == Observation {
		fmt.Fprintf(b, " (+%d +%d prompt)", len(n.body), len(n.prompt))
		if n.replaced > 0 {
			fmt.Fprintf(b, " tolerated %d", n.replaced)
		}
	} else {
		n.dumpGeneration(b)
	}
	fmt.Fprintln(b)
	for _, m := range n.messages {
		fmt.Fprintf(b, "%s  | %s\n", strings.Repeat("  ", depth), quote(summary(m), shownBytes))
	}
	for _, child := range n.children {
		child.dump(b, depth+1)
	}
}

func (c *context) dump(b *bufio.Writer) {
	if len(c.tools) > 0 {
		names := make([]string, len(c.tools))
		for i := range c.tools {
			names[i] = c.tools[i].Name
		}
		fmt.Fprintf(b, ", tools %s", strings.Join(names, " "))
	}
	if len(c.kwargs.Members()) > 0 {
		fmt.Fprintf(b, ", kwargs %s", c.kwargs.AppendCanonical(nil))
	}
}

func (n *Node) dumpGeneration(b *bufio.Writer) {
	g := n.generation
	fmt.Fprintf(b, " (+%d)", len(g.IDs))
	for _, s := range g.Spans {
		fmt.Fprintf(b, " v%d@%d", s.Version, s.Start)
	}
	if g.Truncated {
		b.WriteString(" truncated")
	}
	if n.IsUndelivered() {
		b.WriteString(" undelivered")
	}
	if g.Aborts > 0 {
		fmt.Fprintf(b, " %d aborts", g.Aborts)
	}
	if n.duplicates > 0 {
		fmt.Fprintf(b, " %d duplicates", n.duplicates)
	}
	if g.ParseError != "" {
		fmt.Fprintf(b, " parse error %s", quote(g.ParseError, shownBytes))
	}
}
