"""For people who write kernels of these operators: cases, golden results, precision standards.

The cases of ``moetoken conform``, in pytest::

    import moetoken.testing as mt
    import pytest

    @pytest.mark.parametrize("case", mt.cases("unpermute_grad", n=200, seed=1))
    def test_kernel(case):
        mt.check_kernel(case, my_kernel, standard="ecosystem-2026-07")

and, with Hypothesis, cases that shrink to a few tokens::

    @hypothesis.given(case=mt.strategy("unpermute_grad"))
    def test_kernel(case):
        mt.check(case, my_kernel(case))

Nothing here needs the tool, the device or the library's own operators: golden results come from
exact products and sums of some hundred bits, computed with NumPy.
"""

from ._case import Case, load
from ._cases import cases
from ._check import check, check_kernel
from ._strategy import strategy

__all__ = ["Case", "cases", "check", "check_kernel", "load", "strategy"]
