"""Batches: zero copies, lifetimes, and what tensor libraries make of them."""

import gc
import pickle
import subprocess
import sys
import types
import weakref

import numpy as np
import pytest
from conftest import TESTS, task

import relax_rollout as rr
from relax_rollout import _lib
from relax_rollout.columns import COLUMNS

NAMES = {c[0] for c in COLUMNS}


@pytest.fixture
def batch(open_engine):
    engine = open_engine(n_samples_per_prompt=2, rollout_batch_size=2)
    engine.set_weight_version(7)
    return engine.rollout(3, [task(reward=0.0, turns=2), task(reward=1.0, name="b")])


def inside(batch, address, nbytes):
    base, size = batch.address_range
    return base <= address and address + nbytes <= base + size


def test_columns(batch):
    assert set(batch.names) == NAMES
    kinds = {
        name: f"{'|' if bits == 8 else '<'}{'iuf'[code]}{bits // 8}"
        for name, code, bits, _ in COLUMNS
    }
    assert {n: batch.column(n).typestr for n in batch.names} == kinds
    with pytest.raises(rr.InvalidError, match="no column 'nope'; there are offsets, "):
        batch.numpy("nope")


def test_numpy_views_are_the_arena(batch):
    base, _ = batch.address_range
    for name in batch.names:
        view = batch.numpy(name)
        assert inside(batch, view.ctypes.data, view.nbytes), name
        assert view.ctypes.data % 64 == 0, name
        assert view.flags.writeable, name
        assert not view.flags.owndata, name
    assert base % 64 == 0


def test_views_are_shared_and_writable(batch):
    batch.numpy("advantage")[:] = 5
    assert [r.advantage for r in batch] == [5.0] * len(batch)
    assert np.asarray(batch.column("advantage"))[0] == 5


def test_rows_hold_together(batch):
    assert len(batch) == 4
    assert batch.rollout_id == 3
    offsets = batch.numpy("offsets")
    assert offsets[0] == 0
    assert offsets[-1] == batch.n_tokens == len(batch.numpy("tokens"))
    assert (batch.numpy("cu_seqlens") == offsets).all()
    for row in batch:
        assert len(row.tokens) == len(row.loss_mask) == len(row.logprobs)
        assert set(np.unique(row.loss_mask)) <= {0, 1}
        assert not row.loss_mask[: row.prompt_len].any()
        assert row.loss_mask[row.prompt_len] == 1
        assert (row.logprobs[row.loss_mask == 0] == 0).all()
        assert (row.logprobs <= 0).all()
        assert (
            np.concatenate([row.prompt_tokens, row.response_tokens]).tolist() == row.tokens.tolist()
        )
        assert len(row.response_loss_mask) == len(row.response_logprobs) == len(row.response_tokens)
        assert row.segments[0].start >= 0
        assert row.segments[-1].end == len(row.tokens)
        assert isinstance(row.meta, dict)
        assert not row.truncated
        assert row.aborts == 0
    assert sorted(r.turns for r in batch) == [1, 1, 2, 2]
    assert sorted(r.reward for r in batch) == [0.0, 0.0, 1.0, 1.0]
    assert sorted(r.session_seq for r in batch) == [0, 0, 1, 1]
    assert len({r.group_id for r in batch}) == 2


def test_indexing(batch):
    assert batch[-1].tokens.tolist() == batch[3].tokens.tolist()
    assert [r.index for r in batch[1:3]] == [1, 2]
    with pytest.raises(IndexError, match="row 4 of a batch of 4"):
        batch[4]
    assert "rows=4" in repr(batch)
    assert "turns=" in repr(batch[0])


def test_a_view_keeps_the_arena(batch):
    live = _lib.load().live_batches()
    tokens = batch.numpy("tokens")[2:5]
    expected = tokens.tolist()
    batch.close()
    gc.collect()
    assert _lib.load().live_batches() == live
    assert tokens.tolist() == expected
    with pytest.raises(rr.ClosedError, match="batch of rollout 3: closed"):
        batch.numpy("tokens")
    del tokens
    gc.collect()
    assert _lib.load().live_batches() == live - 1


def test_a_batch_outlives_its_engine(open_engine):
    engine = open_engine()
    batch = engine.rollout(0, [task()])
    expected = batch.numpy("tokens").tolist()
    engine.close()
    assert batch[0].tokens.tolist() == expected


@pytest.mark.parametrize("versioned", [False, True])
def test_capsules_free_what_nobody_took(batch, versioned):
    live = _lib.load().live_batches()
    capsule = batch.column("tokens").__dlpack__(max_version=(1, 0) if versioned else None)
    name = "dltensor_versioned" if versioned else "dltensor"
    assert f'"{name}"' in repr(capsule)
    batch.close()
    gc.collect()
    assert _lib.load().live_batches() == live, "the capsule holds a reference of its own"
    del capsule
    gc.collect()
    assert _lib.load().live_batches() == live - 1


