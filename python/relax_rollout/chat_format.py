"""How a model is talked to: what the engine finds out from a checkpoint, without an engine.

Its own module name, not ``doctor``: a module of that name would hide the function in the package.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import _lib
from .errors import InvalidError


@dataclass(frozen=True)
class FormatToken:
    """An id and its spelling."""

    id: int
    text: str

    @classmethod
    def _read(cls, data: Mapping[str, Any]) -> FormatToken:
        return cls(id=int(data["id"]), text=str(data["text"]))


@dataclass(frozen=True)
class FormatCheck:
    """One scenario of the self-check that every format goes through before it is used."""

    scenario: str
    result: str
    """"ok", "rewritten" (exact, but a full render prints the history otherwise than it was
    sampled) or "unsupported" (the template cannot print it)."""
    detail: str
    """Why, "" if ok."""

    @classmethod
    def _read(cls, data: Mapping[str, Any]) -> FormatCheck:
        return cls(*(str(data[k]) for k in ("scenario", "result", "detail")))


@dataclass(frozen=True)
class FormatSpan:
    """A piece of the example conversation."""

    kind: str
    """"context" (messages, loss mask 0), "prompt" (the generation prompt, 0) or "sampled" (what
    the model said, 1)."""
    text: str
    tokens: int

    @classmethod
    def _read(cls, data: Mapping[str, Any]) -> FormatSpan:
        return cls(kind=str(data["kind"]), text=str(data["text"]), tokens=int(data["tokens"]))


@dataclass(frozen=True)
class FormatPrompt:
    """The first prompt of a conversation."""

    text: str
    ids: tuple[int, ...]
    error: str
    """Why an agent's request with the conversation would be refused, "" if it is not."""

    @classmethod
    def _read(cls, data: Mapping[str, Any]) -> FormatPrompt:
        return cls(text=str(data["text"]), ids=tuple(data["ids"]), error=str(data["error"]))


@dataclass(frozen=True)
class TemplateReport:
    """What was found out about one chat template by rendering probes with it."""

    name: str
    source: str
    """The file it is from."""
    strategy: str
    """How the text behind a response is found: "suffix" (with "+system", "+tools" for what it
    needs), "splice" or "full"."""
    arguments: str
    """How tool-call arguments go in: "object" or "text"."""
    reasoning_key: str
    """The message key that reasoning is read from."""
    later_system: str
    """What becomes of a system message behind the first place: "in place" or "as user"."""
    prints_system: bool
    prints_tools: bool
    prints_calls: bool
    prints_parallel_calls: bool
    prints_results: bool
    prints_reasoning: bool
    checks: tuple[FormatCheck, ...]
    reasoning_parsers: tuple[str, ...]
    """Those that read the template's own reasoning back, best first."""
    tool_call_parsers: tuple[str, ...]
    """Those that read the template's own calls back, best first."""
    suggested_reasoning_parser: str
    """What ``agentic_reasoning_parser`` should be, "" for none."""
    suggested_tool_call_parser: str
    """What ``agentic_tool_call_parser`` should be, "" for none."""
    example: tuple[FormatSpan, ...]
    """A short conversation as a training row would hold it."""

    @classmethod
    def _read(cls, data: Mapping[str, Any]) -> TemplateReport:
        read: dict[str, Any] = {name: data[name] for name in cls.__dataclass_fields__}
        return cls(
            **{
                **read,
                "checks": tuple(FormatCheck._read(c) for c in data["checks"]),
                "reasoning_parsers": tuple(data["reasoning_parsers"]),
                "tool_call_parsers": tuple(data["tool_call_parsers"]),
                "example": tuple(FormatSpan._read(s) for s in data["example"]),
            }
        )


@dataclass(frozen=True)
class FormatReport:
    """A model's chat format; :func:`doctor` makes one."""

    templates: tuple[TemplateReport, ...]
    """One, or two for checkpoints with a "tool_use" template for requests with tools."""
    terminator: FormatToken
    """The token that ends an assistant turn."""
    stop_tokens: tuple[FormatToken, ...]
    """Those that end a generation, the terminator first."""
    control_tokens: int
    """How many tokens the text of a message never becomes."""
    vocab_size: int
    warnings: tuple[str, ...]
    """What the chosen parsers or the template get wrong, in full sentences."""
    text: str
    """The first prompt of the ``messages`` that were given, generation prompt included."""
    ids: tuple[int, ...]
    """The same as token ids."""
    prompts: tuple[FormatPrompt, ...]
    """The first prompts of ``conversations``, in their order."""
    raw: dict[str, Any] = field(repr=False)
    """The whole report as the engine sent it."""

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> FormatReport:
        """Reads the engine's report."""
        return cls(
            templates=tuple(TemplateReport._read(t) for t in data["templates"]),
            terminator=FormatToken._read(data["terminator"]),
            stop_tokens=tuple(FormatToken._read(t) for t in data["stop_tokens"]),
            control_tokens=int(data["control_tokens"]),
            vocab_size=int(data["vocab_size"]),
            warnings=tuple(data["warnings"]),
            text=str(data["text"]),
            ids=tuple(data["ids"]),
            prompts=tuple(FormatPrompt._read(p) for p in data["prompts"]),
            raw=dict(data),
        )


def doctor(
    hf_checkpoint: str | os.PathLike[str],
    *,
    tool_call_parser: str = "",
    reasoning_parser: str = "",
    messages: Sequence[Mapping[str, Any]] | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    conversations: Sequence[Mapping[str, Any]] = (),
) -> FormatReport:
    """Looks at a model's chat format as an engine would at its start; no engine is opened.

    ``messages``, ``tools`` and ``chat_template_kwargs`` are those of a Chat Completions request;
    the report then has the first prompt an agent's request with them would make.
    ``conversations`` are more such requests, each with these keys; their prompts are in
    ``prompts``, which costs less than a call for each: loading a tokenizer takes a second.

    >>> from pathlib import Path
    >>> import relax_rollout as rr
    >>> checkpoints = Path(rr.__file__).parents[2] / "testdata" / "checkpoints"
    >>> report = rr.doctor(
    ...     checkpoints / "tinychat", messages=[{"role": "user", "content": "What is 2 + 2?"}]
    ... )
    >>> report.text
    '<|im_start|>user\\nWhat is 2 + 2?<|im_end|>\\n<|im_start|>assistant\\n'
    >>> report.ids[-3:], report.terminator
    ((2040, 1310, 198), FormatToken(id=2041, text='<|im_end|>'))
    >>> template = report.templates[0]
    >>> template.strategy, template.suggested_tool_call_parser, template.suggested_reasoning_parser
    ('suffix', 'qwen', 'qwen3')

    Raises:
        ConfigError: an engine would refuse the checkpoint, a parser or the messages; the message
            says why, and ``option`` which.
        InvalidError: an argument cannot be written as JSON.
        LibraryError: the shared library is missing.
    """
    options = {
        "hf_checkpoint": os.fspath(hf_checkpoint),
        "agentic_tool_call_parser": tool_call_parser,
        "agentic_reasoning_parser": reasoning_parser,
        "messages": messages,
        "tools": tools,
        "chat_template_kwargs": chat_template_kwargs,
        "conversations": list(conversations),
    }
    try:
        text = json.dumps(options, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as err:
        raise InvalidError(f"doctor: an argument cannot be written as JSON: {err}") from err
    return FormatReport.from_dict(json.loads(_lib.load().doctor(text)))
