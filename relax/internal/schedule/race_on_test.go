//go:build race

package schedule

// simulatedWorlds is how many worlds the simulation plays: fewer where each step is slow.
const simulatedWorlds = 3000
