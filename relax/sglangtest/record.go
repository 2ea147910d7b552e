package sglangtest

import (
	"slices"
	"sync"
	"time"
)

// maxRecordedBytes bounds the bodies kept; of a longer one only the parsed form is.
const maxRecordedBytes = 16 << 20

// A Record is a /generate the server received.
type Record struct {
	// Request is the parsed body, nil if it was refused while parsing. It is shared: do not change it.
	Request *GenerateRequest
	// Body is the body as received, nil if there was no room for it.
	Body []byte
	// At is when it arrived.
	At time.Time
}

// recorder keeps the newest records in a ring.
type recorder struct {
	mu    sync.Mutex
	limit int
	ring  []Record
	next  int
	total int
}

func newRecorder(limit int) *recorder { return &recorder{limit: limit} }

func (r *recorder) add(req *GenerateRequest, body []byte, at time.Time) {
	if r.limit <= 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.total++
	if len(r.ring) < r.limit {
		r.ring = append(r.ring, Record{})
	}
	slot := &r.ring[r.next]
	r.next = (r.next + 1) % r.limit
	slot.Request, slot.At = req, at
	if len(body) > maxRecordedBytes/r.limit {
		slot.Body = nil
		return
	}
	slot.Body = append(slot.Body[:0], body...)
}

func (r *recorder) all() []Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]Record, 0, len(r.ring))
	for i := range r.ring {
		at := i
		if len(r.ring) == r.limit {
			at = (r.next + i) % r.limit
		}
		rec := r.ring[at]
		rec.Body = slices.Clone(rec.Body)
		out = append(out, rec)
	}
	return out
}

// An Abort is an /abort_request the server received.
type Abort struct {
	RID string
	All bool
	// Hit is the number of requests in flight that it reached.
	Hit int
	At  time.Time
}
