//go:build !race

package schedule

// simulatedWorlds is how many worlds the simulation plays.
const simulatedWorlds = 12000
