"""The parts of the engine module that need no library."""

import io
import logging
import math
import time

import pytest

from relax_rollout import InvalidError, StepReport
from relax_rollout.console import Progress, log_event
from relax_rollout.engine import (
    _int64,
    _many,
    _slice_ms,
    _Step,
    _task,
)
from relax_rollout.hooks import plain


def test_tasks():
    assert _task("hi") == {"messages": [{"role": "user", "content": "hi"}]}
    assert _task({"metadata": {"a": 1}}) == {"metadata": {"a": 1}}
    assert _task({"messages": None, "metadata": {}}) == {"metadata": {}}


@pytest.mark.parametrize("bad", [3, {}, {"prompt": "x"}, ["x"]])
def test_tasks_of_another_shape(bad):
    with pytest.raises(InvalidError, match="expected a str or a mapping"):
        _task(bad)


def test_tasks_taken_before_an_exception_are_kept():
    def source():
        yield "a"
        yield 3
        yield "b"

    step = _Step(0, source(), None)
    with pytest.raises(InvalidError):
        step.take(2)
    assert [t["messages"][0]["content"] for t in step.taken] == ["a"]


def test_tasks_are_pulled_lazily():
    source = iter("abcdef")
    step = _Step(0, source, None)
    assert len(step.take(2)) == 2
    assert next(source) == "c"


def test_log_levels(caplog):
    logger = logging.getLogger("relax_rollout.test")
    with caplog.at_level(logging.DEBUG, logger=logger.name):
        for level in ("debug", "info", "warning", "warn", "error", "odd"):
            log_event(logger, {"level": level, "line": f"AGENTIC {level}"})
    assert [(r.levelname, r.message) for r in caplog.records] == [
        ("DEBUG", "AGENTIC debug"),
        ("INFO", "AGENTIC info"),
        ("WARNING", "AGENTIC warning"),
        ("WARNING", "AGENTIC warn"),
        ("ERROR", "AGENTIC error"),
        ("INFO", "AGENTIC odd"),
    ]


def test_rewards_of_number_libraries_become_numbers():
    import numpy as np

    assert plain({"a": np.float32(0.5), "b": 1}) == {"a": 0.5, "b": 1}
    assert type(plain(np.int64(3))) is int


class _Terminal(io.StringIO):
    def isatty(self):
        return True


class _Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_progress_on_a_terminal_is_one_line():
    out, clock = _Terminal(), _Clock()
    bar = Progress(out, clock)
    for scored in (0, 1, 2):
        bar.show({"rollout": 3, "scored": scored, "total": 2})
    bar.finish()
    assert out.getvalue() == (
        f"\rRollout 3 generation: scored=0/2 [{'.' * 20}] [0s]"
        f"\rRollout 3 generation: scored=2/2 [{'#' * 20}] [0s]\n"
    ), "1/2 came within a tenth of a second"


def test_progress_in_a_file_is_the_last_line_of_a_step():
    out, clock = io.StringIO(), _Clock()
    bar = Progress(out, clock)
    for step in (0, 1):
        for n in range(101):
            bar.show({"rollout": step, "scored": n, "total": 100})
        bar.show({"rollout": step, "scored": 100, "total": 100})
        bar.finish()
    assert out.getvalue().splitlines() == [
        "Rollout 0 generation: scored=100/100 [0s]",
        "Rollout 1 generation: scored=100/100 [0s]",
    ]


def test_progress_of_a_long_step_in_a_file():
    out, clock = io.StringIO(), _Clock()
    bar = Progress(out, clock)
    for clock.now in (0, 20, 40, 60, 80):
        bar.show({"rollout": 0, "scored": 1, "total": 2})
    assert out.getvalue().splitlines() == [
        "Rollout 0 generation: scored=1/2 [40s]",
        "Rollout 0 generation: scored=1/2 [80s]",
    ]


def test_a_step_without_rows_to_come_draws_once():
    out = io.StringIO()
    bar = Progress(out)
    for _ in range(3):
        bar.show({"rollout": 0, "scored": 0, "total": 0})
    assert len(out.getvalue().splitlines()) == 1


@pytest.mark.parametrize("one", ["What is 2 + 3?", {"messages": []}, 3])
def test_one_task_is_not_many(one):
    with pytest.raises(InvalidError, match=r"submit: tasks is one \w+, expected an iterable"):
        _many("submit", one)


def test_integers_of_any_kind():
    import numpy as np

    assert _int64("f", "x", np.int32(3)) == 3
    for bad in ("7", 1.0, True, None, 2**63, -(2**63) - 1):
        with pytest.raises(InvalidError, match="f: x is .*, expected an int64"):
            _int64("f", "x", bad)


def test_waits_come_in_slices():
    now = time.monotonic()
    assert _slice_ms(None) == 100
    assert _slice_ms(now - 1) == 0
    assert _slice_ms(math.inf) == 100
    assert 0 < _slice_ms(now + 0.05) <= 50
    assert 0 < _slice_ms(time.monotonic() + 0.01) <= 11


def test_reports():
    report = StepReport.from_dict(
        {
            "rollout": 4,
            "groups": 2,
            "rows": 3,
            "debt": 1,
            "seconds": 1.5,
            "accounting": {
                "groups": {"started": 4, "delivered": 2, "dropped": 1, "carried": 1},
            },
            "drops": [{"reason": "agent_exit", "groups": 1, "first": "exit code 1"}],
            "metrics": {"rollout/raw_reward": 0.5},
            "later": 1,
        }
    )
    assert report.error is None
    balance = report.group_balance
    assert balance.started == balance.delivered + balance.dropped + balance.carried
    assert report.session_balance.started == 0
    assert report.drops[0].reason == "agent_exit"
    assert report.raw["later"] == 1
