"""The official SDKs and frameworks on top of them, unchanged, as agents of real rollouts.

An agent gets the endpoint and the key by the SDK's own variables and knows nothing else of
Relax. The Python ones have the SDK check every object and event against its own models. What is
asserted here is what became of it: what the SDK made of the answers, that the conversation grew
as one lineage, and that the row has what was sampled.
"""

import json
import math
import os
import re
import shlex
import shutil
import sys

import numpy as np
import pytest
from conftest import AGENTS, CACHE, options
from test_rollout import spell

import relax_rollout as rr

# How the SDKs are told where to go, as their manuals say.
VARIABLES = (
    'export OPENAI_BASE_URL="$RELAX_BASE_URL" OPENAI_API_KEY="$RELAX_SESSION_ID"'
    ' ANTHROPIC_BASE_URL="$RELAX_BASE_URL" ANTHROPIC_API_KEY="$RELAX_SESSION_ID"; '
)
NODE_MODULES = CACHE / "node" / "node_modules"

# ---- what the model says ------------------------------------------------------------------------

QUESTION = "What is 17 + 25?"
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 17, "b": 25}}\n</tool_call>'
SUMMANDS = {"a": 17, "b": 25}
ANSWER = "The sum is 42."
# A question that is thought about.
THINK = f"Think: {QUESTION}"
THOUGHTS = ("I should use the tool.", "The tool knows.")


def thinking(thought, text):
    return f"<think>\n{thought}\n</think>\n\n{text}"


CALLS = {"role": "user", "last_regex": r"17 \+ 25"}
TOLD = {"last_regex": r"<tool_response>\s*42\s*</tool_response>"}
POLICY = {
    "classes": [
        {
            "name": "thought answer",
            "match": {**TOLD, "contains": "Think:"},
            "candidates": [{"text": thinking(THOUGHTS[1], ANSWER)}],
        },
        {"name": "answer", "match": TOLD, "candidates": [{"text": ANSWER}]},
        {
            "name": "thought call",
            "match": {**CALLS, "contains": "Think:"},
            "candidates": [{"text": thinking(THOUGHTS[0], CALL)}],
        },
        {
            "name": "doubt",
            "match": {"role": "user", "last_contains": "Yes or no?"},
            "candidates": [{"text": "Yes."}, {"text": "No."}],
        },
        {"name": "call", "match": CALLS, "candidates": [{"text": CALL}]},
    ],
    "default": [{"text": "fine"}],
}


# ---- running them -------------------------------------------------------------------------------

# The conversations of each program, by mode. Those with "thinking" are about THINK.
PROGRAMS = {
    "openai_sdk.py": [
        "chat_sync",
        "chat_sync thinking",
        "chat_async thinking",
        "chat_stream",
        "chat_raw",
        "chat_helper",
        "chat_parse",
        "responses_sync",
        "responses_async thinking",
        "responses_events",
        "responses_helper",
        "responses_parse",
    ],
    "anthropic_sdk.py": [
        "messages_sync",
        "messages_sync thinking",
        "messages_async thinking",
        "messages_events",
        "messages_helper thinking",
        "tool_runner",
    ],
    "agents_sdk.py": ["chat", "responses_stream"],
    "langgraph_agent.py": ["chat_stream", "responses"],
    "openai_sdk.mjs": [
        "chat",
        "chat_helper",
        "chat_helper thinking",
        "chat_tools",
        "responses",
        "responses_helper",
        "responses_helper thinking",
    ],
    "anthropic_sdk.mjs": [
        "messages",
        "messages_helper",
        "messages_helper thinking",
        "tool_runner",
    ],
}
EVERY = [(program, name) for program, names in PROGRAMS.items() for name in names]


def task(name, question=QUESTION, **metadata):
    return {
        "messages": [{"role": "user", "content": question}],
        "metadata": {"mode": name.split()[0], "name": name, **metadata},
    }


def python(program):
    return f"exec {shlex.quote(sys.executable)} {shlex.quote(str(AGENTS / program))}"


def node(program, folder):
    """Node finds packages beside the program only."""
    here = shutil.which("node")
    if not here or not NODE_MODULES.is_dir():
        lack = "node is missing" if not here else f"{NODE_MODULES} is missing; make deps gets it"
        if os.environ.get("CI") == "true":
            pytest.fail(lack)
        pytest.skip(lack)
    for source in AGENTS.glob("*.mjs"):
        shutil.copy(source, folder)
    (folder / "node_modules").symlink_to(NODE_MODULES)
    return f"exec {shlex.quote(here)} {shlex.quote(str(folder / program))}"


