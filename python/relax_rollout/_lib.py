"""The C ABI from Python: loads the library, mirrors its structs, maps its statuses.

The only module that knows ctypes. Nothing is loaded at import: :func:`load` does that once,
because dlopen starts a Go runtime (threads, signal handlers, a raised RLIMIT_NOFILE).

include/relax_rollout.h is the truth about everything here; tests/test_abi.py compares.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import resource
import struct
import threading
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from .errors import (
    FORK_CURE,
    AlreadyOpenError,
    BackendError,
    ClosedError,
    ConfigError,
    EngineIOError,
    ForkedError,
    InvalidError,
    LibraryError,
    OutOfMemoryError,
    PanicError,
    RelaxError,
    StateError,
)
from .native_files import find_library

ABI_VERSION = 1
ABI_MINOR = 3

OK = 0
TIMEOUT = 1
CLOSED = 2
ERR_INVALID = -1
ERR_STATE = -2
ERR_ALREADY = -3
ERR_NOMEM = -4
ERR_IO = -5
ERR_BACKEND = -6
ERR_ABI = -7
ERR_FORKED = -8
ERR_PANIC = -9

_ERRORS: dict[int, type[RelaxError]] = {
    CLOSED: ClosedError,
    ERR_INVALID: InvalidError,
    ERR_STATE: StateError,
    ERR_ALREADY: AlreadyOpenError,
    ERR_NOMEM: OutOfMemoryError,
    ERR_IO: EngineIOError,
    ERR_BACKEND: BackendError,
    ERR_ABI: LibraryError,
    ERR_FORKED: ForkedError,
    ERR_PANIC: PanicError,
}

# ---- structs of the header ----------------------------------------------------------------------


class CError(ctypes.Structure):
    """relax_error"""

    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("code", ctypes.c_int32),
        ("message", ctypes.c_char * 2040),
    ]


class CStr(ctypes.Structure):
    """relax_str"""

    _fields_ = [("ptr", ctypes.c_char_p), ("len", ctypes.c_size_t)]


class CBytes(ctypes.Structure):
    """relax_bytes"""

    _fields_ = [("ptr", ctypes.c_void_p), ("len", ctypes.c_size_t)]


class CColumn(ctypes.Structure):
    """relax_column"""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("len", ctypes.c_int64),
        ("byte_offset", ctypes.c_uint64),
        ("dl_code", ctypes.c_uint8),
        ("dl_bits", ctypes.c_uint8),
        ("domain", ctypes.c_uint16),
        ("flags", ctypes.c_uint32),
        ("reserved", ctypes.c_uint64 * 2),
    ]


class CBatch(ctypes.Structure):
    """relax_batch"""

    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("abi_version", ctypes.c_uint32),
        ("batch_id", ctypes.c_uint64),
        ("rollout_id", ctypes.c_int64),
        ("n_seqs", ctypes.c_int64),
        ("n_tokens", ctypes.c_int64),
        ("n_segments", ctypes.c_int64),
        ("base", ctypes.c_void_p),
        ("nbytes", ctypes.c_uint64),
        ("fd", ctypes.c_int32),
        ("flags", ctypes.c_uint32),
        ("n_columns", ctypes.c_uint32),
        ("columns", ctypes.POINTER(CColumn)),
        ("priv", ctypes.c_void_p),
    ]


class CEvent(ctypes.Structure):
    """relax_event"""

    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("kind", ctypes.c_uint32),
        ("id", ctypes.c_uint64),
        ("rollout_id", ctypes.c_int64),
        ("batch", ctypes.c_void_p),
        ("json", CBytes),
    ]


_ERR = ctypes.POINTER(CError)
_ENGINE = ctypes.c_void_p
_STATUS = ctypes.c_int32

_PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
    "relax_abi_version": (ctypes.c_uint32, []),
    "relax_build_info": (ctypes.c_char_p, []),
    "relax_doctor": (_STATUS, [CStr, ctypes.POINTER(CBytes), _ERR]),
    "relax_open": (_STATUS, [ctypes.c_uint32, CStr, ctypes.POINTER(_ENGINE), _ERR]),
    "relax_submit": (_STATUS, [_ENGINE, CStr, _ERR]),
    "relax_start_rollout": (_STATUS, [_ENGINE, ctypes.c_int64, _ERR]),
    "relax_start_eval": (_STATUS, [_ENGINE, ctypes.c_int64, CStr, _ERR]),
    "relax_consumed": (_STATUS, [_ENGINE, ctypes.c_int64, _ERR]),
    "relax_poll": (_STATUS, [_ENGINE, ctypes.c_int32, ctypes.POINTER(CEvent), _ERR]),
    "relax_event_fd": (_STATUS, [_ENGINE, ctypes.POINTER(ctypes.c_int32), _ERR]),
    "relax_reply": (_STATUS, [_ENGINE, ctypes.c_uint64, CStr, _ERR]),
    "relax_set_weight_version": (_STATUS, [_ENGINE, ctypes.c_int64, _ERR]),
    "relax_pause": (_STATUS, [_ENGINE, ctypes.c_int32, _ERR]),
    "relax_resume": (_STATUS, [_ENGINE, _ERR]),
    "relax_stats": (_STATUS, [_ENGINE, ctypes.POINTER(CBytes), _ERR]),
    "relax_close": (_STATUS, [_ENGINE, ctypes.c_int32, _ERR]),
    "relax_batch_retain": (None, [ctypes.c_void_p]),
    "relax_batch_release": (None, [ctypes.c_void_p]),
    "relax_bytes_free": (None, [ctypes.POINTER(CBytes)]),
    "relax_column_dlpack": (ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int32]),
    "relax_batch_export_fd": (ctypes.c_int32, [ctypes.c_void_p]),
    "relax_live_batches": (ctypes.c_int64, []),
    "relax_signals_check": (ctypes.c_int32, []),
    "relax_signals_restore": (None, []),
}

# ---- loading ------------------------------------------------------------------------------------


class _Loading:
    """The one library of this process and how far its loading is."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.library: Library | None = None
        self.hooked = False
        self.go_runtime = False
        self.forked = False
        self.warned_signals = False


