"""Golden results against exact fractions, the contract's worked example, and rounding by hand."""

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import moetoken.testing as mt
from moetoken.testing._exact import round_once

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
# Precision, exponent of the smallest normal number, largest exponent.
FORMATS = {"float32": (24, -126, 127), "float16": (11, -14, 15), "bfloat16": (8, -126, 127),
           "float64": (53, -1022, 1023)}  # fmt: skip


def rounded(value, dtype):
    """The nearest number of the type to a fraction, ties to even, as a float."""
    precision, least, most = FORMATS[dtype]
    if value == 0:
        return 0.0
    exponent = abs(value.numerator).bit_length() - value.denominator.bit_length()
    exponent -= abs(value) < Fraction(2) ** exponent
    unit = Fraction(2) ** (max(exponent, least) - precision + 1)
    whole = round(value / unit)  # ties to even
    if abs(whole * unit) >= Fraction(2) ** (most + 1):
        return math.copysign(math.inf, value)
    return float(whole * unit)


def fractions(array):
    return [[Fraction(float(x)) for x in row] for row in array]


def drawn(operator, *dtypes):
    """Finite ones. float64's subnormals are left out, whose products no pair of float64 holds."""
    sizes = {"max_tokens": 5, "max_hidden": 6, "max_experts": 4}
    return mt.strategy(operator, modes="ids", dtypes=dtypes, **sizes).filter(
        lambda case: all(np.isfinite(array.astype(float)).all() for array in case.inputs.values())
        and not ("float64" in case.description and "subnormals" in case.description)
    )


def assert_rounded(case, name, exact):
    found = case.expected()[name]
    dtype = found.dtype.name
    expected = [[rounded(value, dtype) for value in row] for row in exact]
    expected = np.array(expected, float).reshape(found.shape)
    assert np.array_equal(found.astype(float), expected), (case, name)


@given(case=drawn("unpermute", "float32", "float16", "bfloat16", "float64"))
def test_sums_are_rounded_once(case):
    x, weights = fractions(case.inputs["permuted_tokens"]), fractions(case.inputs["weights"])
    sums = [[Fraction(0)] * case.hidden_size for _ in range(case.tokens_num)]
    for slot, row in enumerate(case.inputs["sorted_indices"]):
        if row >= 0:
            token, k = divmod(slot, case.topk)
            for h in range(case.hidden_size):
                sums[token][h] += weights[token][k] * x[row][h]
    assert_rounded(case, "unpermuted_tokens", sums)


@given(case=drawn("unpermute_grad", "float32", "float16", "bfloat16"))
def test_products_and_dots_are_rounded_once(case):
    g, x = (fractions(case.inputs[name]) for name in ("unpermuted_tokens_grad", "permuted_tokens"))
    weights = fractions(case.inputs["weights"])
    rows = [[Fraction(0)] * case.hidden_size for _ in x]
    dots = [[Fraction(0)] * case.topk for _ in range(case.tokens_num)]
    for slot, row in enumerate(case.inputs["out_index"]):
        if row >= 0:
            token, k = divmod(slot, case.topk)
            rows[row] = [weights[token][k] * value for value in g[token]]
            dots[token][k] = sum((a * b for a, b in zip(x[row], g[token])), Fraction(0))
    assert_rounded(case, "permuted_tokens_grad", rows)
    assert_rounded(case, "weights_grad", dots)


@given(
    st.sampled_from(["float32", "float16", "bfloat16"]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(-4, 4),
)
def test_round_once(dtype, value, halves):
    """Numbers next to a tie of the type, where rounding twice goes wrong."""
    precision = FORMATS[dtype][0]
    with np.errstate(all="ignore"):
        near = float(round_once(np.array([value]), dtype)[0])
    if not math.isfinite(near) or near == 0:
        return
    tie = near * (1 + 2.0**-precision)
    high, low = tie, halves * math.ulp(tie) / 16
    if Fraction(high) + Fraction(low) == 0:
        return
    with np.errstate(over="ignore"):
        found = round_once(np.array([high]), dtype, np.array([low]))
    assert float(found[0]) == rounded(Fraction(high) + Fraction(low), dtype)


def test_the_worked_example(tmp_path):
    """Section 2 of the contract, also through a file."""
    g, x = np.array([[1, 2], [3, 4], [5, 6]]), np.arange(1, 11).reshape(5, 2)
    probs = np.array([[0.5, 0, 2], [0, 4, 0], [8, 16, 0]])
    case = mt.Case(
        "unpermute_grad", "dropless", "worked", {
            "unpermuted_tokens_grad": g.astype(np.float32),
            "out_index": np.array([0, 4, 2, -1, 1, 3]),
            "permute_token_id": np.array([0, 0, 1, 1, 2, 2]),
            "permuted_tokens": x.astype(np.float32),
            "routing_map": probs != 0,
            "probs": probs.astype(np.float32),
        },
        {"drop_and_pad": False, "restore_shape": (3, 2), "num_out_tokens": 6, "tokens_num": 3,
         "experts_num": 3, "topK_num": 2}, "by hand", "",
    )  # fmt: skip
    case.save(tmp_path / "case.safetensors")
    for one in (case, mt.load(tmp_path / "case.safetensors")):
        assert one.expected()["permuted_tokens_grad"].tolist() == [
            [0.5, 1], [40, 48], [12, 16], [80, 96], [2, 4]
        ]  # fmt: skip
        assert one.expected()["probs_grad"].tolist() == [[5, 0, 29], [0, 39, 0], [39, 83, 0]]


@pytest.mark.parametrize("mode", ["dropless", "padded", "ids"])
def test_permute_and_back(mode):
    """permute_grad of permute's own rows: each token as often as it has rows."""
    for case in mt.cases("permute", n=27, seed=6, modes=mode, dtypes="f64"):
        if not np.isfinite(case.inputs["tokens"]).all():
            continue
        sent = case.expected()
        back = mt.Case("permute_grad", mode, "back", {
            "permuted_tokens_grad": sent["permuted_tokens"],
            "sorted_indices": sent["sorted_indices"],
        }, case.attributes, "", "")  # fmt: skip
        if mode == "padded":
            times = np.bincount(sent["sorted_indices"], minlength=case.tokens_num)
        else:
            used = sent["sorted_indices"].reshape(case.tokens_num, case.topk) >= 0
            times = used.sum(axis=1)
        expected = times[:, None] * case.inputs["tokens"]
        assert np.allclose(back.expected()["tokens_grad"], expected, rtol=1e-15, atol=0)
