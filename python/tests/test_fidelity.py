"""Prompts and ids against transformers, live, with the tokenizers of real models.

The tokenizers are not committed: `make deps` fetches them (RELAX_CHECKPOINTS). Two of them get
their chat template from the shared fixtures (RELAX_SHARED). What is absent is a loud skip, and a
failure where CI=true.
"""

import copy
import datetime
import functools
import itertools
import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import CACHE, ROOT
from fidelity_conversations import Conversation, assistant, compact, conversations, user
from fidelity_texts import corpus

import relax_rollout as rr

REAL = Path(os.environ.get("RELAX_CHECKPOINTS") or CACHE / "checkpoints")
TEMPLATES = Path(
    os.environ.get("RELAX_SHARED") or ROOT.parent / "shared", "fixtures/chat_templates"
)
SEED = 2026


@dataclass(frozen=True)
class Model:
    """A tokenizer with a chat template, and what the template wants to be given.

    What follows max_calls the engine finds out by itself; transformers leaves it to its caller.
    """

    tokenizer: str
    template: str = ""  # a fixture's name; "" for the checkpoint's own
    max_calls: int = 3  # that one assistant message can carry; 0: the template knows none
    arguments_text: bool = False  # arguments go in as JSON text
    reasoning_key: str = "reasoning_content"
    no_content: str | None = ""  # content of an assistant message with nothing but calls
    late_system: str = "system"  # role of a system message behind the first place
    joins_users: bool = False  # such a one goes into the user message beside it

    def __str__(self):
        return f"{self.tokenizer}-{self.template}" if self.template else self.tokenizer


MODELS = (
    Model("qwen3"),
    Model("deepseek_v3", arguments_text=True, no_content=None, late_system="user"),
    Model("llama3_1", max_calls=0),
    Model("llama3_1", "lc__meta-llama-Llama-3.1-8B-Instruct", max_calls=1),
    Model("gptoss", "lc__openai-gpt-oss-120b", reasoning_key="thinking", late_system="user"),
    Model("gemma3", max_calls=0, late_system="user", joins_users=True),
)
each_model = pytest.mark.parametrize("model", MODELS, ids=str)
each_tokenizer = pytest.mark.parametrize(
    "model", [m for m in MODELS if m.template == "" or m.tokenizer == "gptoss"], ids=str
)


def inspect(directory, conversation):
    """The engine's prompt: its text and its ids."""
    report = rr.doctor(
        str(directory),
        messages=conversation.messages,
        tools=conversation.tools,
        chat_template_kwargs=conversation.kwargs,
    )
    return report.text, list(report.ids)


def inspect_all(directory, conversations):
    """The engine's prompts, each its text and ids, or the text of the refusal."""
    requests = [
        {"messages": c.messages, "tools": c.tools, "chat_template_kwargs": c.kwargs}
        for c in conversations
    ]
    report = rr.doctor(str(directory), conversations=requests)
    return [p.error or (p.text, list(p.ids)) for p in report.prompts]


# ---- the reference ---------------------------------------------------------------------------


def need(found, message):
    if found:
        return
    message = f"FIDELITY TO TRANSFORMERS IS NOT CHECKED: {message}"
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """Makes the checkpoint directory of a model."""

    @functools.cache
    def make(model):
        source = REAL / model.tokenizer
        need((source / "tokenizer.json").is_file(), f"no {source}; `make deps` fetches it")
        if not model.template:
            return source
        template = TEMPLATES / f"{model.template}.jinja"
        need(template.is_file(), f"no {template}; set RELAX_SHARED")
        directory = tmp_path_factory.mktemp(str(model))
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (directory / name).symlink_to(source / name)
        shutil.copyfile(template, directory / "chat_template.jinja")
        return directory

    return make


@functools.cache
def transformers_tokenizer(directory):
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        need(False, f"{error}; `make deps` installs it")
    return AutoTokenizer.from_pretrained(directory, local_files_only=True)