def sdk_options(command, **more):
    settings = {
        "simulator": {"policy": POLICY},
        "agentic_tool_call_parser": "qwen25",
        "agentic_reasoning_parser": "qwen3",
        # No keys, proxies and tracing of whoever runs the tests.
        "agent_env_inherit": False,
        # openai-agents would report to its maker.
        "agent_env": {"PATH": os.environ["PATH"], "OPENAI_AGENTS_DISABLE_TRACING": "1"},
    }
    return options(**{**settings, "agent_command": VARIABLES + command, **more})


class Step:
    """What became of a step with one Session a task."""

    def __init__(self, engine, tasks, number=0):
        self.batch = engine.rollout(number, tasks)
        self.stats = engine.stats()
        self.rows = {row.meta["metadata"]["name"]: row for row in self.batch}

    def __getitem__(self, name):
        """The row of a Session and what its agent said; it must be one lineage."""
        assert name in self.rows, "\n".join(str(drop) for drop in self.batch.report.drops)
        row = self.rows[name]
        assert row.reward == 1.0
        assert np.all(row.loss_mask[: row.prompt_len] == 0)
        assert np.all(row.logprobs[row.loss_mask == 0] == 0)
        lengths = [turn["response_length"] for turn in row.meta["turns"]]
        assert sum(lengths) == int(row.loss_mask.sum())
        assert {turn["status"] for turn in row.meta["turns"]} == {"completed"}
        return row, row.meta["metadata"]

    def check(self):
        """Nothing diverged, and all that was sampled is in the rows."""
        assert self.stats["divergences"] == {}
        tokens = self.batch.report.token_balance
        assert tokens.started == tokens.delivered == int(self.batch.numpy("loss_mask").sum())


@pytest.fixture(scope="module")
def rolled(tmp_path_factory):
    """Rolls out all conversations of a program at once, when the first of its tests comes."""
    steps = {}

    def roll(program):
        if program not in steps:
            is_node = program.endswith(".mjs")
            command = node(program, tmp_path_factory.mktemp("node")) if is_node else python(program)
            names = PROGRAMS[program]
            tasks = [task(n, THINK if "thinking" in n else QUESTION) for n in names]
            settings = sdk_options(
                command, rollout_batch_size=len(names), max_consecutive_dropped_groups=99
            )
            with rr.Engine({**settings, "agentic_concurrency": 4}) as engine:
                steps[program] = Step(engine, tasks)
        return steps[program]

    return roll


def one(engine, name, number=0, question=QUESTION, **metadata):
    """A step of one Session: its row and what its agent said."""
    step = Step(engine, [task(name, question, **metadata)], number)
    row, facts = step[name]
    step.check()
    return row, facts


def said(row):
    return spell(row.tokens[row.loss_mask == 1])


# ---- every conversation -------------------------------------------------------------------------


