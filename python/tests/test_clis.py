"""Five real coding CLIs, unchanged from npm, as agents: one Session each case, on the real engine.

Each gets the same task. The scripted policy thinks and calls that CLI's own shell or write tool,
which leaves a file, and closes with a text once the tool has answered. How a CLI is started is in
clis/. What a CLI changes in a turn when it replays it has cases of its own.
"""

import json
import os
import shlex
from dataclasses import dataclass

import numpy as np
import pytest
from conftest import CACHE, TESTS
from test_rollout import spell

SCRIPTS = TESTS / "clis"
INSTALLED = CACHE / "clis"
TASK = "Put the greeting of guest 4711 into the file out.txt."
GREETING = 'Grüß Gott, "guest" 4711: \\n is no line end 世界'
COMMAND = f"printf '%s\\n' {shlex.quote(GREETING)} > out.txt"
LEAD = f"I write “{GREETING}” …\n\n"
CLOSING = "The greeting is in out.txt."
SIDE = "A greeting"


@dataclass(frozen=True)
class Cli:
    """A CLI, its program, and the call by which its model writes the greeting."""

    name: str
    program: str
    tool: str
    arguments: dict[str, object]
    # Finds the work tree in the prompt, for arguments that say ${work}.
    work: str = ""
    # Conversations beside the main one. They have no tools and are answered with SIDE.
    sides: int = 0
    # What the model says between its thoughts and the call, and the form of that.
    lead: str = LEAD
    parser: str = "qwen25"
    match_policy: str = "exact"
    case: str = ""

    def reply(self):
        if self.parser == "qwen3_coder":
            call = f"<function={self.tool}>\n"
            for key, value in self.arguments.items():
                call += f"<parameter={key}>\n{value}\n</parameter>\n"
            call += "</function>"
        else:
            call = json.dumps({"name": self.tool, "arguments": self.arguments}, ensure_ascii=False)
        thoughts = "<think>\nOne call can do it.\n</think>\n\n"
        return f"{thoughts}{self.lead}<tool_call>\n{call}\n</tool_call>"


CLIS = [
    Cli("claude-code", "claude", "Bash", {"command": COMMAND, "description": "Greet"}),
    # It adds "replace_all": false to the call.
    Cli(
        "claude-code",
        "claude",
        "Edit",
        {"file_path": "${work}/out.txt", "old_string": "", "new_string": GREETING + "\n"},
        work=r"[Ww]orking directory: (?P<work>\S+)",
        match_policy="tolerant",
        case="rewrites-arguments",
    ),
    # It drops white space before a call, which this parser leaves where it stands.
    Cli(
        "claude-code",
        "claude",
        "Bash",
        {"command": COMMAND, "description": "Greet"},
        lead="",
        parser="qwen3_coder",
        case="drops-white-space",
    ),
    Cli("codex", "codex", "exec_command", {"cmd": COMMAND}),
    # It asks for a title.
    Cli("opencode", "opencode", "bash", {"command": COMMAND}, sides=1),
    Cli("pi", "pi", "bash", {"command": COMMAND}),
    # Its shell tool costs five seconds of CPU, in which it copies a parser byte by byte.
    Cli(
        "qwen-code",
        "qwen",
        "write_file",
        {"file_path": "${work}/out.txt", "content": GREETING + "\n"},
        work=r"working in the directory: (?P<work>\S+)",
    ),
]


def policy(cli):
    """Calls the tool where it is offered for the task, and closes once it has answered."""
    offered = f'"name": {json.dumps(cli.tool)}'
    return {
        "tail_tokens": 1 << 20,
        "classes": [
            {
                "name": "close",
                "match": {"last_contains": "<tool_response>"},
                "candidates": [{"text": CLOSING}],
            },
            {
                "name": "call",
                "match": {"contains_all": ["<tools>", offered, TASK], "regex": cli.work},
                "candidates": [{"text": cli.reply()}],
            },
        ],
        "default": [{"text": SIDE}],
    }


def offered_tools(prompt):
    """The tools of a prompt of the built-in chat format, by name."""
    listed = prompt.partition("<tools>\n")[2].partition("\n</tools>")[0]
    functions = [json.loads(line)["function"] for line in listed.split("\n")]
    return {f["name"]: f for f in functions}


@pytest.fixture(params=CLIS, ids=lambda cli: "-".join(filter(None, (cli.name, cli.case))))
def cli(request):
    if not (INSTALLED / "node_modules" / ".bin" / request.param.program).exists():
        absent = f"{request.param.name} is not installed: run testdata/clis/fetch npm {INSTALLED}"
        if os.environ.get("CI") == "true":
            pytest.fail(absent)
        pytest.skip(absent)
    return request.param


def test_a_cli_is_an_agent(open_engine, cli):
    engine = open_engine(
        agent_command=f"exec bash {shlex.quote(str(SCRIPTS / cli.name))}.sh",
        # Nothing of whoever runs the tests: no keys, no proxies, no settings of their own CLIs.
        agent_env={"PATH": os.environ["PATH"], "CLIS": str(INSTALLED)},
        agent_env_inherit=False,
        agentic_tool_call_parser=cli.parser,
        agentic_reasoning_parser="qwen3",
        match_policy=cli.match_policy,
        max_consecutive_dropped_groups=1,
        simulator={"policy": policy(cli), "context_len": 1 << 20},
    )
    batch = engine.rollout(0, [TASK])
    (row,) = batch

    done = row.meta["metadata"]
    assert done["files"]["out.txt"] == GREETING + "\n"
    assert CLOSING in done["said"]

    # One conversation, and the model was offered what it called.
    assert set(engine.stats()["divergences"]) == ({"tools"} if cli.sides else set())
    assert row.turns == 2
    assert [turn["status"] for turn in row.meta["turns"]] == ["completed", "completed"]
    assert not any("parse_error" in turn for turn in row.meta["turns"])
    prompt = spell(row.prompt_tokens)
    assert TASK in prompt
    tool = offered_tools(prompt)[cli.tool]
    assert set(cli.arguments) <= set(tool["parameters"]["properties"])

    # The row is what was sampled, and what the CLI said in between.
    reply = cli.reply().replace("${work}", done["work"])
    first, second = f"{reply}<|im_end|>", f"{CLOSING}<|im_end|>"
    assert spell(row.tokens[row.loss_mask == 1]) == first + second
    assert np.allclose(row.logprobs, 0.0), "only one reply was possible"
    assert not row.loss_mask[: row.prompt_len].any()
    text = spell(row.tokens)
    assert text.startswith(prompt + first)
    assert text.endswith(second)
    between = text[len(prompt + first) : -len(second)]
    assert between.startswith("\n<|im_start|>user\n<tool_response>\n")
    assert between.endswith("\n</tool_response><|im_end|>\n<|im_start|>assistant\n")
    assert row.reward == 1.0

    tokens = batch.report.token_balance
    assert tokens.delivered == int(row.loss_mask.sum())
    assert tokens.started - tokens.delivered == cli.sides * (len(SIDE) + 1)
