"""The library's own operators through 200 cases of each, as anybody's kernel."""

import pytest
from kernels import library, plain_combine, plain_gradient

import moetoken.testing as mt

OPERATORS = ["unpermute_grad", "unpermute", "permute", "permute_grad"]


@pytest.mark.parametrize("operator", OPERATORS)
def test_suite(operator):
    cases = mt.cases(operator, n=200, seed=7)
    for case in cases:
        mt.check_kernel(case, library)
        copies = ["permuted_tokens", "sorted_indices"] if operator == "permute" else []
        if copies:
            mt.check(case, library(case), "bits", only=copies)
    assert {case.mode for case in cases} == {"dropless", "padded", "ids"}


def test_gradients_are_rounded_once():
    """probs_grad is the correctly rounded sum; float32 rows are, too."""
    for case in mt.cases("unpermute_grad", n=60, seed=8, dtypes="float32"):
        mt.check(case, library(case), ["bits", "ulp:0.5", "ecosystem-2026-04", "msprobe"])


@pytest.mark.parametrize("operator", OPERATORS)
def test_float64(operator):
    for case in mt.cases(operator, n=54, seed=9, dtypes="f64"):
        mt.check(case, library(case))


def test_plain_kernels():
    """They are right, so that what the tests of faults find is the fault."""
    for case in mt.cases("unpermute_grad", n=60, seed=2, modes=["dropless", "padded"]):
        if "probs" in case.inputs and case.tokens_num < 100:
            mt.check_kernel(case, plain_gradient)
    for case in mt.cases("unpermute", n=30, seed=2, modes="ids"):
        if case.tokens_num < 100:
            mt.check(case, plain_combine(case))
