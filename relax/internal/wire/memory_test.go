package wire

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/relax-rollout/relax-rollout/relax/internal/canon"
)

// A parsed request may wait for hours; its body must not.
func TestParsedRequestsKeepNoBody(t *testing.T) {
	text := strings.Repeat("long ", 1<<16)
	for name, c := range map[string]struct {
		dialect Dialect
		body    string
	}{
		"chat":      {Chat, `{"messages":[{"role":"user","content":"hi"}],"x":"` + text + `"}`},
		"responses": {Responses, `{"input":"hi","x":"` + text + `","metadata":{"a":"b"}}`},
		"messages":  {Messages, `{"max_tokens":5,"messages":[{"role":"user","content":"hi"}],"x":"` + text + `"}`},
	} {
		freed := make(chan struct{})
		parse := func() *canon.Request {
			body := []byte(c.body)
			runtime.AddCleanup(&body[0], func(ch chan struct{}) { close(ch) }, freed)
			req, e := c.dialect.Parse(body, canon.NewCache(0))
			if e != nil {
				t.Fatalf("%s: %v", name, e)
			}
			return req
		}
		req := parse()
		gone := false
		for range 100 {
			runtime.GC()
			select {
			case <-freed:
				gone = true
			case <-time.After(10 * time.Millisecond):
			}
			if gone {
				break
			}
		}
		if !gone {
			t.Errorf("%s: the body is still held", name)
		}
		runtime.KeepAlive(req)
	}
}
