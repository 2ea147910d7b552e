"""The options of an engine. They are those of relax.Config in Go, one for one."""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from .errors import ConfigError, shown


def _option(doc: str) -> Any:
    return dataclasses.field(default=None, metadata={"doc": doc})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Everything an engine can be told.

    Names are those of the Relax guide in snake_case. Only ``agent_command`` and ``agent_cwd``
    are required; None means the engine's default, which each option names. Durations are in
    seconds. Types are checked here, values when the engine opens; both fail with a
    :class:`~relax_rollout.ConfigError` that names the option.

    >>> config = Config(agent_command="python agent.py", agent_cwd="/srv/agent", agent_timeout=60)
    >>> config.to_dict()
    {'agent_command': 'python agent.py', 'agent_cwd': '/srv/agent', 'agent_timeout': 60}
    >>> Config(agent_command="python agent.py", agent_cwd="/srv/agent", agent_timeuot=60)
    Traceback (most recent call last):
    relax_rollout.errors.ConfigError: option agent_timeuot: unknown; did you mean agent_timeout?
    """

    agent_command: str | None = _option(
        "Starts the agent app of one Session: a shell command line. Required."
    )
    agent_cwd: str | os.PathLike[str] | None = _option(
        "The agent's working directory. Required, must exist."
    )
    agent_env: Mapping[str, str] | None = _option(
        "Added to the agent's environment. Names starting with RELAX_ are refused. Default: none."
    )
    agent_env_inherit: bool | None = _option(
        "Whether agents get this process's environment as it is when the engine opens, below "
        "agent_env. Default: True."
    )
    agent_timeout: float | None = _option(
        "Bound on a Session's active time in Runtime, in seconds; waiting for a lease and paused "
        "time do not count. Default: 1800."
    )
    agent_first_request_timeout: float | None = _option(
        "Bound on the wait for a Session's first model request, in seconds. Default: 600."
    )
    agent_kill_grace: float | None = _option(
        "Seconds between TERM and KILL when an agent is ended. Default: 5."
    )
    agent_start_concurrency: int | None = _option(
        "Bound on agents that are being started at the same time; others wait their turn. "
        "Default: twice the processors, at least 8."
    )
    agent_login_shell: bool | None = _option(
        "Whether agent_command is run by a login shell, as the reference does: profile files are "
        "read then, and may override agent_env. Default: False."
    )
    agent_retries: int | None = _option(
        "How often a Session that failed is run again from scratch in its Group before the Group "
        "is dropped. Default: 0."
    )
    agent_supervisor: str | os.PathLike[str] | None = _option(
        "Path of the relax-agent-init binary. Default: the one in the package's bin directory."
    )
    hf_checkpoint: str | os.PathLike[str] | None = _option(
        "Directory with tokenizer.json and a chat template. Required with the sglang backend; "
        "with the simulator the default is a built-in byte tokenizer."
    )
    agentic_reasoning_parser: str | None = _option(
        "SGLang's name of the reasoning parser. Default: none."
    )
    agentic_tool_call_parser: str | None = _option(
        "SGLang's name of the tool-call parser. Default: none."
    )
    apply_chat_template_kwargs: Mapping[str, Any] | None = _option(
        "Base layer of every request's chat_template_kwargs. Default: empty."
    )
    disconnect_grace: float | None = _option(
        "How long a turn goes on in seconds after its client left, in case a retry joins it. "
        "Default: 5; 0 cancels it at once."
    )
    system_messages: str | None = _option(
        'System messages behind the first place: "keep" them where they are (default), or "hoist" '
        "all to one at the beginning as the reference does."
    )
    match_policy: str | None = _option(
        'When a request continues a recorded turn: "exact" (default), or "tolerant": also when '
        "only reasoning_content was dropped, white space at an answer's end, or the arguments of "
        "tool calls were written anew, as Claude Code does. The recorded turn then stands."
    )
    implicit_export: str | None = _option(
        'Which context is trained when the agent names none: "unique" (default) takes the only one '
        'and refuses several; "main" leaves side conversations out: it takes the one with most '
        "turns, then most tools, then the latest."
    )
    shared_prefix_loss: str | None = _option(
        'Turns that several exported contexts share: "each" (default) row trains them, or the '
        '"first" only.'
    )
    backend: str | None = _option(
        '"sglang" or "simulator". Default: sglang if sglang_url is set, else simulator.'
    )
    sglang_url: str | None = _option("Base URL of an SGLang server or router.")
    sglang_api_key: str | None = _option("Sent to it as a bearer token. Default: none.")
    sglang_server_concurrency: int | None = _option(
        "Bound on requests in flight for each engine (worker) of the backend in use, on average: "
        "one may have a quarter more, so that Sessions keep the engine whose cache knows them. "
        "Default: 512."
    )
    sglang_enable_deterministic_inference: bool | None = _option(
        "The backend's own setting of this name: requests then carry a seed, rollout_seed + the "
        "Session's place in its Group. Default: False."
    )
    simulator: Mapping[str, Any] | None = _option(
        "Document of the embedded simulator: policy (what the model says), seed, start_delay_ms, "
        "token_delay_ms, context_len, experts, drafts, faults; all optional. "
        "Default: the simulator's own policy."
    )
    use_rollout_routing_replay: bool | None = _option(
        "Whether the backend reports to which experts a mixture-of-experts model routed each "
        "token, for the column routed_experts. SGLang needs --enable-return-routed-experts and no "
        "router in between. Training only, not with partial_rollout. Default: False."
    )
    moe_num_layers: int | None = _option(
        "Layers in those reports. Default: num_hidden_layers of the checkpoint."
    )
    moe_router_topk: int | None = _option(
        "Experts of a layer in those reports. Default: num_experts_per_tok of the checkpoint."
    )
    rollout_batch_size: int | None = _option("Groups a step delivers. Default: 1.")
    over_sampling_batch_size: int | None = _option(
        "Groups a step works on at a time, of which it delivers rollout_batch_size; more than that "
        "need partial_rollout or fully_async, else the surplus is thrown away. "
        "Default: rollout_batch_size."
    )
    n_samples_per_prompt: int | None = _option("Sessions of a Group. Default: 1.")
    num_rollout: int | None = _option(
        "Steps of the run, which count from 0: nothing is kept behind the last. Required by "
        "fully_async, whose last partition is completed in one more rollout with this number. "
        "Default: 0, not known."
    )
    agentic_concurrency: int | None = _option(
        "Bound on resident train Groups: those that run processes. "
        "Default: over_sampling_batch_size."
    )
    agentic_eval_concurrency: int | None = _option(
        "Bound on resident prompt Groups of an Eval dataset. Default: 0, as many as have about the "
        "Sessions of agentic_concurrency train Groups."
    )
    agentic_prelaunch: bool | None = _option(
        "Whether agents of later Groups start while there is room. Their first requests are held "
        "until the Group is leased, perhaps in the next step. Default: False."
    )
    partial_rollout: bool | None = _option(
        "Whether Groups that are unfinished at a step's end go on in the next step, with the "
        "tokens they have, instead of being dropped. Default: False."
    )
    partial_rollout_max_aborted_count: int | None = _option(
        "After so many aborts of a request, with those of the turns it goes on from, its Session "
        "is not aborted again, and steps wait for it. Default: 0, never."
    )
    fully_async: bool | None = _option(
        "Whether a step may end while its batch (its partition) still misses Groups that are "
        "parked; later steps complete it. Needs num_rollout. Default: False."
    )
    max_staleness: int | None = _option(
        "With fully_async, how many rollouts the oldest partition that was not consumed may lie "
        "behind. With 0 every step completes its partition. Default: 0."
    )
    use_dynamic_global_batch_size: bool | None = _option(
        "Whether a step also delivers finished surplus Groups, so that their number is a multiple "
        "of data_parallel_size. Needs partial_rollout and a larger over_sampling_batch_size. "
        "Default: False."
    )
    data_parallel_size: int | None = _option(
        "The trainer's, for use_dynamic_global_batch_size. Default: 1."
    )
    max_consecutive_dropped_groups: int | None = _option(
        "A step ends with the first cause after so many Groups were dropped in a row. Default: 8."
    )
    rollout_temperature: float | None = _option(
        "Sampling temperature; what a request asks for is ignored. Default: 1."
    )
    rollout_top_p: float | None = _option(
        "Nucleus sampling; what a request asks for is ignored. Default: 1."
    )
    rollout_top_k: int | None = _option("Top-k sampling, -1 for off. Default: -1.")
    rollout_max_response_len: int | None = _option(
        "A turn's token limit where the request sets none. Default: 1024."
    )
    rollout_max_context_len: int | None = _option(
        "Bound on a lineage, in tokens; 0 for none. Default: 0."
    )
    rollout_stop: list[str] | None = _option("Extra stop strings of every turn. Default: none.")
    rollout_stop_token_ids: list[int] | None = _option(
        "Extra stop token ids of every turn. Default: none."
    )
    eval_max_context_len: int | None = _option(
        "Bound on a lineage in an Eval, in tokens. Default: rollout_max_context_len."
    )
    rollout_seed: int | None = _option(
        "Seed of deterministic sampling; see sglang_enable_deterministic_inference. Default: none."
    )
    agentic_session_lifecycle: bool | None = _option(
        "Whether requests name their Session to SGLang, and the cache entries of one that is over "
        "are released. Needs SGLang's own session options. Default: False."
    )
    agentic_program_admission: bool | None = _option(
        "Whether a request waits until its worker is expected to have room in the KV cache. "
        "Default: False."
    )
    agentic_admission_headroom: float | None = _option(
        "Share of a worker's KV cache that may be reserved, in (0, 1]. Default: 0.90."
    )
    agentic_admission_pressure_threshold: float | None = _option(
        "KV usage from which on a worker gets nothing new, in (0, 1]. Default: 0.92."
    )
    agentic_admission_expected_decode_cap: int | None = _option(
        "Bound on new tokens that a request reserves. Default: rollout_max_response_len."
    )
    agentic_admission_max_wait_s: float | None = _option(
        "How long a request is held at most in seconds; 0 holds none. Default: 30."
    )
    agentic_admission_scope: str | None = _option(
        'Which requests are held: "train" (default) or "all", also those of an Eval.'
    )
    reward_key: str | None = _option("Picks the primary reward when rewards are objects.")
    custom_rm: bool | None = _option(
        "Whether the engine asks for rewards an agent did not write; set by Hooks(reward=...) and "
        "Engine(score=...). Without it a missing reward drops the Group. Default: False."
    )
    group_rm: bool | None = _option(
        "Whether it asks for the rewards of every Group, in the place of those agents wrote; set "
        "by Hooks(group_reward=...). Needs custom_rm. Default: False."
    )
    custom_advantage: bool | None = _option(
        "Whether the engine asks for the training credit of each context; set by "
        "Hooks(advantage=...). Sessions that export several contexts need it. Rewards are then "
        "asked for only with group_rm. Default: False."
    )
    dynamic_sampling_filter: str | None = _option(
        "A built-in filter of Groups whose credit is known: check_reward_nonzero_std takes out "
        "those whose Sessions all have one reward. A step whose Groups are all filtered goes on "
        "until tasks run out, with a warning after every 100 in a row. Default: none."
    )
    custom_filter: bool | None = _option(
        "Whether the engine asks which Groups to train on; set by Hooks(filter=...). What is "
        "filtered is made up for as with dynamic_sampling_filter. Default: False."
    )
    sample_details: bool | None = _option(
        "Whether hooks get each context's token ids, logprobs, turn table, tools and "
        "chat_template_kwargs, and rows the last two in their metadata; set by "
        "Hooks(sample_details=True). Costs about 11 bytes a token and event. Default: False."
    )
    advantage_estimator: str | None = _option(
        "The trainer's: how rewards are normalised in a Group, and whether credit for each turn is "
        "allowed. grpo, gspo, sapo and cispo: mean and deviation; reinforce_plus_plus_baseline: "
        "mean; rloo: mean of the others; reinforce_plus_plus, m2po and ppo: not. Default: grpo."
    )
    rewards_normalization: bool | None = _option(
        "Whether rewards are normalised as advantage_estimator says. Default: True."
    )
    grpo_std_normalization: bool | None = _option(
        "Whether they are also divided by the Group's unbiased standard deviation + 1e-6 where it "
        "does. Default: True, off for Groups of one."
    )
    log_passrate: bool | None = _option(
        "Whether metrics have pass@k: the chance that one of k Sessions of a Group has reward 1. "
        "Default: False."
    )
    log_reward_category: str | None = _option(
        "Member of reward objects whose values are counted as rollout/error_cat/<value>. "
        "Default: none."
    )
    rollout_num_gpus: int | None = _option(
        "GPUs the backend runs on, for perf/tokens_per_gpu_per_sec. Default: 0, not known."
    )
    api_host: str | None = _option("Address the model endpoint binds. Default: 127.0.0.1.")
    api_port: int | None = _option("Its port, 0 for a free one. Default: 0.")
    api_advertise_url: str | None = _option(
        "Base URL agents are told instead of the one bound, for agents on other machines."
    )
    max_body_bytes: int | None = _option("Bound on a request body, in bytes. Default: 256 MiB.")
    run_dir: str | os.PathLike[str] | None = _option(
        "Directory that keeps logs of failed Sessions. Default: a temporary directory, removed "
        "when the engine closes."
    )
    trace_dir: str | os.PathLike[str] | None = _option(
        "Directory that gets one JSON document for each Session that is over, delivered or "
        "dropped: a line in rollout_<id>.jsonl. `python -m relax_rollout trace FILE` prints them. "
        "Default: none."
    )
    save_debug_rollout_data: str | os.PathLike[str] | None = _option(
        "File with {rollout_id} in its name (eval_<id> for an Eval) that gets all that is known of "
        "a step: in .jsonl a line for each row and each Session's trace, also of dropped ones; in "
        ".parquet the rows, and the traces beside it in .traces.jsonl. Default: none."
    )
    rollout_result_dir: str | os.PathLike[str] | None = _option(
        "Directory that gets prompt, response and reward of each delivered row for people to read, "
        "a line in train/<id>.jsonl or eval/<id>.jsonl. Default: none."
    )
    metrics_port: int | None = _option(
        "Port at api_host that serves GET /metrics as Prometheus text; 0 takes a free one, which "
        "stats() tells. Default: off."
    )
    go_max_procs: int | None = _option(
        "Bound on threads running Go code. Default: min(8, max(2, CPUs / 8))."
    )
    arena_pool_bytes: int | None = _option(
        "Bound on idle batch memory kept for reuse, in bytes. Default: 1 GiB."
    )
    arena_limit_bytes: int | None = _option(
        "Bound on all batch memory, in bytes; 0 for none. Default: 0."
    )
    arena_shared: bool | None = _option(
        "Puts each batch into memory that other processes of this machine can map, for "
        "Batch.share(). Such memory is not used again, so each batch costs its page faults anew. "
        "Default: false."
    )

    def __new__(cls, **options: Any) -> Config:
        """Refuses unknown options, before __init__ would with a TypeError that helps less."""
        _refuse_unknown(options)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for option in dataclasses.fields(self):
            value = getattr(self, option.name)
            if isinstance(value, os.PathLike) and "PathLike" in str(option.type):
                value = os.fspath(value)
                object.__setattr__(self, option.name, value)
            if value is not None:
                _check_type(option.name, _kind(option), value)
        for name in ("agent_command", "agent_cwd"):
            if getattr(self, name) is None:
                raise ConfigError(f"option {name}: required, but not given", name)

    @classmethod
    def from_dict(cls, options: Mapping[str, Any]) -> Config:
        """Makes a Config of a mapping, such as a parsed YAML file.

        >>> Config.from_dict({"agent_command": "bash run.sh", "agent_cwd": 3})
        Traceback (most recent call last):
        relax_rollout.errors.ConfigError: option agent_cwd: expected path, found int 3
        """
        if not isinstance(options, Mapping):
            raise ConfigError(f"configuration: expected a mapping, found {_found(options)}")
        _refuse_unknown(options)
        return cls(**options)

    def to_dict(self) -> dict[str, Any]:
        """The options that are set, as plain JSON values."""
        values = ((o.name, getattr(self, o.name)) for o in dataclasses.fields(self))
        return {name: _plain(value) for name, value in values if value is not None}

    def to_json(self) -> str:
        """The document the engine is opened with: the options that are set."""
        return json.dumps(self.to_dict(), allow_nan=False)


def describe_options() -> Iterator[tuple[str, str, str]]:
    """Yields name, kind of value, and meaning of every option."""
    for option in dataclasses.fields(Config):
        yield option.name, _kind(option), option.metadata["doc"]


def environment(items: Iterable[object]) -> dict[str, str]:
    """``KEY=VALUE`` items as ``agent_env``: split at the first =, the last of two wins.

    >>> environment(["A=1", "B=x=y", "A=2"])
    {'A': '2', 'B': 'x=y'}
    """
    out = {}
    for item in items:
        key, separator, value = str(item).partition("=")
        if not separator or not key.strip():
            raise ConfigError(f"option agent_env: expected KEY=VALUE, found {item!r}", "agent_env")
        out[key.strip()] = value
    return out


# ---- checks -------------------------------------------------------------------------------------


def _refuse_unknown(options: Mapping[str, Any]) -> None:
    known = Config.__dataclass_fields__
    for name in options:
        if name in known:
            continue
        close = difflib.get_close_matches(str(name), known, n=1, cutoff=0.6)
        hint = f"did you mean {close[0]}?" if close else "see `python -m relax_rollout options`"
        raise ConfigError(f"option {name}: unknown; {hint}", str(name))


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return _is_int(value) or (isinstance(value, float) and math.isfinite(value))


def _is_list(of: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, list | tuple) and all(of(v) for v in value)


def _is_str(value: object) -> bool:
    return isinstance(value, str)


def _is_object(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(k, str) for k in value)


def _is_environment(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(k, str) and isinstance(v, str) for k, v in value.items()
    )


# What an option's annotation is called in messages, and the test of a value.
_KINDS: dict[str, tuple[str, Callable[[object], bool]]] = {
    "str": ("str", _is_str),
    "str | os.PathLike[str]": ("path", _is_str),
    "bool": ("bool", lambda value: isinstance(value, bool)),
    "int": ("int", _is_int),
    "float": ("finite number", _is_number),
    "list[str]": ("list of str", _is_list(_is_str)),
    "list[int]": ("list of int", _is_list(_is_int)),
    "Mapping[str, str]": ("mapping of str to str", _is_environment),
    "Mapping[str, Any]": ("mapping with str keys", _is_object),
}


def _annotation(option: dataclasses.Field[Any]) -> str:
    return str(option.type).removesuffix(" | None")


def _kind(option: dataclasses.Field[Any]) -> str:
    return _KINDS[_annotation(option)][0]


_TESTS = dict(_KINDS.values())


def _check_type(name: str, kind: str, value: object) -> None:
    if not _TESTS[kind](value):
        raise ConfigError(f"option {name}: expected {kind}, found {_found(value)}", name)
    if isinstance(value, Mapping) and not isinstance(value, str):
        try:
            json.dumps(_plain(value), allow_nan=False)
        except (TypeError, ValueError) as err:
            raise ConfigError(f"option {name}: not a JSON value: {err}", name) from err


def _found(value: object) -> str:
    return f"{type(value).__name__} {shown(value)}"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    return value
