"""The cases of a suite, the same as those of `moetoken conform`."""

from __future__ import annotations

import operator as _operator
from typing import Any, Sequence, Union

from ._case import Case, operator_name
from ._problem import MODES
from ._suite import Suite, draw_problem, theme_of
from ._types import FLOATS, INDICES, MAPS, choices

__all__ = ["DTYPES", "INDEX_DTYPES", "MAP_DTYPES", "cases", "modes_of"]

DTYPES = ("float32", "float16", "bfloat16")
INDEX_DTYPES = ("int32", "int32", "int64")  # what comes twice is drawn twice as often
MAP_DTYPES = ("bool", "bool", "int8", "uint8")


def modes_of(modes: Union[str, Sequence[str]]) -> tuple[str, ...]:
    found = tuple(modes.split(",")) if isinstance(modes, str) else tuple(modes)
    for mode in found:
        if mode not in MODES:
            raise ValueError(f"modes has {mode!r}, expected some of {', '.join(MODES)}")
    if not found:
        raise ValueError(f"modes is empty, expected some of {', '.join(MODES)}")
    return found


def _number(name: str, value: Any, end: int) -> int:
    found = _operator.index(value)
    if not 0 <= found < end:
        raise ValueError(f"{name} = {found}, expected at least 0 and below {end}")
    return found


def _source(suite: Suite, number: int) -> str:
    """The expression that makes the case again."""
    words = [f'"{suite.operator}"', f"n={number + 1}", f"seed={suite.seed}"]
    for name, given, usual in (
        ("modes", suite.modes, MODES),
        ("dtypes", suite.token_types, DTYPES),
        ("index_dtypes", suite.index_types, INDEX_DTYPES),
        ("map_dtypes", suite.map_types, MAP_DTYPES),
    ):
        if given != usual:
            words.append(f"{name}={list(given)}")
    return f"moetoken.testing.cases({', '.join(words)})[{number}]"


def _make(suite: Suite, number: int) -> Case:
    problem = draw_problem(suite, number)
    name = f"{number:03d}-{theme_of(number)}-{problem.mode}-{problem.token_type}"
    return Case._of_problem(problem, name, _source(suite, number))


def cases(
    operator: str,
    n: int = 270,
    seed: int = 1,
    *,
    modes: Union[str, Sequence[str]] = MODES,
    dtypes: Any = DTYPES,
    index_dtypes: Any = INDEX_DTYPES,
    map_dtypes: Any = MAP_DTYPES,
) -> list[Case]:
    """Cases 0 to n - 1 of a seed, the same ones as ``moetoken conform --seed`` makes.

    Each case has a theme in turn - holes, no slot, one expert with all rows, K = 1, E = 1, H = 1,
    odd H, fewer rows than slots, a capacity, -0, subnormals, NaN, Inf, weights of 0, huge weights,
    skew, a pair twice, thousands of tokens or columns, no token -, and all else is drawn at random,
    with the values that CANN's commercial standard asks for. 270 are ten of each theme.

    Parameters
    ----------
    operator : "unpermute_grad", "unpermute", "permute" or "permute_grad".
    n, seed : how many, and of which seed; case i is the same whatever n is.
    modes : some of "dropless", "padded" and "ids".
    dtypes : of tokens: some of "float32", "float16", "bfloat16" and "float64". bfloat16 needs the
        package ml_dtypes.
    index_dtypes, map_dtypes : of "int32", "int64"; of "bool", "int8", "uint8". A type that is given
        twice is drawn twice as often.

    Raises
    ------
    ValueError
        There is no such operator, mode or type.

    Examples
    --------
    >>> import moetoken
    >>> case = moetoken.testing.cases("unpermute_grad", n=6, seed=1, dtypes=["float32"])[5]
    >>> case.name
    '005-dropped-dropless-float32'
    >>> list(case.expected())
    ['permuted_tokens_grad', 'probs_grad']
    """
    suite = Suite(
        operator_name(operator),
        _number("seed", seed, 2**63),
        modes_of(modes),
        choices("dtypes", dtypes, FLOATS),
        choices("index_dtypes", index_dtypes, INDICES),
        choices("map_dtypes", map_dtypes, MAPS),
    )
    return [_make(suite, number) for number in range(_number("n", n, 2**31))]
