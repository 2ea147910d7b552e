package sglangtest

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// The signals of a run. They are set by others and looked at before every token.
const (
	signalAbort   uint32 = 1 << iota // abort_request reached it
	signalHold                       // the server is paused in a mode that keeps requests
	signalRetract                    // with signalHold: it went back to the queue
	signalGone                       // the client hung up
	signalClosed                     // the server closes
	signalFreeze                     // the server is frozen
)

// errNoAnswer ends a run whose client gets nothing: it has gone, or the server closes.
var errNoAnswer = errors.New("nobody to answer")

// A run is one /generate on its way. Its fields belong to the goroutine of its connection,
// but for those that say otherwise.
type run struct {
	server  *Server
	req     *GenerateRequest
	fault   *Fault
	prompt  []int32 // with images expanded
	limit   int     // tokens at most
	arrived time.Time

	bits atomic.Uint32
	wake chan struct{} // poked when bits change

	// guarded by server.mu
	registered  bool
	running     bool
	retractions int
	lost        int         // aborts a fault has eaten
	late        *time.Timer // an abort on its way

	cached   int
	entry    *cacheEntry
	slot     bool
	timer    *time.Timer
	produced atomic.Int64 // len(said), for load reports

	step    sync.Mutex // held while a token is made; guards what follows
	state   *state
	sampler *sampler
	said    []int32
	lps     []float32
	lastAt  time.Time // when the last token was due

	finish   finish
	finished bool
}

// A finish says how a run ended.
type finish struct {
	kind      finishKind
	id        int32  // of finishStopID
	text      string // the matched string, or the abort's message
	status    int    // of an abort: 0 is null
	inQueue   bool   // aborted while waiting: a shorter answer
	retracted bool   // was running before it waited
}

type finishKind int

const (
	finishStopID finishKind = iota
	finishStopText
	finishLength
	finishAbort
)

func (r *run) signal(bits uint32) {
	r.bits.Or(bits)
	r.poke()
}

func (r *run) poke() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// left says whether there is nobody to answer any more.
func (r *run) left() bool { return r.bits.Load()&(signalGone|signalClosed) != 0 }

// queue brings the run from its registration to its first token's turn: a place among the
// running, the start delay, no pause. The run may end there, aborted.
func (r *run) queue() error {
	if err := r.takeSlot(); err != nil || r.finished {
		return err
	}
	delay := r.server.cfg.StartDelay
	if r.fault != nil {
		delay += r.fault.Delay
	}
	if delay > 0 {
		until := time.Now().Add(delay)
		for !r.left() && r.bits.Load()&signalAbort == 0 && r.wait(until) {
		}
	}
	if r.fault != nil && r.fault.HangForever {
		r.server.setRunning(r)
		for !r.left() {
			<-r.wake
		}
	}
	for {
		if over, err := r.overInQueue(); over {
			return err
		}
		if r.bits.Load()&(signalHold|signalFreeze) != 0 {
			<-r.wake
			continue
		}
		if r.server.setRunning(r) {
			r.lastAt = time.Now().Add(-r.server.delay()) // the first token is due now
			return nil
		}
	}
}

// overInQueue says whether the run ends where it waits: nobody is left to answer, or it was
// aborted.
func (r *run) overInQueue() (bool, error) {
	switch bits := r.bits.Load(); {
	case bits&(signalGone|signalClosed) != 0:
		return true, errNoAnswer
	case bits&signalAbort != 0:
		r.end(finish{kind: finishAbort, text: "Abort in waiting queue", inQueue: true})
		return true, nil
	}
	return false, nil
}

// takeSlot waits for one of Config.MaxRunning places.
func (r *run) takeSlot() error {
	if r.server.slots == nil {
		return nil
	}
	for {
		select {
		case r.server.slots <- struct{}{}:
			r.slot = true
			return nil
		case <-r.wake:
		}
		if over, err := r.overInQueue(); over {
			return err
		}
	}
}

// wait sleeps until a time or a poke. false: the time has come.
func (r *run) wait(until time.Time) bool {
	d := time.Until(until)
	if d <= 0 {
		return false
	}
	if r.timer == nil {
		r.timer = time.NewTimer(d)
	} else {
		r.timer.Reset(d)
	}
	select {
	case <-r.timer.C:
		return false
	case <-r.wake:
		r.timer.Stop()
		return true
	}
}

