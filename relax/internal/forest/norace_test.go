//go:build !race

package forest

// histories is the number of generated histories a seed.
const histories = 200
