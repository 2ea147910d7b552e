"""The recipes run as a reader would run them. (`make demo` runs the first one.)"""

import subprocess
import sys

import pytest
from conftest import ROOT


@pytest.mark.slow
def test_two_agents_with_credit_of_their_own(tmp_path):
    recipe = ROOT / "examples" / "train_team.py"
    done = subprocess.run(
        [sys.executable, recipe, "--steps", "5"],
        capture_output=True,
        text=True,
        timeout=180,
        cwd=tmp_path,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    assert "verified: contexts, credit and sums of every row" in done.stdout
