"""What type checkers see: the documentation's examples, and a user's own lines, under --strict."""

import subprocess
import sys
from pathlib import Path

import pytest
from test_docs import sections

pytest.importorskip("mypy")

HEADS = {"NumPy": "", "PyTorch": "torch", "JAX": "jax"}

# Lines that a checker must take, and lines, marked, that it must not.
USER = {
    "NumPy": """
import numpy as np
import moetoken.testing as mt

def kernel(case: mt.Case) -> dict[str, np.ndarray]:
    given: np.ndarray = case.inputs["out_index"]
    return case.blank() if case.rows_num and given.size else case.expected()

for case in mt.cases("unpermute_grad", n=3, seed=1, modes=["dropless"], dtypes="float32"):
    mt.check_kernel(case, kernel, standard=["bits", "ulp:2"], only=("probs_grad",))
    mt.check(case, (case.expected()["probs_grad"],), standard="msprobe")
    case.save("case.npz")
    text: str = mt.load("case.npz").description
    drawn = mt.strategy("permute", modes="ids", max_tokens=4)
    mt.check(case)  # refused
    mt.check_kernel(case, kernel(case))  # refused
    mt.cases("permute", n="9")  # refused
    case.rows_num = 3  # refused
""",
    "PyTorch": """
import torch
import moetoken.torch as mt

def check(x: torch.Tensor, m: torch.Tensor, p: torch.Tensor, n: torch.Tensor) -> None:
    mt.permute(x, m, p)[1].sum()
    mt.permute(x, m, probs=p, num_out_tokens=4)[1].sum()
    mt.permute(x, m)[1].sum()  # refused
    mt.unpermute_grad(x, n, routing_map=m, permuted_tokens=x, probs=p)[1].sum()
    mt.unpermute_grad(x, n)[0].sum()
    mt.unpermute_grad(x, n)[1].sum()  # refused
    mt.unpermute_grad(x, n, probs=p, output_mask=(False, True))[0].sum()  # refused
    mt.permute_grad(x, p, n, m)[1].sum()
    mt.permute_grad(x, None, n, m)[1].sum()  # refused
""",
    "JAX": """
import jax
import moetoken.jax as mj

def check(x: jax.Array, m: jax.Array, p: jax.Array, n: jax.Array) -> None:
    mj.permute(x, m, p, 4)[1].sum()
    mj.permute(x, m, num_out_tokens=4)[1].sum()  # refused
    mj.unpermute_grad(x, n, routing_map=m, permuted_tokens=x, probs=p)[1].sum()
    mj.unpermute_grad(x, n)[1].sum()  # refused
    mj.permute_grad(None, p, n, m)[0].sum()  # refused
""",
}


def test_strict(tmp_path):
    """One run for all, as a checker's time goes into reading the frameworks."""
    files, expected = [], set()
    for title, blocks in sections():
        framework = HEADS.get(title)
        if framework is None or (framework and not _is_here(framework)):
            continue
        document = tmp_path / f"document_{title}.py"
        document.write_text("\n".join(code for code, _ in blocks))
        user = tmp_path / f"user_{title}.py"
        user.write_text(USER.get(title, ""))
        files += [document, user]
        lines = user.read_text().splitlines()
        expected |= {
            f"{user.name}:{i}" for i, line in enumerate(lines, 1) if line.endswith("# refused")
        }
    assert files
    run = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context",
         "--cache-dir", tmp_path / "cache", "--config-file", "", *files],
        capture_output=True, text=True, cwd=tmp_path, timeout=600,
    )  # fmt: skip
    parts = (line.partition(": error:") for line in run.stdout.splitlines())
    found = {place for place, error, _ in parts if error}
    assert found == expected, run.stdout + run.stderr


def _is_here(framework):
    try:
        __import__(framework)
    except ImportError:
        return False
    return True


def test_the_marker_lies_in_the_package():
    import moetoken

    assert (Path(moetoken.__file__).parent / "py.typed").exists()
