"""The same case file through the command-line tool and through Python: the same bits."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import moetoken
from cases import BFLOAT16, bits, make_case

ROOT = Path(__file__).parents[2]


def find_tool():
    named = os.environ.get("MOETOKEN_TOOL")
    built = sorted(ROOT.glob("build*/cli/moetoken"), key=lambda path: path.stat().st_mtime)
    return named or (str(built[-1]) if built else shutil.which("moetoken"))


TOOL = find_tool()
pytestmark = pytest.mark.skipif(TOOL is None, reason="the tool is not built (or MOETOKEN_TOOL set)")


def run_tool(tmp_path, command, arrays, suffix, **metadata):
    given, result = tmp_path / f"given{suffix}", tmp_path / f"result{suffix}"
    arrays = {name: array for name, array in arrays.items() if array is not None}
    moetoken.save(given, arrays, metadata)
    subprocess.run([TOOL, command, given, "-o", result], check=True, capture_output=True)
    return moetoken.load(result)


def assert_same(found, **expected):
    expected = {name: array for name, array in expected.items() if array is not None}
    assert set(found) == set(expected)
    for name, array in expected.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape), name
        assert bits(found[name]) == bits(array), name


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
@pytest.mark.parametrize("dtype", [np.dtype(np.float32), np.dtype(np.float16), BFLOAT16], ids=str)
@pytest.mark.parametrize("padded", [False, True], ids=["dropless", "padded"])
def test_same_bits_of_unpermute_grad(tmp_path, padded, dtype, suffix):
    case = make_case(9, padded, 21, 67, 6, 3, dtype, True, dtype == BFLOAT16)
    mode = {"drop_and_pad": str(padded).lower()}
    shape = {"restore_shape": "21,67"}
    found = run_tool(
        tmp_path,
        "unpermute-grad",
        {
            "unpermuted_tokens_grad": case.tokens,
            "out_index": case.out_index,
            "permute_token_id": case.token_id,
            "routing_map": case.routing_map,
            "permuted_tokens": case.rows,
            "probs": case.probs,
        },
        suffix,
        **mode,
        **shape,
    )
    rows, probs_grad = moetoken.unpermute_grad(
        case.tokens,
        case.out_index,
        case.token_id,
        routing_map=case.routing_map,
        permuted_tokens=case.rows,
        probs=case.probs,
        drop_and_pad=padded,
    )
    assert_same(found, permuted_tokens_grad=rows, probs_grad=probs_grad)


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
@pytest.mark.parametrize("dtype", [np.dtype(np.float32), np.dtype(np.float16), BFLOAT16], ids=str)
@pytest.mark.parametrize("padded", [False, True], ids=["dropless", "padded"])
def test_same_bits_of_the_others(tmp_path, padded, dtype, suffix):
    case = make_case(9, padded, 21, 67, 6, 3, dtype, True, dtype == BFLOAT16)
    mode = {"drop_and_pad": str(padded).lower()}
    slots_num = case.sizes[3]
    found = run_tool(
        tmp_path,
        "permute",
        {"tokens": case.tokens, "routing_map": case.routing_map, "probs": case.probs},
        suffix,
        num_out_tokens=str(slots_num),
        **mode,
    )
    rows_num = slots_num if padded else int(np.count_nonzero(case.routing_map))
    rows, row_probs, indices = moetoken.permute(
        case.tokens, case.routing_map, case.probs, slots_num, padded, rows_num=rows_num
    )
    assert_same(found, permuted_tokens=rows, permuted_probs=row_probs, sorted_indices=indices)

    found = run_tool(
        tmp_path,
        "unpermute",
        {
            "permuted_tokens": rows,
            "sorted_indices": indices,
            "routing_map": case.routing_map,
            "probs": case.probs,
        },
        suffix,
        restore_shape="21,67",
        **mode,
    )
    names = ("unpermuted_tokens", "out_index", "permute_token_id", "permuted_probs")
    results = moetoken.unpermute(
        rows, indices, routing_map=case.routing_map, probs=case.probs, drop_and_pad=padded
    )
    assert_same(found, **dict(zip(names, results)))

    found = run_tool(
        tmp_path,
        "permute-grad",
        {
            "permuted_tokens_grad": rows,
            "permuted_probs_grad": row_probs,
            "sorted_indices": indices,
            "routing_map": case.routing_map,
        },
        suffix,
        **mode,
    )
    tokens_grad, probs_grad = moetoken.permute_grad(
        rows, row_probs, indices, case.routing_map, drop_and_pad=padded
    )
    assert_same(found, tokens_grad=tokens_grad, probs_grad=probs_grad)


def test_python_m_moetoken_says_what_the_tool_says():
    for name, value in (("X", ""), ("OMP_NUM_THREADS", "1"), ("MOETOKEN_ISA", "scalar")):
        environment = {**os.environ, name: value}
        tool = [TOOL, "info"]
        package = [sys.executable, "-m", "moetoken"]
        said = [
            subprocess.run(one, check=True, capture_output=True, text=True, env=environment).stdout
            for one in (tool, package)
        ]
        assert said[1].startswith(said[0])
