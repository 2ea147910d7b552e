"""The wheel: one for every CPython 3 of the platform, complete, and usable in a clean venv."""

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT

import relax_rollout as rr
from relax_rollout.native_files import find_library, find_supervisor

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    out = tmp_path_factory.mktemp("dist")
    source = tmp_path_factory.mktemp("source")
    # A copy, so that build directories do not land in the tree.
    for name in ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, source)
    shutil.copytree(
        ROOT / "python" / "relax_rollout",
        source / "python" / "relax_rollout",
        ignore=shutil.ignore_patterns("__pycache__", "*.so", "bin"),
    )
    # The binaries under test, wherever they are.
    package = source / "python" / "relax_rollout"
    (package / "bin").mkdir()
    shutil.copy(find_library(), package / "librelax_rollout.so")
    shutil.copy(find_supervisor(), package / "bin" / "relax-agent-init")
    if not (source / "README.md").exists():
        (source / "README.md").write_text("Relax Rollout\n")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, source]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "RELAX_ROLLOUT_PREBUILT": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return next(out.glob("*.whl"))


def test_tag_and_contents(wheel):
    assert wheel.name.startswith(f"relax_rollout-{rr.__version__}-py3-none-linux_")
    with zipfile.ZipFile(wheel) as z:
        names = set(z.namelist())
        init = z.getinfo("relax_rollout/bin/relax-agent-init")
        metadata = z.read(next(n for n in names if n.endswith("METADATA"))).decode()
    assert {"relax_rollout/librelax_rollout.so", "relax_rollout/py.typed"} <= names
    assert "relax_rollout/relax/__init__.py" in names, "the trainer's drop-in"
    assert init.external_attr >> 16 & 0o111, "not executable"
    assert not [n for n in names if n.endswith(".h") or "tests" in n]
    assert "Requires-Python: >=3.10" in metadata
    needs = [line for line in metadata.splitlines() if line.startswith("Requires-Dist")]
    assert [line for line in needs if "extra ==" not in line] == ["Requires-Dist: numpy>=1.22"]


def test_a_clean_venv_runs_a_rollout(wheel, tmp_path):
    # Without PYTHONPATH: pip takes an egg-info that lies there for the installed package.
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "RELAX_"))}
    home = tmp_path / "venv"
    venv.create(home, with_pip=True)
    python = home / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel]
    subprocess.run(install, check=True, timeout=120, env=environment)
    # NumPy is lent by this environment, so that the test needs no network.
    lent = tmp_path / "lent"
    lent.mkdir()
    for part in Path(np.__file__).parent.parent.glob("numpy*"):
        (lent / part.name).symlink_to(part)
    (tmp_path / "agent.py").write_text((Path(__file__).parent / "agents" / "plain.py").read_text())
    script = """
import os, sys, relax_rollout as rr
assert "venv" in rr.__file__, rr.__file__
with rr.Engine(dict(agent_command=f"exec {sys.executable} agent.py", agent_cwd=os.getcwd(),
                    simulator={"policy": {"default": [{"text": "fine"}]}})) as engine:
    print(len(engine.rollout(0, ["hello"])))
"""
    done = subprocess.run(
        [python, "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": str(lent)},
    )
    assert done.stdout == "1\n", done.stderr


def test_a_missing_binary_is_named(tmp_path):
    shutil.copy(ROOT / "setup.py", tmp_path)
    (tmp_path / "python" / "relax_rollout").mkdir(parents=True)
    done = subprocess.run(
        [sys.executable, "setup.py", "build_ext"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        env={**os.environ, "RELAX_ROLLOUT_PREBUILT": "1"},
    )
    assert done.returncode != 0
    assert "lacks librelax_rollout.so, bin/relax-agent-init: run `make lib`" in done.stderr
