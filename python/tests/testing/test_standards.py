"""The standards on both sides of each limit, by figures worked by hand."""

import ml_dtypes
import numpy as np
import pytest

import moetoken.testing as mt
from moetoken.testing import _standards

TYPES = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
STANDARDS = ["ecosystem-2026-04", "ecosystem-2026-07", "msprobe", "bits", "ulp:1000000"]


def passes(standard, dtype, actual, golden, count=None):
    """The given numbers, and right ones to make `count`."""
    rest = [] if count is None else [golden[-1]] * (count - len(golden))
    array = np.array([*actual, *rest], np.float64).astype(TYPES[dtype])
    return _standards.judge(standard, array, np.array([*golden, *rest], np.float64)).passed


# The standard, the type, the number beside a golden one that passes, and the one that does not,
# among so many elements of which all others are right.
LIMITS = [
    # MERE below 2^-13, 2^-10, 2^-7; at |golden| = 1 the 1e-7 beside it keeps equality below
    ("ecosystem-2026-04", "f32", 1, 1 + 2**-13, 1 + 2**-13 + 2**-23, 1),
    ("ecosystem-2026-04", "f16", 1, 1 + 2**-10, 1 + 2 * 2**-10, 1),
    ("ecosystem-2026-04", "bf16", 1, 1 + 2**-7, 1 + 2 * 2**-7, 1),
    # MARE below ten times that, with a small mean
    ("ecosystem-2026-04", "f32", 1, 1 + 10 * 2**-13, 1 + 10 * 2**-13 + 2**-20, 100),
    ("ecosystem-2026-04", "f16", 1, 1 + 10 * 2**-10, 1 + 11 * 2**-10, 100),
    ("ecosystem-2026-04", "bf16", 1, 1 + 10 * 2**-7, 1 + 11 * 2**-7, 100),
    # atol + rtol for 99 %: two of 199 are too many
    ("ecosystem-2026-07", "f32", 1, 1 + 2**-10 + 2**-16, 1 + 2**-10 + 2**-16 + 2**-23, 1),
    ("ecosystem-2026-07", "f16", 1, 1 + 2**-8, 1 + 2**-8 + 2**-10, 1),
    ("ecosystem-2026-07", "bf16", 1, 1 + 2**-5, 1 + 2**-5 + 2**-7, 1),
    # 0.01, 0.1 and 1 anywhere, or 32 ulp: those of 2^20 in float32 are 4
    ("ecosystem-2026-07", "f32", 1, 1.0099, 1.0101, 100),
    ("ecosystem-2026-07", "f16", 1, 1 + 102 * 2**-10, 1 + 103 * 2**-10, 100),
    ("ecosystem-2026-07", "bf16", 1, 2, 2 + 2**-6, 100),
    ("ecosystem-2026-07", "f32", 2**20, 2**20 + 4, 2**20 + 4.125, 100),
    # the largest error at most 1
    ("msprobe", "f32", 100, 101, 101.0001, 3),
    ("ulp:2", "f32", 1, 1 + 2 * 2**-23, 1 + 3 * 2**-23, 1),
    ("ulp:.5", "f32", 1 + 2**-24, 1, 1 - 2**-24, 1),
    ("bits", "f32", 1, 1, 1 + 2**-23, 1),
    ("bits", "f32", 0, 0, -0.0, 1),
]


@pytest.mark.parametrize("standard, dtype, golden, inside, beyond, count", LIMITS)
def test_both_sides(standard, dtype, golden, inside, beyond, count):
    assert passes(standard, dtype, [inside], [golden], count)
    assert not passes(standard, dtype, [beyond], [golden], count)


def test_shares():
    """99 % within tolerance; 60 % within a thousandth."""
    wrong, right = 1.002, 1
    assert passes("ecosystem-2026-07", "f32", [wrong], [1], 100)
    assert not passes("ecosystem-2026-07", "f32", [wrong, wrong], [1, 1], 199)
    assert passes("msprobe", "f32", 2 * [wrong] + 3 * [right], 5 * [1])
    assert not passes("msprobe", "f32", 3 * [wrong] + 4 * [right], 7 * [1])


def test_cosine():
    """(1, 1, 1, b) to (1, 1, 1, 0): sqrt(3 / (3 + b^2)), which is 0.99 at b = 0.2468."""
    assert passes("msprobe", "f32", [1, 1, 1, 0.246], [1, 1, 1, 0])
    assert not passes("msprobe", "f32", [1, 1, 1, 0.248], [1, 1, 1, 0])
    tiny = [1e-5, 1e-5, 1e-5, 0]  # errors below 0.001: 0.9 will do, which is b = 0.839
    assert passes("msprobe", "f32", [*tiny[:3], 0.83e-5], tiny)
    assert not passes("msprobe", "f32", [*tiny[:3], 0.85e-5], tiny)


@pytest.mark.parametrize("standard", STANDARDS)
def test_no_nan_passes_where_a_number_belongs(standard):
    nan, inf = np.nan, np.inf
    for actual, golden in ([nan], [1]), ([1], [nan]), ([inf], [1]), ([inf], [-inf]), ([nan], [inf]):
        assert not passes(standard, "f32", actual, golden)
        assert not passes(standard, "f32", actual, golden, 1000)
    for values in [nan], [inf], [-inf], [nan, 1, inf]:
        assert passes(standard, "f32", values, values)
    assert passes(standard, "f16", [inf], [70000.0])  # beyond float16: it rounds so
    assert not passes(standard, "f32", [0, 0], [0, 1e30])


def test_whole_numbers():
    a = np.array([1, -1, 2**62 + 1])
    for standard in STANDARDS:
        assert _standards.judge(standard, a, a).passed
        assert not _standards.judge(standard, a, a + [0, 0, 1]).passed


@pytest.mark.parametrize("name", ["ecosystem", "ulp:", "ulp:-1", "ulp:1e3", "ulp:inf", "", "atk"])
def test_other_names(name):
    case = mt.cases("permute", n=1)[0]
    with pytest.raises(ValueError, match="expected one of ecosystem-2026-04, ecosystem-2026-07, "):
        mt.check(case, case.expected(), name)
    with pytest.raises(ValueError, match="no standard is given"):
        mt.check(case, case.expected(), [])
