package main

/*
#include "internal.h"
*/
import "C"

import (
	"bytes"
	"unsafe"
)

// The exports take what shim.c has checked: out pointers are not nil, and a string with a
// length has a pointer.

//export relaxgo_doctor
func relaxgo_doctor(options *C.char, n C.size_t, out *C.relax_bytes, cerr *C.relax_error) C.relax_status {
	return run("relax_doctor", cerr, func() error {
		report, err := examine(borrow(options, n))
		if err != nil {
			return err
		}
		return copyOut(report, out)
	})
}

//export relaxgo_open
func relaxgo_open(config *C.char, n C.size_t, out *C.uintptr_t, cerr *C.relax_error) C.relax_status {
	return run("relax_open", cerr, func() error {
		handle, err := theHost.openEngine(borrow(config, n))
		*out = C.uintptr_t(handle)
		return err
	})
}

//export relaxgo_submit
func relaxgo_submit(handle C.uintptr_t, tasks *C.char, n C.size_t, cerr *C.relax_error) C.relax_status {
	return run("relax_submit", cerr, func() error {
		return theHost.submit(uintptr(handle), borrow(tasks, n))
	})
}

//export relaxgo_start_rollout
func relaxgo_start_rollout(handle C.uintptr_t, rolloutID C.int64_t, cerr *C.relax_error) C.relax_status {
	return run("relax_start_rollout", cerr, func() error {
		s, err := theHost.lookup(uintptr(handle))
		if err != nil {
			return err
		}
		return s.engine.StartRollout(int64(rolloutID))
	})
}

//export relaxgo_start_eval
func relaxgo_start_eval(handle C.uintptr_t, rolloutID C.int64_t, datasets *C.char, n C.size_t, cerr *C.relax_error) C.relax_status {
	return run("relax_start_eval", cerr, func() error {
		return theHost.startEval(uintptr(handle), int64(rolloutID), borrow(datasets, n))
	})
}

//export relaxgo_consumed
func relaxgo_consumed(handle C.uintptr_t, partition C.int64_t, cerr *C.relax_error) C.relax_status {
	return run("relax_consumed", cerr, func() error {
		s, err := theHost.lookup(uintptr(handle))
		if err != nil {
			return err
		}
		return s.engine.Consumed(int64(partition))
	})
}

//export relaxgo_poll
func relaxgo_poll(handle C.uintptr_t, timeoutMS C.int32_t, out *C.relax_event, cerr *C.relax_error) C.relax_status {
	return run("relax_poll", cerr, func() error {
		s, err := theHost.lookup(uintptr(handle))
		if err != nil {
			return err
		}
		ev, err := s.poll(int32(timeoutMS))
		if err != nil {
			return err
		}
		return handOverEvent(ev, out)
	})
}

//export relaxgo_event_fd
func relaxgo_event_fd(handle C.uintptr_t, fd *C.int32_t, cerr *C.relax_error) C.relax_status {
	return run("relax_event_fd", cerr, func() error {
		s, err := theHost.lookup(uintptr(handle))
		if err != nil {
			return err
		}
		*fd = C.int32_t(s.ready.descriptor())
		return nil
	})
}

//export relaxgo_reply
func relaxgo_reply(handle C.uintptr_t, id C.uint64_t, data *C.char, n C.size_t, cerr *C.relax_error) C.relax_status {
	return run("relax_reply", cerr, func() error {
		s, err := theHost.lookup(uintptr(handle))
		if err != nil {
			return err
		}
		return s.engine.Reply(uint64(id), bytes.Clone(borrow(data, n)))
	})
}

//export relaxgo_set_weight_version
func relaxgo_set_weight_version(handle C.uintptr_t, weightVersion C.int64_t, cerr *C.relax_error) C.relax_status {
	return run("relax_set_weight_version", cerr, func() error {
		s, err := theHost.lookup(uintptr(handle))
		if err != nil {
			return err
		}
		return s.engine.SetWeightVersion(int64(weightVersion))
	})
}

//export relaxgo_pause
func relaxgo_pause(handle C.uintptr_t, timeoutMS C.int32_t, cerr *C.relax_error) C.relax_status {
	return run("relax_pause", cerr, func() error {
		s, err := theHost.lookup(uintptr(handle))
		if err != nil {
			return err
		}
		return s.pause(int32(timeoutMS))
	})
}

//export relaxgo_resume
func relaxgo_resume(handle C.uintptr_t, cerr *C.relax_error) C.relax_status {
	return run("relax_resume", cerr, func() error {
		s, err := theHost.lookup(uintptr(handle))
		if err != nil {
			return err
		}
		return s.engine.Resume()
	})
}

//export relaxgo_stats
func relaxgo_stats(handle C.uintptr_t, out *C.relax_bytes, cerr *C.relax_error) C.relax_status {
	return run("relax_stats", cerr, func() error {
		s, err := theHost.lookup(uintptr(handle))
		if err != nil {
			return err
		}
		stats, err := s.engine.Stats()
		if err != nil {
			return err
		}
		return copyOut(addMemory(stats, memoryInUse()), out)
	})
}

//export relaxgo_close
func relaxgo_close(handle C.uintptr_t, graceMS C.int32_t, cerr *C.relax_error) C.relax_status {
	endIfPoisoned(uintptr(handle), int32(graceMS))
	return run("relax_close", cerr, func() error {
		return theHost.closeEngine(uintptr(handle), int32(graceMS))
	})
}

// borrow views a string of the host for the duration of the call.
func borrow(ptr *C.char, n C.size_t) []byte {
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(ptr)), int(n))
}

// copyOut copies data into memory the host frees with relax_bytes_free.
func copyOut(data []byte, out *C.relax_bytes) error {
	if C.relaxc_bytes_copy(unsafe.Pointer(unsafe.SliceData(data)), C.size_t(len(data)), out) != 0 {
		return &memoryError{what: "text", size: len(data)}
	}
	return nil
}
