"""A model's chat format as people read it.

What may enter: a report of :func:`relax_rollout.doctor`. What it never does: look at a
checkpoint, or write to a stream.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .chat_format import FormatCheck, FormatReport, FormatSpan, TemplateReport

_LABEL = 17
_WIDTH = 100
_GREEN, _DIM, _PLAIN = "\x1b[32m", "\x1b[2m", "\x1b[0m"

_STRATEGIES = {
    "suffix": "new messages are rendered behind a short stand-in for the history",
    "suffix+system": "new messages are rendered behind a short stand-in for the history, with the"
    " real system message",
    "suffix+tools": "new messages are rendered behind a short stand-in for the history, with the"
    " real tools",
    "suffix+system+tools": "new messages are rendered behind a short stand-in for the history,"
    " with the real system message and tools",
    "splice": "the whole conversation is rendered, and cut where the last response ends",
    "full": "the whole conversation is rendered, and must begin with what was there before",
}
_CONTEXTS = {
    frozenset({"system", "system and tools"}): "with a system message",
    frozenset({"tools", "system and tools"}): "with tools",
    frozenset({"", "tools"}): "without a system message",
    frozenset({"", "system"}): "without tools",
}
_ARGUMENTS = {"object": "an object", "text": "JSON text"}
_RESULTS = {
    "rewritten": "the prompts are exact; a full render prints the history otherwise than it was"
    " sampled",
    "unsupported": "the template cannot print it",
}


@dataclass(frozen=True)
class View:
    """How and about what the text is written."""

    checkpoint: str
    tool_call_parser: str = ""
    reasoning_parser: str = ""
    colour: bool = False


def describe(report: FormatReport, view: View) -> str:
    """The whole report, for a terminal or a file."""
    lines = [f"{view.checkpoint}: the chat format can be used", ""]
    lines += _tokens(report)
    for template in report.templates:
        lines += ["", *_template(template, view)]
    if report.warnings:
        lines += ["", *(_row("warning", _local(w, view)) for w in report.warnings)]
    for template in report.templates:
        lines += ["", *_example(template, view)]
    if report.ids:
        lines += ["", *_prompt(report)]
    return "\n".join(lines) + "\n"


def visible(text: str) -> str:
    """``text`` with its control characters and invisible ones spelled; line breaks stay, marked.

    >>> visible("a\\tb\\x1b[31m\\u200b")
    'a␉b␛[31m\\\\u200b'
    >>> visible("two\\nlines")
    'two↵\\nlines'
    """
    return "".join(map(_visible, text))


def _visible(c: str) -> str:
    if c == "\n":
        return "↵\n"
    if c < " ":
        return chr(0x2400 + ord(c))
    return c if c.isprintable() else c.encode("unicode_escape").decode()


# ---- what was found ------------------------------------------------------------------------------


def _tokens(report: FormatReport) -> Iterator[str]:
    yield _row("turn end", f"{visible(report.terminator.text)} ({report.terminator.id})")
    stops = (f"{visible(t.text)} ({t.id})" for t in report.stop_tokens)
    yield _row("stop ids", ", ".join(stops))
    yield _row(
        "vocabulary",
        f"{report.vocab_size} tokens; {report.control_tokens} are control tokens, which message "
        "text never becomes",
    )


def _template(template: TemplateReport, view: View) -> Iterator[str]:
    yield _row("template", f"{template.name}, from {_local(template.source, view)}")
    meaning = _STRATEGIES.get(template.strategy, "")
    yield _row("strategy", f"{template.strategy}: {meaning}".removesuffix(": "))
    if template.prints_calls:
        yield _row("arguments", f"those of a tool call go in as {_ARGUMENTS[template.arguments]}")
    yield _row("system", f"behind the first place: {template.later_system}")
    if template.prints_reasoning:
        yield _row("reasoning", f"is read from the message key {template.reasoning_key}")
    yield _row("not printed", ", ".join(_unprinted(template)) or "nothing: the model sees all")
    yield from _parsers(
        "tool-call parser",
        "calls" if template.prints_calls else "",
        template.tool_call_parsers,
        template.suggested_tool_call_parser,
        view.tool_call_parser,
    )
    yield from _parsers(
        "reasoning parser",
        "reasoning" if template.prints_reasoning else "",
        template.reasoning_parsers,
        template.suggested_reasoning_parser,
        view.reasoning_parser,
    )
    yield from _checks(template.checks, view)


def _unprinted(template: TemplateReport) -> Iterator[str]:
    if not template.prints_system:
        yield "system messages"
    if not template.prints_tools:
        yield "the tools of a request"
    if not template.prints_calls:
        yield "tool calls"
    elif not template.prints_parallel_calls:
        yield "more than one tool call in a message"
    if not template.prints_results:
        yield "tool results"
    if not template.prints_reasoning:
        yield "reasoning"


def _parsers(
    label: str, printed: str, fit: tuple[str, ...], suggested: str, given: str
) -> Iterator[str]:
    """Which parsers read back the calls or the reasoning that the template itself prints."""
    if not printed:
        yield _row(label, "cannot be tried: the template prints nothing to read back")
        return
    if given.lower() in fit:
        yield _row(label, f"{given}, as given, reads the template's own {printed}")
        return
    if given:
        yield _row(label, f"{given}, as given, DOES NOT READ the template's own {printed}")
    others = [name for name in fit if name != suggested]
    text = f"{suggested} is suggested" if suggested else f"none reads the template's own {printed}"
    if others:
        text += f"; {', '.join(others)} fit, too"
    yield _row("" if given else label, text)


def _checks(checks: tuple[FormatCheck, ...], view: View) -> Iterator[str]:
    count = Counter(c.result for c in checks)
    if count["ok"] == len(checks):
        yield _row("self-check", f"{len(checks)} scenarios, all ok")
        return
    totals = ", ".join(f"{count[r]} {r}" for r in ("ok", *_RESULTS) if count[r])
    yield _row("self-check", f"{len(checks)} scenarios: {totals}")
    for result, meaning in _RESULTS.items():
        if count[result]:
            yield _row("", f"{result} ({meaning}):")
            yield from (_row("", _local(f"- {line}", view)) for line in _fold(checks, result))


def _fold(checks: Iterable[FormatCheck], result: str) -> Iterator[str]:
    """The scenarios with a result, those with the same detail in one line.

    The engine tries each with and without a system message and tools; a line says with which it
    holds, if not with all of them.
    """
    contexts: dict[str, list[str]] = {}
    found: dict[tuple[str, str], list[str]] = {}
    for c in checks:
        name, _, context = c.scenario.partition(", ")
        contexts.setdefault(name, []).append(context)
        if c.result == result:
            found.setdefault((c.detail, name), []).append(context)
    lines: dict[tuple[str, str], list[str]] = {}
    for (detail, name), where in found.items():
        when = "" if where == contexts[name] else f" ({_when(where)})"
        lines.setdefault((detail, when), []).append(name)
    for (detail, when), names in lines.items():
        everything = len(names) == len(contexts) > 1
        yield f"{'all' if everything else ', '.join(names)}{when}: {detail}"


def _when(contexts: list[str]) -> str:
    known = _CONTEXTS.get(frozenset(contexts))
    return known or " or ".join(f"with {c}" if c else "alone" for c in contexts)


# ---- what it looks like --------------------------------------------------------------------------


def _example(template: TemplateReport, view: View) -> Iterator[str]:
    total = sum(s.tokens for s in template.example)
    sampled = sum(s.tokens for s in template.example if s.kind == "sampled")
    yield (
        f"An example with the template {template.name}, as a training row holds it: "
        f"{total} tokens, {sampled} of them sampled."
    )
    if view.colour:
        yield f"{_GREEN}Sampled: mask 1.{_PLAIN} {_DIM}Generation prompt: 0.{_PLAIN} Messages: 0."
    else:
        yield "What stands in ⟦ ⟧ is sampled and has loss mask 1; all else has 0."
    text = "".join(_painted(s, view.colour) for s in template.example)
    yield from _indented(text)


def _painted(span: FormatSpan, colour: bool) -> str:
    text = visible(span.text)
    if not colour:
        return f"⟦{text}⟧" if span.kind == "sampled" else text
    code = {"sampled": _GREEN, "prompt": _DIM}.get(span.kind)
    if code is None:
        return text
    # Each line by itself, so that a pager or a narrow screen cannot lose the colour.
    return "\n".join(f"{code}{line}{_PLAIN}" if line else "" for line in text.split("\n"))


def _prompt(report: FormatReport) -> Iterator[str]:
    yield f"The first prompt of the given messages: {len(report.ids)} tokens."
    yield from _indented(visible(report.text))
    yield _row("ids", " ".join(map(str, report.ids)))


def _indented(text: str) -> Iterator[str]:
    return (f"  {line}" for line in text.removesuffix("\n").split("\n"))


# ---- lines ---------------------------------------------------------------------------------------


def _row(label: str, text: str) -> str:
    """A label and its text, broken into lines under one another."""
    return "\n".join(
        textwrap.wrap(
            f"{label:{_LABEL}} {text}",
            _WIDTH,
            subsequent_indent=" " * (_LABEL + 1),
            break_long_words=False,
            break_on_hyphens=False,
            replace_whitespace=False,
        )
    )


def _local(text: str, view: View) -> str:
    """``text`` with the checkpoint's files named without its directory."""
    return visible(text.replace(view.checkpoint.rstrip("/") + "/", ""))
