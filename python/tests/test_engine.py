"""The parts of the engine module that need no library."""

import io
import logging

import pytest

from relax_rollout import InvalidError, StepReport
from relax_rollout.engine import _number, _Progress, _Step, _task, log_event, log_line


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

    step = _Step(0, source())
    with pytest.raises(InvalidError):
        step.take(2)
    assert [t["messages"][0]["content"] for t in step.taken] == ["a"]


def test_tasks_are_pulled_lazily():
    source = iter("abcdef")
    step = _Step(0, source)
    assert len(step.take(2)) == 2
    assert next(source) == "c"


def test_log_lines_look_like_the_reference():
    data = {
        "level": "info",
        "component": "rollout",
        "event": "accounting_end",
        "rollout": 0,
        "groups": 2,
        "debt": None,
        "ok": True,
    }
    assert log_line(data) == "AGENTIC ROLLOUT event=accounting_end rollout=0 groups=2 ok=true"
    assert log_line({"event": "x", "line": "AGENTIC ready made"}) == "AGENTIC ready made"
    assert log_line({"text": "Dropped 1 group"}) == "AGENTIC Dropped 1 group"


def test_log_levels(caplog):
    logger = logging.getLogger("relax_rollout.test")
    with caplog.at_level(logging.DEBUG, logger=logger.name):
        for level in ("debug", "info", "warning", "warn", "error", "odd"):
            log_event(logger, {"level": level, "text": level})
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

    assert _number({"a": np.float32(0.5), "b": 1}) == {"a": 0.5, "b": 1}
    assert type(_number(np.int64(3))) is int


class _Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_on_a_terminal_is_one_line():
    out = _Terminal()
    bar = _Progress(out)
    bar.show({"rollout": 3, "scored": 0, "total": 2})
    bar.show({"rollout": 3, "scored": 2, "total": 2})
    bar.finish()
    text = out.getvalue()
    assert text.startswith("\rRollout 3 generation: scored=0/2 [")
    assert "\rRollout 3 generation: scored=2/2 [" in text
    assert text.count("\n") == 1


def test_progress_in_a_file_is_a_line_a_tenth():
    out = io.StringIO()
    bar = _Progress(out)
    for n in range(101):
        bar.show({"rollout": 0, "scored": n, "total": 100})
    bar.finish()
    lines = out.getvalue().splitlines()
    assert len(lines) == 11
    assert lines[-1].startswith("Rollout 0 generation: scored=100/100 [")


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
