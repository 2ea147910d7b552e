package sglangtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/valyala/fasthttp"
)

// maxListed bounds the lists kept for tests.
const maxListed = 10_000

// readBody decodes a JSON body; unknown fields are ignored, as the real server does. On
// failure it has answered.
func readBody(ctx *fasthttp.RequestCtx, into any) bool {
	if err := json.Unmarshal(ctx.PostBody(), into); err != nil {
		refuse(ctx, badBody("the body does not parse: %v", err), false)
		return false
	}
	return true
}

// readOptionalBody is readBody where no body means no wishes.
func readOptionalBody(ctx *fasthttp.RequestCtx, into any) bool {
	return len(ctx.PostBody()) == 0 || readBody(ctx, into)
}

func (s *Server) abortRequest(ctx *fasthttp.RequestCtx) {
	var body struct {
		RID string `json:"rid"`
		All bool   `json:"abort_all"`
	}
	if !readBody(ctx, &body) {
		return
	}
	if body.RID != "" || body.All {
		s.abort(body.RID, body.All)
	}
}

// abort signals every request in flight whose rid begins with prefix, or all, with the faults
// that strike at aborts.
func (s *Server) abort(prefix string, all bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	hit := 0
	for _, r := range s.matching(prefix, all) {
		if s.strikeAbort(r) {
			hit++
		}
	}
	if len(s.aborts) < maxListed {
		s.aborts = append(s.aborts, Abort{RID: prefix, All: all, Hit: hit, At: time.Now()})
	}
}

// strikeAbort signals a run unless a fault loses the abort, in which case it is false, or
// makes it late. The caller holds mu.
func (s *Server) strikeAbort(r *run) bool {
	f := r.fault
	if f == nil {
		r.signal(signalAbort)
		return true
	}
	if r.lost < f.LoseAborts {
		r.lost++
		return false
	}
	if f.AbortLag <= 0 {
		r.signal(signalAbort)
		return true
	}
	if r.late == nil {
		r.late = time.AfterFunc(f.AbortLag, func() { r.signal(signalAbort) })
	}
	return true
}

// matching are the requests in flight whose rid begins with prefix, or all. The caller holds mu.
func (s *Server) matching(prefix string, all bool) (out []*run) {
	for rid, r := range s.byRID {
		if all || strings.HasPrefix(rid, prefix) {
			out = append(out, r)
		}
	}
	return out
}

// abortEverything signals all there is, as the server itself does. The caller holds mu.
func (s *Server) abortEverything() {
	for _, r := range s.byRID {
		r.signal(signalAbort)
	}
}

func (s *Server) pauseGeneration(ctx *fasthttp.RequestCtx) {
	var body struct {
		Mode *pauseMode `json:"mode"`
	}
	if !readBody(ctx, &body) {
		return
	}
	mode := pauseAbort
	if body.Mode != nil {
		mode = *body.Mode
	}
	left, end := s.whileThere(ctx)
	defer end()
	if err := s.pauseIn(left, mode); err != nil {
		refuse(ctx, err, false)
		return
	}
	answerJSON(ctx, 200, map[string]string{"message": "Generation paused successfully.", "status": "ok"})
}

// pauseIn pauses. ctx bounds the wait of mode abort.
func (s *Server) pauseIn(ctx context.Context, mode pauseMode) error {
	switch mode {
	case pauseAbort:
		s.stopAll()
		if err := s.awaitIdle(ctx); err != nil {
			return fmt.Errorf("pausing: %w", err)
		}
	case pauseRetract, pauseInPlace:
		s.holdAll(mode)
	default:
		return badBody("mode is %q, expected abort, retract or in_place", shorten(string(mode)))
	}
	return nil
}

// stopAll pauses and aborts everything in flight, also what an earlier pause held.
func (s *Server) stopAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pause = pauseAbort
	for _, r := range s.byRID {
		r.bits.And(^(signalHold | signalRetract))
	}
	s.abortEverything()
	s.change()
}

// holdAll pauses and keeps everything in flight where it is, or back in the queue. When it
// returns no token is being made any more.
func (s *Server) holdAll(mode pauseMode) {
	s.mu.Lock()
	s.pause = mode
	held := make([]*run, 0, len(s.byRID))
	for _, r := range s.byRID {
		bits := signalHold
		if mode == pauseRetract && r.running {
			bits |= signalRetract
			r.running = false
			r.retractions++
		}
		r.signal(bits)
		held = append(held, r)
	}
	s.change()
	s.mu.Unlock()
	for _, r := range held {
		r.settle()
	}
}

func (s *Server) continueGeneration(ctx *fasthttp.RequestCtx) {
	var body struct{}
	if !readBody(ctx, &body) {
		return
	}
	s.resume()
	answerJSON(ctx, 200, map[string]string{"message": "Generation continued successfully.", "status": "ok"})
}

func (s *Server) resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pause = notPaused
	for _, r := range s.byRID {
		if old := r.bits.And(^(signalHold | signalRetract)); old&signalRetract != 0 {
			r.running = true
		}
		r.poke()
	}
	s.change()
}

