"""Batches as trainers use them: the reference's columns, credit of turns, micro-batches, Arrow."""

import gc
import itertools
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from conftest import TESTS, task
from test_batch import inside

import relax_rollout as rr
from relax_rollout import _lib
from relax_rollout.columns import Held, zeros


@pytest.fixture
def batch(open_engine):
    engine = open_engine(n_samples_per_prompt=2, rollout_batch_size=2)
    return engine.rollout(3, [task(reward=0.0, turns=2), task(reward=1.0)])


@pytest.fixture
def rich(open_engine):
    """A batch with the columns that only some have: credit for each turn."""
    engine = open_engine(
        n_samples_per_prompt=2,
        rollout_batch_size=3,
        advantage=lambda slots: [{None: list(range(1, 1 + TURNS))}, {None: -1.0}],
    )
    return engine.rollout(3, [task(turns=TURNS)] * 3)


TURNS = 3
"""Turns of each row of ``rich``."""


def test_views_of_every_column_are_the_arena(rich):
    assert "advantages" in rich.names
    for name in rich.names:
        for view in (rich.numpy(name), np.from_dlpack(rich.column(name))):
            assert inside(rich, view.ctypes.data, view.nbytes), name
            assert view.ctypes.data % 64 == 0, name
            np.testing.assert_array_equal(view, rich.numpy(name))


def test_what_trainers_need(batch):
    """The columns with the reference's names (pipeline 6.3) say what the others do."""
    lengths = np.diff(batch.numpy("offsets"))
    kinds = {"total_lengths", "response_lengths", "truncated", "sample_indices"}
    assert {batch.numpy(n).dtype for n in (*kinds, "sample_index_mask_sums")} == {np.dtype("i8")}
    np.testing.assert_array_equal(batch.numpy("total_lengths"), lengths)
    np.testing.assert_array_equal(
        batch.numpy("response_lengths"), lengths - batch.numpy("prompt_len")
    )
    np.testing.assert_array_equal(batch.numpy("truncated"), batch.numpy("status") == 1)
    assert [row.partition for row in batch] == [batch.rollout_id] * len(batch)
    assert batch.numpy("raw_reward").dtype == np.float32
    np.testing.assert_array_equal(batch.numpy("raw_reward"), batch.numpy("reward"))
    assert len({r.sample_index for r in batch}) == len(batch)
    for row in batch:
        assert row.mask_sum == row.loss_mask.sum()
        assert row.raw_reward == row.reward
        table = row.turn_table
        assert len(table) == row.turns
        for turn in table:
            assert turn.advantage == row.advantage
            assert not turn.masked
            assert row.loss_mask[turn.start : turn.end].all()
        assert sum(t.end - t.start for t in table) == row.loss_mask.sum()
        assert [m["start"] for m in row.meta["turns"]] == [t.start for t in table]
        assert (row.advantages[row.prompt_len :] == np.float32(row.advantage)).all()
        assert not row.advantages[: row.prompt_len].any()
    assert "advantages" not in batch.names
    with pytest.raises(rr.InvalidError, match="no column 'routed_experts_shape'"):
        _ = batch[0].routed_experts


def test_credit_of_turns(rich):
    for row in rich:
        first = row.session_seq == 0
        assert [t.advantage for t in row.turn_table] == ([1, 2, 3] if first else [-1] * TURNS)
        for turn in row.turn_table:
            assert (row.advantages[turn.start : turn.end] == turn.advantage).all()
        observed = row.loss_mask[row.prompt_len :] == 0
        assert (row.advantages[row.prompt_len :][observed] == (0 if first else -1)).all()


def test_micro_batches(rich):
    longest = int(rich.numpy("total_lengths").max())
    for budget in (1, longest, 2 * longest, 10**9):
        parts = list(rich.iter_microbatches(budget))
        assert [i for part in parts for i in part.rows] == list(range(len(rich)))
        for part in parts:
            assert len(part) == 1 or part.n_tokens <= budget
            assert [r.index for r in part] == list(part.rows)
            assert part.numpy("cu_seqlens")[0] == 0
            assert part.numpy("cu_seqlens")[-1] == part.n_tokens == part.numpy("offsets")[-1]
            turns = part.numpy("turn_offsets")
            for k, row in enumerate(part):
                own = part.numpy("turn_advantage")[turns[k] : turns[k + 1]]
                assert own.tolist() == [t.advantage for t in row.turn_table]
                meta = part.numpy("meta_offsets")
                text = part.numpy("meta_json")[meta[k] : meta[k + 1]].tobytes()
                assert text.startswith(b'{"session_id"')
            view = part.numpy("advantages")
            assert inside(rich, view.ctypes.data, view.nbytes)
        if len(parts) > 1 and budget > 1:
            for one, after in itertools.pairwise(parts):
                following = len(rich[after.rows.start].tokens)
                assert one.n_tokens + following > budget, "a row more would have fitted"
    for wrong in (0, -1, 2.5, True, None):
        with pytest.raises(rr.InvalidError, match="max_tokens"):
            next(rich.iter_microbatches(wrong))


def test_views_do_not_pile_up(rich):
    """3,000 views of each kind: no reference stays."""
    live = _lib.load().live_batches()
    for _ in range(3000):
        kept = np.from_dlpack(rich.column("advantages"))
        np.asarray(rich.column("turn_masked"))
        rich.column("tokens").__dlpack__(max_version=(1, 0))
    rich.close()
    assert _lib.load().live_batches() == live
    del kept
    gc.collect()
    assert _lib.load().live_batches() == live - 1


