package relax

import (
	"context"
	"fmt"
	"time"
)

// pause shuts the gates and waits until nothing is at the backend. The gates stay shut if ctx ends
// before. A ctx that has ended asks only whether something is there.
func (c *core) pause(ctx context.Context) error {
	quiet := make(chan error, 1)
	err := c.do(func() error {
		c.pauses = append(c.pauses, quiet)
		c.apply(c.machine.Pause(time.Now()))
		return nil
	})
	if err != nil {
		return err
	}
	select {
	case err := <-quiet:
		return err
	case <-c.ctx.Done():
		return context.Cause(c.ctx)
	case <-ctx.Done():
	}
	select { // both may have come
	case err := <-quiet:
		return err
	default:
		return ctx.Err()
	}
}

// endPauses answers every pause that waits.
func (c *core) endPauses(err error) {
	for _, quiet := range c.pauses {
		quiet <- err
	}
	c.pauses = nil
}

// resume opens the gates. A pause that still waits is over then: not everything was parked.
func (c *core) resume() error {
	return c.do(func() error {
		c.endPauses(fmt.Errorf("%w: pause: a resume came before every request was parked", ErrState))
		c.apply(c.machine.Resume(time.Now()))
		return nil
	})
}