// advance makes one token, waiting for its time, and notes how the run ends if it does.
func (r *run) advance() error {
	for {
		bits := r.bits.Load()
		held := bits&signalHold != 0
		switch {
		case bits&(signalGone|signalClosed) != 0:
			return errNoAnswer
		case bits&signalFreeze != 0:
			<-r.wake
			continue
		case held && bits&(signalAbort|signalRetract) == signalAbort|signalRetract:
			r.cutToFlushed()
			r.end(finish{kind: finishAbort, text: "Abort in waiting queue", inQueue: true, retracted: true})
			return nil
		case held:
			<-r.wake
			continue
		case bits&signalAbort == 0 && r.waitDue():
			continue
		}
		if err, made := r.token(); err != nil || made {
			return err
		}
	}
}

// maxLag is how late a token may be before the ones after it keep their distance from now
// instead of catching up, as after a pause.
const maxLag = 20 * time.Millisecond

// waitDue sleeps until the next token is due. true: it was poked before.
func (r *run) waitDue() bool {
	delay := r.server.delay()
	if delay <= 0 {
		return false
	}
	due := r.lastAt.Add(delay)
	if r.wait(due) {
		return true
	}
	if now := time.Now(); now.Sub(due) > maxLag {
		due = now
	}
	r.lastAt = due
	return false
}

// token makes a token unless a pause came in between.
func (r *run) token() (err error, made bool) {
	r.step.Lock()
	defer r.step.Unlock()
	bits := r.bits.Load()
	if bits&(signalHold|signalFreeze) != 0 {
		return nil, false
	}
	if st := r.server.state.Load(); st != r.state {
		if err := r.follow(st); err != nil {
			return err, false
		}
	}
	noStop := len(r.said) < r.req.Sampling.MinNewTokens
	id, lp := r.sampler.next(len(r.prompt)+len(r.said), noStop)
	r.said = append(r.said, id)
	r.lps = append(r.lps, float32(lp))
	r.produced.Store(int64(len(r.said)))
	r.conclude(id, bits&signalAbort != 0)
	return nil, true
}

// settle waits for a token under way. After a hold it makes sure that none is sampled from
// weights that the caller is about to replace.
func (r *run) settle() {
	r.step.Lock()
	defer r.step.Unlock()
}

// follow takes over new weights or a new policy from the next token on.
func (r *run) follow(st *state) error {
	old := r.state
	r.state = st
	if old != nil && old.model == st.model {
		return nil
	}
	return r.sampler.start(st.model, r.prompt, r.said)
}

// conclude ends the run if the last token, or an abort, does.
func (r *run) conclude(id int32, aborted bool) {
	if f := r.fault; f != nil && f.NaNStop > 0 && len(r.said) >= f.NaNStop {
		r.said[len(r.said)-1] = r.state.model.eos[0]
		r.end(finish{kind: finishStopText, text: "NaN happened"})
		return
	}
	if aborted {
		r.end(finish{kind: finishAbort, text: "Aborted"})
		return
	}
	sp := &r.req.Sampling
	if stop, ok := r.stopString(); ok {
		r.end(finish{kind: finishStopText, text: stop})
		return
	}
	if !sp.IgnoreEOS && slices.Contains(r.sampler.stops, id) {
		r.end(finish{kind: finishStopID, id: id})
		return
	}
	if len(r.said) >= r.limit {
		r.end(finish{kind: finishLength})
		return
	}
	if f := r.fault; f != nil && f.AbortAfter > 0 && len(r.said) >= f.AbortAfter {
		r.end(f.abort())
	}
}

func (f *Fault) abort() finish {
	text := f.AbortMessage
	if text == "" {
		text = "Aborted"
	}
	return finish{kind: finishAbort, text: text, status: f.AbortStatus}
}

// stopString says which stop string the text contains since the last token. Earlier tokens
// were looked at in their time, so only the end of the text is decoded.
func (r *run) stopString() (string, bool) {
	stops := r.req.Sampling.Stop
	if len(stops) == 0 {
		return "", false
	}
	longest := 0
	for _, s := range stops {
		longest = max(longest, len(s))
	}
	tail := r.said[max(0, len(r.said)-longest-1):]
	text, err := r.server.cfg.Tokenizer.Decode(tail)
	if err != nil {
		return "", false // our own ids are in the vocabulary
	}
	for _, s := range stops {
		if strings.Contains(text, s) {
			return s, true
		}
	}
	return "", false
}

// cutToFlushed drops the tokens a waiting request's answer does not have.
func (r *run) cutToFlushed() {
	if r.req.Stream {
		return
	}
	n := len(r.said) - len(r.said)%r.server.cfg.FlushEvery
	r.said, r.lps = r.said[:n], r.lps[:n]
}

func (r *run) end(f finish) {
	r.finish, r.finished = f, true
}