def test_steps_do_not_pile_up(open_engine):
    """Batches that are let go of give their memory to the next ones."""
    engine = open_engine(n_samples_per_prompt=2)
    mapped = []
    for step in range(25):
        with engine.rollout(step, [task()]) as batch:
            assert len(batch) == 2
        mapped.append(engine.stats()["memory"]["mapped_bytes"])
    assert len(set(mapped)) == 1, mapped


def test_a_fork_data_loader():
    """Workers of a trainer's data loader read views, each in a forked copy of the process."""
    script = """
import sys; sys.path.insert(0, sys.argv[1])
from conftest import options, task
import multiprocessing, relax_rollout as rr
rows = None
def read(i):
    return int(rows[i].sum()), len(rows[i])
if __name__ == "__main__":
    with rr.Engine(options(n_samples_per_prompt=2, rollout_batch_size=2)) as engine:
        batch = engine.rollout(0, [task(turns=2)] * 2)
        rows = [row.tokens for row in batch]
        expected = [(int(r.sum()), len(r)) for r in rows]
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map(read, range(4)) * 3 == expected * 3
        assert len(engine.rollout(1, [task()] * 2)) == 4
    print("ok")
"""
    run = [sys.executable, "-c", script, str(TESTS)]
    done = subprocess.run(run, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "ok", done.stderr


# ---- Arrow --------------------------------------------------------------------------------------


@pytest.fixture
def arrow():
    try:
        import pyarrow
    except ImportError:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip("NO PYARROW in this environment: nothing of Arrow was tested")
    return pyarrow


def test_arrow_is_the_arena(arrow, rich):
    record = rich.to_arrow()
    assert record.num_rows == len(rich)
    assert record.schema.metadata[b"rollout_id"] == b"3"
    boundaries = {"offsets", "cu_seqlens", "seg_offsets", "turn_offsets", "meta_offsets"}
    assert set(record.schema.names) == set(rich.names) - boundaries
    for name in record.schema.names:
        for buffer in record.column(name).buffers():
            assert buffer is None or inside(rich, buffer.address, buffer.size), name
    record.validate(full=True)
    for i, row in enumerate(rich):
        assert record["tokens"][i].as_py() == row.tokens.tolist()
        assert record["turn_advantage"][i].as_py() == [t.advantage for t in row.turn_table]
        assert json.loads(record["meta_json"][i].as_py()) == row.meta
        assert record["sample_indices"][i].as_py() == row.sample_index
    assert arrow.record_batch(rich).equals(record), "through __arrow_c_array__"


def test_arrow_keeps_the_arena(arrow, rich):
    live = _lib.load().live_batches()
    tokens = rich.to_arrow()["tokens"]
    expected = [row.tokens.tolist() for row in rich]
    rich.close()
    gc.collect()
    assert _lib.load().live_batches() == live
    assert tokens.to_pylist() == expected
    del tokens
    gc.collect()
    assert _lib.load().live_batches() == live - 1


def test_parquet(arrow, rich, tmp_path):
    import pyarrow.parquet

    rich.to_parquet(tmp_path / "rows.parquet")
    table = pyarrow.parquet.read_table(tmp_path / "rows.parquet")
    assert table["advantages"].to_pylist() == [row.advantages.tolist() for row in rich]
    assert table["meta_json"].to_pylist() == rich.to_arrow()["meta_json"].to_pylist()
    rr.Batch.empty(0).to_parquet(tmp_path / "empty.parquet")
    assert pyarrow.parquet.read_table(tmp_path / "empty.parquet").num_rows == 0


def test_without_pyarrow_the_message_helps(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"pip install relax-rollout\[arrow\]"):
        rr.Batch.empty(0).to_arrow()


# ---- routed experts, in memory of Python's own ---------------------------------------------------


@pytest.fixture
def routed():
    """Two rows of 3 and 2 tokens, with 2 layers and top 2."""
    lengths, width = [3, 2], 4
    columns = {
        "offsets": (np.array([0, 3, 5]), 2),
        "total_lengths": (np.array(lengths), 1),
        "routed_experts": (np.arange(3 * width, dtype=np.int32), 6),
        "routed_experts_shape": (np.array([2, 2], np.int32), 7),
    }
    infos, at = [], 0
    for number, (name, (values, domain)) in enumerate(columns.items()):
        bits = 8 * values.itemsize
        infos.append(_lib.ColumnInfo(number, name, 0, len(values), at, 0, bits, domain))
        at += 64
    room = zeros(at)
    for info, (values, _) in zip(infos, columns.values(), strict=True):
        room[info.offset : info.offset + values.nbytes] = values.view(np.uint8)
    return rr.Batch(Held((1, 0, 2, 5, 0), infos, room))


def test_routed_experts(routed):
    assert routed[0].routed_experts.tolist() == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    assert routed[1].routed_experts.tolist() == [[[8, 9], [10, 11]]]
    parts = list(routed.iter_microbatches(3))
    assert [p.numpy("routed_experts").tolist() for p in parts] == [list(range(8)), [8, 9, 10, 11]]
    assert parts[1].numpy("routed_experts_shape").tolist() == [2, 2]


def test_routed_experts_as_arrow(arrow, routed):
    record = routed.to_arrow()
    assert record["routed_experts"].to_pylist() == [list(range(8)), [8, 9, 10, 11]]
    assert record.schema.metadata[b"routed_experts_shape"] == b"2,2"