_state = _Loading()


def _after_fork_in_child() -> None:
    _state.lock = threading.Lock()
    _state.forked = _state.go_runtime


def forked() -> bool:
    """True in a child that was forked after the library was loaded."""
    return _state.forked


def load() -> Library:
    """Loads the library, once a process. Later calls return the same object."""
    if _state.forked:
        raise ForkedError(f"load: {FORK_CURE}")
    with _state.lock:
        if _state.library is None:
            _state.library = _load(find_library())
        return _state.library


def _load(path: Path) -> Library:
    # Go raises the soft limit of open files for the entire process, which breaks select()
    # for fds over 1023. It does so on a thread of its own, so wait for it before undoing it.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if not _state.hooked:
        os.register_at_fork(after_in_child=_after_fork_in_child)
        _state.hooked = True
    _state.go_runtime = True
    try:
        dll = ctypes.CDLL(os.fspath(path), mode=os.RTLD_NOW | os.RTLD_LOCAL)
    except OSError as err:
        _state.go_runtime = False
        raise LibraryError(f"cannot load {path}: {err}") from err
    try:
        for name, (result, arguments) in _PROTOTYPES.items():
            function = getattr(dll, name)
            function.restype, function.argtypes = result, arguments
    except AttributeError as err:
        raise LibraryError(f"{path} is no relax_rollout library: {err}") from err
    found = dll.relax_abi_version()
    if found >> 16 != ABI_VERSION or found & 0xFFFF < ABI_MINOR:
        raise LibraryError(
            f"{path} speaks ABI {found >> 16}.{found & 0xFFFF}, this package needs "
            f"{ABI_VERSION}.{ABI_MINOR}: build it again with `make lib`"
        )
    info = json.loads(dll.relax_build_info())  # returns when the Go runtime is up
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return Library(dll, path, info)


