"""The drop-in beside the trainer's own package: its class of samples, dumps and profiles.

A stand-in for the package; sections 5.4, 6.1 and 7 of the reference's pipeline.
"""

import json
import logging
from types import SimpleNamespace

import pytest
from trainer import Client, DataSource, TrainersSample, arguments, install, install_trainer

import relax_rollout as rr
import relax_rollout.relax as adapter
from relax_rollout.relax import outputs

pytestmark = pytest.mark.usefixtures("drop_in")

TYPES = "relax.utils.types"
DUMPS = "relax.utils.training.train_dump_utils"
PROFILES = "relax.utils.profile_utils"
CHECKPOINTS = "relax.utils.s3_model_loader"


# ---- samples of an Eval --------------------------------------------------------------------------


def eval_file(tmp_path, *metadata):
    path = tmp_path / "eval.jsonl"
    rows = [{"input": "hello", "metadata": m} for m in metadata]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_samples_of_an_eval_are_the_trainers(monkeypatch, tmp_path):
    """Its metrics and dumps call members that only its own class has."""
    install_trainer(monkeypatch, TYPES, Sample=TrainersSample)
    path = eval_file(tmp_path, {"reward": {"acc": 0.5}})
    args = arguments(eval_prompt_data=["one", path], reward_key="acc", n_samples_per_eval_prompt=2)
    out = adapter.generate_rollout(args, 0, DataSource(), None, evaluation=True)
    samples = out.data["one"]["samples"]
    assert [type(s) for s in samples] == [TrainersSample] * 2
    assert [s.index for s in samples] == [0, 1]
    assert [s.effective_response_length for s in samples] == [sum(s.loss_mask) for s in samples]
    assert [s.get_reward_value(args) for s in samples] == [0.5, 0.5]
    assert [s.status for s in samples] == [TrainersSample.Status.COMPLETED] * 2
    assert [s.to_dict()["status"] for s in samples] == ["completed"] * 2


def test_truncated_samples_of_an_eval_have_the_trainers_status(monkeypatch, tmp_path):
    install_trainer(monkeypatch, TYPES, Sample=TrainersSample)
    args = arguments(
        eval_prompt_data=["one", eval_file(tmp_path, {})],
        eval_max_response_len=2,
        relax_rollout={"simulator": {"policy": {"default": [{"text": "a long answer"}]}}},
    )
    data = adapter.generate_rollout(args, 0, DataSource(), None, evaluation=True).data["one"]
    assert [s.status for s in data["samples"]] == [TrainersSample.Status.TRUNCATED]
    assert data["truncated"] == [True]


def test_samples_of_an_eval_are_ours_without_the_trainer(tmp_path):
    args = arguments(eval_prompt_data=["one", eval_file(tmp_path, {})])
    out = adapter.generate_rollout(args, 0, DataSource(), None, evaluation=True)
    assert [type(s) for s in out.data["one"]["samples"]] == [adapter.Sample]


def test_our_samples_have_the_members_that_the_trainer_calls():
    sample = adapter.Sample(reward={"acc": 1.0}, response_length=3)
    assert sample.effective_response_length == 3
    sample.loss_mask = [1, 0, 1]
    assert sample.effective_response_length == 2
    assert sample.get_reward_value(SimpleNamespace(reward_key="acc")) == 1.0
    assert sample.get_reward_value(SimpleNamespace(reward_key=None)) == {"acc": 1.0}
    sample.status = adapter.Sample.Status.TRUNCATED
    dumped = sample.to_dict()
    assert (dumped["status"], dumped["loss_mask"]) == ("truncated", [1, 0, 1])
    assert dumped["prefix_cache_info"] == {"cached_tokens": 0, "total_prompt_tokens": 0}
    assert set(dumped) == set(vars(sample))


# ---- dumps ---------------------------------------------------------------------------------------


def test_the_trainer_dumps_a_steps_samples_before_it_logs_them(monkeypatch):
    calls, dumps = [], []

    def save(args, samples, rollout_id, evaluation, tokenizer=None):
        calls.append("dump")
        dumps.append((args, [s.index for s in samples], rollout_id, evaluation, tokenizer))

    def log(*_):
        calls.append("log")
        return True

    install_trainer(monkeypatch, DUMPS, save_debug_rollout_data=save)
    install(monkeypatch, "trainers_log", log=log)
    args = arguments(
        save_debug_rollout_data="rollout_{rollout_id}.pt",
        custom_rollout_log_function_path="trainers_log.log",
    )
    client = Client()
    adapter.generate_rollout(args, 3, DataSource(), client)
    assert calls == ["dump", "log"]
    ((given, indices, rollout_id, evaluation, tokenizer),) = dumps
    assert (given, rollout_id, evaluation) == (args, 3, False)
    assert indices == client.column(3, "sample_indices").tolist()
    assert tokenizer.decode(tokenizer.encode("fine")) == "fine"
    adapter.generate_rollout(
        arguments(custom_rollout_log_function_path="trainers_log.log"), 4, DataSource(), None
    )
    assert calls == ["dump", "log", "log"], "only if the option is set"


