"""Where the library and the agents' supervisor lie.

May enter: the package's place and the environment. Never: what is in the files.
"""

from __future__ import annotations

import os
from pathlib import Path

from .errors import LibraryError

LIBRARY_ENV = "RELAX_ROLLOUT_LIBRARY"
LIBRARY_NAME = "librelax_rollout.so"
SUPERVISOR_NAME = "relax-agent-init"


def find_library() -> Path:
    """Where the library is: the file named by RELAX_ROLLOUT_LIBRARY, else the package's own."""
    named = os.environ.get(LIBRARY_ENV)
    path = Path(named) if named else Path(__file__).with_name(LIBRARY_NAME)
    if path.is_file():
        return path
    if named:
        raise LibraryError(
            f"{LIBRARY_ENV} names {named}, which is no file; correct or unset the variable"
        )
    raise LibraryError(
        f"{path} is missing: in a source tree build it with `make lib`, "
        f"or name a built library in {LIBRARY_ENV}"
    )


def find_supervisor() -> str:
    """Where relax-agent-init is: in bin/ of the package, or beside the library in use."""
    package = Path(__file__).parent
    places = [package / "bin" / SUPERVISOR_NAME]
    if os.environ.get(LIBRARY_ENV):
        beside = Path(os.environ[LIBRARY_ENV]).absolute().parent
        places += [beside / "bin" / SUPERVISOR_NAME, beside / SUPERVISOR_NAME]
    for place in places:
        if os.access(place, os.X_OK):
            return str(place)
    raise LibraryError(
        f"{places[0]} is missing or not executable: in a source tree build it with `make lib`, "
        "or name one in the option agent_supervisor"
    )