class Library:
    """The loaded library. A failed call raises its typed error, with the call's name in front."""

    def __init__(self, dll: ctypes.CDLL, path: Path, info: dict[str, Any]) -> None:
        self._dll = dll
        self.path = path
        self._info = info

    def build_info(self) -> dict[str, Any]:
        """What the library says about itself: version, go, abi."""
        return dict(self._info)

    def doctor(self, options_json: str) -> bytes:
        """Looks at a checkpoint's chat format and returns a JSON report."""
        out = CBytes()
        self._call("doctor", "relax_doctor", _bytes(options_json), ctypes.byref(out))
        return self._take(out)

    def open(self, config_json: str, cell: EngineCell) -> None:
        """Opens an engine; its handle is in ``cell``."""
        self._call("Engine", "relax_open", ABI_VERSION, _bytes(config_json), cell.address)

    def submit(self, engine: int, tasks_json: str) -> None:
        """Queues a JSON array of tasks."""
        self._call("submit", "relax_submit", engine, _bytes(tasks_json))

    def start_rollout(self, engine: int, rollout_id: int) -> None:
        """Opens a step."""
        self._call("start_rollout", "relax_start_rollout", engine, rollout_id)

    def start_eval(self, engine: int, rollout_id: int, datasets_json: str) -> None:
        """Opens an Eval."""
        self._call("start_eval", "relax_start_eval", engine, rollout_id, _bytes(datasets_json))

    def consumed(self, engine: int, partition: int) -> None:
        """Says that the trainer took a partition."""
        self._call("consumed", "relax_consumed", engine, partition)

    def poll(self, engine: int, timeout_ms: int, slot: Slot) -> bool:
        """Whether ``slot`` holds an event: the one that was left in it, or the next."""
        if slot.event.kind:
            return True
        slot.discard()
        return self._call("poll", "relax_poll", engine, timeout_ms, slot.address) == OK

    def event_fd(self, engine: int) -> int:
        """The eventfd that is readable while an event waits. The engine owns it."""
        fd = ctypes.c_int32(-1)
        self._call("fileno", "relax_event_fd", engine, ctypes.byref(fd))
        return fd.value

    def reply(self, engine: int, event_id: int, text: str) -> None:
        """Answers an event."""
        self._call("reply", "relax_reply", engine, event_id, _bytes(text))

    def set_weight_version(self, engine: int, version: int) -> None:
        """Records the weight version of requests from now on."""
        self._call("set_weight_version", "relax_set_weight_version", engine, version)

    def pause(self, engine: int, timeout_ms: int) -> bool:
        """Closes the generation gate. False: requests are still at the backend."""
        return self._call("pause", "relax_pause", engine, timeout_ms) == OK

    def resume(self, engine: int) -> None:
        """Opens the generation gate."""
        self._call("resume", "relax_resume", engine)

    def stats(self, engine: int) -> bytes:
        """A JSON snapshot."""
        out = CBytes()
        self._call("stats", "relax_stats", engine, ctypes.byref(out))
        return self._take(out)

    def close(self, engine: int, grace_ms: int) -> bool:
        """Ends an engine. False: something was still running after grace_ms."""
        return self._call("close", "relax_close", engine, grace_ms) == OK

    def live_batches(self) -> int:
        """Batches that are still referenced in this process. Works in forked children."""
        return int(self._dll.relax_live_batches())

    def keep_signals(self) -> None:
        """Puts Go's fault handlers back if another library replaced them; says so once."""
        if not self._dll.relax_signals_check():
            return
        self._dll.relax_signals_restore()
        if _state.warned_signals:
            return
        _state.warned_signals = True
        warnings.warn(
            "another library replaced the SIGSEGV/SIGBUS/SIGFPE handlers after relax_rollout was "
            "loaded (faulthandler.enable() and .disable() do that); they were put back, since a "
            "recoverable fault in the engine would end the process. Call faulthandler.enable() "
            "before the first Engine is made to have both",
            RuntimeWarning,
            stacklevel=5,
        )

    def _call(self, call: str, function: str, *arguments: Any) -> int:
        if _state.forked:
            raise ForkedError(f"{call}: {FORK_CURE}")
        self.keep_signals()
        err = CError(struct_size=ctypes.sizeof(CError))
        status = int(getattr(self._dll, function)(*arguments, ctypes.byref(err)))
        if status in (OK, TIMEOUT):
            return status
        raise _error(call, status, err.message.decode("utf-8", "replace"))

    def _take(self, owned: CBytes) -> bytes:
        try:
            return ctypes.string_at(owned.ptr, owned.len) if owned.len else b""
        finally:
            self._dll.relax_bytes_free(ctypes.byref(owned))


