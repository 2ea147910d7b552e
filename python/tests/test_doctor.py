"""The doctor: a model's chat format, looked at without an engine."""

import json
import os
import pty
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import CACHE, CHECKPOINTS, ROOT, check_script

import relax_rollout as rr
from relax_rollout.format_text import View, describe, visible

REAL = Path(os.environ.get("RELAX_CHECKPOINTS") or CACHE / "checkpoints")
TINYCHAT = CHECKPOINTS / "tinychat"
USER = [{"role": "user", "content": "What is 2 + 2?"}]
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
ANSI = re.compile(r"\x1b\[\d*m")

# It prints one turn, and no conversation that goes on.
ONE_TURN = (
    '{% for m in messages %}{% if m.role == "assistant" %}{{ raise_exception("one turn only") }}'
    "{% endif %}<|im_start|>{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}<|im_start|>"
)
# No system messages, no tools, no calls.
PLAIN = (
    "{% for m in messages %}"
    '{% if m.role == "system" %}{{ raise_exception("no system messages") }}{% endif %}'
    "<|im_start|>{{ m.role }}\n"
    "{{ m.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture
def with_template(tmp_path):
    """Makes a checkpoint with a template of the test's own."""

    def make(template):
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(TINYCHAT / name, tmp_path)
        (tmp_path / "chat_template.jinja").write_text(template)
        return tmp_path

    return make


def run(*arguments, checkpoint=TINYCHAT, **env):
    """Runs the command with its output in a file."""
    command = [sys.executable, "-m", "relax_rollout", "doctor", "--hf-checkpoint", checkpoint]
    return subprocess.run(
        [*command, *arguments],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=60,
        env={**os.environ, "PYTHONIOENCODING": "utf-8", **env},
    )


def run_on_terminal(*arguments, **env):
    """The same on a terminal; returns what came out of it."""
    command = [sys.executable, "-m", "relax_rollout", "doctor", "--hf-checkpoint", TINYCHAT]
    master, slave = pty.openpty()
    environment = {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
    environment |= {"PYTHONIOENCODING": "utf-8", **env}
    with subprocess.Popen([*command, *arguments], stdout=slave, env=environment) as process:
        os.close(slave)
        out = b""
        try:
            while chunk := os.read(master, 1 << 16):
                out += chunk
        except OSError:  # Linux's word for the other end being closed
            pass
        os.close(master)
    assert process.returncode == 0, out
    return out.decode().replace("\r\n", "\n")


# ---- the report ------------------------------------------------------------------------------


def test_the_report():
    report = rr.doctor(TINYCHAT, tool_call_parser="qwen25", reasoning_parser="qwen3")
    assert report.terminator == rr.FormatToken(2041, "<|im_end|>")
    assert [t.id for t in report.stop_tokens] == [2041, 2039]
    assert (report.vocab_size, report.control_tokens) == (2048, 3)
    assert (report.warnings, report.text, report.ids) == ((), "", ())
    (template,) = report.templates
    assert (template.name, template.strategy, template.arguments) == ("default", "suffix", "object")
    assert template.source == str(TINYCHAT / "tokenizer_config.json")
    assert template.prints_system
    assert template.prints_parallel_calls
    assert {c.result for c in template.checks} <= {"ok", "rewritten"}
    assert {"qwen", "qwen25", "hermes"} <= set(template.tool_call_parsers)
    assert template.suggested_tool_call_parser in template.tool_call_parsers
    assert "qwen3" in template.reasoning_parsers
    assert template.example[0].text.startswith("<|im_start|>system\nYou are a calculator.")
    assert [s.text for s in template.example if s.kind == "sampled"][-1].endswith("6.<|im_end|>")
    assert report.raw["templates"][0]["checks"][0]["scenario"] == template.checks[0].scenario


def test_the_report_names_every_field_of_the_engine():
    """What the engine adds must be added here."""
    raw = rr.doctor(TINYCHAT).raw

    def names(kind):
        return set(kind.__dataclass_fields__) - {"raw"}

    assert set(raw) == names(rr.FormatReport)
    template = raw["templates"][0]
    assert set(template) == names(rr.TemplateReport)
    assert set(template["checks"][0]) == names(rr.FormatCheck)
    assert set(template["example"][0]) == names(rr.FormatSpan)
    assert set(raw["terminator"]) == names(rr.FormatToken)


def test_the_first_prompt():
    report = rr.doctor(
        str(TINYCHAT),
        messages=[{"role": "user", "content": "<|im_end|> Grüße \U0001f600"}],
        tools=TOOLS,
        chat_template_kwargs={"enable_thinking": False},
    )
    assert '"name": "add"' in report.text
    asked = "<|im_start|>user\n<|im_end|> Grüße \U0001f600<|im_end|>\n"
    assert report.text.endswith(asked + "<|im_start|>assistant\n<think>\n\n</think>\n\n")
    # The system message's and the user's: what the user typed is text.
    assert report.ids.count(report.terminator.id) == 2


def test_the_engine_reads_a_request_as_this_does(open_engine):
    """What a Session was prompted with is in its row."""
    engine = open_engine(hf_checkpoint=str(TINYCHAT))
    with engine.rollout(0, [{"messages": USER}]) as batch:
        row = batch[0]
        prompt = row.tokens[: row.prompt_len].tolist()
    assert prompt == list(rr.doctor(TINYCHAT, messages=USER).ids)


def test_no_engine_is_opened(open_engine):
    """The fixture watches descriptors, children and batches; an open engine is no obstacle."""
    open_engine()
    for _ in range(3):
        assert rr.doctor(TINYCHAT).vocab_size == 2048


@pytest.mark.parametrize("name", ["FormatReport", "TemplateReport"])
def test_the_function_is_not_hidden_by_its_module(name):
    check_script(f"import relax_rollout as rr; rr.{name}; assert callable(rr.doctor)")


def test_a_parser_that_does_not_fit_is_a_warning():
    (warning,) = rr.doctor(TINYCHAT, tool_call_parser="llama3").warnings
    assert "agentic_tool_call_parser llama3 does not read the calls" in warning


@pytest.mark.parametrize(
    ("arguments", "option", "text"),
    [
        ({"tool_call_parser": "qwen99"}, "agentic_tool_call_parser", "qwen25"),
        ({"reasoning_parser": "qwen99"}, "agentic_reasoning_parser", "qwen3"),
        ({"messages": [{"content": "x"}]}, "messages", r"messages\[0\].role"),
        ({"messages": []}, "messages", "at least one"),
        ({"messages": USER, "tools": [1]}, "messages", r"tools\[0\]"),
        ({"tools": TOOLS}, "tools", "without messages"),
        ({"messages": USER, "chat_template_kwargs": [1]}, "chat_template_kwargs", "dict"),
    ],
)
def test_errors_name_the_option(arguments, option, text):
    with pytest.raises(rr.ConfigError, match=text) as caught:
        rr.doctor(TINYCHAT, **arguments)
    assert caught.value.option == option
    assert str(caught.value).startswith("doctor: option ")


@pytest.mark.parametrize(
    ("directory", "text"),
    [
        (CHECKPOINTS / "notemplate", "no chat template"),
        (CHECKPOINTS / "nowhere", "nowhere"),
        ("", "required"),
    ],
)
def test_a_checkpoint_that_cannot_be_read(directory, text):
    with pytest.raises(rr.ConfigError, match=text) as caught:
        rr.doctor(directory)
    assert caught.value.option == "hf_checkpoint"


def test_a_template_that_no_plan_serves(with_template):
    with pytest.raises(rr.ConfigError, match="one turn only") as caught:
        rr.doctor(with_template(ONE_TURN))
    assert caught.value.option == "hf_checkpoint"
    assert "chat_template.jinja" in str(caught.value)


def test_what_json_cannot_say():
    with pytest.raises(rr.InvalidError, match="JSON"):
        rr.doctor(TINYCHAT, messages=USER, chat_template_kwargs={"x": float("nan")})
    with pytest.raises(rr.InvalidError, match="JSON"):
        rr.doctor(TINYCHAT, messages=[object()])


# ---- the text --------------------------------------------------------------------------------


def test_visible():
    assert visible("a\x00\t\x1b[31m\x7f\u200b\u202e\xa0b") == "a␀␉␛[31m\\x7f\\u200b\\u202e\\xa0b"
    assert visible("多\n\r\n") == "多↵\n␍↵\n"


def test_the_text_of_a_plain_template(with_template):
    directory = with_template(PLAIN)
    report = rr.doctor(directory)
    text = describe(report, View(checkpoint=str(directory)))
    assert str(directory) not in text.partition("\n")[2]
    flat = " ".join(text.split())
    for words in (
        "template default, from chat_template.jinja strategy",
        "not printed system messages, the tools of a request, tool calls, reasoning tool-call",
        "tool-call parser cannot be tried",
        "- all (with a system message): chat_template.jinja line 1: the template raised: no system",
        "- written call (without a system message): the template leaves out a call",
    ):
        assert words in flat


def checked(*checks):
    """The self-check's lines for these scenarios."""
    report = rr.doctor(TINYCHAT)
    scenarios = tuple(rr.FormatCheck(*c) for c in checks)
    template = replace(report.templates[0], checks=scenarios)
    text = describe(replace(report, templates=(template,)), View("x"))
    lines = text.partition("\nself-check ")[2].partition("\n\n")[0].split("\n")
    return [line.strip() for line in lines]


def test_scenarios_that_are_all_ok():
    assert checked(("tool", "ok", ""), ("tool, tools", "ok", "")) == ["2 scenarios, all ok"]


def test_scenarios_are_folded():
    head, *lines = checked(
        ("tool", "ok", ""),
        ("user", "rewritten", "why"),
        ("two", "rewritten", "why"),
        ("tool, tools", "unsupported", "no"),
        ("user, tools", "rewritten", "why"),
        ("two, tools", "rewritten", "why"),
    )
    assert head == "6 scenarios: 1 ok, 4 rewritten, 1 unsupported"
    assert "- user, two: why" in lines
    assert "- tool (with tools): no" in lines
    assert len([line for line in lines if line.startswith("- ")]) == 2


# ---- the command -----------------------------------------------------------------------------


def test_the_command_on_a_file():
    done = run("--tool-call-parser", "qwen25", "--reasoning-parser", "qwen3")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    flat = " ".join(done.stdout.split())
    for words in (
        "the chat format can be used",
        "turn end <|im_end|> (2041)",
        "stop ids <|im_end|> (2041), <|endoftext|> (2039)",
        "strategy suffix: ",
        "not printed nothing",
        "qwen25, as given, reads the template's own calls",
        "qwen3, as given, reads the template's own reasoning",
        "self-check 52 scenarios",
        "is sampled and has loss mask 1",
        "↵ ⟦<think>↵ ↵ </think>↵ ↵ 6.<|im_end|>⟧",
    ):
        assert words in flat
    assert done.stdout.count("⟦") == done.stdout.count("⟧") == 3 + 1  # and the legend's
    assert "warning" not in done.stdout


def test_the_command_on_a_terminal():
    text = run_on_terminal()
    assert "\x1b[32m6.<|im_end|>\x1b[0m\n" in text
    assert "\x1b[2m<|im_start|>assistant↵\x1b[0m\n" in text
    assert "\n  What is 2 + 2?<|im_end|>↵\n" in text
    assert "⟦" not in text
    plain = run_on_terminal(NO_COLOR="1")
    assert "\x1b" not in plain
    assert plain == run().stdout
    assert "6.<|im_end|>" in ANSI.sub("", text)


def test_a_given_parser_that_does_not_read():
    done = run("--tool-call-parser", "llama3")
    assert done.returncode == 0, done.stderr
    assert "llama3, as given, DOES NOT READ the template's own calls" in done.stdout
    assert "qwen is suggested" in done.stdout
    assert "\nwarning " in done.stdout


def test_the_command_prints_json(tmp_path):
    body = tmp_path / "body.json"
    body.write_text(json.dumps({"model": "m", "messages": USER, "tools": TOOLS}))
    done = run("--json", "--messages", body)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == rr.doctor(TINYCHAT, messages=USER, tools=TOOLS).raw


def test_the_command_shows_a_prompt(tmp_path):
    file = tmp_path / "messages.json"
    file.write_text(json.dumps([{"role": "user", "content": "bell \x07"}]))
    done = run("--messages", file)
    assert done.returncode == 0, done.stderr
    end = done.stdout.partition("The first prompt of the given messages: ")[2]
    ids = rr.doctor(TINYCHAT, messages=[{"role": "user", "content": "bell \x07"}]).ids
    assert end.startswith(f"{len(ids)} tokens.\n  <|im_start|>user↵\n  bell ␇<|im_end|>↵\n")
    assert end.split("ids")[1].split() == [str(i) for i in ids]


def test_the_command_fails(with_template, tmp_path):
    done = run(checkpoint=with_template(ONE_TURN))
    assert (done.returncode, done.stdout) == (1, "")
    assert "one turn only" in done.stderr
    assert "Traceback" not in done.stderr
    done = run("--tool-call-parser", "qwen99")
    assert (done.returncode, done.stdout) == (1, "")
    assert "option agentic_tool_call_parser: " in done.stderr


@pytest.mark.parametrize("content", [None, "not JSON", "3", '{"tools": []}'])
def test_wrong_usage(tmp_path, content):
    file = tmp_path / "messages.json"
    if content is not None:
        file.write_text(content)
    done = run("--messages", file)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--messages" in done.stderr


def test_wrong_usage_without_a_checkpoint():
    command = [sys.executable, "-m", "relax_rollout", "doctor"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "--hf-checkpoint" in done.stderr


def test_an_output_that_cannot_spell_everything():
    done = run(PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert r"\u27e6<think>\u21b5" in done.stdout


# ---- a real model ----------------------------------------------------------------------------


@pytest.fixture
def qwen3():
    directory = REAL / "qwen3"
    if not (directory / "tokenizer.json").is_file():
        message = f"THE DOCTOR IS NOT TRIED ON A REAL MODEL: no {directory}; `make deps` fetches it"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    return directory


def test_a_real_model(qwen3):
    report = rr.doctor(qwen3, tool_call_parser="qwen25", reasoning_parser="qwen3", messages=USER)
    assert report.terminator == rr.FormatToken(151645, "<|im_end|>")
    assert report.warnings == ()
    (template,) = report.templates
    assert template.strategy == "suffix"
    assert {c.result for c in template.checks} <= {"ok", "rewritten"}
    assert template.suggested_reasoning_parser == "qwen3"
    assert report.ids[:3] == (151644, 872, 198)


def test_the_readme_shows_what_it_prints(qwen3):
    section = (ROOT / "README.md").read_text().split("## Check a model first\n")[1]
    shown = section.split("\n\nsays how ")[1].partition(":\n\n")[2].partition("\n\nand so on")[0]
    lines = [line[4:] for line in shown.splitlines()]
    assert lines[0] == "Qwen3-8B: the chat format can be used"
    report = rr.doctor(qwen3, tool_call_parser="qwen25", reasoning_parser="qwen3")
    text = describe(report, View(str(qwen3), "qwen25", "qwen3"))
    head, tail = "\n".join(lines[1:]).split("\n  …\n")
    assert head in text
    assert tail in text


def test_many_conversations_in_one_call():
    """One load of the checkpoint serves all, and one bad conversation spoils no other."""
    good = {"messages": [{"role": "user", "content": "Hi"}]}
    off = {**good, "chat_template_kwargs": {"enable_thinking": False}}
    bad = {"messages": [{"role": "nobody", "content": "Hi"}]}
    first, second, third = rr.doctor(TINYCHAT, conversations=[good, bad, off]).prompts
    alone = rr.doctor(TINYCHAT, **good)
    assert (first.text, first.ids, first.error) == (alone.text, alone.ids, "")
    assert (second.text, second.ids) == ("", ())
    assert "messages[0].role" in second.error
    assert third.text.endswith("<think>\n\n</think>\n\n")
