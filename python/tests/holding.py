"""Ways to hold agents and the simulator exactly where a test wants them."""

import contextlib
import json
import os
import threading
import urllib.request

from conftest import eventually

LONG = "The quick brown fox jumps over the lazy dog. " * 20
POLICY = {
    "classes": [
        {
            "name": "long",
            "match": {"role": "user", "last_contains": "long"},
            "candidates": [{"text": LONG}],
        }
    ],
    "default": [{"text": "fine"}],
}
SIMULATOR = {"policy": POLICY, "token_delay_ms": 3}
SECONDS = 60


def scripted(*steps, **metadata):
    """A task of agents/scripted.py."""
    return {"messages": [], "metadata": {"steps": list(steps), **metadata}}


class Gate:
    """Where an agent waits: a FIFO it reads to the end."""

    def __init__(self, path):
        os.mkfifo(path)
        self.path = str(path)
        self._fd = -1

    def arrived(self):
        """Waits for the agent, which then stays until :meth:`release`."""
        assert eventually(self._open, SECONDS), f"no agent came to {self.path}"

    def _open(self):
        with contextlib.suppress(OSError):  # ENXIO: nobody reads
            self._fd = os.open(self.path, os.O_WRONLY | os.O_NONBLOCK)
        return self._fd >= 0

    def release(self):
        os.close(self._fd)
        self._fd = -1

    def open(self):
        self.arrived()
        self.release()


def backend(engine, path, body=None):
    """One call of the simulator's own endpoints."""
    data = None if body is None else json.dumps(body).encode()
    url = engine.stats()["backend"]["url"].rstrip("/") + path
    with urllib.request.urlopen(urllib.request.Request(url, data), timeout=SECONDS) as answer:
        return json.load(answer)


def hold(engine):
    """Lets the simulator make no more tokens until :func:`go_on`. Aborts are kept until then."""
    backend(engine, "/pause_generation", {"mode": "in_place"})


def go_on(engine):
    backend(engine, "/continue_generation", {})


def pause_held(engine):
    """Pauses an engine whose simulator is held, which then goes on."""
    engine.pause(0)
    go_on(engine)
    assert engine.pause(SECONDS)


def end_owing(engine, step, gate):
    """Parks the request of the agent at the gate once only its Group is missing."""

    def missing():
        stats = engine.stats()
        return (stats["rollout"], stats["debt"]) == (step, 1)

    assert eventually(missing, SECONDS), engine.stats()
    hold(engine)
    gate.open()
    assert eventually(lambda: engine.stats()["requests"]["backend"] == 1, SECONDS)
    pause_held(engine)


def hold_after(engine, tokens=3):
    """Holds the simulator once what runs there has so many more tokens than now."""
    running = lambda: backend(engine, "/get_load")[0]  # noqa: E731
    assert eventually(lambda: running()["num_reqs"] > running()["num_waiting_reqs"], SECONDS)
    before = running()["num_tokens"]
    assert eventually(lambda: running()["num_tokens"] >= before + tokens, SECONDS)
    hold(engine)


class Running:
    """A step on a thread of its own: ``with Running(engine.rollout, 0, tasks) as step:`` joins it
    at the end; then ``step.result`` is there."""

    def __init__(self, call, *arguments):
        self.result = None
        self._error = None
        self._thread = threading.Thread(target=self._run, args=(call, *arguments))

    def _run(self, call, *arguments):
        try:
            self.result = call(*arguments)
        except BaseException as err:
            self._error = err

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, kind, *_):
        # A failed test leaves the step to the engine's close.
        self._thread.join(1 if kind else SECONDS)
        if kind is None:
            assert not self._thread.is_alive(), "the step does not end"
            if self._error is not None:
                raise self._error
