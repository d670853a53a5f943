"""The library's threads beside other runtimes': it brings no OpenMP, and gives PyTorch's way."""

import os
import subprocess
import sys

import pytest

WORK = """
import numpy as np
G = np.arange(512 * 1024, dtype=np.float32).reshape(512, 1024)  # 2 MiB: above what stays serial
INDEX = np.random.default_rng(0).permutation(len(G))

def numpy_call(threads=0):
    import moetoken
    rows = moetoken.unpermute_grad(G, INDEX, threads=threads)[0]
    assert (rows[INDEX] == G).all()

def torch_call():
    import torch
    import moetoken.torch
    g, index = torch.from_numpy(G), torch.from_numpy(INDEX)
    for count in (1, 3, 2):
        torch.set_num_threads(count)
        rows = moetoken.torch.unpermute_grad(g, index)[0]
        assert torch.equal(rows[index], g)
        assert torch.get_num_threads() == count
        assert float((g @ g.T[:, :1]).sum()) == float((g @ g.T[:, :1]).sum())

def runtimes():
    with open("/proc/self/maps") as maps:
        names = {line.split("/")[-1].strip() for line in maps if ".so" in line}
    return {name for name in names if name.startswith(("libgomp", "libomp", "libiomp"))}
"""


def run(code, **environment):
    found = subprocess.run(
        [sys.executable, "-c", WORK + code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_no_openmp_comes_with_the_package():
    assert run("numpy_call(); numpy_call(4); print(runtimes())") == "set()\n"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize(
    "code",
    ["numpy_call(); torch_call()", "torch_call(); numpy_call(3)"],
    ids=["moetoken first", "torch first"],
)
def test_beside_torch(code):
    """Whichever comes first: both work, with any number of threads, and one OpenMP is there."""
    pytest.importorskip("torch")
    alone = run("import torch; torch.ones(3) + 1; print(runtimes())")
    assert run(f"{code}; print(runtimes())", OMP_NUM_THREADS="2") == alone