def test_a_dump_that_fails_is_made_again_and_nothing_else(monkeypatch):
    dumps = []

    def save(args, samples, rollout_id, evaluation, tokenizer=None):
        dumps.append(rollout_id)
        if len(dumps) == 1:
            raise OSError("the disk is full")

    install_trainer(monkeypatch, DUMPS, save_debug_rollout_data=save)
    args, source, client = arguments(save_debug_rollout_data="x.pt"), DataSource(), Client()
    with pytest.raises(OSError, match="the disk is full"):
        adapter.generate_rollout(args, 0, source, client)
    adapter.generate_rollout(args, 0, source, client)
    assert (dumps, len(client.puts), source.given) == ([0, 0], 1, 2)


def test_a_dump_that_nobody_can_write_is_a_warning(caplog):
    args = arguments(save_debug_rollout_data="x.pt", sglang_profile=True)
    with caplog.at_level(logging.WARNING, "relax_rollout.relax"):
        adapter.generate_rollout(args, 0, DataSource(), None)
    texts = [r.getMessage() for r in caplog.records]
    assert len([t for t in texts if t.startswith("save_debug_rollout_data: not written")]) == 1
    assert len([t for t in texts if t.startswith("sglang_profile: not done")]) == 1


# ---- profiles ------------------------------------------------------------------------------------


class Profiler:
    """The trainer's two functions, and when they were called."""

    def __init__(self, monkeypatch, source, broken=""):
        self.calls, self.source, self.broken = [], source, broken
        functions = {f"{n}_sglang_profile": self.function(n) for n in ("start", "stop")}
        install_trainer(monkeypatch, PROFILES, **functions)

    def function(self, name):
        async def called(_args, rollout_id):
            self.calls.append((name, rollout_id, self.source.given))
            if name == self.broken:
                raise ConnectionError("a worker is away")

        return called


def test_sglang_is_profiled_while_a_step_runs(monkeypatch):
    source = DataSource()
    profiler = Profiler(monkeypatch, source)
    adapter.generate_rollout(arguments(sglang_profile=True), 5, source, None)
    assert profiler.calls == [("start", 5, 0), ("stop", 5, 2)]
    adapter.generate_rollout(arguments(), 6, source, None)
    assert len(profiler.calls) == 2, "only if the option is set"


def test_a_profile_of_a_step_that_fails_is_stopped(monkeypatch):
    source = DataSource(lambda number: {"mode": "exit_one"})
    profiler = Profiler(monkeypatch, source)
    args = arguments(sglang_profile=True, relax_rollout={"max_consecutive_dropped_groups": 2})
    with pytest.raises(rr.StepFailedError):
        adapter.generate_rollout(args, 0, source, None)
    assert [name for name, *_ in profiler.calls] == ["start", "stop"]


@pytest.mark.parametrize(("broken", "called"), [("start", ["start"]), ("stop", ["start", "stop"])])
def test_a_profile_that_fails_costs_no_rows(monkeypatch, caplog, broken, called):
    source, client = DataSource(), Client()
    profiler = Profiler(monkeypatch, source, broken)
    adapter.generate_rollout(arguments(sglang_profile=True), 0, source, client)
    assert [p.id for p in client.puts] == ["train_0"]
    assert [name for name, *_ in profiler.calls] == called
    assert f"sglang_profile: {broken}_sglang_profile of step 0: " in caplog.text
    assert "a worker is away" in caplog.text


# ---- the checkpoint ------------------------------------------------------------------------------


def test_the_trainer_gets_a_checkpoint_that_is_not_here(monkeypatch):
    calls = []

    def prepare(args, *, completeness="full"):
        calls.append((args.hf_checkpoint, completeness))
        args.hf_checkpoint = here

    install_trainer(monkeypatch, CHECKPOINTS, prepare_model_maybe_update_args=prepare)
    args = arguments()
    here, args.hf_checkpoint = args.hf_checkpoint, "s3://models/tinychat"
    out = adapter.generate_rollout(args, 0, DataSource(), None)
    assert calls == [("s3://models/tinychat", "metadata")]
    assert out.samples[0][0].response.startswith("fine")
    adapter.shutdown()
    adapter.generate_rollout(arguments(), 0, DataSource(), None)
    assert len(calls) == 1, "only if it is not here"


# ---- the tokenizer -------------------------------------------------------------------------------


@pytest.fixture
def no_tokenizer_yet():
    outputs.tokenizer_of.cache_clear()
    yield
    outputs.tokenizer_of.cache_clear()


def test_a_tokenizer_is_loaded_once(monkeypatch, no_tokenizer_yet):
    transformers = pytest.importorskip("transformers")
    load, loaded = transformers.AutoTokenizer.from_pretrained, []

    def counted(checkpoint, **options):
        loaded.append(checkpoint)
        return load(checkpoint, **options)

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", counted)
    install_trainer(monkeypatch, DUMPS, save_debug_rollout_data=lambda *_, **__: None)
    args = arguments(save_debug_rollout_data="x.pt")
    adapter.generate_rollout(args, 0, DataSource(), None)
    adapter.shutdown()
    adapter.generate_rollout(args, 0, DataSource(), None)
    assert loaded == [args.hf_checkpoint]


def test_without_a_tokenizer_texts_are_empty(no_tokenizer_yet):
    assert outputs.decoder(arguments(hf_checkpoint="/nowhere"))([1]) == ""
    assert outputs.decoder(arguments(hf_checkpoint=None))([1]) == ""
