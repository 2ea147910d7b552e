"""``python -m relax_rollout run``: exit statuses, files and what people read."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from conftest import AGENTS, agent_command, alive

from relax_rollout import task_files
from relax_rollout.config import Config
from relax_rollout.errors import InvalidError
from relax_rollout.run import Totals
from relax_rollout.task_files import Keys


def command(tasks, output, *more):
    return [
        *(sys.executable, "-m", "relax_rollout", "run"),
        *("--tasks", str(tasks), "--output", str(output)),
        *("--agent-command", agent_command("plain.py"), "--agent-cwd", str(AGENTS)),
        *("--simulator", '{"policy": {"default": [{"text": "fine"}]}}'),
        *("--agent-kill-grace", "0.3"),
        *more,
    ]


def run(tasks, output, *more, **env):
    return subprocess.run(
        command(tasks, output, *more),
        capture_output=True,
        text=True,
        timeout=90,
        env={**os.environ, **env},
        cwd=output.parent,
    )


def task_file(tmp_path, *metadata, name="tasks.jsonl"):
    path = tmp_path / name
    path.write_text("".join(json.dumps({"input": "hello", "metadata": m}) + "\n" for m in metadata))
    return path


def documents(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_json_lines(tmp_path):
    tasks = task_file(tmp_path, {"reward": 1}, {"reward": 0, "turns": 2}, {"mode": "exit_one"})
    output = tmp_path / "out.jsonl"
    more = ("--n-samples-per-prompt", "2", "--rollout-batch-size", "2")
    done = run(tasks, output, *more)
    assert done.returncode == 0, done.stderr
    rows = documents(output)
    assert len(rows) == 4
    for row in rows:
        assert len(row["tokens"]) == len(row["loss_mask"]) == len(row["logprobs"])
        assert row["agentic_trace"]["turn_count"] == row["metadata"].get("turns", 1)
    assert sorted(row["reward"] for row in rows) == [0, 0, 1, 1]
    assert {row["rollout_id"] for row in rows} == {0}
    summary = done.stdout.splitlines()
    assert summary[0].split() == ["output", str(output)]
    assert "2 (4 sessions, 4 rows)" in done.stdout
    assert "mean 0.5, least 0, most 1" in done.stdout
    assert "dropped: agent_exit" in done.stdout
    assert "agent exited with code 1" in done.stdout
    assert "the agent lost its way" in done.stdout
    assert "Rollout 0 generation" in done.stderr
    assert not list(tmp_path.glob("*.part"))


def test_half_an_emoji_of_an_agent(tmp_path):
    """JavaScript agents that cut a text leave one: JSON can say it, UTF-8 cannot."""
    tasks = task_file(tmp_path, {"mode": "literal", "output": '{"metadata": {"cut": "\\ud83d"}}'})
    output = tmp_path / "out.jsonl"
    done = run(tasks, output, "--hooks", "reward=builtins.len")
    assert done.returncode == 0, done.stderr
    (row,) = documents(output)
    assert row["metadata"]["cut"] == "\ud83d"
    assert "\\ud83d" in output.read_text()


def test_quiet_is_quiet(tmp_path):
    tasks = task_file(tmp_path, {}, {"mode": "exit_one"})
    done = run(tasks, tmp_path / "out.jsonl", "--quiet", "--rollout-batch-size", "2")
    assert done.stderr == ""
    assert "dropped: agent_exit" in done.stdout


def test_parquet_in_and_out(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    pa = pytest.importorskip("pyarrow")
    rows = [{"question": "hello", "reward": r} for r in (0.0, 0.25, 0.75, 1.0)]
    tasks = tmp_path / "tasks.parquet"
    parquet.write_table(pa.Table.from_pylist(rows), tasks)
    output = tmp_path / "out.parquet"
    more = ("--input-key", "question", "--rollout-batch-size", "2", "--quiet")
    done = run(f"{tasks}@[1:]", output, *more)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    table = parquet.read_table(output)
    assert table["rollout_id"].to_pylist() == [0, 0, 1]
    assert table["reward"].to_pylist() == [0.25, 0.75, 1.0]
    assert table["advantages"].to_pylist() == [None] * 3
    first = table.slice(0, 1).to_pylist()[0]
    assert len(first["tokens"]) == len(first["loss_mask"]) == first["total_lengths"]
    assert json.loads(first["meta_json"])["metadata"]["reward"] == 0.25


def test_steps_epochs_and_hooks(tmp_path):
    (tmp_path / "judges.py").write_text(
        "def judge(sample):\n    return len(sample['messages'])\n"
        "async def keep(sessions):\n    return sessions[0]['contexts'][0]['metadata']['n'] != 1\n"
    )
    tasks = task_file(tmp_path, *({"mode": "no_reward", "n": n} for n in range(3)))
    output = tmp_path / "out.jsonl"
    hooks = ("--hooks", "reward=judges.judge", "filter=judges.keep")
    more = (*hooks, "--rollout-batch-size", "2", "--epochs", "3")
    assert run(tasks, output, *more, "--steps", "2").returncode == 0
    assert [row["metadata"]["n"] for row in documents(output)] == [0, 2, 0, 2]
    assert {row["reward"] for row in documents(output)} == {2}
    assert run(tasks, output, *more).returncode == 0
    assert len(documents(output)) == 6


def test_a_failed_step_keeps_what_came_before(tmp_path):
    bad = [{"mode": "exit_one"}] * 2
    tasks = task_file(tmp_path, {}, *bad, {})
    output = tmp_path / "out.jsonl"
    more = ("--rollout-batch-size", "1", "--max-consecutive-dropped-groups", "2")
    done = run(tasks, output, *more)
    assert done.returncode == 1
    assert "rollout 1 failed" in done.stderr
    assert "agent exited with code 1" in done.stderr
    assert len(documents(output)) == 1
    assert "dropped: agent_exit" in done.stdout


def test_groups_that_are_carried_are_collected_too(tmp_path):
    tasks = task_file(tmp_path, *({"reward": n} for n in range(5)))
    output = tmp_path / "out.jsonl"
    more = ("--rollout-batch-size", "2", "--partial-rollout", "--over-sampling-batch-size", "5")
    assert run(tasks, output, *more).returncode == 0
    assert sorted(row["reward"] for row in documents(output)) == list(range(5))
    done = run(tasks, output, *more, "--steps", "1")
    assert done.returncode == 0
    assert len(documents(output)) == 2
    assert "3 groups, which ended with the last step" in done.stdout


def test_a_fully_async_run_takes_its_partitions(tmp_path):
    tasks = task_file(tmp_path, *({"reward": n} for n in range(7)))
    output = tmp_path / "out.jsonl"
    more = ("--fully-async", "--num-rollout", "3", "--rollout-batch-size", "2")
    done = run(tasks, output, *more, "--max-staleness", "1", "--over-sampling-batch-size", "3")
    assert done.returncode == 0, done.stderr
    rows = documents(output)
    assert len(rows) == 6, "three partitions of two"
    assert len({row["reward"] for row in rows}) == 6


@pytest.mark.parametrize("name", ["out.jsonl", "out.parquet"])
def test_what_another_run_collected_stays_if_this_one_brings_nothing(tmp_path, name):
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    output = tmp_path / name
    output.write_text("of another run")
    done = run(task_file(tmp_path, {}), output, "--agent-timeout", "-1")
    assert done.returncode == 2, done.stderr
    assert output.read_text() == "of another run"
    assert f"{output} was not written" in done.stdout
    assert not list(tmp_path.glob("*.part"))


def test_nothing_collected_is_a_failure(tmp_path):
    output = tmp_path / "out.jsonl"
    done = run(task_file(tmp_path, {"mode": "exit_one"}), output)
    assert done.returncode == 1
    assert "rewards" in done.stdout


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--rollout-batch-size", "-1"), "option rollout_batch_size"),
        (("--agent-timeout", "-1"), "option agent_timeout"),
        (("--hooks", "reward=nowhere.judge"), "hook reward"),
        (("--hooks", "judge=math.sqrt"), "expected one of reward"),
        (("--steps", "0"), "expected a positive number"),
        (("--steps", "few"), "expected a positive number, found few"),
        (("--agent-env", "novalue"), "option agent_env"),
        (("--simulator", "[]"), "expected a JSON object"),
        (("--agent-timeuot", "3"), "unrecognized arguments"),
    ],
)
def test_wrong_options_are_status_2(tmp_path, more, message):
    done = run(task_file(tmp_path, {}), tmp_path / "out.jsonl", *more)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr


@pytest.mark.parametrize(
    ("tasks", "output", "message"),
    [
        ("nowhere.jsonl", "out.jsonl", "nowhere.jsonl: cannot be read"),
        ("tasks.csv", "out.jsonl", "expected a name that ends with .jsonl"),
        ("tasks.jsonl", "out.csv", "expected a name that ends with .parquet or .jsonl"),
        ("tasks.jsonl", "nowhere/out.jsonl", "nowhere is not there"),
        ("bad.jsonl", "out.jsonl", "bad.jsonl line 2: not JSON"),
        ("empty.jsonl", "out.jsonl", "no task in it"),
        ("number.jsonl", "out.jsonl", "number.jsonl row 0: the prompt: expected a str or a list"),
        ("bytes.jsonl", "out.jsonl", "bytes.jsonl: cannot be read: 'utf-8' codec"),
        ("tasks.jsonl", "directory.jsonl", "directory.jsonl: it is a directory"),
        ("tasks.jsonl@[:1]", "./tasks.jsonl", "it is the file of the tasks"),
    ],
)
def test_wrong_files_are_status_2(tmp_path, tasks, output, message):
    task_file(tmp_path, {})
    task_file(tmp_path, name="empty.jsonl")
    (tmp_path / "bad.jsonl").write_text('{"input": "hello"}\n{"input"\n')
    (tmp_path / "number.jsonl").write_text('{"input": 5}\n')
    (tmp_path / "bytes.jsonl").write_bytes(b"\xff\xfe")
    (tmp_path / "directory.jsonl").mkdir()
    done = subprocess.run(
        command(tasks, output),
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
    )
    assert done.returncode == 2, done.stderr
    assert message in done.stderr


def test_a_file_that_is_no_parquet_is_named(tmp_path):
    pytest.importorskip("pyarrow")
    path = tmp_path / "tasks.parquet"
    path.write_text("not Parquet")
    with pytest.raises(InvalidError, match=r"tasks\.parquet: cannot be read: .*Parquet"):
        list(task_files.read_rows(str(path)))


def test_parquet_without_pyarrow_says_what_to_install(tmp_path):
    script = "import sys; sys.modules['pyarrow'] = None; from relax_rollout.__main__ import main; "
    arguments = command(task_file(tmp_path, {}), tmp_path / "out.parquet")[3:]
    done = subprocess.run(
        [sys.executable, "-c", f"{script} sys.exit(main(sys.argv[1:]))", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "pip install 'relax-rollout[arrow]'" in done.stderr


def test_ctrl_c_keeps_what_came_before_and_leaves_no_agent(tmp_path):
    pids = tmp_path / "pids"
    tasks = task_file(tmp_path, {}, {"mode": "family", "pids": str(pids)})
    output = tmp_path / "out.jsonl"
    process = subprocess.Popen(
        command(tasks, output, "--rollout-batch-size", "1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 60
        while not pids.exists():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline, "the second agent did not start"
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130, stderr
    assert "interrupted" in stderr
    assert "Traceback" not in stderr
    assert "1 (1 sessions, 1 rows)" in stdout
    assert len(documents(output)) == 1
    assert not any(map(alive, json.loads(pids.read_text())))


def test_a_reader_that_has_seen_enough_changes_nothing(tmp_path):
    output = tmp_path / "out.jsonl"
    process = subprocess.Popen(
        command(task_file(tmp_path, {}), output),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    process.stdout.close()
    stderr = process.stderr.read()
    assert process.wait(60) == 0, stderr
    process.stderr.close()
    assert "Traceback" not in stderr
    assert len(documents(output)) == 1


def test_every_option_is_a_flag():
    done = subprocess.run(
        [sys.executable, "-m", "relax_rollout", "run", "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    for name in Config.__dataclass_fields__:
        assert f"--{name.replace('_', '-')}" in done.stdout


# ---- task files ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "keys", "task"),
    [
        (
            {"input": "hi"},
            Keys(),
            {"messages": [{"role": "user", "content": "hi"}], "metadata": {}},
        ),
        (
            {"messages": [{"role": "system", "content": "s"}], "metadata": '{"a": 1}', "x": 2},
            Keys(),
            {"messages": [{"role": "system", "content": "s"}], "metadata": {"a": 1}},
        ),
        (
            {"q": "hi", "answer": 5, "metadata": {"a": 1}, "t": [1], "data_source": "d"},
            Keys("q", "answer", "metadata", "t"),
            {
                "messages": [{"role": "user", "content": "hi"}],
                "metadata": {"a": 1, "tools": [1], "data_source": "d", "answer": 5},
            },
        ),
        (
            {"input": "hi", "tools": '[{"type": "function"}]', "metadata": {"tools": "stale"}},
            Keys(tools="tools"),
            {
                "messages": [{"role": "user", "content": "hi"}],
                "metadata": {"tools": [{"type": "function"}]},
            },
        ),
    ],
)
def test_rows_become_tasks(row, keys, task):
    assert task_files.task_of(row, keys) == task


def test_directories_and_parts(tmp_path):
    for name in ("b.jsonl", "a.jsonl"):
        (tmp_path / name).write_text("".join(f'{{"input": "{name}{i}"}}\n' for i in range(3)))
    (tmp_path / "c.json").write_text('[{"input": "c"}]')
    (tmp_path / "notes.txt").write_text("not a task")

    def prompts(path):
        return [row["input"] for row in task_files.read_rows(str(path))]

    whole = ["a.jsonl0", "a.jsonl1", "a.jsonl2", "b.jsonl0", "b.jsonl1", "b.jsonl2", "c"]
    assert prompts(tmp_path) == whole
    assert prompts(f"{tmp_path}@[2:4]") == whole[2:4]
    assert prompts(f"{tmp_path}@[-2:]") == whole[-2:]
    (tmp_path / "d.json").write_text("{}")
    with pytest.raises(InvalidError, match=r"d\.json: expected a list"):
        prompts(tmp_path)


def test_a_row_without_a_prompt_names_its_columns():
    with pytest.raises(InvalidError, match=r"no 'input', 'messages' or 'prompt'.*\['question'\]"):
        task_files.task_of({"question": "hi"}, Keys())


@pytest.mark.parametrize(
    ("tools", "message"),
    [("[1", "tools under 't': not JSON"), ({}, "tools under 't': expected a list, found dict")],
)
def test_tools_that_are_none_are_named(tools, message):
    with pytest.raises(InvalidError, match=message):
        task_files.task_of({"input": "hi", "t": tools}, Keys(tools="t"))


def test_a_summary_of_nothing():
    assert "rewards  none" in Totals().describe("out.jsonl")
