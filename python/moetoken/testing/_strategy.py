"""Cases for Hypothesis: drawn part by part, so that a failing one shrinks to a few tokens.

What is drawn first in a list of choices is the plainest: ones before fractions, float32 before
bfloat16, expert order before any order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Sequence, Union


from ._case import Case, operator_name
from ._cases import modes_of
from ._problem import DROPPED, MODES, SET, Problem
from ._types import FLOATS, INDICES, MAPS, choices

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

__all__ = ["strategy"]

_Draw = Callable[..., Any]

_VALUES = ("ones", "whole numbers", "within 5", "normal", "outliers", "within 0.001", "some -0",
           "subnormals", "some NaN", "some infinite")  # fmt: skip
_WEIGHTS = ("ones", "shares", "some 0", "huge")


def _draw_types(draw: _Draw, st: Any, types: dict[str, tuple[str, ...]], problem: Problem) -> None:
    problem.token_type = draw(st.sampled_from(types["dtypes"]))
    problem.probs_type = problem.token_type
    if problem.token_type in ("float16", "bfloat16") and draw(st.booleans()):
        problem.probs_type = "float32"
    problem.index_type = draw(st.sampled_from(types["index_dtypes"]))
    problem.map_type = draw(st.sampled_from(types["map_dtypes"]))


def _draw_values(draw: _Draw, st: Any, problem: Problem) -> None:
    problem.values = draw(st.sampled_from(_VALUES))
    if problem.values in ("some NaN", "some infinite"):
        problem.special_one_in = draw(st.sampled_from((1, 8, 64)))
    problem.weighted = problem.mode == "ids" or not draw(st.booleans())
    problem.weights = draw(st.sampled_from(_WEIGHTS)) if problem.weighted else "ones"
    if problem.weights == "some 0":
        problem.zero_one_in = draw(st.sampled_from((1, 4)))
    problem.shuffled = draw(st.booleans())
    problem.seed = draw(st.integers(0, 2**16))


def _routes(st: Any, problem: Problem) -> Any:
    """A token's experts: by map distinct, those from E on dropped; by ids any, E is no expert."""
    experts, topk = problem.experts, problem.topk
    if problem.mode == "ids":
        return st.lists(st.integers(0, experts), max_size=topk)
    most = 2 * experts - 1 if problem.mode == "dropless" else experts - 1
    return st.lists(
        st.integers(0, most), max_size=min(topk, experts), unique_by=lambda it: it % experts
    )


def _route(problem: Problem, routes: Sequence[Sequence[int]]) -> None:
    problem.tokens = len(routes)
    problem.allocate()
    for token, route in enumerate(routes):
        if problem.mode == "ids":
            found = [expert if expert < problem.experts else -1 for expert in route]
            problem.ids[token, : len(found)] = found
            continue
        for choice in route:
            dropped = choice >= problem.experts
            problem.pairs[token, choice % problem.experts] = DROPPED if dropped else SET


def _draw_capacity(draw: _Draw, st: Any, problem: Problem) -> None:
    tokens = problem.tokens
    if problem.mode == "padded":
        problem.capacity = draw(st.integers(min(tokens, 1), tokens))
        problem.random_fill = draw(st.booleans())
    elif problem.mode == "ids" and problem.operator == "permute" and tokens * problem.topk > 0:
        problem.capacity = draw(st.integers(0, min(tokens * problem.topk, 8)))
    if problem.mode == "dropless":
        problem.spare_rows = draw(st.integers(0, 4))


def strategy(
    operator: str,
    *,
    modes: Union[str, Sequence[str]] = MODES,
    dtypes: Any = ("float32", "float16", "bfloat16"),
    index_dtypes: Any = ("int32", "int64"),
    map_dtypes: Any = ("bool", "int8", "uint8"),
    max_tokens: int = 16,
    max_hidden: int = 70,
    max_experts: int = 8,
    max_topk: int = 4,
) -> SearchStrategy[Case]:
    """A Hypothesis strategy of cases, for :func:`hypothesis.given`.

    Holes, dropped and repeated pairs, spare rows, capacities, fill slots, any order of rows and
    slots, and the values of :func:`cases` come up in any combination, at sizes up to those given.
    What fails shrinks to few tokens, experts and columns, and to ones.

    Parameters
    ----------
    operator, modes, dtypes, index_dtypes, map_dtypes : as for :func:`cases`; a failing case has the
        first of each if it still fails with it.

    Raises
    ------
    ImportError
        The package hypothesis is missing: ``pip install 'moetoken[testing]'``.
    ValueError
        There is no such operator, mode or type.
    """
    try:
        from hypothesis import strategies as st
    except ImportError as error:
        raise ImportError(
            "moetoken.testing.strategy needs the package hypothesis: "
            "pip install 'moetoken[testing]'"
        ) from error
    kind, in_modes = operator_name(operator), modes_of(modes)
    types = {
        "dtypes": choices("dtypes", dtypes, FLOATS),
        "index_dtypes": choices("index_dtypes", index_dtypes, INDICES),
        "map_dtypes": choices("map_dtypes", map_dtypes, MAPS),
    }

    @st.composite
    def make(draw: _Draw) -> Case:
        problem = Problem(kind, draw(st.sampled_from(in_modes)), 0)
        problem.experts = draw(st.integers(1, max_experts))
        problem.topk = draw(st.integers(1, max_topk))
        if problem.mode == "dropless":
            problem.topk = min(problem.topk, problem.experts)
        routes = draw(st.lists(_routes(st, problem), max_size=max_tokens))
        problem.hidden = draw(st.integers(1, max_hidden))
        _route(problem, routes)
        _draw_capacity(draw, st, problem)
        _draw_types(draw, st, types, problem)
        _draw_values(draw, st, problem)
        return Case._of_problem(problem, "drawn", "")

    found: SearchStrategy[Case] = make()
    return found
