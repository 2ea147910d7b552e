//go:build !cgo || relax_nohf

package hf

func openCore([]byte) (core, error) { return nil, ErrNotBuilt }
