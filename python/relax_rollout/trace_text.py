"""A Session's trace as people read it.

What may enter: the documents an engine writes to ``trace_dir``, one a line. What it never does:
open a file, write to a stream, or know the library.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_LABEL = 11
_WIDTH = 100
_TURNS = ("turn", "at", "wall", "parked", "generated", "tokens", "node", "status", "notes")


class TraceError(ValueError):
    """A line that is no trace; the message names it and says what is wrong."""


def read_traces(lines: Iterable[bytes], name: str) -> Iterator[dict[str, Any] | TraceError]:
    """Yields each line's document, or why it has none; ``name`` is the file's, for the reasons.

    A step that was cut off leaves half a line behind: the others are still good.
    """
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            trace = json.loads(line)
        except (ValueError, RecursionError) as err:
            yield TraceError(f"{name}:{number}: not a line of JSON: {err}")
            continue
        if isinstance(trace, dict) and isinstance(trace.get("row"), dict):
            continue  # save_debug_rollout_data has rows beside traces
        if isinstance(trace, dict) and isinstance(trace.get("session"), dict):
            trace = trace["session"]
        if isinstance(trace, dict) and isinstance(trace.get("session_id"), str):
            yield trace
        else:
            yield TraceError(f"{name}:{number}: not a trace: expected an object with a session_id")


def summarize(trace: Mapping[str, Any]) -> str:
    """A Session in one line.

    >>> summarize({"session_id": "session-1", "group_id": "train:group_1", "seq": 0})
    'session-1 train:group_1/0 ?: 0 turns, 0 sampled tokens'
    """
    outcome, counts = _object(trace, "outcome"), _object(trace, "counts")
    fate = str(outcome.get("status") or "?")
    if outcome.get("reason"):
        fate += f" ({outcome['reason']}{'' if outcome.get('at_fault') else ', by its group'})"
    parts = [
        f"{counts.get('turns', 0)} turns",
        f"{counts.get('sampled_tokens', 0)} sampled tokens",
        *_counted(counts, ("failed_requests", "failed requests"), ("aborts", "aborts")),
        *(f"branched {n} x ({why})" for why, n in _object(trace, "divergences").items()),
    ]
    place = f"{trace.get('group_id', '?')}/{trace.get('seq', '?')}"
    return _plain(f"{trace['session_id']} {place} {fate}: {', '.join(parts)}")


def describe_trace(trace: Mapping[str, Any]) -> str:
    """The whole trace, for a terminal or a file."""
    blocks = [
        [summarize(trace), *_cause(trace), "", *_facts(trace)],
        _turns(trace),
        _divergences(trace),
        _failures(trace),
        _tree(trace),
        _exports(trace),
        _log(trace),
    ]
    return _plain("\n\n".join("\n".join(block) for block in blocks if block) + "\n")


def _cause(trace: Mapping[str, Any]) -> list[str]:
    cause = str(_object(trace, "outcome").get("cause") or "")
    # The log's end is shown once, below.
    return _wrapped(cause.partition("; log tail:\n")[0], "    ") if cause else []


def _facts(trace: Mapping[str, Any]) -> list[str]:
    counts, step = _object(trace, "counts"), trace.get("rollout_id")
    tokens = [f"{counts.get('sampled_tokens', 0)} sampled"]
    tokens += _counted(
        counts,
        ("exported_tokens", "exported"),
        ("lost_tokens", "lost with failed requests"),
        ("duplicate_tokens", "of duplicates"),
        ("undelivered_tokens", "of answers no client received"),
    )
    if counts.get("exported_tokens"):
        tokens += _counted(counts, ("unexported_tokens", "outside the export"))
    requests = [f"{counts.get('turns', 0)} made a turn"]
    requests += _counted(
        counts,
        ("failed_requests", "failed"),
        ("joined_retries", "joined one in flight"),
        ("replayed_retries", "got an earlier answer again"),
        ("undelivered_turns", "not received by the client"),
        ("parse_errors", "could not be parsed"),
        ("truncated_turns", "cut off"),
        ("tolerated_messages", "replayed messages replaced by the recorded ones"),
    )
    parked, busy = _number(counts, "parked_s"), _number(counts, "generation_elapsed_s")
    start = trace.get("start_rollout_id")
    lines = [
        ("step", f"{'none' if step is None else step}; {_leased(start)}; mode {trace.get('mode')}"),
        ("process", _process(_object(trace, "process"))),
        ("requests", ", ".join(requests)),
        ("tokens", ", ".join(tokens)),
        ("time", f"{parked:.2f} s parked, {busy:.2f} s generating, summed over requests"),
    ]
    omitted = _object(trace, "omitted")
    if omitted:
        lines.append(("left out", ", ".join(f"{n} {what}" for what, n in omitted.items())))
    return [line for label, text in lines for line in _labelled(label, text)]


def _leased(start: Any) -> str:
    return "never leased" if start is None else f"leased in step {start}"


def _process(process: Mapping[str, Any]) -> str:
    if not process.get("launched"):
        return "was not started"
    if process.get("signal"):
        end = f"killed by {process['signal']}"
    elif process.get("exit_code") is None:
        end = "ended in a way nobody saw"
    else:
        end = f"exit code {process['exit_code']}"
    if process.get("reason") == "terminated":
        end += ", ended by the engine"
    cpu = _number(process, "user_cpu_s") + _number(process, "system_cpu_s")
    memory = _number(process, "max_rss_kb") / 1024
    text = (
        f"{end} after {_number(process, 'elapsed_s'):.2f} s ({cpu:.2f} s of CPU, {memory:.0f} MB)"
    )
    return f"{text}; {process['error']}" if process.get("error") else text


def _turns(trace: Mapping[str, Any]) -> list[str]:
    began = _number(_object(trace, "events"), "managed_prepare_start_at")
    rows = [_TURNS, *(_turn(turn, began) for turn in _list(trace, "turns"))]
    if len(rows) == 1:
        return []
    widths = [max(len(row[i]) for row in rows) for i in range(len(_TURNS) - 1)]
    return ["  " + "  ".join(_padded(row, widths)).rstrip() for row in rows]


def _padded(row: tuple[str, ...], widths: list[int]) -> Iterator[str]:
    for cell, width in zip(row, widths, strict=False):
        yield cell.rjust(width)
    yield row[-1]


def _turn(turn: Mapping[str, Any], began: float) -> tuple[str, ...]:
    parked = _number(turn, "parked_lease_s") + _number(turn, "parked_gate_s")
    arrived = _number(_object(turn, "events"), "chat_request_arrive_at")
    return (
        str(turn.get("turn_idx")),
        f"+{arrived - began:.2f}s",
        f"{_number(turn, 'wall_elapsed_s'):.2f}s",
        f"{parked:.2f}s",
        f"{_number(turn, 'generation_elapsed_s'):.2f}s",
        str(turn.get("response_length")),
        f"#{turn.get('node')}",
        str(turn.get("status")),
        ", ".join(_notes(turn)),
    )


def _notes(turn: Mapping[str, Any]) -> Iterator[str]:
    attempts = _list(turn, "attempts")
    versions = dict.fromkeys(a.get("weight_version") for a in attempts if a.get("tokens"))
    if turn.get("finish_reason") == "tool_calls":
        yield "calls tools"
    if len(attempts) > 1:
        yield f"{len(attempts)} attempts"
    if len(versions) > 1:
        yield "weight versions " + " ".join(map(str, versions))
    if turn.get("duplicate"):
        yield "same as an earlier answer"
    if turn.get("undelivered"):
        yield "not received by the client"
    if turn.get("tolerated"):
        fields = ", ".join(turn.get("tolerated_fields") or ["a field"])
        yield f"{turn['tolerated']} replayed messages replaced, which differed in {fields}"
    if turn.get("divergence"):
        yield f"branches: {turn['divergence'].get('reason')}"
    if turn.get("parse_error"):
        yield f"parse error: {turn['parse_error']}"


def _divergences(trace: Mapping[str, Any]) -> list[str]:
    lines = []
    for request in [*_list(trace, "turns"), *_list(trace, "failed_requests")]:
        d = _object(request, "divergence")
        if d:
            where = f"turn {request['turn_idx']}" if "turn_idx" in request else "a failed request"
            lines += _wrapped(f"{where}, against #{d.get('node')}: {d.get('text')}", "    ")
    return ["why requests did not go on from the newest turn", *lines] if lines else []


def _failures(trace: Mapping[str, Any]) -> list[str]:
    lines = []
    for f in _list(trace, "failed_requests"):
        lost = f"; {f['lost_tokens']} tokens lost" if f.get("lost_tokens") else ""
        code = f"{f.get('http_status')} {f.get('code')}"
        lines += _wrapped(f"{code}: {f.get('message')}{lost}", "    ")
    return ["failed requests", *lines] if lines else []


def _tree(trace: Mapping[str, Any]) -> list[str]:
    """The nodes: a straight line stays at its margin, each branch of a fork has a dash."""
    below: dict[Any, list[Mapping[str, Any]]] = {}
    nodes = _list(trace, "nodes")
    known = {node.get("id") for node in nodes}
    for node in nodes:
        parent = node.get("parent")
        below.setdefault(parent if parent in known else 0, []).append(node)
    lines = []
    todo = [(node, "  - ", "    ") for node in reversed(below.get(0, []))]
    while todo:
        node, first, margin = todo.pop()
        lines.append(_shortened(first + _node(node)))
        children = below.get(node.get("id"), [])
        dash = margin + "- " if len(children) > 1 else margin
        rest = " " * len(dash)
        todo += [(child, dash, rest) for child in reversed(children)]
    return ["tree", *lines] if lines else []


def _node(node: Mapping[str, Any]) -> str:
    unit = "sampled" if node.get("kind") == "response" else "tokens"
    return f"#{node.get('id')} +{node.get('tokens')} {unit}  {_quoted(node)}"


def _exports(trace: Mapping[str, Any]) -> list[str]:
    lines = []
    for title, name in (("exports", "exports"), ("left out of the export", "side_conversations")):
        contexts = _list(trace, name)
        if contexts:
            lines += [title, *map(_context, contexts)]
    return lines


def _context(context: Mapping[str, Any]) -> str:
    name = f"{context['name']}: " if context.get("name") else ""
    text = (
        f"  {name}#{context.get('node')}, {context.get('turn_count')} turns,"
        f" {context.get('tokens')} tokens, {context.get('terminal_status')}  "
    )
    return _shortened(text + _quoted(context))


def _quoted(of: Mapping[str, Any]) -> str:
    """A summary in one line."""
    return json.dumps(of.get("summary", ""), ensure_ascii=False).strip('"')


def _log(trace: Mapping[str, Any]) -> list[str]:
    process = _object(trace, "process")
    lines = [f"log kept in {process['log']}"] if process.get("log") else []
    tail = str(process.get("log_tail") or "")
    if tail:
        lines += ["the end of the agent's output", *textwrap.indent(tail, "    ").splitlines()]
    return lines


# ---- parts of a document, and of a text ----------------------------------------------------------


def _object(of: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = of.get(name)
    return value if isinstance(value, Mapping) else {}


def _list(of: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    value = of.get(name)
    return [v for v in value if isinstance(v, Mapping)] if isinstance(value, list) else []


def _number(of: Mapping[str, Any], name: str) -> float:
    value = of.get(name)
    return float(value) if isinstance(value, int | float) else 0.0


def _counted(counts: Mapping[str, Any], *names: tuple[str, str]) -> list[str]:
    return [f"{counts[name]} {text}" for name, text in names if counts.get(name)]


def _labelled(label: str, text: str) -> list[str]:
    return _wrapped(text, "  " + label.ljust(_LABEL), " " * (_LABEL + 2))


def _wrapped(text: str, first: str, rest: str | None = None) -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=first,
        subsequent_indent=first if rest is None else rest,
        break_on_hyphens=False,
    )


def _plain(text: str) -> str:
    """What models and agents wrote must not steer the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


def _shortened(line: str) -> str:
    return line if len(line) <= _WIDTH else line[: _WIDTH - 1] + "…"
