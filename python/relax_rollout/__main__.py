"""``python -m relax_rollout``: what is installed, and what can be configured."""

from __future__ import annotations

import argparse
import sys

from . import __version__


def _info() -> int:
    from . import _lib
    from .errors import LibraryError

    print(f"relax_rollout {__version__} (Python {sys.version.split()[0]})")
    try:
        library = _lib.load()
        print(f"library    {library.path}")
        print(f"build      {library.build_info()}")
        print(f"supervisor {_lib.find_supervisor()}")
    except LibraryError as err:
        print(err, file=sys.stderr)
        return 1
    return 0


def _options() -> int:
    from .config import describe_options

    for name, kind, doc in describe_options():
        print(f"{name} ({kind})\n    {doc}")
    return 0


def main(argv: list[str] | None = None) -> int:
    """Runs the command line and returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m relax_rollout", description=__doc__)
    parser.add_argument("--version", action="version", version=f"relax_rollout {__version__}")
    commands = parser.add_subparsers(dest="command")
    commands.add_parser("info", help="load the library and say where and what it is")
    commands.add_parser("options", help="list the options of Config")
    args = parser.parse_args(argv)
    if args.command == "info":
        return _info()
    if args.command == "options":
        return _options()
    parser.print_help()
    return 2


if __name__ == "__main__":
    sys.exit(main())
