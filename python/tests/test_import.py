"""Importing the package does nothing but import."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import check_script

import relax_rollout as rr

STATUS = """
import re
def status():
    text = open("/proc/self/status").read()
    keys = ("Threads", "SigCgt", "SigIgn")
    return {k: re.search(rf"^{k}:\\s*(\\S+)", text, re.M)[1] for k in keys}
def libraries():
    return {line.split()[-1] for line in open("/proc/self/maps") if "librelax" in line}
before = status()
"""


def test_import_starts_no_thread_and_touches_no_signal():
    check_script(
        STATUS + "import relax_rollout, sys\n"
        "assert status() == before, (before, status())\n"
        "assert not libraries()\n"
        "assert 'numpy' not in sys.modules and 'ctypes' not in sys.modules, 'not lazy'"
    )


def test_using_names_without_an_engine_loads_nothing():
    # NumPy brings threads of its own; the library is what counts.
    check_script(
        STATUS + "import relax_rollout as rr\n"
        "for name in rr.__all__: getattr(rr, name)\n"
        "rr.Config(agent_command='a', agent_cwd='/')\n"
        "assert not libraries()"
    )


def test_every_public_name_exists():
    for name in rr.__all__:
        assert getattr(rr, name) is not None
    assert set(rr.__all__) <= set(dir(rr))
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = rr.no_such_name


def test_errors_share_a_base():
    named = [getattr(rr, n) for n in rr.__all__ if n.endswith("Error")]
    assert len(named) >= 12
    assert all(issubclass(e, rr.RelaxError) for e in named)


def test_ctypes_is_in_one_module_only():
    users = []
    for path in Path(rr.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in getattr(node, "names", []) if isinstance(a, ast.alias)]
            if "ctypes" in [*names, getattr(node, "module", None)]:
                users.append(path.name)
    assert users == ["_lib.py"]


def module(*arguments):
    """Runs python -m relax_rollout."""
    command = [sys.executable, "-m", "relax_rollout", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_command_line():
    assert module("--version").stdout.strip() == f"relax_rollout {rr.__version__}"
    assert "agent_timeout (finite number)" in module("options").stdout
    done = module("info")
    assert done.returncode == 0, done.stderr
    assert "librelax_rollout.so" in done.stdout
    assert "relax-agent-init" in done.stdout


def test_a_missing_library_names_the_cure(tmp_path):
    code = (
        "import relax_rollout as rr\n"
        "try: rr.Engine({'agent_command': 'true', 'agent_cwd': '/'})\n"
        "except rr.LibraryError as err: print(err)"
    )
    gone = tmp_path / "gone.so"
    assert "RELAX_ROLLOUT_LIBRARY names" in check_script(code, RELAX_ROLLOUT_LIBRARY=str(gone))
    text = tmp_path / "text.so"
    text.write_text("no library")
    assert "cannot load" in check_script(code, RELAX_ROLLOUT_LIBRARY=str(text))
    lonely = (
        "import shutil, sys; from pathlib import Path; import relax_rollout\n"
        "home = Path(sys.argv[1]); sys.path.insert(0, str(home))\n"
        "shutil.copytree(Path(relax_rollout.__file__).parent, home / 'relax_rollout',"
        " ignore=shutil.ignore_patterns('*.so', 'bin'))\n"
        "[sys.modules.pop(m) for m in list(sys.modules) if m.startswith('relax_rollout')]\n"
    )
    assert "make lib" in check_script(lonely + code, tmp_path, RELAX_ROLLOUT_LIBRARY="")


def test_loading_keeps_the_limit_of_open_files():
    check_script(
        "import resource, relax_rollout as rr\n"
        "from relax_rollout import _lib\n"
        "soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "soft = min(soft, 1000)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))\n"
        "_lib.load()\n"
        "assert resource.getrlimit(resource.RLIMIT_NOFILE) == (soft, hard)"
    )
