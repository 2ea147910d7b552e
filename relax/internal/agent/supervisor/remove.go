//go:build linux

package supervisor

import (
	"io/fs"
	"os"
	"path/filepath"
)

// RemoveTree removes a directory and what is in it, also where the agent took permissions
// away from directories of its own.
func RemoveTree(dir string) error {
	err := os.RemoveAll(dir)
	if err == nil {
		return nil
	}
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, _ error) error {
		if d != nil && d.IsDir() {
			_ = os.Chmod(path, 0o700)
		}
		return nil
	})
	return os.RemoveAll(dir)
}
