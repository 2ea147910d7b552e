package sglangtest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/valyala/fasthttp"
)

// generate answers /generate.
func (s *Server) generate(ctx *fasthttp.RequestCtx) {
	arrived := time.Now()
	body := ctx.PostBody()
	req, err := parseGenerate(body)
	if req != nil {
		req.PathMethod = string(ctx.Method())
		req.AuthorizationHeader = string(ctx.Request.Header.Peek("Authorization"))
		req.RoutingKeyHeader = string(ctx.Request.Header.Peek("X-SMG-Routing-Key"))
	}
	s.records.add(req, body, arrived)
	if err != nil {
		refuse(ctx, err, req != nil && req.Stream)
		return
	}
	r := &run{server: s, req: req, arrived: arrived, wake: make(chan struct{}, 1)}
	unwatch := s.http.gone.add(ctx.Conn(), func() { r.signal(signalGone) })
	if err := s.admit(r); err != nil {
		unwatch()
		s.leave(r)
		s.answerError(ctx, r, err)
		return
	}
	st := &stream{run: r, conn: ctx.Conn(), unwatch: unwatch}
	if req.Stream && (r.fault == nil || r.fault.Status == 0) {
		ctx.SetContentType("text/event-stream")
		ctx.Response.ImmediateHeaderFlush = true
		ctx.SetBodyStream(st, -1)
		return
	}
	defer st.done() // whatever happens
	err = r.queue()
	for err == nil && !r.finished && (r.fault == nil || r.fault.Status == 0) {
		err = r.produce()
	}
	st.done() // before the client can know
	if err != nil {
		s.answerError(ctx, r, err)
		return
	}
	r.answer(ctx)
}

// answer answers a unary request that has ended.
func (r *run) answer(ctx *fasthttp.RequestCtx) {
	if f := r.fault; f != nil && f.Status != 0 && !r.finished {
		for name, value := range f.Header {
			ctx.Response.Header.Set(name, value)
		}
		ctx.SetStatusCode(f.Status)
		ctx.SetBodyString(f.Body)
		return
	}
	b := r.appendAnswer(acquireBuffer(), time.Now())
	defer releaseBuffer(b)
	if f := r.fault; f != nil && f.CutBody > 0 && f.CutBody < len(b) {
		cutBody(ctx.Conn(), b, f.CutBody)
		ctx.SetConnectionClose()
		return
	}
	ctx.SetContentType("application/json")
	ctx.SetBody(b)
}

// cutBody answers with less than is announced. Nothing of an answer is on its way yet: a
// connection is answered in order, one request at a time.
func cutBody(conn net.Conn, body []byte, n int) {
	head := "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n"
	_, _ = conn.Write(append([]byte(head), body[:n]...)) // the connection ends either way
	_ = conn.Close()
}

// produce makes the next token with the faults that strike at tokens.
func (r *run) produce() error {
	f := r.fault
	if f != nil && f.DropConnection && len(r.said) >= f.DropAfter {
		return errNoAnswer
	}
	if f != nil && f.AbortAfter < 0 {
		r.end(f.abort())
		return nil
	}
	if r.limit == 0 {
		r.end(finish{kind: finishLength})
		return nil
	}
	if err := r.advance(); err != nil {
		return err
	}
	if r.finished && f != nil && f.DropConnection {
		return errNoAnswer
	}
	return nil
}

// admit brings a request through the gate and the checks and registers it.
func (s *Server) admit(r *run) error {
	if err := s.enter(r); err != nil {
		return err
	}
	if err := s.check(r); err != nil {
		return err
	}
	if err := s.register(r); err != nil {
		return err
	}
	r.cached, r.entry = s.cache.admit(r.prompt)
	return nil
}

// enter makes the run known and waits while the server is paused or updated.
func (s *Server) enter(r *run) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errNoAnswer
	}
	s.live[r] = struct{}{}
	if s.frozen != nil {
		r.bits.Or(signalFreeze)
	}
	s.change()
	return s.awaitGate(r)
}

// awaitGate waits until new requests may pass. The caller holds mu, which is free meanwhile.
func (s *Server) awaitGate(r *run) error {
	for s.pause != notPaused || s.updates > 0 || s.frozen != nil {
		changed := s.changed
		s.mu.Unlock()
		select {
		case <-changed:
		case <-r.wake:
		}
		s.mu.Lock()
		if r.left() || s.closed {
			return errNoAnswer
		}
	}
	return nil
}

