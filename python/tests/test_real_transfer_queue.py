"""The drop-in with the real TransferQueue: put, read back by its sampler, production check.

It runs in an environment of its own (`make test-queue`), because torch and Ray are gigabytes.
"""

import os
import subprocess
import sys

import pytest
from conftest import CACHE, TESTS


def queue_python():
    named = os.environ.get("RELAX_TRANSFERQUEUE_PYTHON")
    python = named or str(CACHE / "transferqueue" / "bin" / "python")
    if os.access(python, os.X_OK):
        return python
    if named:
        pytest.fail(f"RELAX_TRANSFERQUEUE_PYTHON: {named} cannot be run")
    why = "TransferQueue is not installed: `make test-queue` installs it and runs this test"
    print(f"\nSKIPPED LOUDLY: {why}", file=sys.stderr)
    pytest.skip(why)


@pytest.mark.slow
def test_rows_go_through_the_real_queue():
    done = subprocess.run(
        [queue_python(), "real_transfer_queue.py"],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=TESTS,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-6000:]}"
    assert "checked 24 rows" in done.stdout