def test_dlpack_arguments(batch):
    column = batch.column("tokens")
    assert column.__dlpack_device__() == (1, 0)
    with pytest.raises(BufferError, match="stream"):
        column.__dlpack__(stream=1)
    with pytest.raises(BufferError, match="host memory"):
        column.__dlpack__(dl_device=(2, 0))
    copied = np.from_dlpack(_Copied(column))
    assert copied.tolist() == batch.numpy("tokens").tolist()
    assert not inside(batch, copied.ctypes.data, copied.nbytes)


class _Copied:
    """A column that is asked for a copy."""

    def __init__(self, column):
        self.column = column

    def __dlpack__(self, **_):
        return self.column.__dlpack__(copy=True)

    def __dlpack_device__(self):
        return self.column.__dlpack_device__()


def test_numpy_takes_dlpack(batch):
    for name in batch.names:
        view = np.from_dlpack(batch.column(name))
        assert inside(batch, view.ctypes.data, view.nbytes), name
        assert view.dtype == batch.numpy(name).dtype
        np.testing.assert_array_equal(view, batch.numpy(name))


def test_a_dlpack_view_keeps_the_arena(batch):
    live = _lib.load().live_batches()
    view = np.from_dlpack(batch.column("tokens"))
    expected = view.tolist()
    batch.close()
    gc.collect()
    assert _lib.load().live_batches() == live
    assert view.tolist() == expected
    del view
    gc.collect()
    assert _lib.load().live_batches() == live - 1