// check turns the request into ids and refuses what does not fit.
func (s *Server) check(r *run) error {
	req := r.req
	if rank := req.RoutedDPRank; rank != nil && *rank != 0 {
		return badValue("routed_dp_rank=%d is out of range [0, 1)", *rank)
	}
	r.prompt = req.InputIDs
	if r.prompt == nil {
		ids, err := s.Model().markup(req.Text)
		if err != nil {
			return badValue("text: %v", err)
		}
		r.prompt = ids
	}
	vocab := s.cfg.Tokenizer.VocabSize()
	for i, id := range r.prompt {
		if int(id) >= vocab {
			return badValue("input_ids[%d] is %d, outside the vocabulary of %d ids", i, id, vocab)
		}
	}
	if err := s.expandImages(r); err != nil {
		return err
	}
	if len(r.prompt) == 0 {
		return badValue("the prompt cannot be empty")
	}
	if req.RoutedExperts && s.cfg.Experts == (Experts{}) {
		return badValue("return_routed_experts is not supported by this model: Config.Experts is not set")
	}
	if req.ExpertsStart < 0 || req.ExpertsStart > len(r.prompt) {
		return badValue("routed_experts_start_len %d is out of range [0, %d]", req.ExpertsStart, len(r.prompt))
	}
	return s.checkLength(r)
}

func (s *Server) checkLength(r *run) error {
	n, context := len(r.prompt), s.cfg.ContextLen
	if n >= context {
		if r.req.Images > 0 {
			return badValue("Multimodal prompt is too long after expanding multimodal tokens: %d tokens, the context length is %d.", n, context)
		}
		return badValue("The input (%d tokens) is longer than the model's context length (%d tokens).", n, context)
	}
	room := max(1, context-n-1)
	r.limit = room
	if asked := r.req.Sampling.MaxNewTokens; asked != nil {
		if n+*asked > context {
			return badValue("Requested token count exceeds the model's maximum context length of %d tokens. You requested a total of %d tokens: %d of the prompt and %d to generate.", context, n+*asked, n, *asked)
		}
		r.limit = min(room, *asked)
	}
	return nil
}

// expandImages replaces each placeholder by as many as an image has tokens.
func (s *Server) expandImages(r *run) error {
	if r.req.Images == 0 {
		return nil
	}
	if s.image < 0 {
		return badValue("the tokenizer has no token %q; the simulator cannot place images", s.cfg.ImageToken)
	}
	found := 0
	expanded := make([]int32, 0, len(r.prompt)+r.req.Images*(s.cfg.ImageTokens-1))
	for _, id := range r.prompt {
		if id != s.image {
			expanded = append(expanded, id)
			continue
		}
		found++
		for range s.cfg.ImageTokens {
			expanded = append(expanded, id)
		}
	}
	if found != r.req.Images {
		return badValue("the prompt has %d image placeholders for %d images; send exactly one for each", found, r.req.Images)
	}
	r.prompt = expanded
	return nil
}

// register puts the run in flight: from here an abort finds it.
func (s *Server) register(r *run) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.awaitGate(r); err != nil { // closed again while the prompt was checked
		return err
	}
	if s.closed {
		return errNoAnswer
	}
	if r.req.RID == "" {
		s.nextID++
		r.req.RID = fmt.Sprintf("%016x%016x", mix(s.nextID), mix(mix(s.nextID)))
	}
	if s.byRID[r.req.RID] != nil {
		return badValue("rid %q is in flight already", r.req.RID)
	}
	if s.cfg.MaxQueued > 0 && s.cfg.MaxRunning > 0 {
		if len(s.byRID) >= s.cfg.MaxQueued+s.cfg.MaxRunning {
			return &refusal{status: 503, message: "The request queue is full.", schema: true}
		}
	}
	r.fault = s.pickFault(r.req)
	key := requestKey(s.cfg.Seed, r.req.Sampling.SamplingSeed, r.req.RID)
	r.sampler = newSampler(s.Model(), &r.req.Sampling, key, s.filler)
	s.byRID[r.req.RID] = r
	r.registered = true
	s.change()
	return nil
}

func (s *Server) pickFault(req *GenerateRequest) *Fault {
	if s.fault != nil {
		if f := s.fault(req); f != nil {
			return f
		}
	}
	return s.plan.pick(req.RID)
}

// setRunning marks a run as past the queue. false: a pause came first.
func (s *Server) setRunning(r *run) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.bits.Load()&(signalHold|signalFreeze) != 0 {
		return false
	}
	r.running = true
	return true
}

func (s *Server) retractionsOf(r *run) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return r.retractions
}

// leave takes a run out. It may be called twice.
func (s *Server) leave(r *run) {
	s.mu.Lock()
	_, known := s.live[r]
	if known {
		delete(s.live, r)
		if r.registered {
			delete(s.byRID, r.req.RID)
		}
		if r.bits.Load()&signalGone != 0 && !r.finished {
			s.gone++
		}
		if r.late != nil {
			r.late.Stop()
		}
		s.change()
	}
	s.mu.Unlock()
	if !known {
		return
	}
	if r.slot {
		<-s.slots
	}
	if r.entry != nil && len(r.said) > 0 {
		s.cache.extend(r.entry, r.said)
	}
}

