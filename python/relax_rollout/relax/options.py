"""What the trainer's arguments mean for an engine.

May enter: the trainer's args, a namespace. Never: the engine, samples.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

from ..config import Config, environment
from ..errors import ConfigError

_LOGGER = logging.getLogger("relax_rollout.relax")

SAME_NAME = (
    "agent_timeout",
    "agentic_concurrency",
    "agentic_eval_concurrency",
    "agentic_prelaunch",
    "agentic_reasoning_parser",
    "agentic_tool_call_parser",
    "agentic_session_lifecycle",
    "agentic_program_admission",
    "agentic_admission_headroom",
    "agentic_admission_pressure_threshold",
    "agentic_admission_expected_decode_cap",
    "agentic_admission_max_wait_s",
    "agentic_admission_scope",
    "advantage_estimator",
    "agent_command",
    "eval_max_context_len",
    "fully_async",
    "group_rm",
    "hf_checkpoint",
    "log_passrate",
    "log_reward_category",
    "max_staleness",
    "n_samples_per_prompt",
    "num_rollout",
    "over_sampling_batch_size",
    "partial_rollout",
    "partial_rollout_max_aborted_count",
    "reward_key",
    "rewards_normalization",
    "grpo_std_normalization",
    "rollout_batch_size",
    "rollout_max_context_len",
    "rollout_max_response_len",
    "rollout_num_gpus",
    "rollout_seed",
    "rollout_temperature",
    "rollout_top_k",
    "rollout_top_p",
    "sglang_enable_deterministic_inference",
    "sglang_server_concurrency",
    "use_dynamic_global_batch_size",
    "use_rollout_routing_replay",
)
"""Arguments of the trainer (spec/reference-pipeline.md 9.1, 9.2) that are options under their own
name. None leaves the engine's default, as it does in the trainer."""

OWN = "relax_rollout"
"""A key of the YAML file with options of the engine that the trainer has no argument for."""

KNOWN = frozenset(
    {
        *SAME_NAME,
        *("agent_env", "apply_chat_template_kwargs", "rollout_stop", "rollout_stop_token_ids"),
        *("sglang_router_ip", "sglang_router_port", "agentic_custom_advantage_path", OWN),
        *("dynamic_sampling_filter_path", "custom_rm_path", "rm_type", "reward_num_workers"),
        *("reward_max_concurrency", "num_layers", "moe_router_topk", "dump_details"),
        *("custom_reward_post_process_path", "custom_convert_samples_to_train_data_path"),
        *("custom_rollout_log_function_path", "load_debug_rollout_data", "debug_rollout_only"),
        *("global_batch_size", "num_iters_per_train_update", "wandb_always_use_train_step"),
        *("actor_num_nodes", "actor_num_gpus_per_node", "tensor_model_parallel_size"),
        *("pipeline_model_parallel_size", "context_parallel_size", "rollout_global_dataset"),
        *("eval_datasets", "eval_prompt_data", "eval_reward_key", "eval_temperature"),
        *("eval_top_p", "eval_top_k", "eval_max_response_len", "n_samples_per_eval_prompt"),
        *("eval_input_key", "eval_label_key", "eval_tool_key", "input_key", "label_key"),
        *("metadata_key", "tool_key", "custom_prompt_path", "system_prompt"),
        *("use_opd", "multimodal_keys", "mask_offpolicy_in_partial_rollout"),
        *("save_debug_rollout_data", "sglang_profile", "resource", "agent_cwd"),
    }
)
"""All arguments of the trainer that anything here reads."""


def engine_config(args: Any) -> Config:
    """The engine's options for a run of the trainer.

    Options the trainer does not know come from the mapping ``relax_rollout`` of the YAML file, and
    win. What this package has no use for is ignored, with a debug line.

    Raises:
        ConfigError: an option of the trainer cannot be served, or two do not go together; it names
            the trainer's option.
    """
    refuse_unserved(args)
    options: dict[str, Any] = {}
    for name in SAME_NAME:
        value = getattr(args, name, None)
        if value is not None:
            options[name] = value
    options.update(_translated(args))
    own = getattr(args, OWN, None) or {}
    if not isinstance(own, Mapping):
        raise ConfigError(f"option {OWN}: expected a mapping of options, found {own!r}", OWN)
    options.update(own)
    _check_backend(options, own)
    _check_checkpoint(options)
    _log_ignored(args)
    return Config.from_dict(options)