def _bytes(text: str) -> CStr:
    data = text.encode()
    return CStr(data, len(data))


# Go's OptionError, anywhere in a chain of causes.
_OPTION = re.compile(r"\boption ([a-z][a-z0-9_]*)\b")


def _error(call: str, status: int, text: str) -> RelaxError:
    if status == ERR_FORKED:
        return ForkedError(f"{call}: {FORK_CURE}")
    message = f"{call}: {text or f'status {status}'}"
    if status == ERR_INVALID and call in ("Engine", "doctor"):
        named = _OPTION.search(text)
        return ConfigError(message, named.group(1) if named else None)
    return _ERRORS.get(status, RelaxError)(message)


@dataclass
class RawEvent:
    """An event as it came out of the library."""

    kind: int
    id: int
    rollout_id: int
    batch: NativeBatch | None
    data: bytes


class EngineCell:
    """Where an engine's handle lies from the moment it is open: a signal handler may raise right
    after the call, and without its handle nobody could close the engine."""

    def __init__(self) -> None:
        self._handle = _ENGINE()
        self.address = ctypes.byref(self._handle)

    @property
    def handle(self) -> int:
        """0 while no engine is open."""
        return self._handle.value or 0


class Slot:
    """Where a polled event lies until its reader has it.

    The library gives an event away once, and a signal handler may raise right after that (Ctrl-C
    during a wait always does). The event is still here then: set ``event.kind`` to 0 in the same
    statement that stores what :meth:`read` returned, for nothing can come in between.
    """

    def __init__(self, library: Library) -> None:
        self._library = library
        self.event = CEvent(struct_size=ctypes.sizeof(CEvent))
        self.address = ctypes.byref(self.event)

    def read(self) -> RawEvent:
        """The event in the slot, with memory and a batch reference of its own."""
        event = self.event
        return RawEvent(
            event.kind,
            event.id,
            event.rollout_id,
            NativeBatch(self._library, event.batch) if event.batch else None,
            ctypes.string_at(event.json.ptr, event.json.len) if event.json.len else b"",
        )

    def discard(self) -> None:
        """Gives back what the slot holds."""
        event = self.event
        batch, event.batch, event.kind = event.batch, None, 0
        if batch:
            self._library._dll.relax_batch_release(batch)
        if event.json.ptr:
            self._library._dll.relax_bytes_free(ctypes.byref(event.json))

    def __del__(self) -> None:
        self.discard()


# ---- batches ------------------------------------------------------------------------------------


class ColumnInfo(NamedTuple):
    """Where one column of a batch lies and what it holds."""

    number: int
    name: str
    address: int
    length: int
    """Elements."""
    offset: int
    """Bytes from the batch's base."""
    code: int
    """DLPack type code: 0 int, 1 uint, 2 float."""
    bits: int
    domain: int
    """RELAX_DOM_*; see :class:`.columns.Domain`."""

    @property
    def typestr(self) -> str:
        """The element type in NumPy's spelling, little-endian."""
        return f"{'|' if self.bits == 8 else '<'}{'iuf'[self.code]}{self.bits // 8}"


# CColumn as one record: reading ctypes fields one by one is several times slower, and a poll is
# mostly this. The offsets of name in the first and last record bound the names' text.
_COLUMN = struct.Struct("=QQqQBBHI16x")