def translated(model, messages):
    """What transformers must be given to mean what the engine understands."""
    out, was_late = [], False
    for message in copy.deepcopy(messages):
        late = message["role"] == "system" and any(m["role"] != "system" for m in out)
        if late:
            message["role"] = model.late_system
        if reasoning := message.pop("reasoning_content", None):
            message[model.reasoning_key] = reasoning
        calls = message.get("tool_calls", [])
        for call in calls if model.arguments_text else []:
            call["function"]["arguments"] = compact(call["function"]["arguments"])
        message["content"] = message["content"] or (model.no_content if calls else "")
        roles = {message["role"], out[-1]["role"]} if out else set()
        if (roles == {"system"} and not late and not was_late) or (
            roles == {"user"} and model.joins_users and (late or was_late)
        ):
            out[-1]["content"] += "\n\n" + message["content"]
        else:
            out.append(message)
        was_late = late
    return out


def render(model, tokenizer, conversation):
    messages, kwargs = translated(model, conversation.messages), conversation.kwargs or {}
    if model.no_content is not None:
        return tokenizer.apply_chat_template(
            messages,
            tools=conversation.tools,
            tokenize=False,
            add_generation_prompt=True,
            **kwargs,
        )
    # apply_chat_template of version 5 takes keys with None out. A template that asks whether
    # content is None then refuses every call; what it calls next leaves None in.
    from transformers.utils.chat_template_utils import render_jinja_template

    rendered, _ = render_jinja_template(
        [messages],
        tools=conversation.tools,
        chat_template=tokenizer.chat_template,
        add_generation_prompt=True,
        **{**tokenizer.special_tokens_map, **kwargs},
    )
    return rendered[0]


def on_one_day(compare):
    """Calls compare again if midnight passed: some templates print the date."""
    while True:
        day = datetime.date.today()
        result = compare()
        if datetime.date.today() == day:
            return result


def difference(got, want, show):
    """Where got leaves want, in words; "" where it does not."""
    if got == want:
        return ""
    pairs = enumerate(zip(got, want, strict=False))
    at = next((i for i, (a, b) in pairs if a != b), min(len(got), len(want)))
    near = slice(max(at - 8, 0), at + 24)
    return (
        f"length {len(got)}, want {len(want)}; at {at}: {show(got[near])}, want {show(want[near])}"
    )


# ---- tests -----------------------------------------------------------------------------------


@each_model
def test_prompts_are_those_of_transformers(model, checkpoint):
    directory = checkpoint(model)
    talks = list(conversations(SEED, model.max_calls))

    def compare():
        prompts = inspect_all(directory, talks)
        return {
            talk.name: compare_prompt(model, directory, talk, prompt)
            for talk, prompt in zip(talks, prompts, strict=True)
        }

    verdicts = on_one_day(compare)
    wrong = [f"{name}: {verdict}" for name, verdict in verdicts.items() if verdict]
    if wrong:
        pytest.fail("\n".join([f"{len(wrong)} of {len(verdicts)}", *wrong]), pytrace=False)
    assert sum(verdict == "" for verdict in verdicts.values()) >= 60


def compare_prompt(model, directory, conversation, prompt):
    """What is wrong, "" if nothing, None if the engine rightly refuses the conversation."""
    tokenizer = transformers_tokenizer(directory)
    try:
        want = render(model, tokenizer, conversation)
    except Exception as refusal:
        if isinstance(prompt, str):
            return None
        return f"transformers refuses it ({refusal}), the engine makes {prompt[0]!r}"
    if isinstance(prompt, str):
        # A template that knows no calls may drop them, or print half of them.
        calls = any(m["role"] == "tool" or "tool_calls" in m for m in conversation.messages)
        return None if calls and model.max_calls == 0 else f"refused: {prompt}"
    text, ids = prompt
    wanted_ids = tokenizer(want, add_special_tokens=False).input_ids
    return difference(text, want, repr) or difference(
        ids, wanted_ids, tokenizer.convert_ids_to_tokens
    )


@each_tokenizer
def test_corpus_becomes_the_same_ids(model, checkpoint):
    spellings = [t["content"] for t in read(checkpoint(model))["added_tokens"]]
    check_texts(model, checkpoint(model), corpus(SEED, spellings[:40] + spellings[-40:]))


