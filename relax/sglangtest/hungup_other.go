//go:build !unix

package sglangtest

import "net"

// hungUp cannot tell here; a client that has gone is noticed when it is written to.
func hungUp(net.Conn) bool { return false }
