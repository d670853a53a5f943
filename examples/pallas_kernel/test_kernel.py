"""The kernel against the cases of `moetoken conform`, and against what Hypothesis draws."""

import hypothesis
import moetoken.testing as mt
import pytest
from kernel import unpermute_grad


def run(case):
    """permuted_tokens_grad [R, H] and weights_grad [T, K]"""
    given = case.jax()
    names = ("unpermuted_tokens_grad", "out_index", "permuted_tokens", "weights")
    return unpermute_grad(*(given[name] for name in names))


@pytest.mark.parametrize("case", mt.cases("unpermute_grad", n=27, seed=1, modes="ids"))
def test_suite(case):
    mt.check_kernel(case, run, standard="ecosystem-2026-07")


# Each new shape is compiled: few of them, and float32 alone.
drawn = mt.strategy(
    "unpermute_grad", modes="ids", dtypes="float32", index_dtypes="int32",
    max_tokens=3, max_hidden=2, max_experts=2, max_topk=2,
)  # fmt: skip


@hypothesis.settings(max_examples=30, deadline=None, database=None)
@hypothesis.given(case=drawn)
def test_drawn(case):
    mt.check(case, run(case))
