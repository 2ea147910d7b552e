package relax

import "context"

type core struct{}

func (c *core) submit([]Task) error                 { panic("todo") }
func (c *core) startRollout(int64) error            { panic("todo") }
func (c *core) poll(context.Context) (Event, error) { panic("todo") }
func (c *core) setReadyFunc(func())                 { panic("todo") }
func (c *core) pendingEvents() int                  { panic("todo") }
func (c *core) reply(uint64, []byte) error          { panic("todo") }
func (c *core) setWeightVersion(int64) error        { panic("todo") }
func (c *core) pause(context.Context) error         { panic("todo") }
func (c *core) resume() error                       { panic("todo") }
func (c *core) stats() []byte                       { panic("todo") }
func (c *core) baseURL() string                     { panic("todo") }
func (c *core) close(context.Context) error         { panic("todo") }

// ParseConfig reads a configuration document, refusing unknown options and wrong types by name.
func ParseConfig(data []byte) (Config, error) { panic("todo") }

// Option alters how Open builds an engine.
type Option func(*settings)

type settings struct{ alloc Allocator }

// WithAllocator sets where batches are built. Default: the Go heap.
func WithAllocator(a Allocator) Option { return func(s *settings) { s.alloc = a } }

// Open checks cfg, reaches the backend, and starts the model endpoint.
func Open(cfg Config, opts ...Option) (*Engine, error) { panic("todo") }
