package sglang

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/relax-rollout/relax-rollout/relax/sglangtest"
)

// close_session goes to the workers that served the Session, and to no other.
func TestCloseSession(t *testing.T) {
	c, servers, _ := fleetOf(t, 3, sglangtest.Config{}, func(cfg *Config) { cfg.SendSessionID = true })
	served := map[string]string{}
	for i := range 30 {
		in := prompt(t, fmt.Sprint("r", i), "hello", 5)
		res, err := c.Generate(t.Context(), in)
		if err != nil {
			t.Fatal(err)
		}
		served[in.Session] = res.Worker
	}
	for session := range served {
		c.CloseSession(session)
		c.CloseSession(session) // it is closed already
	}
	c.CloseSession("never seen")
	until(t, "the sessions to be closed", func() bool { return c.Stats().SessionsClosed == 30 })
	told := 0
	for _, s := range servers {
		for _, r := range s.Requests() {
			if r.Request.SessionID == "" {
				t.Errorf("%s came without session_id", r.Request.RID)
			}
		}
		for _, session := range s.ClosedSessions() {
			if told++; served[session] != s.URL() {
				t.Errorf("%s was told of %s, which %s served", s.URL(), session, served[session])
			}
		}
	}
	if told != 30 || c.Stats().SessionCloseFailures != 0 {
		t.Errorf("%d calls, stats %+v", told, c.Stats())
	}
}

// A worker that cannot be told is counted and holds up nobody; Close waits for what is under way.
func TestCloseSessionFails(t *testing.T) {
	c, servers, _ := fleetOf(t, 2, sglangtest.Config{}, func(cfg *Config) { cfg.SendSessionID, cfg.ControlTimeout = true, 10*time.Second })
	var of [2]string // a Session of each worker
	for i := 0; of[0] == "" || of[1] == ""; i++ {
		in := prompt(t, fmt.Sprint("r", i), "hello", 5)
		res, err := c.Generate(t.Context(), in)
		if err != nil {
			t.Fatal(err)
		}
		of[slices.IndexFunc(servers, func(s *sglangtest.Server) bool { return s.URL() == res.Worker })] = in.Session
	}
	if err := servers[0].Close(); err != nil {
		t.Fatal(err)
	}
	c.CloseSession(of[0])
	until(t, "the failure to be counted", func() bool { return c.Stats().SessionCloseFailures == 1 })
	c.CloseSession(of[1])
	c.Close()
	if closed := servers[1].ClosedSessions(); !slices.Equal(closed, []string{of[1]}) || c.Stats().SessionsClosed != 1 {
		t.Errorf("told %v, stats %+v", closed, c.Stats())
	}
}
