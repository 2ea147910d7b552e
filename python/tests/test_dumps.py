"""What is left of a step: dumps, results, the metrics page, and the way to a dropped Session."""

import json
import logging
import subprocess
import sys
import urllib.request

import pytest
from conftest import task

import relax_rollout as rr
from relax_rollout.report import StepReport


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_dump_holds_rows_and_dropped_sessions(open_engine, tmp_path):
    pattern = tmp_path / "dumps" / "{rollout_id}.jsonl"
    engine = open_engine(save_debug_rollout_data=pattern)
    batch = engine.rollout(3, [task("exit_one"), task(turns=2)])
    documents = lines(tmp_path / "dumps" / "3.jsonl")
    (row,) = [d["row"] for d in documents if "row" in d]
    fates = sorted(d["session"]["outcome"]["status"] for d in documents if "session" in d)
    assert fates == ["delivered", "dropped"]
    assert row["tokens"] == batch.numpy("tokens").tolist()
    assert row["loss_mask"] == batch.numpy("loss_mask").tolist()
    assert row["rollout_log_probs"] == pytest.approx(batch.numpy("logprobs").tolist(), abs=1e-6)
    assert row["session_id"] == batch[0].meta["session_id"]
    assert row["meta"]["agentic_trace"]["turn_count"] == row["agent_turns"] == 2


def test_traces_of_a_dump_can_be_printed(open_engine, tmp_path):
    engine = open_engine(
        save_debug_rollout_data=str(tmp_path / "{rollout_id}.jsonl"),
        max_consecutive_dropped_groups=2,
    )
    engine.rollout(0, [task("exit_one"), task()])
    done = subprocess.run(
        [sys.executable, "-m", "relax_rollout", "trace", str(tmp_path / "0.jsonl"), "--summary"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2
    assert "dropped (agent_exit)" in done.stdout


def test_a_parquet_dump(open_engine, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    engine = open_engine(save_debug_rollout_data=tmp_path / "{rollout_id}.parquet", trace_dir=None)
    batch = engine.rollout(1, [task("exit_one"), task(turns=2)])
    table = parquet.read_table(tmp_path / "1.parquet")
    assert table.column("tokens").to_pylist() == [batch.numpy("tokens").tolist()]
    assert "dataset" not in table.column_names
    sessions = [d["session"] for d in lines(tmp_path / "1.parquet.traces.jsonl")]
    assert sorted(s["outcome"]["status"] for s in sessions) == ["delivered", "dropped"]
    datasets = {"aime": [task()], "hard": rr.EvalDataset(tasks=[task(), task()])}
    engine.evaluate(1, datasets)
    table = parquet.read_table(tmp_path / "eval_1.parquet")
    assert table.column("dataset").to_pylist() == ["aime", "hard", "hard"]


def test_a_parquet_dump_that_cannot_be_written_fails_nothing(open_engine, tmp_path, caplog):
    pytest.importorskip("pyarrow.parquet")
    (tmp_path / "0.parquet").mkdir()
    engine = open_engine(save_debug_rollout_data=tmp_path / "{rollout_id}.parquet")
    with caplog.at_level(logging.WARNING):
        assert len(engine.rollout(0, [task()])) == 1
    assert "option save_debug_rollout_data: " in caplog.text


def test_parquet_needs_pyarrow(open_engine, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(rr.ConfigError, match="pip install") as caught:
        open_engine(save_debug_rollout_data=tmp_path / "{rollout_id}.parquet")
    assert caught.value.option == "save_debug_rollout_data"


def test_results_for_people(open_engine, tmp_path):
    engine = open_engine(rollout_result_dir=tmp_path)
    engine.rollout(0, [task(label="42")])
    (result,) = lines(tmp_path / "train" / "0.jsonl")
    assert result["label"] == "42"
    assert result["reward"] == 1
    assert result["response"]
    assert "tokens" not in result


def test_the_summary_leads_to_a_dropped_session(open_engine, tmp_path):
    engine = open_engine(
        trace_dir=tmp_path / "traces", run_dir=tmp_path / "run", max_consecutive_dropped_groups=1
    )
    with pytest.raises(rr.StepFailedError) as caught:
        engine.rollout(0, [task("exit_one")])
    (drop,) = caught.value.report.drops
    (example,) = drop.examples
    assert (drop.reason, example.exit_code) == ("agent_exit", 1)
    assert "the agent lost its way" in example.cause
    with open(example.log) as log:
        assert "the agent lost its way" in log.read()
    with open(example.trace) as traces:
        assert example.session_id in traces.read()
    said = str(caught.value.report)
    for part in ("exit code 1", example.session_id, example.log, example.trace, "lost its way"):
        assert part in said


def test_a_report_of_old_reads_well():
    report = StepReport.from_dict({"rollout": 1, "error": "why", "drops": [{"reason": "reward"}]})
    assert report.drops[0].examples == ()
    assert str(report).splitlines()[-2:] == [
        "  failed: why",
        "dropped reward: 0 groups, 0 sessions, 0 tokens",
    ]
    signalled = rr.DropExample("session-1", "train:group_1", signal="SIGKILL")
    assert str(signalled) == "session-1 (train:group_1/0), signal SIGKILL"


def test_the_metrics_page(open_engine):
    engine = open_engine(metrics_port=0)
    report = engine.rollout(2, [task()]).report
    with urllib.request.urlopen(engine.stats()["metrics_url"], timeout=10) as page:
        text = page.read().decode()
    assert 'relax_step_metric{name="rollout/step"} 2\n' in text
    assert f"relax_tokens_delivered_total {report.token_balance.delivered}\n" in text
    assert "session-" not in text


def test_routed_experts(open_engine):
    engine = open_engine(use_rollout_routing_replay=True, moe_num_layers=3, moe_router_topk=2)
    batch = engine.rollout(0, [task(turns=2)])
    assert batch.numpy("routed_experts_shape").tolist() == [3, 2]
    assert batch.numpy("routed_experts").size == (len(batch.numpy("tokens")) - 1) * 6


def test_log_lines_are_plain(open_engine, caplog):
    engine = open_engine()
    with caplog.at_level(logging.INFO):
        engine.rollout(0, [task()])
    said = caplog.text
    start = (
        "AGENTIC ROLLOUT event=accounting_start rollout=0 sessions=1 groups=1 final_backfill=false"
    )
    end = "AGENTIC ROLLOUT event=accounting_end rollout=0 groups=1 rows=1 debt=0 resident_groups=0"
    assert start in said
    assert f"{end} interrupted_groups=0" in said
    assert "\x1b" not in said
