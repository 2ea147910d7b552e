"""Traces: what an engine writes to trace_dir, and the command that prints it."""

import json
import os
import subprocess
import sys

import pytest
from conftest import task

import relax_rollout as rr
from relax_rollout.trace_text import TraceError, describe_trace, read_traces, summarize


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "relax_rollout", "trace", *map(str, arguments)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=60,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
    )


def written(directory, rollout=0):
    """A step's traces as plain documents."""
    text = (directory / f"rollout_{rollout}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def trace(**more):
    """A document with nothing in it but what the test is about."""
    return {"session_id": "session-1", "group_id": "train:group_1", "seq": 0, **more}


def test_why_a_session_was_dropped(open_engine, tmp_path):
    engine = open_engine(trace_dir=tmp_path / "traces", max_consecutive_dropped_groups=1)
    with pytest.raises(rr.StepFailedError):
        engine.rollout(0, [task("exit_one")])
    (document,) = written(tmp_path / "traces")
    assert document["outcome"]["reason"] == "agent_exit"
    assert document["process"]["exit_code"] == 1
    done = run(tmp_path / "traces" / "rollout_0.jsonl")
    assert done.returncode == 0, done.stderr
    assert "dropped (agent_exit): 1 turns" in done.stdout
    assert "agent exited with code 1" in done.stdout
    assert done.stdout.count("the agent lost its way") == 1


def test_why_a_request_branched(open_engine, tmp_path):
    engine = open_engine(trace_dir=str(tmp_path), max_consecutive_dropped_groups=1)
    with pytest.raises(rr.StepFailedError, match="2: "):
        engine.rollout(0, [task("edited")])
    done = run(tmp_path / "rollout_0.jsonl")
    assert done.returncode == 0, done.stderr
    assert "branches: message" in done.stdout
    assert 'messages[1].content differs: recorded "fine", sent "something else"' in done.stdout


def test_a_delivered_session(open_engine, tmp_path):
    engine = open_engine(trace_dir=tmp_path, n_samples_per_prompt=2)
    batch = engine.rollout(0, [task(turns=3)])
    documents = written(tmp_path)
    assert [d["outcome"]["status"] for d in documents] == ["delivered"] * 2
    assert sum(d["counts"]["exported_tokens"] for d in documents) == sum(batch.numpy("loss_mask"))
    hashes = {d["session_id"]: d["exports"][0]["leaf_state_hash"] for d in documents}
    for row in batch:
        assert row.meta["agentic_trace"]["leaf_state_hash"] == hashes[row.meta["session_id"]]
        assert row.meta["agentic_trace"]["turn_count"] == 3
    one = documents[1]
    by_id = run(tmp_path / "rollout_0.jsonl", "--session", one["session_id"][:20])
    by_place = run(tmp_path / "rollout_0.jsonl", "--session", "train:group_1/" + str(one["seq"]))
    assert by_id.stdout == by_place.stdout == describe_trace(one)
    summary = run(tmp_path / "rollout_0.jsonl", "--summary")
    assert summary.stdout.splitlines() == [summarize(d) for d in documents]
    none = run(tmp_path / "rollout_0.jsonl", "--dropped")
    assert (none.returncode, none.stdout, none.stderr) == (1, "", "no such session\n")


def test_without_the_option_nothing_is_written(open_engine, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    open_engine().rollout(0, [task()])
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    config = {"agent_command": "true", "agent_cwd": "/", "trace_dir": tmp_path / "file" / "traces"}
    with pytest.raises(rr.ConfigError, match="trace_dir") as caught:
        rr.Engine(rr.Config(**config))
    assert caught.value.option == "trace_dir"


def test_a_file_with_faults(tmp_path):
    file = tmp_path / "traces.jsonl"
    file.write_bytes(
        b'{"session_id": "session-1"}\n\n[1]\n\xff\n{"session_id": "session-2", "turns"'
    )
    done = run(file, tmp_path / "none.jsonl", "--summary")
    assert done.returncode == 1
    assert done.stdout == "session-1 ?/? ?: 0 turns, 0 sampled tokens\n"
    assert f"{file}:3: not a trace" in done.stderr
    assert f"{file}:4: not a line of JSON" in done.stderr
    assert f"{file}:5: not a line of JSON" in done.stderr
    assert "none.jsonl: cannot be read: No such file" in done.stderr


def test_a_reader_that_has_seen_enough(tmp_path):
    file = tmp_path / "traces.jsonl"
    file.write_text((json.dumps(trace(nodes=[{"id": 1, "summary": "x" * 90}] * 500)) + "\n") * 50)
    command = f"{sys.executable} -m relax_rollout trace {file} | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("session-1 train:group_1/0")


@pytest.mark.parametrize("value", [None, 1, "x", [1], {"a": {}}])
def test_any_document_is_shown(value):
    """A trace of another version, or one that somebody edited, is no reason to fail."""
    names = ("outcome", "process", "counts", "events", "turns", "nodes", "exports", "omitted")
    document = trace(**dict.fromkeys((*names, "failed_requests", "divergences"), value))
    assert describe_trace(document).startswith("session-1")


def test_what_models_wrote_does_not_steer_the_terminal():
    evil = "\x1b[2Jgone\x07\u202e"
    document = trace(
        outcome={"status": "dropped", "reason": "x", "cause": evil},
        process={"log_tail": evil + "\nnext line"},
        nodes=[{"id": 1, "parent": 0, "summary": evil}],
        failed_requests=[{"message": evil}],
    )
    text = describe_trace(document)
    assert all(c.isprintable() or c == "\n" for c in text)
    assert text.count("gone") == 4
    assert "    next line" in text


def test_the_tree_is_indented_where_it_parts():
    nodes = [
        {"id": n, "parent": parent, "kind": "response" if n % 2 == 0 else "observation"}
        for n, parent in [(1, 0), (2, 1), (3, 2), (4, 3), (5, 2), (6, 5)]
    ]
    tree = describe_trace(trace(nodes=nodes)).split("tree\n")[1]
    assert [line.split(" +")[0] for line in tree.splitlines()] == [
        "  - #1",
        "    #2",
        "    - #3",
        "      #4",
        "    - #5",
        "      #6",
    ]


def test_reading_keeps_going():
    found = list(read_traces([b"nonsense\n", b'{"session_id": "a"}\n'], "file"))
    assert isinstance(found[0], TraceError)
    assert found[1] == {"session_id": "a"}