class _Table:
    """The columns of a native batch, each described only when it is asked for."""

    def __init__(self, address: int, count: int) -> None:
        self._records = ctypes.string_at(address, count * _COLUMN.size)
        first = self._record(0)[0]
        last = self._record(count - 1)[0]
        text = ctypes.string_at(first, last - first) + ctypes.string_at(last)
        self.names = tuple(text.decode().split("\0"))

    def _record(self, number: int) -> tuple[int, ...]:
        return _COLUMN.unpack_from(self._records, number * _COLUMN.size)

    def info(self, name: str) -> ColumnInfo:
        """The description of a column; KeyError if there is none of that name."""
        try:
            number = self.names.index(name)
        except ValueError:
            raise KeyError(name) from None
        _, data, length, offset, code, bits, domain, _ = self._record(number)
        return ColumnInfo(number, name, data, length, offset, code, bits, domain)


class NativeBatch:
    """A reference of its own on a relax_batch, given back with the last Python object that has it.

    Giving back is pure C, so it is safe on any thread, after close and in forked children.
    """

    def __init__(self, library: Library, address: int) -> None:
        self._dll = library._dll
        self._give_back = library._dll.relax_batch_release
        library._dll.relax_batch_retain(address)
        self._address = address
        head = CBatch.from_address(address)
        self.batch_id: int = head.batch_id
        self.rollout_id: int = head.rollout_id
        self.n_seqs: int = head.n_seqs
        self.n_tokens: int = head.n_tokens
        self.n_segments: int = head.n_segments
        self.base: int = head.base or 0
        self.nbytes: int = head.nbytes
        self.shared: bool = head.fd >= 0
        table = _Table(ctypes.addressof(head.columns.contents), head.n_columns)
        self.names = table.names
        self.info = table.info

    def __del__(self) -> None:
        # A tenth of the price of weakref.finalize, which is a good part of a poll.
        self._give_back(self._address)

    def export_fd(self) -> int:
        """A descriptor of its own for another process, -1 if there is none left."""
        return int(self._dll.relax_batch_export_fd(self._address))

    def dlpack(self, column: ColumnInfo, versioned: bool) -> object:
        """A DLPack capsule over a column. It holds a reference of its own on the batch."""
        tensor = self._dll.relax_column_dlpack(self._address, column.number, int(versioned))
        if not tensor:
            raise OutOfMemoryError(f"__dlpack__: no memory for a view of column {column.name!r}")
        return _capsule(tensor, versioned)


# ---- DLPack capsules ----------------------------------------------------------------------------

_LEGACY_NAME = b"dltensor"
_VERSIONED_NAME = b"dltensor_versioned"
# Bytes before the deleter: DLTensor (48) and manager_ctx, or DLPackVersion and manager_ctx.
_LEGACY_DELETER = 56
_VERSIONED_DELETER = 16

_capsule_new = ctypes.pythonapi.PyCapsule_New
_capsule_new.restype = ctypes.py_object
_capsule_new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_capsule_is = ctypes.pythonapi.PyCapsule_IsValid
_capsule_is.restype = ctypes.c_int
_capsule_is.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.c_void_p, ctypes.c_char_p]

_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def _delete_tensor(tensor: int, versioned: bool) -> None:
    at = tensor + (_VERSIONED_DELETER if versioned else _LEGACY_DELETER)
    deleter = ctypes.c_void_p.from_address(at).value
    if deleter:
        _Deleter(deleter)(tensor)


def _capsule_dropped(capsule: int) -> None:
    # A consumer that took the tensor renamed the capsule and runs the deleter itself.
    for name, versioned in ((_LEGACY_NAME, False), (_VERSIONED_NAME, True)):
        if _capsule_is(capsule, name):
            _delete_tensor(_capsule_pointer(capsule, name), versioned)


# The thunk must outlive every capsule, also during interpreter exit: keep one reference for ever.
_capsule_destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(_capsule_dropped)
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_capsule_destructor))


def _capsule(tensor: int, versioned: bool) -> object:
    name = _VERSIONED_NAME if versioned else _LEGACY_NAME
    return _capsule_new(tensor, name, ctypes.cast(_capsule_destructor, ctypes.c_void_p))
