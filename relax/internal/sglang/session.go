package sglang

import (
	"fmt"
	"slices"
	"time"
)

// A closeCall is one CloseSession on its way to the workers. The client's mutex guards it.
type closeCall struct {
	left   int
	failed bool
}

// servedBy notes that w has something of the Session. The caller holds mu.
func (c *Client) servedBy(session string, w *worker) {
	if list := c.sessions[session]; !slices.Contains(list, w) {
		c.sessions[session] = append(list, w)
	}
}

// CloseSession tells the workers that served a Session that it ended, so that session-aware
// caches (SGLang's --enable-session-radix-cache) let its entries go. It needs
// Config.SendSessionID and returns at once; the calls are made in the background, each
// within ControlTimeout and one time. How they went is counted in [Stats]. It is called
// when the Session's calls have returned. A Session that was served only through a router
// is not closed: routers drop session_id and have no such route.
func (c *Client) CloseSession(session string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	workers := c.sessions[session]
	delete(c.sessions, session)
	if len(workers) == 0 || c.closed {
		return
	}
	job := &closeCall{left: len(workers)}
	c.closesOpen++
	for _, w := range workers {
		c.errand(w, errand{kind: closeErrand, id: session, close: job})
	}
}

func (c *Client) postClose(w *worker, session string) error {
	body := append(appendString([]byte(`{"session_id":`), session), '}')
	status, reply, err := c.controlCall(c.ctx, w, "POST", "/close_session", body)
	if err != nil {
		return fmt.Errorf("close session at %s: %w", w.url, err)
	}
	if status != 200 {
		return &StatusError{RID: "close_session", Worker: w.url, Status: status, Message: shorten(errorMessage(reply))}
	}
	return nil
}

// sessionTold notes one worker's answer to a CloseSession.
func (c *Client) sessionTold(job *closeCall, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	job.failed = job.failed || err != nil
	if job.left--; job.left > 0 {
		return
	}
	if job.failed {
		c.sessionFailures++
	} else {
		c.sessionsClosed++
	}
	if c.closesOpen--; c.closesOpen == 0 && c.closesDone != nil {
		close(c.closesDone)
		c.closesDone = nil
	}
}

// drainCloses gives the close_session calls under way one ControlTimeout to end.
func (c *Client) drainCloses() {
	c.mu.Lock()
	if c.closesOpen == 0 {
		c.mu.Unlock()
		return
	}
	done := make(chan struct{})
	c.closesDone = done
	c.mu.Unlock()
	limit := time.NewTimer(c.cfg.ControlTimeout)
	defer limit.Stop()
	select {
	case <-done:
	case <-limit.C:
	}
}
