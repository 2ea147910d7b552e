"""What lives on when a step ends: partial rollout, prelaunch, fully async, and how many agents
run at once. Real agents, held exactly where a test wants them; nothing depends on speed."""

import itertools

import pytest
from conftest import AGENTS, eventually, task
from holding import (
    LONG,
    SECONDS,
    SIMULATOR,
    Gate,
    Running,
    end_owing,
    go_on,
    hold_after,
    pause_held,
    scripted,
)
from test_rollout import spell

import relax_rollout as rr

pytestmark = pytest.mark.usefixtures("deadline")


def balances(report):
    """All lines of the accounts, which must balance."""
    lines = (report.group_balance, report.session_balance, report.token_balance)
    for line in lines:
        assert line.started + line.carried_in == line.delivered + line.dropped + line.carried, line
    return lines


def sampled(row):
    return spell(row.tokens[row.loss_mask == 1])


def versions(row):
    """Those of sampled tokens, in order."""
    return [s.weight_version for s in row.segments if row.loss_mask[s.start : s.end].any()]


def waits(engine):
    return {wait["for"] for wait in engine.stats()["waits"]}


def quick(gate):
    return scripted({"ask": "hello"}, {"wait": gate.path})


def slow(gate):
    return scripted({"wait": gate.path}, {"ask": "a long answer, please"})


def begin_slow(start, *others):
    """Lets the slow agent ask once the others wait behind their answers."""
    for gate in others:
        gate.arrived()
    start.open()


def end_step(engine, gate):
    """Ends the step by the agent at the gate, in the middle of the slow one's answer."""
    hold_after(engine)
    gate.release()
    assert eventually(lambda: engine.stats()["debt"] == 0, SECONDS), engine.stats()
    go_on(engine)


# ---- partial rollout ----------------------------------------------------------------------------


def test_a_request_is_carried_over_steps_and_weight_updates(open_engine, tmp_path):
    engine = open_engine(
        agent="scripted.py",
        simulator=SIMULATOR,
        partial_rollout=True,
        over_sampling_batch_size=4,
        agentic_concurrency=4,
    )
    start, *gates = (Gate(tmp_path / f"gate{n}") for n in range(4))
    reports = []
    for step, gate in enumerate(gates):
        engine.set_weight_version(step)
        tasks = [slow(start), *map(quick, gates)] if step == 0 else None
        with Running(engine.rollout, step, tasks) as running:
            if step == 0:
                begin_slow(start, *gates)
            end_step(engine, gate)
        (row,) = running.result
        assert sampled(row) == "fine<|im_end|>"
        assert versions(row) == [0]
        reports.append(running.result.report)
    engine.set_weight_version(3)
    (row,) = batch = engine.rollout(3)
    reports.append(batch.report)

    assert sampled(row) == f"{LONG}<|im_end|>", "one answer, from four attempts"
    assert (row.turns, row.aborts, row.truncated) == (1, 3, False)
    assert versions(row) == [0, 1, 2, 3]
    assert row.loss_mask.sum() == len(LONG) + 1
    groups = [balances(report)[0] for report in reports]
    assert [g.started for g in groups] == [4, 0, 0, 0]
    assert [g.carried_in for g in groups] == [0, 3, 2, 1]
    assert [g.carried for g in groups] == [3, 2, 1, 0]
    assert [r.interrupted_groups for r in reports] == [1, 1, 1, 0]
    tokens = [r.token_balance for r in reports]
    assert [t.carried_in for t in tokens[1:]] == [t.carried for t in tokens[:-1]]


@pytest.fixture
def step_zero(open_engine, tmp_path):
    """Runs step 0 of an engine up to its end in the middle of the slow agent's answer."""

    def run(**settings):
        engine = open_engine(
            agent="scripted.py", simulator=SIMULATOR, over_sampling_batch_size=2, **settings
        )
        start, gate = Gate(tmp_path / "start"), Gate(tmp_path / "gate")
        with Running(engine.rollout, 0, [slow(start), quick(gate)]) as running:
            begin_slow(start, gate)
            end_step(engine, gate)
        return engine, running.result

    return run


def test_a_request_that_was_aborted_often_enough_is_left_alone(step_zero):
    engine, _ = step_zero(partial_rollout=True, partial_rollout_max_aborted_count=1)
    rows = []
    for step in (1, 2):
        engine.set_weight_version(step)
        rows += engine.rollout(step, [scripted({"ask": "hello"})] if step == 1 else None)
    late, soon = sorted(rows, key=lambda row: row.group_id)
    assert sampled(soon) == "fine<|im_end|>"
    assert sampled(late) == f"{LONG}<|im_end|>"
    assert late.aborts == 1
    assert versions(late) == [0, 1], "step 1 ended only when it was done"


