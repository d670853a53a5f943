"""Kernels with a planted fault: the suite finds it, and Hypothesis shrinks it to a few tokens."""

import functools

import numpy as np
import pytest
from hypothesis import find, settings
from hypothesis.errors import NoSuchExample
from kernels import library, plain_combine, plain_gradient

import moetoken.testing as mt

BY_MAP = ("dropless", "padded")
# The fault, the kernel that has it, where it shows, and the tokens that are left in the end.
FAULTS = {
    "no check for -1": (plain_gradient, "unpermute_grad", "dropless", 2),
    "holes not counted": (plain_gradient, "unpermute_grad", "dropless", 1),
    "unwritten rows": (plain_gradient, "unpermute_grad", "dropless", 1),
    "bfloat16 sums": (plain_gradient, "unpermute_grad", BY_MAP, 1),
    "pairs overwritten": (plain_gradient, "unpermute_grad", "padded", 4),
    "a weight of 0 multiplies": (plain_combine, "unpermute", "ids", 1),
}
# What the suite has no theme for, and comes upon by chance alone: a NaN in the row of a slot whose
# weight is 0, a hole before a slot that is used.
NOT_IN_SUITE = ["a weight of 0 multiplies", "holes not counted"]


def fails(kernel, case, standard="ecosystem-2026-07"):
    if "probs" not in case.inputs and "weights" not in case.inputs:
        return False
    try:
        mt.check_kernel(case, kernel, standard)
    except AssertionError:
        return True
    return False


@pytest.mark.parametrize("fault", FAULTS)
def test_found_and_shrunk(fault):
    kernel, operator, modes, most = FAULTS[fault]
    faulty = functools.partial(kernel, fault=fault)
    if fault not in NOT_IN_SUITE:
        suite = mt.cases(operator, n=108, seed=3, modes=modes)
        assert any(fails(faulty, case) for case in suite if case.tokens_num < 100)

    smallest = find(
        mt.strategy(operator, modes=modes, max_tokens=8, max_hidden=40),
        functools.partial(fails, faulty),
        settings=settings(max_examples=1000, derandomize=True, database=None),
    )
    assert fails(faulty, smallest) and not fails(kernel, smallest)
    assert 1 <= smallest.tokens_num <= most and smallest.hidden_size <= 2


def test_what_is_right_is_not_found():
    with pytest.raises(NoSuchExample):
        find(
            mt.strategy("unpermute_grad"),
            functools.partial(fails, library),
            settings=settings(max_examples=100, derandomize=True, database=None),
        )


@pytest.mark.parametrize("operator", ["unpermute_grad", "unpermute", "permute", "permute_grad"])
def test_any_flipped_output_is_found(operator):
    """A large wrong number at any place of any output."""
    rng = np.random.default_rng(0)
    for case in mt.cases(operator, n=27, seed=4):
        for name, array in case.expected().items():
            if array.size == 0:
                continue
            place = rng.integers(array.size)
            is_float = np.issubdtype(array.dtype, np.inexact) or array.dtype.kind == "V"
            wrong = {name: case.expected()[name]}
            if is_float:
                old = float(array.reshape(-1)[place])
                wrong[name].reshape(-1)[place] = 1 if not np.isfinite(old) else -2 * old - 30
            else:
                wrong[name].reshape(-1)[place] += 1
            with pytest.raises(AssertionError, match=name):
                mt.check(case, wrong, only=[name])