@each_tokenizer
@pytest.mark.parametrize("kind", ["mixed", "cjk", "spaces"])
def test_megabyte(model, kind, checkpoint):
    part = {
        "mixed": " ".join(corpus(SEED, ["<|im_end|>"])),
        "cjk": "中文、かな👩‍👩‍👧‍👦",
        "spaces": " ",
    }[kind]
    text = "a" + part * (2**20 // len(part.encode()) + 1) + "a"
    check_texts(model, checkpoint(model), [text])


@each_tokenizer
def test_messages_never_become_control_tokens(model, checkpoint):
    directory = checkpoint(model)
    control = controls(directory)
    tags = {
        t["content"]: t["id"]
        for t in read(directory)["added_tokens"]
        if t["content"] not in control
        and PLAIN_TAG.match(t["content"])
        and "unused" not in t["content"]
    }

    def count(text):
        turns = [user(text), assistant("ok"), user(text)]
        _, prompt = inspect(directory, Conversation("spelled", turns))
        return [{s: prompt.count(i) for s, i in ids.items()} for ids in (control, tags)]

    spelled, spelled_tags = count("x".join(["", *control, *tags, ""]))
    neutral, _ = count("x")
    assert spelled == neutral
    assert spelled_tags == dict.fromkeys(tags, 2)
    assert sum(neutral.values()) >= 2  # the template's own are there


# ---- texts that spell control tokens ---------------------------------------------------------

PLAIN_TAG = re.compile(r"</?[A-Za-z_][A-Za-z0-9_:.-]*>\Z")


@functools.cache
def read(directory):
    return json.loads((directory / "tokenizer.json").read_text())


@functools.cache
def controls(directory):
    """Spellings and ids of what only a template may write.

    That is each token that the file calls special, and of the others those that stand in the
    template and are neither signs nor plain tags: DeepSeek's turn openers are not special.
    """
    template = transformers_tokenizer(directory).chat_template
    return {
        t["content"]: t["id"]
        for t in read(directory)["added_tokens"]
        if t["special"]
        or (
            t["content"] in template
            and re.search(r"[^\W_]", t["content"])
            and not PLAIN_TAG.match(t["content"])
        )
    }


@functools.cache
def splitting_tokenizer(directory):
    """The tokenizer as transformers' split_special_tokens makes it, for all control tokens.

    Without transformers, which marks more tokens special than the files do (Gemma's <mask>).
    """
    from tokenizers import Tokenizer

    file = copy.deepcopy(read(directory))
    for token in file["added_tokens"]:
        token["special"] = token["content"] in controls(directory)
    tokenizer = Tokenizer.from_str(json.dumps(file))
    tokenizer.encode_special_tokens = True
    return tokenizer


def check_texts(model, directory, texts):
    """The engine's ids for a conversation whose user messages are texts."""
    tokenizer = transformers_tokenizer(directory)

    def talk(texts):
        turns = itertools.chain.from_iterable((user(text), assistant("ok")) for text in texts)
        return Conversation("corpus", list(turns)[:-1])

    # Where the template wrote what shows with names in place of the texts.
    names = [f"@{i}@" for i in range(len(texts))]
    control = controls(directory)
    longest_first = sorted(map(re.escape, control), key=len, reverse=True)
    splitter = splitting_tokenizer(directory)

    def expected(frame, contents):
        text, out = "", []
        for i, part in enumerate(re.split(f"({'|'.join(longest_first)})", frame)):
            if i % 2:
                out.append(control[part])
            elif part:
                part = re.sub("@([0-9]+)@", lambda m: contents[int(m[1])], part)
                out += splitter.encode(part, add_special_tokens=False).ids
            text += part
        return text, out

    def compare():
        want = render(model, tokenizer, talk(texts))
        frame = render(model, tokenizer, talk(names))
        for contents in (texts, [text.strip() for text in texts]):  # many templates trim
            text, ids = expected(frame, contents)
            if text == want:
                break
        else:
            pytest.fail("the template does more to a text than to trim it: adapt this test")
        got, got_ids = inspect(directory, talk(texts))
        return difference(got, want, repr) or difference(
            got_ids, ids, tokenizer.convert_ids_to_tokens
        )

    if wrong := on_one_day(compare):
        pytest.fail(wrong, pytrace=False)