def test_an_evaluation_between_steps_leaves_carried_sessions_alone(step_zero):
    engine, _ = step_zero(partial_rollout=True)
    results = engine.evaluate(0, {"greetings": ["hello", "hello"]})
    assert results["greetings"].rewards == (1.0, 1.0)
    (row,) = engine.rollout(1)
    assert sampled(row) == f"{LONG}<|im_end|>"
    assert row.aborts == 1, "by the step's end, not by the Eval"


def test_without_it_a_step_leaves_nothing(step_zero):
    engine, batch = step_zero()
    groups, _, tokens = balances(batch.report)
    assert (groups.delivered, groups.dropped, groups.carried) == (1, 1, 0)
    assert [d.reason for d in batch.report.drops] == ["step_end"]
    assert tokens.dropped >= 3
    assert eventually(lambda: engine.stats()["requests"]["backend"] == 0)


def test_weights_are_updated_in_the_middle_of_a_step(open_engine):
    engine = open_engine(agent="scripted.py", simulator=SIMULATOR)
    with Running(engine.rollout, 0, [scripted({"ask": "a long answer"})]) as running:
        for version in (1, 2):
            hold_after(engine)
            pause_held(engine)
            engine.set_weight_version(version)
            engine.resume()
    (row,) = running.result
    assert sampled(row) == f"{LONG}<|im_end|>"
    assert versions(row) == [0, 1, 2]
    assert (row.turns, row.aborts) == (1, 2)


# ---- prelaunch ----------------------------------------------------------------------------------


def test_agents_of_the_next_step_start_early_and_wait(open_engine, tmp_path):
    engine = open_engine(agent="scripted.py", agentic_prelaunch=True, agentic_concurrency=2)
    first, second = Gate(tmp_path / "first"), Gate(tmp_path / "second")
    hello = {"ask": "hello"}
    tasks = iter([scripted(hello, {"wait": first.path}), scripted({"wait": second.path}, hello)])

    def prepared():
        return engine.stats()["groups"]["ready"] == 1

    with Running(engine.rollout, 0, tasks) as running:
        first.arrived()
        second.open()
        assert eventually(prepared, SECONDS), engine.stats()
        first.release()
    groups, _, _ = balances(running.result.report)
    assert groups.carried == 1
    assert prepared(), "its first request is still held"
    assert waits(engine) == {"lease"}
    early = engine.rollout(1, tasks)
    assert balances(early.report)[0].carried_in == 1
    assert len(early) == 1


# ---- fully async --------------------------------------------------------------------------------


def test_partitions_are_completed_by_later_steps(open_engine, tmp_path):
    engine = open_engine(
        agent="scripted.py",
        simulator=SIMULATOR,
        fully_async=True,
        num_rollout=2,
        max_staleness=1,
        rollout_batch_size=2,
    )
    first, second = Gate(tmp_path / "first"), Gate(tmp_path / "second")
    hello = scripted({"ask": "hello"})
    tasks = iter([hello, slow(first), hello, slow(second)])

    batches = []
    for step, gate in enumerate((first, second)):
        engine.set_weight_version(step)
        with Running(engine.rollout, step, tasks) as running:
            end_owing(engine, step, gate)
        batches.append(running.result)
        engine.resume()
        for partition in running.result.report.partitions:
            if partition.complete:
                engine.consumed(partition.id)
    engine.set_weight_version(2)
    batches.append(engine.rollout(2))  # num_rollout: the final backfill

    parts = [{k: len(v) for k, v in b.by_partition().items()} for b in batches]
    assert parts == [{0: 1}, {0: 1, 1: 1}, {1: 1}]
    assert [b.numpy("partition").tolist() for b in batches] == [[0], [0, 1], [1]]
    states = [[(p.id, p.groups, p.debt, p.complete) for p in b.report.partitions] for b in batches]
    assert states == [
        [(0, 1, 1, False)],
        [(0, 1, 0, True), (1, 1, 1, False)],
        [(1, 1, 0, True)],
    ]
    assert [b.report.debt for b in batches] == [1, 1, 0]
    for batch in batches:
        balances(batch.report)
    late = batches[2][0]
    assert sampled(late) == f"{LONG}<|im_end|>"
    assert versions(late)[-1] == 2


def test_a_step_waits_until_old_partitions_are_consumed(open_engine):
    engine = open_engine(
        agent="scripted.py",
        fully_async=True,
        num_rollout=4,
        max_staleness=1,
        agentic_prelaunch=True,
    )
    tasks = itertools.repeat(scripted({"ask": "hello"}))
    for step in range(2):
        assert len(engine.rollout(step, tasks)) == 1
    with Running(engine.rollout, 2, tasks) as running:
        # Its Group is there and is not leased: rollout 2 is two ahead of partition 0.
        assert eventually(lambda: waits(engine) >= {"consumed", "lease"}, SECONDS), engine.stats()
        assert engine.stats()["rollout"] == 2
        engine.consumed(0)
    assert running.result.numpy("partition").tolist() == [2]