@pytest.mark.parametrize(("program", "name"), EVERY)
def test_the_second_turn_goes_on_from_the_first(rolled, program, name):
    row, facts = rolled(program)[name]
    call, answer = CALL, ANSWER
    if "thinking" in name:
        call, answer = thinking(THOUGHTS[0], CALL), thinking(THOUGHTS[1], ANSWER)
    assert row.turns == 2
    assert said(row) == f"{call}<|im_end|>{answer}<|im_end|>"
    prompt = spell(row.prompt_tokens)
    assert QUESTION in prompt
    assert '"name": "add"' in prompt, "the model saw the tool"
    between = spell(row.tokens).partition(f"{call}<|im_end|>")[2].partition(answer)[0]
    assert between == (
        "\n<|im_start|>user\n<tool_response>\n42\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert facts["answer"].strip() == ANSWER


@pytest.mark.parametrize("program", PROGRAMS)
def test_nothing_diverged_and_nothing_is_lost(rolled, program):
    step = rolled(program)
    assert len(step.batch) == len(PROGRAMS[program])
    step.check()


# ---- what the SDKs made of the answers ----------------------------------------------------------


def lengths(row):
    """Tokens before each response, and of it."""
    return [(turn["start"], turn["response_length"]) for turn in row.meta["turns"]]


@pytest.mark.parametrize("name", ["chat_sync", "chat_sync thinking"])
def test_openai_usage_counts_the_rows_tokens(rolled, name):
    row, facts = rolled("openai_sdk.py")[name]
    for (before, length), usage in zip(lengths(row), facts["usages"], strict=True):
        assert usage["prompt_tokens"] == before
        assert usage["completion_tokens"] == length
        assert usage["total_tokens"] == before + length
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        assert 0 <= cached < before
    assert cached > 0, "the second turn begins as the first"


def test_openai_chat_stream(rolled):
    row, facts = rolled("openai_sdk.py")["chat_stream"]
    assert facts["finishes"] == ["tool_calls", "stop"]
    assert facts["totals"] == [before + length for before, length in lengths(row)]


def test_openai_raw_response(rolled):
    _, facts = rolled("openai_sdk.py")["chat_raw"]
    assert [kind for _, kind, _ in facts["answers"]] == ["application/json"] * 2
    assert len({answer_id for *_, answer_id in facts["answers"]}) == 2
    for header, *attributes in facts["ids"]:
        assert header.startswith("req_")
        assert attributes == [header, header]
    assert facts["ids"][0] != facts["ids"][1]


def test_openai_chat_events(rolled):
    _, facts = rolled("openai_sdk.py")["chat_helper"]
    first, second = facts["events"]
    assert first[0] == second[0] == "chunk"
    assert "tool_calls.function.arguments.delta" in first
    assert first.count("tool_calls.function.arguments.done") == 1
    assert second.count("content.done") == 1


@pytest.mark.parametrize("name", ["chat_parse", "responses_parse"])
def test_openai_parses_arguments(rolled, name):
    assert rolled("openai_sdk.py")[name][1]["parsed"] == [{"a": 17, "b": 25}]


def test_openai_responses_events(rolled):
    _, facts = rolled("openai_sdk.py")["responses_events"]
    begun = ["response.created", "response.in_progress", "response.output_item.added"]
    ended = ["response.output_item.done", "response.completed"]
    arguments, text = "response.function_call_arguments", "response.output_text"
    part = "response.content_part"
    assert facts["events"] == [
        [*begun, f"{arguments}.delta", f"{arguments}.done", *ended],
        [*begun, f"{part}.added", f"{text}.delta", f"{text}.done", f"{part}.done", *ended],
    ]
    assert facts["numbers"] == [list(range(len(events))) for events in facts["events"]]


def test_openai_responses_accumulate(rolled):
    _, facts = rolled("openai_sdk.py")["responses_helper"]
    assert facts["texts"] == [[], [ANSWER]]
    assert [[json.loads(a) for a in done] for done in facts["arguments"]] == [[SUMMANDS], []]


def test_openai_logprobs(open_engine):
    engine = open_engine(**sdk_options(python("openai_sdk.py")))
    row, facts = one(engine, "chat_logprobs", question="Yes or no?")
    texts, spelled, logprobs = zip(*facts["tokens"], strict=True)
    assert texts == spelled
    assert "".join(texts) == said(row)
    assert row.turns == 2
    mine = row.logprobs[row.loss_mask == 1]
    assert np.array_equal(np.array(logprobs, np.float32), mine), "what is trained on"
    assert math.isclose(mine.sum(), math.log(0.5), rel_tol=1e-5)


# ---- anthropic ----


@pytest.mark.parametrize("name", ["messages_sync", "messages_sync thinking"])
def test_anthropic_counts_tokens(rolled, name):
    row, facts = rolled("anthropic_sdk.py")[name]
    read = [
        u["input_tokens"] + u["cache_read_input_tokens"] + u["cache_creation_input_tokens"]
        for u in facts["usages"]
    ]
    assert facts["counts"] == read == [before for before, _ in lengths(row)]
    assert [u["output_tokens"] for u in facts["usages"]] == [n for _, n in lengths(row)]
    assert len(set(facts["requests"])) == 2
    assert all(request.startswith("req_") for request in facts["requests"])


@pytest.mark.parametrize("program", ["anthropic_sdk.py", "anthropic_sdk.mjs"])
def test_anthropic_thinking_blocks(rolled, program):
    _, facts = rolled(program)["messages_helper thinking"]
    assert facts["blocks"] == [["thinking", "tool_use"], ["thinking", "text"]]
    assert facts["thoughts"] == list(THOUGHTS)


def test_anthropic_events(rolled):
    _, facts = rolled("anthropic_sdk.py")["messages_events"]
    block = [f"content_block_{what}" for what in ("start", "delta", "stop")]
    assert facts["events"] == [["message_start", *block, "message_delta", "message_stop"]] * 2
    assert facts["blocks"] == [["tool_use"], ["text"]]


# ---- frameworks and Node ----


def test_openai_agents_items(rolled):
    items = ["tool_call_item", "tool_call_output_item", "message_output_item"]
    for name in PROGRAMS["agents_sdk.py"]:
        assert rolled("agents_sdk.py")[name][1]["items"] == items


def test_langgraph_messages(rolled):
    for name in PROGRAMS["langgraph_agent.py"]:
        row, facts = rolled("langgraph_agent.py")[name]
        assert facts["kinds"] == ["human", "ai", "tool", "ai"]
        assert facts["total_tokens"] == sum(lengths(row)[-1])


def plain(value, added):
    """A value without what differs from Session to Session, and without what helpers add."""
    if isinstance(value, list):
        return [plain(item, added) for item in value]
    if isinstance(value, dict):
        varies = {"id", "created", "created_at", "usage"}
        return {k: plain(v, added) for k, v in value.items() if k not in varies | added}
    return value


@pytest.mark.parametrize(
    ("program", "whole", "helper", "added"),
    [
        ("openai_sdk.mjs", "chat", "chat_helper", {"parsed", "refusal"}),
        (
            "openai_sdk.mjs",
            "responses",
            "responses_helper",
            {"parsed", "parsed_arguments", "output_parsed"},
        ),
        ("anthropic_sdk.mjs", "messages", "messages_helper", {"parsed_output"}),
    ],
)
def test_node_accumulates_what_comes_in_one_piece(rolled, program, whole, helper, added):
    pieces = [plain(rolled(program)[name][1]["answers"], added) for name in (whole, helper)]
    assert len(pieces[0]) == 2
    assert pieces[0] == pieces[1]


def test_node_chat_events(rolled):
    _, facts = rolled("openai_sdk.mjs")["chat_helper"]
    assert [json.loads(arguments) for arguments in facts["done"]] == [SUMMANDS]


# ---- errors and retries -------------------------------------------------------------------------


def check_models(facts):
    (model,) = facts["listed"]
    assert model == facts["one"]
    assert model["id"] == "simulator"


LONG = r"maximum context length is 3000 tokens, the conversation has 5\d\d\d"


def check_errors(facts, expected):
    """Each error has the class and facts, says what is wrong, and was not asked for again."""
    for name, (kind, message, *more) in expected.items():
        found = facts[name]
        assert found["class"] == kind, name
        assert re.search(message, found["message"]), found
        assert found["facts"] == more, name
        assert found["requests"] == 1, f"{name}: the SDK asked again"


def test_openai_errors(open_engine):
    engine = open_engine(**sdk_options(python("openai_sdk.py"), rollout_max_context_len=3000))
    _, facts = one(engine, "models")
    check_models(facts)
    row, facts = one(engine, "errors", 1, finished_session=facts["answer"])
    bad, long = "invalid_request_error", "context_length_exceeded"
    check_errors(
        facts["errors"],
        {
            "chat_long": ("BadRequestError", LONG, 400, long, bad),
            "responses_long": ("BadRequestError", LONG, 400, long, bad),
            "chat_bad": ("BadRequestError", r"messages\[0\].role is missing", 400, bad, bad),
            "responses_bad": ("BadRequestError", "input", 400, bad, bad),
            "nobody": (
                "AuthenticationError",
                "Authorization header is missing",
                401,
                "authentication_error",
                "authentication_error",
            ),
            "finished": (
                "NotFoundError",
                "was discarded",
                404,
                "session_discarded",
                "not_found_error",
            ),
            "route": ("NotFoundError", "no such path", 404, "not_found", "not_found_error"),
        },
    )
    assert row.turns == 1, "what was refused is not part of the Session"
    assert said(row) == "fine<|im_end|>"


def test_anthropic_errors(open_engine):
    engine = open_engine(**sdk_options(python("anthropic_sdk.py"), rollout_max_context_len=3000))
    row, facts = one(engine, "errors")
    check_models(facts)
    bad = "invalid_request_error"
    check_errors(
        facts["errors"],
        {
            "long": ("BadRequestError", f"prompt is too long: .*{LONG}", 400, bad),
            "bad": ("BadRequestError", r"messages\[0\]\.content", 400, bad),
            "nobody": ("AuthenticationError", "header", 401, "authentication_error"),
            "stranger": ("NotFoundError", "is unknown", 404, "not_found_error"),
            "route": ("NotFoundError", "no such path", 404, "not_found_error"),
        },
    )
    assert row.turns == 1, "what was refused is not part of the Session"
    assert said(row) == "fine<|im_end|>"


def test_a_retry_joins_the_request_in_flight(open_engine):
    """The client gives up several times while the model is still to begin."""
    slow = {"policy": POLICY, "start_delay_ms": 1500}
    engine = open_engine(**sdk_options(python("openai_sdk.py"), simulator=slow))
    row, facts = one(engine, "retry_in_flight", question="hello", timeout=0.4)
    assert facts["attempts"] == [str(n) for n in range(len(facts["attempts"]))]
    assert len(facts["attempts"]) > 1
    assert facts["answer"] == "fine"
    assert row.turns == 1
    assert row.meta["turns"][0]["request_id"].endswith("_0"), "the first request's generation"
    assert facts["id"].endswith(row.meta["turns"][0]["request_id"])
    assert said(row) == "fine<|im_end|>"


def test_a_retry_of_an_answered_request_gets_the_same_answer(open_engine):
    engine = open_engine(**sdk_options(python("openai_sdk.py")))
    row, facts = one(engine, "retry_after_answer", question="Yes or no?")
    assert facts["attempts"] == 2
    assert row.turns == 1
    assert said(row) == facts["answer"] + "<|im_end|>"
