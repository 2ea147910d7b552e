"""The parts of the engine module that need no library."""

import io
import logging
import math
import time

import pytest

from relax_rollout import InvalidError, StepReport
from relax_rollout.console import Progress, log_event
from relax_rollout.engine import _slice_ms
from relax_rollout.hooks import plain
from relax_rollout.steps import Step
from relax_rollout.tasks import document, int64, many


def test_tasks():
    assert document("hi") == {"messages": [{"role": "user", "content": "hi"}]}
    assert document({"metadata": {"a": 1}}) == {"metadata": {"a": 1}}
    assert document({"messages": None, "metadata": {}}) == {"metadata": {}}


@pytest.mark.parametrize("bad", [3, {}, {"prompt": "x"}, ["x"]])
def test_tasks_of_another_shape(bad):
    with pytest.raises(InvalidError, match="expected a str or a mapping"):
        document(bad)


def test_tasks_taken_before_an_exception_are_kept():
    def source():
        yield "a"
        yield 3
        yield "b"

    step = Step("rollout", None, None, tasks=source())
    with pytest.raises(InvalidError):
        step.take(2)
    assert [t["messages"][0]["content"] for t in step.taken] == ["a"]


def test_tasks_are_pulled_lazily():
    source = iter("abcdef")
    step = Step("rollout", None, None, tasks=source)
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


def state(done, total=4, **more):
    return {"rollout": 3, "scored": done, "done": done, "total": total, **more}


def test_progress_on_a_terminal_is_one_line():
    out, clock = _Terminal(), _Clock()
    bar = Progress(out, clock)
    for clock.now, done in ((0, 0), (1.05, 1), (1.1, 2), (2.0, 4)):
        bar.show(state(done))
    bar.finish()
    lines = out.getvalue().split("\r")
    assert [line.rstrip() for line in lines] == [
        "",
        f"Rollout 3 generation:   0%|{' ' * 15}| 0/4 [00:00<?, ?session/s, scored=0]",
        f"Rollout 3 generation:  25%|##{' ' * 6}| 1/4 [00:01<00:03, 1.05s/session, scored=1]",
        f"Rollout 3 generation: 100%|{'#' * 8}| 4/4 [00:02<00:00, 2.00session/s, scored=4]",
    ], "2/4 came within a tenth of a second"
    assert out.getvalue().endswith("]\n"), "and nothing of the longer line before is left"
    assert {len(line.rstrip()) for line in lines[1:]} == {79}, "less than 80 columns"


def test_a_terminals_clock_goes_on_while_nothing_happens():
    out, clock = _Terminal(), _Clock()
    bar = Progress(out, clock)
    bar.tick()
    bar.show(state(1))
    for clock.now in (0.5, 1.0, 1.5, 2.0):
        bar.tick()
    assert out.getvalue().count("\r") == 3
    assert "[00:02<00:06, 2.00s/session" in out.getvalue()


def test_progress_in_a_file_is_the_last_line_of_a_step():
    out, clock = io.StringIO(), _Clock()
    bar = Progress(out, clock)
    for step in (0, 1):
        for n in range(101):
            bar.show(state(n, 100, rollout=step))
            bar.tick()
        bar.finish()
    assert out.getvalue().splitlines() == [
        "Rollout 0 generation: 100% 100/100 [00:00<00:00, ?session/s, scored=100]",
        "Rollout 1 generation: 100% 100/100 [00:00<00:00, ?session/s, scored=100]",
    ]


def test_progress_of_a_long_step_in_a_file():
    out, clock = io.StringIO(), _Clock()
    bar = Progress(out, clock)
    for clock.now in (0, 20, 40, 60, 80):
        bar.show(state(1, 2))
        bar.tick()
    bar.finish()
    assert out.getvalue().splitlines() == [
        "Rollout 3 generation:  50% 1/2 [00:40<00:40, 40.00s/session, scored=1]",
        "Rollout 3 generation:  50% 1/2 [01:20<01:20, 80.00s/session, scored=1]",
    ], "what was just said is not said again at the end"


def test_progress_counts_prepared_groups_and_evals_samples():
    out, clock = io.StringIO(), _Clock()
    bar = Progress(out, clock)
    bar.show(state(0, 8, scored=3, prepared=2))
    bar.finish()
    clock.now = 100
    bar.begin()
    for name in ("gsm\n8k", "math"):
        for done in (1, 2):
            clock.now += 2
            bar.show({"rollout": 3, "eval": True, "dataset": name, "done": done, "total": 2})
    bar.finish()
    assert out.getvalue().splitlines() == [
        "Rollout 3 generation:   0% 0/8 [00:00<?, ?session/s, scored=3, prepared=2]",
        "Eval gsm 8k: 100% 2/2 [00:04<00:00, 2.00s/sample]",
        "Eval math: 100% 2/2 [00:04<00:00, 2.00s/sample]",
    ]


