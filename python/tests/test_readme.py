"""The README's examples, taken out of it and run as a reader would run them."""

import os
import re
import shutil
import subprocess
import sys

import pytest
from conftest import AGENTS, CACHE, ROOT

README = ROOT / "README.md"


def blocks(language):
    """The README's code blocks in a language, first to last."""
    return re.findall(rf"^```{language}\n(.*?)^```", README.read_text(), re.S | re.M)


def test_the_python_example(tmp_path):
    program = tmp_path / "example.py"
    program.write_text(blocks("python")[0])
    done = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("Batch(rollout_id=0, rows=4, tokens="), done.stdout
    rewards = [float(line.split()[0]) for line in lines[-4:]]
    assert set(rewards) <= {0.0, 1.0}, done.stdout


def test_the_go_example(tmp_path):
    """A module outside this one, with a replace line, built offline from the module cache."""
    go = os.environ.get("GO") or shutil.which("go")
    if go is None:
        pytest.skip("NO GO on this machine: the README's Go example was not compiled")
    (tmp_path / "main.go").write_text(blocks("go")[0])
    agent = tmp_path / "my_agent" / "agent.py"
    agent.parent.mkdir()
    shutil.copy(AGENTS / "plain.py", agent)
    shutil.copy(ROOT / "go.sum", tmp_path)
    # The Makefile's caches, also where pytest was started by hand.
    environment = {
        "GOMODCACHE": str(CACHE / "go" / "mod"),
        "GOCACHE": str(CACHE / "go" / "build"),
        **os.environ,
        "GOFLAGS": "-mod=mod -modcacherw",
        "GOPROXY": "off",
    }

    def run(*command):
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=300, cwd=tmp_path, env=environment
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    module = "github.com/relax-rollout/relax-rollout"
    run(go, "mod", "init", "example.com/reader")
    run(go, "mod", "edit", f"-require={module}@v0.0.0", f"-replace={module}={ROOT}")
    run(go, "vet", ".")
    run(go, "build", "-o", "example", ".")
    assert run(tmp_path / "example").startswith("4 rows: [")


def test_the_other_python_blocks_compile():
    for block in blocks("python")[1:]:
        compile(block, str(README), "exec")


def test_the_option_table_names_real_options():
    from relax_rollout.config import describe_options

    known = {name for name, _, _ in describe_options()}
    table = README.read_text().split("## Options")[1].split("\n## ")[0]
    cells = re.findall(r"^\| (`.*?) \|", table, re.M)
    named = {name for cell in cells for name in re.findall("`(.*?)`", cell)}
    assert len(named) >= 15
    assert named <= known, named - known


def test_the_column_table_is_complete():
    from relax_rollout import Batch

    table = README.read_text().split("| column | type |")[1].split("\n\n")[0]
    rows = re.findall(r"^\| (`.*?) \| (.*?) \|", table, re.M)
    types = {}
    for names, kinds in rows:
        columns = re.findall("`(.*?)`", names)
        # One type for all the columns of a line, or one each.
        each = kinds.split(", ") if "," in kinds else [kinds] * len(columns)
        types.update(zip(columns, each, strict=True))
    empty = Batch.empty(0)
    assert types == {name: str(empty.numpy(name).dtype) for name in empty.names}