def _check_backend(options: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Refuses a run without the trainer's router: the engine would train on its simulator."""
    chosen = [options.get("sglang_url"), own.get("backend"), own.get("simulator")]
    if all(value is None for value in chosen):
        raise ConfigError(
            "option sglang_router_ip: expected the address of the trainer's router here and in "
            f"sglang_router_port; without a router, set sglang_url or backend under {OWN}:",
            "sglang_router_ip",
        )


def _check_checkpoint(options: Mapping[str, Any]) -> None:
    """Refuses a checkpoint that is not on this machine, in the words of the trainer's options."""
    checkpoint = options.get("hf_checkpoint")
    if checkpoint and not os.path.isdir(checkpoint):  # noqa: PTH112 - of any type
        raise ConfigError(
            f"option hf_checkpoint: {str(checkpoint)!r} is no directory here; expected a local one "
            "with the model's tokenizer.json and chat template. Download a model of a hub first "
            "(hf download NAME --local-dir DIRECTORY) and give its directory; s3:// needs the "
            "trainer's package",
            "hf_checkpoint",
        )


def _translated(args: Any) -> dict[str, Any]:
    """Arguments that are spelled otherwise, and what the trainer does without being told."""
    out: dict[str, Any] = {"agent_login_shell": True}
    if getattr(args, "use_rollout_routing_replay", False):
        names = (("num_layers", "moe_num_layers"), ("moe_router_topk", "moe_router_topk"))
        found = {option: getattr(args, name, None) for name, option in names}
        out.update({k: v for k, v in found.items() if v is not None})
    if cwd := getattr(args, "agent_cwd", None):  # as the trainer reads it
        out["agent_cwd"] = os.path.expanduser(cwd)  # noqa: PTH111 - Path raises without a home
    if environment := _environment(getattr(args, "agent_env", None)):
        out["agent_env"] = environment
    if kwargs := getattr(args, "apply_chat_template_kwargs", None):
        out["apply_chat_template_kwargs"] = kwargs
    for name in ("rollout_stop", "rollout_stop_token_ids"):
        value = getattr(args, name, None)
        if value is not None and value != []:
            out[name] = [value] if isinstance(value, str | int) else list(value)
    if url := router_url(args):
        out["sglang_url"] = url
    if getattr(args, "use_dynamic_global_batch_size", False):
        out["data_parallel_size"] = data_parallel_size(args)
    if getattr(args, "n_samples_per_prompt", 1) == 1:
        out["grpo_std_normalization"] = False
    if dump := getattr(args, "dump_details", None):
        out["trace_dir"] = os.path.join(dump, "agentic_traces")  # noqa: PTH118 - may be a URL's path
    return out


def router_url(args: Any) -> str | None:
    """Where the trainer's SGLang router listens, None if the trainer has none (yet)."""
    host, port = getattr(args, "sglang_router_ip", None), getattr(args, "sglang_router_port", None)
    if not host or not port:
        return None
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    return f"http://{host}:{port}"


def _environment(items: Any) -> dict[str, str]:
    if isinstance(items, Mapping):
        return {str(k): str(v) for k, v in items.items()}
    return environment(items or ())


def data_parallel_size(args: Any) -> int:
    """The actor's GPUs over those one replica takes: steps deliver multiples of it.

    ``--resource`` has the GPUs as ``{"actor": [replicas, GPUs]}`` and is what the trainer counts
    by: nodes times GPUs per node are rounded where it does not fill its nodes.
    """
    resource = getattr(args, "resource", None) or {}
    if "actor" in resource:
        gpus = resource["actor"][1]
    else:
        gpus = getattr(args, "actor_num_nodes", 1) * getattr(args, "actor_num_gpus_per_node", 1)
    replica = 1
    for name in ("tensor_model_parallel_size", "pipeline_model_parallel_size"):
        replica *= getattr(args, name, None) or 1
    replica *= getattr(args, "context_parallel_size", None) or 1
    return max(1, int(gpus) // int(replica))


def waterline(args: Any) -> int:
    """Groups of one put (spec/reference-pipeline.md 1.8)."""
    batch = int(args.rollout_batch_size)
    if not getattr(args, "fully_async", False):
        return batch
    total = getattr(args, "global_batch_size", None) or batch * args.n_samples_per_prompt
    updates = getattr(args, "num_iters_per_train_update", None) or 1
    return max(1, int(total) // int(updates) // int(args.n_samples_per_prompt))


_UNSERVED = {
    "use_opd": "on-policy distillation needs a teacher's columns, which are not produced",
    "multimodal_keys": "images in prompts are not served",
}


def refuse_unserved(args: Any) -> None:
    """Refuses what would train on something else than the options say.

    Raises:
        ConfigError: names the option and what to do.
    """
    for name, why in _UNSERVED.items():
        if getattr(args, name, None):
            raise ConfigError(f"option {name}: {why}; leave it out", name)
    if getattr(args, "fully_async", False) and getattr(args, "partial_rollout", False):
        raise ConfigError(
            "option partial_rollout: fully_async retains Sessions itself; leave one out",
            "partial_rollout",
        )
    if getattr(args, "mask_offpolicy_in_partial_rollout", False):
        raise ConfigError(
            "option mask_offpolicy_in_partial_rollout: not applied to agentic rollouts, which "
            "train every sampled token; leave it out",
            "mask_offpolicy_in_partial_rollout",
        )
    advantage = getattr(args, "agentic_custom_advantage_path", None)
    if advantage and getattr(args, "advantage_estimator", None) == "reinforce_plus_plus_baseline":
        raise ConfigError(
            "option agentic_custom_advantage_path: reinforce_plus_plus_baseline makes its own "
            "advantages; choose another advantage_estimator",
            "agentic_custom_advantage_path",
        )


def _log_ignored(args: Any) -> None:
    if not _LOGGER.isEnabledFor(logging.DEBUG):
        return
    ignored = sorted(n for n in vars(args) if n not in KNOWN and not n.startswith(("_", OWN)))
    _LOGGER.debug("arguments of the trainer that the rollout does not use: %s", ", ".join(ignored))