def test_jax_takes_dlpack_without_a_copy():
    # In a process of its own: jax starts threads and keeps arrays as it likes.
    script = """
import sys; sys.path.insert(0, sys.argv[1])
from conftest import options, task
import jax, gc, numpy as np, relax_rollout as rr
from relax_rollout import _lib
with rr.Engine(options()) as engine:
    batch = engine.rollout(0, [task()])
    base, size = batch.address_range
    for name in ("tokens", "logprobs", "loss_mask", "advantage"):
        array = jax.dlpack.from_dlpack(batch.column(name))
        assert base <= array.unsafe_buffer_pointer() < base + size, f"{name} was copied"
        np.testing.assert_array_equal(np.asarray(array), batch.numpy(name))
    total = int(array.sum() * 0 + jax.numpy.sum(jax.dlpack.from_dlpack(batch.column("tokens"))))
    assert total == int(batch.numpy("tokens").sum())
    kept = jax.dlpack.from_dlpack(batch.column("tokens"))
    expected = batch.numpy("tokens").tolist()
    batch.close()
    del array, batch
    gc.collect()
    assert _lib.load().live_batches() == 1
    assert kept.tolist() == expected
    del kept
    gc.collect()
    assert _lib.load().live_batches() == 0
print("ok")
"""
    run = [sys.executable, "-c", script, str(TESTS)]
    done = subprocess.run(run, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "ok", done.stderr


TORCH = """
import sys; sys.path.insert(0, sys.argv[1])
from conftest import options, task
import gc, torch, numpy as np, relax_rollout as rr
from relax_rollout import _lib
with rr.Engine(options()) as engine:
    batch = engine.rollout(0, [task()])
    base, size = batch.address_range
    for name in batch.names:
        tensor = batch.torch(name)
        assert base <= tensor.data_ptr() <= base + size, f"{name} was copied"
        np.testing.assert_array_equal(tensor.numpy(), batch.numpy(name))
    assert batch.torch("loss_mask").view(torch.bool).sum().item() == batch.numpy("loss_mask").sum()
    tensors = batch.to_torch()
    assert set(tensors) == set(batch.names)
    assert tensors["turn_len"].data_ptr() == batch.torch("turn_len").data_ptr()
    del tensors
    class Rows(torch.utils.data.Dataset):
        def __len__(self): return len(batch)
        def __getitem__(self, i): return views[i]
    offsets = batch.numpy("offsets")
    views = [batch.torch("tokens")[offsets[i]:offsets[i + 1]] for i in range(len(batch))]
    loader = torch.utils.data.DataLoader(Rows(), batch_size=None, num_workers=2,
                                         multiprocessing_context="fork")
    assert [t.tolist() for t in loader] == [v.tolist() for v in views]
    (part,) = batch.iter_microbatches(10**9)
    assert part.to_torch()["tokens"].data_ptr() == batch.torch("tokens").data_ptr()
    assert part.torch("cu_seqlens").tolist() == batch.numpy("cu_seqlens").tolist()
    del loader, views, part, offsets
    batch.torch("advantage").fill_(3)
    assert batch[0].advantage == 3
    kept = batch.torch("tokens")[1:3]
    expected = kept.tolist()
    batch.close()
    del tensor, batch
    gc.collect()
    assert _lib.load().live_batches() == 1
    assert kept.tolist() == expected
    del kept
    gc.collect()
    assert _lib.load().live_batches() == 0
print("ok")
"""


def python_with_torch():
    """This interpreter, or the system's, if it has torch (Debian: python3-torch)."""
    probe = "import sys, numpy, torch; assert sys.version_info >= (3, 10)"
    for python in (sys.executable, "/usr/bin/python3"):
        try:
            subprocess.run([python, "-c", probe], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        return python
    return None


def test_real_torch_takes_columns_without_a_copy(tmp_path):
    python = python_with_torch()
    if python is None:
        pytest.skip("NO TORCH on this machine: only the stand-in below was tested")
    # That interpreter need not have pytest, which conftest imports for its fixtures only.
    (tmp_path / "pytest.py").write_text("def fixture(f=None, **_): return f or (lambda f: f)\n")
    run = [python, "-c", f"import sys; sys.path.append({str(tmp_path)!r})\n" + TORCH, str(TESTS)]
    done = subprocess.run(run, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "ok", done.stderr


def test_torch_is_given_the_column(batch, monkeypatch):
    stand_in = types.ModuleType("torch")
    stand_in.from_dlpack = np.from_dlpack
    monkeypatch.setitem(sys.modules, "torch", stand_in)
    view = batch.torch("tokens")
    assert view.ctypes.data == batch.numpy("tokens").ctypes.data


def test_without_torch_the_message_helps(batch, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match="Batch.torch needs the package torch"):
        batch.torch("tokens")
    with pytest.raises(rr.InvalidError, match="no column"):
        batch.torch("nope")


def test_pickling_copies(batch):
    live = _lib.load().live_batches()
    copy = pickle.loads(pickle.dumps(batch))
    assert _lib.load().live_batches() == live
    assert copy.address_range[0] != batch.address_range[0]
    assert (copy.rollout_id, copy.batch_id, len(copy)) == (3, batch.batch_id, 4)
    assert copy.report == batch.report
    for name in batch.names:
        np.testing.assert_array_equal(copy.numpy(name), batch.numpy(name))
        view = copy.numpy(name)
        assert inside(copy, view.ctypes.data, view.nbytes)
        assert view.flags.writeable
    copy.numpy("tokens")[:] = 0
    assert batch.numpy("tokens").any()
    np.testing.assert_array_equal(np.from_dlpack(copy.column("reward")), copy.numpy("reward"))
    kept = copy.numpy("reward")
    gone = weakref.ref(copy._memory)
    copy.close()
    assert kept.tolist() == batch.numpy("reward").tolist()
    del kept, view
    gc.collect()
    assert gone() is None


def test_views_across_threads(batch):
    import threading

    live = _lib.load().live_batches()
    views = [batch.numpy("tokens"), np.from_dlpack(batch.column("logprobs"))]
    batch.close()

    def drop():
        views.clear()

    thread = threading.Thread(target=drop)
    thread.start()
    thread.join()
    gc.collect()
    assert _lib.load().live_batches() == live - 1


# ---- without a library --------------------------------------------------------------------------


def test_empty_batches():
    empty = rr.Batch.empty(5)
    assert (len(empty), empty.rollout_id, empty.n_tokens, list(empty)) == (0, 5, 0, [])
    assert empty.numpy("offsets").tolist() == [0]
    assert empty.numpy("tokens").dtype == np.int32
    assert empty.numpy("tokens").shape == (0,)
    again = pickle.loads(pickle.dumps(empty))
    assert len(again) == 0
    assert np.from_dlpack(again.column("tokens")).shape == (0,)
    with pytest.raises(IndexError):
        empty[0]


def test_empty_batches_have_the_engines_columns():
    """Name, code, bits and domain of each column, as relax/internal/batch/builder.go adds them."""
    import re

    from conftest import ROOT

    source = (ROOT / "relax" / "internal" / "batch" / "builder.go").read_text()
    codes = {"Int": 0, "Uint": 1, "Float": 2}
    domains = {
        "PerToken": 0,
        "PerSeq": 1,
        "PerSeq1": 2,
        "PerSegment": 3,
        "PerByte": 4,
        "PerTurn": 5,
    }
    added = re.findall(r'p\.add\("(\w+)", (\w+), (\d+), (\w+),', source)
    assert [(n, codes[c], int(b), domains[d]) for n, c, b, d in added] == COLUMNS
