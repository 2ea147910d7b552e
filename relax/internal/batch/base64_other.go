//go:build !amd64

package batch

import "encoding/base64"

// decodeBase64 decodes text without padding.
func decodeBase64(dst, text []byte) (int, error) { return base64.StdEncoding.Decode(dst, text) }
