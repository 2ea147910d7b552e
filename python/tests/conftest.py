"""What the tests share: engines over the simulator, and a watch on what they leave behind."""

import contextlib
import gc
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

# A shell's background job ignores Ctrl-C, and so would the processes that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

TESTS = Path(__file__).parent
PYTHON_DIR = TESTS.parent
ROOT = PYTHON_DIR.parent
AGENTS = TESTS / "agents"
CACHE = ROOT / ".cache"
CHECKPOINTS = ROOT / "testdata" / "checkpoints"

collect_ignore = ["agents", "real_transfer_queue.py"]  # programs, not tests

# Scripts in subprocesses import the package from here, too.
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [str(PYTHON_DIR), os.environ.get("PYTHONPATH")])
)


def agent_command(name):
    return f"exec {shlex.quote(sys.executable)} {shlex.quote(str(AGENTS / name))}"


def options(agent="plain.py", **more):
    """Options of an engine over the simulator that answers "fine"."""
    return {
        "agent_command": agent_command(agent),
        "agent_cwd": str(AGENTS),
        "agent_kill_grace": 0.3,
        "simulator": {"policy": {"default": [{"text": "fine"}]}},
        "agentic_concurrency": 2,
        **more,
    }


def task(mode="ok", **metadata):
    return {
        "messages": [{"role": "user", "content": "hello"}],
        "metadata": {"mode": mode, **metadata},
    }


def open_fds():
    """What the descriptors of this process are, one entry each."""
    links = []
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the directory listing's own
            links.append(f"{fd.name} -> {fd.readlink()}")
    return links


def children():
    """Pids of this process's children, of whichever thread."""
    lists = Path("/proc/self/task").glob("*/children")
    return {int(pid) for text in map(_read, lists) for pid in text.split()}


def _read(path):
    try:
        return path.read_text()
    except FileNotFoundError:  # the thread ended
        return ""


def eventually(condition, seconds=10.0):
    """Waits until condition() holds; returns whether it did."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def alive(pid):
    """Whether a process runs (a zombie does not)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


@pytest.fixture(scope="session")
def _warm():
    """Whatever the Go runtime opens once and keeps is open after this."""
    import relax_rollout as rr

    with rr.Engine(options()) as engine:
        engine.rollout(0, [task()]).close()
    gc.collect()


@pytest.fixture
def open_engine(_warm):
    """Opens engines and closes them; afterwards no fd, child or batch may be left."""
    import relax_rollout as rr
    from relax_rollout import _lib

    gc.collect()
    fds, kids, batches = open_fds(), children(), _lib.load().live_batches()
    engines = []

    def start(**settings):
        hooks = {
            k: settings.pop(k)
            for k in ("hooks", "score", "advantage", "progress", "log")
            if k in settings
        }
        engines.append(rr.Engine(options(**settings), **hooks))
        return engines[-1]

    yield start
    for engine in engines:
        engine.close()
    assert eventually(lambda: children() <= kids), f"children left: {children() - kids}"
    assert eventually(lambda: len(open_fds()) <= len(fds)), [f for f in open_fds() if f not in fds]
    gc.collect()
    # The test's own frame may still hold some of its batches.
    assert _lib.load().live_batches() <= batches + 4


@pytest.fixture
def deadline():
    """Fails a test that hangs, and not the whole run."""

    def expired(*_):
        raise TimeoutError("the test took more than two minutes")

    before = signal.signal(signal.SIGALRM, expired)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def drop_in(monkeypatch):
    """The drop-in for the Relax trainer without torch; its engine ends with the test."""
    from trainer import Rows

    import relax_rollout.relax as adapter
    from relax_rollout import transfer_queue

    monkeypatch.setattr(transfer_queue, "tensordict", Rows)
    yield
    adapter.shutdown()


def run_script(code, *args, timeout=60, **env):
    """Runs code in a fresh interpreter. A hang is a failure."""
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, args)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, **env},
        cwd=TESTS,
    )


def check_script(code, *args, timeout=60, **env):
    """As run_script, and expects exit code 0; returns stdout."""
    done = run_script(code, *args, timeout=timeout, **env)
    assert done.returncode == 0, f"rc {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout
