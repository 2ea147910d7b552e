"""``python -m relax_rollout``: what is installed, what to configure, how a model is talked to,
what happened in a Session."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from . import __version__, run
from .console import mute_stdout


def _info() -> int:
    from . import _lib
    from .errors import LibraryError
    from .native_files import find_supervisor

    print(f"relax_rollout {__version__} (Python {sys.version.split()[0]})")
    try:
        library = _lib.load()
        print(f"library    {library.path}")
        print(f"build      {library.build_info()}")
        print(f"supervisor {find_supervisor()}")
    except LibraryError as err:
        print(err, file=sys.stderr)
        return 1
    return 0


def _options() -> int:
    from .config import describe_options

    for name, kind, doc in describe_options():
        print(f"{name} ({kind})\n    {doc}")
    return 0


def _doctor(args: argparse.Namespace) -> int:
    from .chat_format import doctor
    from .errors import RelaxError
    from .format_text import View, describe

    try:
        report = doctor(
            args.hf_checkpoint,
            tool_call_parser=args.tool_call_parser,
            reasoning_parser=args.reasoning_parser,
            **args.messages,
        )
    except RelaxError as err:
        print(err, file=sys.stderr)
        return 1
    if args.json:
        text = json.dumps(report.raw, indent=2) + "\n"
    else:
        colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        view = View(args.hf_checkpoint, args.tool_call_parser, args.reasoning_parser, colour)
        text = describe(report, view)
    _write(text)
    return 0


def _write(text: str) -> None:
    encoding = sys.stdout.encoding or "utf-8"  # may be one that cannot spell what models say
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))


def _trace(args: argparse.Namespace) -> int:
    try:
        status = _print_traces(args)
        sys.stdout.flush()
    except BrokenPipeError:
        mute_stdout()
        return 0
    return status


def _print_traces(args: argparse.Namespace) -> int:
    from .trace_text import TraceError, describe_trace, read_traces, summarize

    faults = shown = 0
    for name in args.files:
        try:
            with Path(name).open("rb") as file:
                for trace in read_traces(file, name):
                    if isinstance(trace, TraceError):
                        print(trace, file=sys.stderr)
                        faults += 1
                    elif _wanted(trace, args):
                        text = f"{summarize(trace)}\n" if args.summary else describe_trace(trace)
                        _write(text if args.summary or not shown else f"\n{'=' * 100}\n\n{text}")
                        shown += 1
        except BrokenPipeError:  # of stdout
            raise
        except OSError as err:
            print(f"{name}: cannot be read: {err.strerror or err}", file=sys.stderr)
            faults += 1
    if not shown and not faults:
        print("no such session", file=sys.stderr)
    return 1 if faults or not shown else 0


def _wanted(trace: dict[str, Any], args: argparse.Namespace) -> bool:
    if args.dropped and (trace.get("outcome") or {}).get("status") != "dropped":
        return False
    if not args.session:
        return True
    place = f"{trace.get('group_id')}/{trace.get('seq')}"
    return bool(trace["session_id"].startswith(args.session) or place == args.session)


def _conversation(file: str) -> dict[str, Any]:
    """Reads the file of --messages: a list of messages, or a body with messages and tools."""
    try:
        data = json.loads(Path(file).read_bytes())
    except (OSError, ValueError, RecursionError) as err:
        raise argparse.ArgumentTypeError(f"cannot be read as JSON: {err}") from err
    if isinstance(data, list):
        return {"messages": data}
    names = ("messages", "tools", "chat_template_kwargs")
    if isinstance(data, dict) and "messages" in data:
        return {name: data[name] for name in names if name in data}
    raise argparse.ArgumentTypeError(
        f'{file}: expected a list of messages, or an object with them as "messages"'
    )


def _add_doctor(commands: Any) -> None:
    parser = commands.add_parser(
        "doctor",
        help="say how a model is talked to, or why it cannot be",
        description="Shows a model's chat format as an engine would use it. Exit status: 0 if it "
        "can be used, 1 if not (stderr says why), 2 for a wrong command line.",
    )
    parser.add_argument("--hf-checkpoint", required=True, metavar="DIR", help="the model's files")
    for kind, what in (("tool-call", "calls"), ("reasoning", "reasoning")):
        parser.add_argument(
            f"--{kind}-parser",
            default="",
            metavar="NAME",
            help=f"check that this one reads back the template's own {what}",
        )
    parser.add_argument(
        "--messages",
        type=_conversation,
        default={},
        metavar="FILE",
        help="also show the first prompt of these: a JSON list of messages, or the body of a Chat "
        "Completions request",
    )
    parser.add_argument("--json", action="store_true", help="print the whole report as JSON")


def _add_trace(commands: Any) -> None:
    parser = commands.add_parser(
        "trace",
        help="say what happened in Sessions, and why they were dropped or branched",
        description="Prints the traces an engine wrote to trace_dir. Exit status: 0, 1 if nothing "
        "was found or something could not be read (stderr says what), 2 for a wrong command line.",
    )
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="rollout_<id>.jsonl files in trace_dir"
    )
    parser.add_argument(
        "--session",
        metavar="ID",
        help="only this Session: the beginning of its id, or its Group's name and its number in "
        "it, as train:group_3/0",
    )
    parser.add_argument("--dropped", action="store_true", help="only Sessions that were dropped")
    parser.add_argument("--summary", action="store_true", help="one line a Session")


def main(argv: list[str] | None = None) -> int:
    """Runs the command line and returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m relax_rollout", description=__doc__)
    parser.add_argument("--version", action="version", version=f"relax_rollout {__version__}")
    commands = parser.add_subparsers(dest="command")
    commands.add_parser("info", help="load the library and say where and what it is")
    commands.add_parser("options", help="list the options of Config")
    _add_doctor(commands)
    _add_trace(commands)
    run.add_parser(commands)
    args = parser.parse_args(argv)
    if args.command == "run":
        return run.main(args)
    if args.command == "info":
        return _info()
    if args.command == "options":
        return _options()
    if args.command == "doctor":
        return _doctor(args)
    if args.command == "trace":
        return _trace(args)
    parser.print_help()
    return 2


if __name__ == "__main__":
    sys.exit(main())