var (
	errBusy    = errors.New("requests are in flight")
	errLeft    = errors.New("the client hung up")
	errClosing = errors.New("the server closes")
)

// whileThere is a context that ends when the client hangs up or the server closes.
func (s *Server) whileThere(ctx *fasthttp.RequestCtx) (left context.Context, end func()) {
	left, cancel := context.WithCancelCause(s.http.ctx)
	unwatch := s.http.gone.add(ctx.Conn(), func() { cancel(errLeft) })
	return left, func() {
		unwatch()
		cancel(nil)
	}
}

// awaitIdle waits until nothing is in flight. It gives up when ctx ends or the server closes.
func (s *Server) awaitIdle(ctx context.Context) error {
	for {
		s.mu.Lock()
		idle, changed, closed := len(s.byRID) == 0, s.changed, s.closed
		s.mu.Unlock()
		if closed {
			return errClosing
		}
		if idle {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// updateFromDisk is the update call that also changes what the model is called: model_path and
// served_model_name are its model_path from then on, as the real server's are.
const updateFromDisk = "/update_weights_from_disk"

// updateWeights answers the update calls. Nothing is loaded: only the version and the path count.
func (s *Server) updateWeights(ctx *fasthttp.RequestCtx) {
	var body struct {
		ModelPath     *string `json:"model_path"`
		WeightVersion *string `json:"weight_version"`
		AbortAll      bool    `json:"abort_all_requests"`
		FlushCache    *bool   `json:"flush_cache"`
	}
	if !readBody(ctx, &body) {
		return
	}
	fromDisk := string(ctx.Path()) == updateFromDisk
	if fromDisk && (body.ModelPath == nil || *body.ModelPath == "") {
		refuse(ctx, badBody("model_path is required"), false)
		return
	}
	flush := body.FlushCache == nil || *body.FlushCache
	left, end := s.whileThere(ctx)
	defer end()
	held, err := s.awaitUpdate(left, body.AbortAll, flush)
	if err != nil {
		answerJSON(ctx, 400, map[string]any{"success": false, "message": err.Error()})
		return
	}
	if body.WeightVersion != nil {
		s.SetWeightVersion(*body.WeightVersion)
	}
	if fromDisk {
		s.setModelPath(*body.ModelPath)
	}
	if flush {
		s.cache.flush()
	}
	s.endUpdate()
	answerJSON(ctx, 200, map[string]any{"success": true, "message": "Succeeded to update model weights.", "num_paused_requests": held})
}

// awaitUpdate keeps new requests out and waits for those in flight, unless the server is
// paused. After it endUpdate must be called if there was no error.
func (s *Server) awaitUpdate(ctx context.Context, abortAll, flush bool) (held int, err error) {
	s.mu.Lock()
	if s.pause != notPaused {
		defer s.mu.Unlock()
		held = len(s.byRID)
		if flush && held > 0 {
			return held, fmt.Errorf("the cache cannot be flushed while %d requests are held; send flush_cache:false or pause with mode abort", held)
		}
		s.updates++
		return held, nil
	}
	s.updates++
	if abortAll {
		s.abortEverything()
	}
	s.mu.Unlock()
	if err := s.awaitIdle(ctx); err != nil {
		s.endUpdate()
		return 0, err
	}
	return 0, nil
}

func (s *Server) endUpdate() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.updates--
	s.change()
}

func (s *Server) updateWeightVersion(ctx *fasthttp.RequestCtx) {
	var body struct {
		NewVersion *string `json:"new_version"`
		AbortAll   *bool   `json:"abort_all_requests"`
	}
	if !readBody(ctx, &body) {
		return
	}
	if body.NewVersion == nil {
		refuse(ctx, badBody("new_version is required"), false)
		return
	}
	if body.AbortAll == nil || *body.AbortAll {
		s.mu.Lock()
		s.abortEverything()
		s.mu.Unlock()
	}
	s.SetWeightVersion(*body.NewVersion)
	answerJSON(ctx, 200, map[string]any{"success": true, "new_version": *body.NewVersion,
		"message": "Weight version updated to " + *body.NewVersion})
}

func (s *Server) flushCache(ctx *fasthttp.RequestCtx) {
	timeout := ctx.QueryArgs().GetUfloatOrZero("timeout")
	s.mu.Lock()
	idle := len(s.byRID) == 0
	s.mu.Unlock()
	if !idle && timeout > 0 {
		left, end := s.whileThere(ctx)
		defer end()
		left, stop := context.WithTimeoutCause(left, milliseconds(timeout*1000), errBusy)
		defer stop()
		idle = s.awaitIdle(left) == nil
	}
	if !idle {
		ctx.SetStatusCode(400)
		ctx.SetBodyString("Flush cache failed: requests are in flight.\n")
		return
	}
	s.cache.flush()
	ctx.SetBodyString("Cache flushed.\n")
}

func (s *Server) acceptNothing(ctx *fasthttp.RequestCtx) {
	var body struct{}
	if readOptionalBody(ctx, &body) {
		answerJSON(ctx, 200, map[string]any{"success": true, "message": "The simulator has no such groups; nothing to do."})
	}
}
