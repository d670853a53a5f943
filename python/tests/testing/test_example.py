"""examples/pallas_kernel: the kernel passes, and a faulty copy is found and shrunk."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jax")

FOLDER = Path(__file__).parents[3] / "examples" / "pallas_kernel"
if not FOLDER.exists():
    pytest.skip("examples are not part of this tree", allow_module_level=True)


def run_pytest(folder, *words):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=500)


def test_the_kernel_passes():
    run = run_pytest(FOLDER)
    assert run.returncode == 0 and "28 passed" in run.stdout, run.stdout + run.stderr


def test_a_faulty_copy(tmp_path):
    """Without the check for -1."""
    for file in FOLDER.glob("*.py"):
        text = file.read_text().replace("row >= 0", "row >= -1")
        (tmp_path / file.name).write_text(text)
    assert "row >= -1" in (tmp_path / "kernel.py").read_text()
    run = run_pytest(tmp_path, "-k", "drawn")
    pattern = r"case=<drawn: unpermute_grad, by expert ids, float32, T=(\d+) H=(\d+)"
    found = re.search(pattern, run.stdout)
    assert run.returncode == 1 and found, run.stdout + run.stderr
    assert 1 <= int(found[1]) <= 2 and found[2] == "1", found[0]
    assert "FAILS ecosystem-2026-07" in run.stdout and "out_index = [" in run.stdout