# ---- capacity -----------------------------------------------------------------------------------


def test_a_failed_session_is_run_again(open_engine, tmp_path):
    engine = open_engine(agent="scripted.py", agent_retries=1)
    steps = [{"ask": "hello"}, {"fail_once": str(tmp_path / "failed")}, {"ask": "hello"}]
    batch = engine.rollout(0, [scripted(*steps)])
    assert len(batch) == 1
    groups, _, tokens = balances(batch.report)
    assert (groups.started, groups.delivered, groups.dropped) == (1, 1, 0)
    assert batch.report.retries == 1
    assert batch[0].turns == 2
    assert tokens.dropped > 0, "what the first try sampled"
    assert [d.reason for d in batch.report.drops] == ["retried"]


@pytest.mark.parametrize("concurrency", [1, 3])
def test_as_many_groups_run_as_may(open_engine, tmp_path, concurrency):
    """Each agent takes one of so many slots, and the first meet the others of theirs."""
    slots = [str(tmp_path / f"slot{n}") for n in range(concurrency)]
    seats = [str(tmp_path / f"seat{n}") for n in range(concurrency)]
    hello = {"ask": "hello"}
    claim = {"slot": slots}
    tasks = [scripted(claim, {"meet": seats}, hello)] * concurrency + [scripted(claim, hello)] * 4
    engine = open_engine(
        agent="scripted.py", rollout_batch_size=concurrency + 4, agentic_concurrency=concurrency
    )
    batch = engine.rollout(0, tasks)
    assert (len(batch), batch.report.drops) == (concurrency + 4, ())


def test_too_few_slots_on_a_platform_are_named(open_engine, tmp_path):
    """Two Sessions that need two slots at once, where the platform has one."""
    steps = [{"slot": [str(tmp_path / "slot")]}, {"ask": "hello"}]
    engine = open_engine(
        agent="scripted.py",
        n_samples_per_prompt=2,
        agent_first_request_timeout=0.5,
        max_consecutive_dropped_groups=1,
    )
    with pytest.raises(rr.StepFailedError) as failed:
        engine.rollout(0, [scripted(*steps)])
    assert [d.reason for d in failed.value.report.drops] == ["first_request_timeout"]
    for word in ("agent_first_request_timeout", "agentic_concurrency", "n_samples_per_prompt"):
        assert word in str(failed.value)


# ---- options ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (
            {"partial_rollout": True, "fully_async": True, "num_rollout": 2},
            "partial_rollout fully_async",
        ),
        ({"fully_async": True}, "num_rollout fully_async"),
        (
            {"over_sampling_batch_size": 1, "rollout_batch_size": 2},
            "over_sampling_batch_size rollout_batch_size",
        ),
        ({"use_dynamic_global_batch_size": True}, "use_dynamic_global_batch_size partial_rollout"),
        (
            {"use_dynamic_global_batch_size": True, "partial_rollout": True},
            "over_sampling_batch_size use_dynamic_global_batch_size",
        ),
        (
            {"advantage_estimator": "rloo", "partial_rollout": True, "n_samples_per_prompt": 2},
            "advantage_estimator partial_rollout",
        ),
        ({"advantage_estimator": "rloo"}, "advantage_estimator n_samples_per_prompt"),
        ({"max_staleness": -1}, "max_staleness"),
        ({"agent_retries": -1}, "agent_retries"),
        (
            {"agentic_admission_headroom": 1.5, "agentic_program_admission": True},
            "agentic_admission_headroom",
        ),
        (
            {"agentic_admission_scope": "eval", "agentic_program_admission": True},
            "agentic_admission_scope",
        ),
    ],
    ids=lambda value: value.replace(" ", "+") if isinstance(value, str) else "",
)
def test_options_that_do_not_go_together_are_refused(options, named):
    with pytest.raises(rr.ConfigError) as refused:
        rr.Engine({"agent_command": "true", "agent_cwd": str(AGENTS), **options})
    assert refused.value.option == named.split()[0]
    for option in named.split():
        assert option in str(refused.value)


def test_the_options_do_not_change_a_plain_step(open_engine):
    engine = open_engine(
        rollout_batch_size=2,
        over_sampling_batch_size=2,
        num_rollout=1,
        agentic_eval_concurrency=1,
        agent_start_concurrency=1,
        agentic_session_lifecycle=True,
        agentic_program_admission=True,
    )
    assert len(engine.rollout(0, [task(), task()])) == 2
