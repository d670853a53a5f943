"""From what was measured to the figures of a standard, each beside its limit.

Names, formulas and limits are those of `moetoken compare --standard list`, as far as they need no
third party's results. What holds for all of them: the limits are those of the output's type; NaN
or infinity where the golden result has something else is a difference, and none is allowed; a
figure that is NaN fails; integers and bools must be equal.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Callable, Optional, Sequence, Union

import numpy as np

from ._measure import Measure, Peak, limits_of, measure, ulps_of

__all__ = ["Figure", "Judgement", "judge", "standards"]

_RELATIONS: dict[str, Callable[[float, float], bool]] = {
    "<=": lambda value, limit: value <= limit,
    "<": lambda value, limit: value < limit,
    ">=": lambda value, limit: value >= limit,
    "": lambda value, limit: True,  # informs
}


@dataclass(frozen=True)
class Figure:
    """A number beside its limit."""

    name: str
    value: float
    relation: str = ""
    limit: float = 0.0

    @property
    def passed(self) -> bool:
        return _RELATIONS[self.relation](self.value, self.limit)


@dataclass
class Judgement:
    """An output by one standard. worst: the element that the standard minds most, or -1."""

    standard: str
    figures: list[Figure] = field(default_factory=list)
    worst: int = -1

    @property
    def passed(self) -> bool:
        return all(figure.passed for figure in self.figures)

    def add(self, name: str, value: float, relation: str = "", limit: float = 0.0) -> None:
        self.figures.append(Figure(name, float(value), relation, float(limit)))

    def mind(self, peak: Peak) -> None:
        """The worst element, unless there is a worse one already."""
        if self.worst < 0:
            self.worst = peak.element


def _ecosystem_2026_04(found: Judgement, m: Measure, dtype: str, _: str) -> None:
    limit = limits_of(dtype).relative
    found.add("MERE", m.relative_mean, "<", limit)
    found.add("MARE", m.relative.size, "<", 10 * limit)
    found.mind(m.relative)


def _ecosystem_2026_07(found: Judgement, m: Measure, dtype: str, _: str) -> None:
    matched = (m.finite - m.intolerant) / m.finite if m.finite else 1.0
    ulps = 32 * float(ulps_of(dtype, np.array([m.golden_at_absolute]))[0])
    limit = max(limits_of(dtype).absolute, ulps)
    found.add("matched ratio", matched, ">=", 0.99)
    found.add("largest absolute error", m.absolute.size, "<=", limit)
    found.add("elements outside tolerance", m.intolerant)
    if m.absolute.size > limit:
        found.mind(m.absolute)
    found.mind(m.intolerance)
    found.mind(m.absolute)


def _msprobe(found: Judgement, m: Measure, _: str, __: str) -> None:
    largest, finite = m.rounded_absolute.size, m.finite
    found.add("cosine", m.cosine, ">=", 0.99 if largest > 0.001 else 0.9)
    found.add("largest absolute error", largest, "<=", 1)
    found.add("within one thousandth", m.within_thousandth / finite if finite else 1, ">=", 0.6)
    found.add("within five thousandths", m.within_five_thousandths / finite if finite else 1)
    found.add("largest relative error", m.rounded_relative.size)
    found.mind(m.rounded_absolute)


def _bits(found: Judgement, m: Measure, _: str, __: str) -> None:
    found.add("elements with other bits", m.unequal, "<=", 0)
    if m.is_float:
        found.add("largest error in ulp", m.unequal_ulps.size)
    found.mind(m.unequal_ulps)
    if found.worst < 0:  # -0 for 0
        found.worst = m.first_unequal


def _ulp(found: Judgement, m: Measure, _: str, name: str) -> None:
    found.add("largest error in ulp", m.ulps.size, "<=", float(name.partition(":")[2]))
    found.mind(m.ulps)


def _integers(found: Judgement, m: Measure) -> None:
    found.add("elements that differ", m.wrong_integers, "<=", 0)
    found.add("largest difference", m.integer_error.size)
    found.mind(m.integer_error)


_RULES: dict[str, Callable[[Judgement, Measure, str, str], None]] = {
    "ecosystem-2026-04": _ecosystem_2026_04,
    "ecosystem-2026-07": _ecosystem_2026_07,
    "msprobe": _msprobe,
    "bits": _bits,
}


def _rule(name: str) -> Optional[Callable[[Judgement, Measure, str, str], None]]:
    if re.fullmatch(r"ulp:(\d+\.?\d*|\.\d+)", name):
        return _ulp
    return _RULES.get(name)


def standards(names: Union[str, Sequence[str]]) -> list[str]:
    """Names, also several in one string with commas; ValueError for one that is no standard."""
    found = names.split(",") if isinstance(names, str) else list(names)
    for name in found:
        if _rule(name) is None:
            expected = ", ".join([*_RULES, "ulp:N"])
            raise ValueError(f"standard is {name!r}, expected one of {expected}")
    if not found:
        raise ValueError(f"no standard is given, expected some of {', '.join([*_RULES, 'ulp:N'])}")
    return found


def judge(
    standard: str, values: np.ndarray, golden: np.ndarray, rounded: Optional[np.ndarray] = None
) -> Judgement:
    """An array against a golden one of its shape; both of floating-point types, or neither.

    `rounded` is the golden result in the type of `values`, if it is known.
    """
    found = Judgement(standard)
    measured = measure(values, golden, rounded)
    rule = _rule(standard)
    assert rule is not None
    if not measured.is_float and rule is not _bits:
        _integers(found, measured)
        return found
    if measured.is_float:
        found.add("misplaced NaN or Inf", measured.misplaced, "<=", 0)
        found.worst = measured.first_misplaced
    rule(found, measured, values.dtype.name, standard)
    return found
