"""What the trainer's options mean for the drop-in, and which it refuses."""

import logging
import re
from pathlib import Path

import pytest
from conftest import ROOT
from trainer import DataSource, arguments

import relax_rollout as rr
import relax_rollout.relax as adapter
from relax_rollout.hooks import load
from relax_rollout.relax import options

pytestmark = pytest.mark.usefixtures("drop_in")


def test_options_of_the_trainer_become_the_engines():
    args = arguments(
        agent_env=["A=1", "B=x=y", "A=2"],
        sglang_router_ip="10.0.0.7",
        sglang_router_port=3000,
        rollout_stop="###",
        rollout_stop_token_ids=[7],
        apply_chat_template_kwargs={"enable_thinking": False},
        rollout_max_context_len=4096,
        agentic_concurrency=None,
        relax_rollout={"agent_retries": 1, "agent_timeout": 9},
        agent_timeout=1800,
        n_samples_per_prompt=1,
    )
    config = options.engine_config(args).to_dict()
    expected = {
        "agent_env": {"A": "2", "B": "x=y"},
        "sglang_url": "http://10.0.0.7:3000",
        "rollout_stop": ["###"],
        "rollout_stop_token_ids": [7],
        "apply_chat_template_kwargs": {"enable_thinking": False},
        "rollout_max_context_len": 4096,
        "agent_retries": 1,
        "agent_timeout": 9,
        "grpo_std_normalization": False,
        "num_rollout": 4,
        "agent_login_shell": True,
    }
    assert {k: config.get(k) for k in expected} == expected
    assert "agentic_concurrency" not in config
    assert "some_unknown_argument" not in config


def test_routed_experts_are_as_the_trainer_counts_them():
    args = arguments(use_rollout_routing_replay=True, num_layers=48, moe_router_topk=8)
    config = options.engine_config(args)
    assert config.use_rollout_routing_replay
    assert (config.moe_num_layers, config.moe_router_topk) == (48, 8)
    config = options.engine_config(arguments(num_layers=48, moe_router_topk=8))
    assert (config.moe_num_layers, config.moe_router_topk) == (None, None)


def test_ignored_arguments_are_listed_for_who_asks(caplog):
    with caplog.at_level(logging.DEBUG, "relax_rollout.relax"):
        options.engine_config(arguments())
    assert "some_unknown_argument" in caplog.text


def test_what_is_read_is_not_called_ignored():
    read = re.compile(r"""getattr\(args, "(\w+)"|\bargs\.([a-z]\w+)""")
    sources = Path(options.__file__).parent.glob("*.py")
    names = {a or b for file in sources for a, b in read.findall(file.read_text())}
    assert {"rollout_batch_size", "eval_prompt_data", "debug_rollout_only"} <= names
    assert names <= options.KNOWN


@pytest.mark.parametrize(
    ("more", "option"),
    [
        ({"use_opd": True}, "use_opd"),
        ({"multimodal_keys": {"image": "images"}}, "multimodal_keys"),
        ({"fully_async": True, "partial_rollout": True}, "partial_rollout"),
        ({"mask_offpolicy_in_partial_rollout": True}, "mask_offpolicy_in_partial_rollout"),
        (
            {
                "agentic_custom_advantage_path": "math.sqrt",
                "advantage_estimator": "reinforce_plus_plus_baseline",
            },
            "agentic_custom_advantage_path",
        ),
        ({"agent_env": ["novalue"]}, "agent_env"),
        ({"agent_env": ["RELAX_X=1"]}, "agent_env"),
        ({"agent_cwd": "/nowhere"}, "agent_cwd"),
        ({"agent_cwd": "~nobody_of_this_name/agent"}, "agent_cwd"),
        ({"hf_checkpoint": "Qwen/Qwen3-8B"}, "hf_checkpoint: 'Qwen/Qwen3-8B' is no directory here"),
        ({"hf_checkpoint": "s3://models/Qwen3-8B"}, "hf_checkpoint: 's3://models/Qwen3-8B' is no"),
        ({"rm_type": "math"}, "rm_type"),
        ({"group_rm": True}, "group_rm"),
        ({"custom_rm_path": "nowhere.judge"}, "custom_rm_path"),
        ({"relax_rollout": {"agent_retrys": 1}}, "agent_retrys"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(more, option):
    with pytest.raises(rr.ConfigError, match=f"option {option}"):
        adapter.generate_rollout(arguments(**more), 0, DataSource(), None)
    assert adapter._resident is None


@pytest.mark.parametrize(
    ("more", "groups"),
    [
        ({"rollout_batch_size": 8}, 8),
        ({"rollout_batch_size": 8, "fully_async": True, "global_batch_size": 16}, 8),
        (
            {
                "rollout_batch_size": 8,
                "fully_async": True,
                "global_batch_size": 16,
                "num_iters_per_train_update": 4,
            },
            2,
        ),
    ],
)
def test_waterlines(more, groups):
    assert options.waterline(arguments(**more)) == groups


@pytest.mark.parametrize(
    "router",
    [
        {},
        {"sglang_router_ip": "10.0.0.7", "sglang_router_port": None},
        {"sglang_router_ip": None, "sglang_router_port": 3000},
    ],
)
def test_without_a_router_nothing_is_trained_on_the_simulator(router):
    args = arguments(**router, relax_rollout={"simulator": None})
    with pytest.raises(rr.ConfigError, match="option sglang_router_ip.*sglang_router_port"):
        adapter.generate_rollout(args, 0, DataSource(), None)
    for own in ({"sglang_url": "http://10.0.0.8:1"}, {"backend": "simulator"}, {"simulator": {}}):
        args.relax_rollout = own
        assert options.engine_config(args).to_dict().items() >= own.items()


def test_a_tilde_in_agent_cwd_is_the_home_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    config = options.engine_config(arguments(agent_cwd="~/agent"))
    assert config.agent_cwd == str(tmp_path / "agent")


@pytest.mark.parametrize(
    ("more", "size"),
    [
        ({}, 2),
        ({"resource": None}, 2),
        ({"resource": {"rollout": [1, 4]}}, 2),
        ({"resource": {"actor": [1, 12], "rollout": [1, 4]}}, 3),
    ],
)
def test_data_parallel_size_is_counted_as_the_trainer_does(more, size):
    """12 GPUs are one node of 8 in its arguments, but its steps are for 12."""
    args = arguments(
        use_dynamic_global_batch_size=True,
        actor_num_nodes=1,
        actor_num_gpus_per_node=8,
        tensor_model_parallel_size=4,
        **more,
    )
    assert options.engine_config(args).data_parallel_size == size


def test_the_recipe_names_what_there_is():
    yaml = pytest.importorskip("yaml")
    recipe = yaml.safe_load((ROOT / "examples" / "relax" / "drop_in.yaml").read_text())
    assert recipe["use_agentic_rollout"] is False
    for option in ("rollout_function_path", "eval_function_path"):
        assert load(option, recipe[option]) is adapter.generate_rollout
    args = arguments(relax_rollout=recipe["relax_rollout"])
    config = options.engine_config(args).to_dict()
    assert recipe["relax_rollout"].items() <= config.items()