def test_a_bar_that_is_too_long_for_its_terminal_is_cut():
    out, clock = _Terminal(), _Clock()
    Progress(out, clock).show({"dataset": "x" * 200, "done": 1, "total": 2})
    assert len(out.getvalue().strip("\r")) == 79


def test_a_step_without_rows_to_come_draws_once():
    out = io.StringIO()
    bar = Progress(out)
    for _ in range(3):
        bar.show(state(0, 0))
    bar.finish()
    bar.finish()
    assert out.getvalue().count("100% 0/0") == len(out.getvalue().splitlines()) == 1


class _BrokenPipe(_Terminal):
    def write(self, _):
        raise BrokenPipeError


@pytest.mark.parametrize("stream", [None, _BrokenPipe()])
def test_a_stream_that_is_gone_costs_nothing(stream):
    bar = Progress(stream, _Clock())
    bar.show(state(1))
    bar.tick()
    bar.finish()


def test_a_file_that_cannot_spell_a_name_gets_it_escaped():
    raw = io.BytesIO()
    bar = Progress(io.TextIOWrapper(raw, "ascii"), _Clock())
    bar.show({"dataset": "jähn", "done": 1, "total": 1})
    bar.finish()
    assert raw.getvalue().startswith(b"Eval j\\xe4hn: 100% 1/1")


HEARTBEAT = {
    "level": "info",
    "event": "idle_heartbeat",
    "line": "AGENTIC ROLLOUT event=idle_heartbeat rollout=0 debt=1 waits=agents",
}


def test_what_is_waited_for_is_shown_once():
    """By the logger if it listens, else beside the bar, as the engine wrote it."""
    for level, shown in ((logging.INFO, 0), (logging.WARNING, 1)):
        out = _Terminal()
        logger = logging.Logger("test", level)
        bar = Progress(out, _Clock())
        bar.show(state(1))
        bar.say(HEARTBEAT, logger)
        bar.say({"level": "info", "event": "accounting_end", "line": "AGENTIC …"}, logger)
        bar.finish()
        assert out.getvalue().count(f"\r{HEARTBEAT['line']}\n") == shown
        assert "AGENTIC …" not in out.getvalue()
        assert out.getvalue().splitlines()[-1].lstrip("\r ").startswith("Rollout 3"), "drawn again"


@pytest.mark.parametrize("one", ["What is 2 + 3?", {"messages": []}, 3])
def test_one_task_is_notmany(one):
    with pytest.raises(InvalidError, match=r"submit: tasks is one \w+, expected an iterable"):
        many("submit", one)


def test_integers_of_any_kind():
    import numpy as np

    assert int64("f", "x", np.int32(3)) == 3
    for bad in ("7", 1.0, True, None, 2**63, -(2**63) - 1):
        with pytest.raises(InvalidError, match="f: x is .*, expected an int64"):
            int64("f", "x", bad)


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
    assert (report.eval, report.partitions, report.interrupted_groups) == (False, (), 0)


def test_reports_of_partitions_and_evals():
    report = StepReport.from_dict(
        {
            "interrupted_groups": 2,
            "accounting": {"groups": {"started": 1, "carried_in": 2, "delivered": 3}},
            "partitions": [
                {"id": 4, "groups": 2, "debt": 0, "complete": True},
                {"id": 5, "debt": 1, "short": True},
            ],
        }
    )
    assert report.interrupted_groups == 2
    assert report.group_balance.carried_in == 2
    assert [(p.id, p.groups, p.complete, p.short) for p in report.partitions] == [
        (4, 2, True, False),
        (5, 0, False, True),
    ]
    report = StepReport.from_dict(
        {
            "eval": True,
            "datasets": [
                {
                    "name": "math",
                    "samples": 3,
                    "delivered": 2,
                    "dropped": 1,
                    "rewards": [1, None],
                    "truncated": [False, True],
                }
            ],
        }
    )
    (dataset,) = report.datasets
    assert report.eval
    assert (dataset.samples, dataset.delivered, dataset.dropped) == (3, 2, 1)
    assert dataset.rewards[0] == 1.0
    assert math.isnan(dataset.rewards[1])
    assert dataset.truncated == (False, True)
