//go:build race

package forest

// histories is the number of generated histories a seed; the race detector slows them down and
// finds nothing in a forest, which has no goroutines.
const histories = 4
