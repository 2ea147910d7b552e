package hf

import (
	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// Files have tens of megabytes, of which little is asked for: members are found and not read.
// What is malformed elsewhere the native library reports, which parses all of it.

// walk calls member for each member of an object with its name, its value's bytes and where
// they begin.
func walk(data []byte, member func(name string, value []byte, at int) error) error {
	return canon.WalkMembers(data, func(name string, at int) (int, error) {
		end, err := canon.SkipValue(data, at)
		if err != nil {
			return 0, err
		}
		return end, member(name, data[at:end], at)
	})
}

// members returns the values of an object by name, the last one where a name comes twice.
func members(data []byte) (map[string][]byte, error) {
	values := map[string][]byte{}
	err := walk(data, func(name string, value []byte, _ int) error {
		values[name] = value
		return nil
	})
	return values, err
}

// absent says whether a value is missing or null.
func absent(raw []byte) bool { return len(raw) == 0 || string(raw) == "null" }
