"""Batches that other processes map."""

import gc
import mmap
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import resource
import socket
import threading

import numpy as np
import pytest
from conftest import eventually, open_fds, task

import relax_rollout as rr

SECONDS = 60


@pytest.fixture
def batch(open_engine):
    engine = open_engine(n_samples_per_prompt=2, rollout_batch_size=2, arena_shared=True)
    batch = engine.rollout(3, [task(reward=0.5, turns=2), task(reward=1.0, name="b")])
    yield batch
    batch.close()  # its descriptor


@pytest.fixture
def helpers():
    """multiprocessing's own processes, which stay: the engine's fixture looks for new ones."""
    multiprocessing.resource_tracker.ensure_running()
    multiprocessing.forkserver.ensure_running()


def content(batch):
    return {name: batch.numpy(name).tobytes() for name in batch.names}


def look(shared, answer):
    """The other process."""
    with shared:
        batch = shared.open()
    found = batch.rollout_id, [row.tokens.tolist() for row in batch], content(batch)
    batch.numpy("reward")[:] = 7
    answer.send((*found, batch.numpy("reward").tolist()))


@pytest.mark.parametrize("start", ["spawn", "forkserver", "fork"])
def test_another_process_sees_the_rows(helpers, batch, start):
    context = multiprocessing.get_context(start)
    mine, theirs = context.Pipe()
    with batch.share() as shared:
        process = context.Process(target=look, args=(shared, theirs))
        process.start()
    rewards = batch.numpy("reward").tolist()
    assert mine.poll(SECONDS)
    rollout, tokens, columns, written = mine.recv()
    process.join(SECONDS)
    assert process.exitcode == 0
    assert rollout == 3
    assert tokens == [row.tokens.tolist() for row in batch]
    assert columns == content(batch)
    assert written == [7.0] * len(batch)
    assert batch.numpy("reward").tolist() == rewards


def test_over_a_unix_socket(batch):
    here, there = socket.socketpair()
    with here, there:
        with batch.share() as shared:
            socket.send_fds(here, [shared.description], [shared.fileno()])
        description, (fd,), _, _ = socket.recv_fds(there, 1 << 16, 1)
    with rr.SharedBatch(fd, description) as shared:
        seen = shared.open()
    assert content(seen) == content(batch)
    assert seen.report is None
    assert repr(seen) == repr(batch)


def test_the_memory_outlives_batch_and_engine(open_engine):
    engine = open_engine(arena_shared=True)
    batch = engine.rollout(0, [task()])
    want = content(batch)
    before = len(open_fds())
    with batch.share() as shared:
        del batch
        gc.collect()
        engine.close()
        seen = shared.open()
    assert content(seen) == want
    del seen
    gc.collect()
    assert eventually(lambda: len(open_fds()) < before, SECONDS)


def test_memory_of_a_shared_batch_is_never_used_again(open_engine):
    engine = open_engine(arena_shared=True)
    idle = engine.stats()["memory"]["idle_bytes"]
    with engine.rollout(0, [task(name="first")]).share() as shared:
        seen = shared.open()
    want = content(seen)
    for step in (1, 2):
        engine.rollout(step, [task(name="another")])
    assert content(seen) == want
    assert engine.stats()["memory"]["idle_bytes"] == idle


def test_nobody_gets_a_mapping_that_changes_it(batch):
    with batch.share() as shared:
        with pytest.raises(PermissionError):
            mmap.mmap(shared.fileno(), 1)
        with pytest.raises(PermissionError):
            os.pwrite(shared.fileno(), b"x", 0)
        with pytest.raises(PermissionError):
            os.ftruncate(shared.fileno(), 1)
    batch.numpy("advantage")[:] = 3  # the owner can
    with batch.share() as shared:
        assert shared.open().numpy("advantage").tolist() == [3.0] * len(batch)


def test_private_memory_is_not_shared(open_engine):
    batch = open_engine().rollout(0, [task()])
    with pytest.raises(rr.StateError, match="its memory is private; set the option arena_shared"):
        batch.share()


def test_a_step_without_rows_is_shared_like_any_other():
    batch = rr.Batch.empty(5)
    with batch.share() as shared:
        seen = shared.open()
        with pytest.raises(PermissionError):
            mmap.mmap(shared.fileno(), 1)
    assert (seen.rollout_id, len(seen), content(seen)) == (5, 0, content(batch))


def test_without_descriptors(batch):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        with pytest.raises(rr.StateError, match="no descriptor left; raise ulimit -n"):
            batch.share()
        with pytest.raises(rr.StateError, match="no shared memory: .*Too many open files"):
            rr.Batch.empty(0).share()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda d: b"",
        lambda d: b"[]",
        lambda d: d.replace(b'"nbytes"', b'"bytes"'),
        lambda d: d.replace(b'"nbytes": ', b'"nbytes": 1000000'),
        lambda d: d.replace(b'["offsets", ', b'["offsets", 3000000'),
    ],
)
def test_descriptions_are_checked(batch, spoil):
    with batch.share() as shared:
        broken = spoil(shared.description)
        assert broken != shared.description
        other = rr.SharedBatch(os.dup(shared.fileno()), broken)
    with other, pytest.raises(rr.InvalidError, match="^shared batch: "):
        other.open()


def test_closed(batch):
    shared = batch.share()
    shared.close()
    shared.close()
    with pytest.raises(rr.ClosedError, match="shared batch: closed"):
        shared.open()


def test_views_of_the_other_process(batch):
    with batch.share() as shared:
        seen = shared.open()
    view = seen.numpy("tokens")
    assert view.flags.writeable
    assert view.ctypes.data % 64 == 0
    del seen
    gc.collect()
    assert view.tobytes() == batch.numpy("tokens").tobytes()
    assert np.array_equal(np.from_dlpack(batch.column("tokens")), view)


def test_a_batch_waits_until_an_older_one_is_let_go(open_engine):
    """arena_limit_bytes holds the next batch back, and the step goes on when there is room."""
    engine = open_engine(arena_limit_bytes=1 << 20)
    held = engine.rollout(0, [task()])
    results = []
    step = threading.Thread(target=lambda: results.append(engine.rollout(1, [task()])))
    step.start()
    waits = lambda: {wait["for"] for wait in engine.stats()["waits"]}  # noqa: E731
    assert eventually(lambda: "batch" in waits(), SECONDS), waits()
    assert not results
    held.close()
    del held
    gc.collect()
    step.join(SECONDS)
    assert [b.rollout_id for b in results] == [1]


def test_a_batch_above_the_limit_fails_at_once(open_engine):
    engine = open_engine(arena_limit_bytes=1 << 10)
    with pytest.raises(rr.StepFailedError, match="more than option arena_limit_bytes allows"):
        engine.rollout(0, [task()])