// answerError answers a run that has no generation to show.
func (s *Server) answerError(ctx *fasthttp.RequestCtx, r *run, err error) {
	if errors.Is(err, errNoAnswer) {
		ctx.SetConnectionClose()
		_ = ctx.Conn().Close() // so that nothing can be written
		return
	}
	refuse(ctx, err, r.req.Stream)
}

// refuse answers an error in the shape its kind has.
func refuse(ctx *fasthttp.RequestCtx, err error, streamed bool) {
	var r *refusal
	if !errors.As(err, &r) {
		r = &refusal{status: 500, message: err.Error()}
	}
	switch {
	case r.plain:
		answerText(ctx, r.status, r.message)
	case r.schema:
		answerJSON(ctx, r.status, schemaError(r))
	case streamed:
		ctx.SetContentType("text/event-stream")
		ctx.SetBody(append(errorChunk(nil, r), doneChunk...))
	default:
		answerJSON(ctx, r.status, map[string]any{"error": map[string]string{"message": r.message}})
	}
}

// schemaError is the body of refusals that are made before a request is understood, and of
// a full queue.
func schemaError(r *refusal) map[string]any {
	kind := "Bad Request"
	if r.status != 400 {
		kind = strconv.Itoa(r.status)
	}
	return map[string]any{"object": "error", "message": r.message, "type": kind, "param": nil, "code": r.status}
}

const doneChunk = "data: [DONE]\n\n"

func errorChunk(b []byte, r *refusal) []byte {
	b = append(b, `data: {"error":{"message":`...)
	b = appendString(b, r.message)
	b = append(b, `,"type":"invalid_request_error","code":`...)
	b = strconv.AppendInt(b, int64(r.status), 10)
	return append(b, ",\"retryable\":false}}\n\n"...)
}

// answerJSON answers with a value that has JSON.
func answerJSON(ctx *fasthttp.RequestCtx, status int, value any) {
	body, err := json.Marshal(value)
	if err != nil {
		answerText(ctx, 500, "sglangtest: "+err.Error())
		return
	}
	ctx.SetStatusCode(status)
	ctx.SetContentType("application/json")
	ctx.SetBody(body)
}

// answerText answers with plain text. It keeps clear of ctx.Error, which resets the response
// and with it the wish for no date; fasthttp then starts a goroutine that never ends.
func answerText(ctx *fasthttp.RequestCtx, status int, text string) {
	ctx.SetStatusCode(status)
	ctx.SetContentType("text/plain; charset=utf-8")
	ctx.SetBodyString(text)
}

// A stream is a streamed answer: reading it generates. It is read by the connection's
// goroutine, so a slow client slows its own generation only.
type stream struct {
	run     *run
	conn    net.Conn
	unwatch func()
	queued  bool
	pending []byte
	ended   bool
}

// Read implements io.Reader: one chunk a token.
func (s *stream) Read(p []byte) (int, error) {
	for len(s.pending) == 0 {
		if s.ended {
			return 0, io.EOF
		}
		if err := s.fill(); err != nil {
			s.done()
			_ = s.conn.Close()
			return 0, err
		}
	}
	n := copy(p, s.pending)
	s.pending = s.pending[n:]
	return n, nil
}

func (s *stream) fill() error {
	r := s.run
	err := s.next()
	var refused *refusal
	switch {
	case errors.Is(err, errNoAnswer):
		return err
	case errors.As(err, &refused):
		s.pending = errorChunk(s.pending, refused)
	case err != nil:
		s.pending = errorChunk(s.pending, &refusal{status: 500, message: err.Error()})
	default:
		s.pending = append(s.pending[:0], "data: "...)
		s.pending = r.appendAnswer(s.pending, time.Now())
		s.pending = append(s.pending, "\n\n"...)
	}
	if err != nil || r.finished {
		s.pending = append(s.pending, doneChunk...)
		s.ended = true
		s.done()
	}
	return nil
}

func (s *stream) next() error {
	if !s.queued {
		s.queued = true
		if err := s.run.queue(); err != nil || s.run.finished {
			return err
		}
	}
	return s.run.produce()
}

func (s *stream) done() {
	s.unwatch()
	s.run.server.leave(s.run)
}

// Close implements io.Closer: fasthttp calls it however the answer ended. Before its end that
// is when a write failed, which may be noticed before the watcher looks.
func (s *stream) Close() error {
	if !s.ended && !s.run.left() {
		s.run.signal(signalGone)
	}
	s.done()
	return nil
}

var buffers sync.Pool

func acquireBuffer() []byte {
	if b, ok := buffers.Get().(*[]byte); ok {
		return (*b)[:0]
	}
	return make([]byte, 0, 16<<10)
}

func releaseBuffer(b []byte) { buffers.Put(&b) }
