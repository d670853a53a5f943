"""Draws the problems of a suite: number i of a seed is the same problem everywhere.

Every problem has a theme, one corner of the field, in turn; all else is drawn at random, so that
corners meet. Draw by draw what cli/conform/suite.c of the tool does.
"""

from __future__ import annotations

from dataclasses import dataclass

from ._problem import DROPPED, SET, UNSET, Problem
from ._random import bits, key

__all__ = ["THEMES", "Suite", "draw_problem", "theme_of"]

THEMES = (
    "plain",
    "holes",  # tokens with fewer than K experts
    "normal",  # the four kinds of values of the commercial standard,
    "uniform",  # in its proportions
    "outliers",
    "dropped",  # slots of -1 although their pair is set; by ids and padded: a capacity
    "odd_hidden",
    "no_slot",
    "one_expert",  # has all rows
    "k_1",
    "e_1",
    "h_1",
    "tiny",
    "spare_rows",  # that no slot names
    "negative_0",
    "subnormal",
    "nan",
    "infinite",
    "zero_weights",
    "huge_weights",
    "skew",
    "twice",  # a pair of token and expert in two slots
    "one_token",
    "wide",  # thousands of columns
    "many_tokens",
    "all_experts",  # K = E
    "no_token",
)

_VALUES = {
    "normal": "normal",
    "outliers": "outliers",
    "uniform": "within 5",
    "odd_hidden": "normal",
    "h_1": "normal",
    "k_1": "within 5",
    "subnormal": "subnormals",
    "negative_0": "some -0",
    "nan": "some NaN",
    "infinite": "some infinite",
}


@dataclass(frozen=True)
class Suite:
    """What is drawn from; a type that comes twice is drawn twice as often."""

    operator: str
    seed: int
    modes: tuple[str, ...]
    token_types: tuple[str, ...]
    index_types: tuple[str, ...]
    map_types: tuple[str, ...]


class _Draws:
    def __init__(self, stream: int) -> None:
        self._key = stream
        self._next = 0

    def below(self, count: int) -> int:
        self._next += 1
        return bits(self._key, self._next - 1) % count

    def of(self, choices: tuple[str, ...]) -> str:
        return choices[self.below(len(choices))]

    def chance(self, one_in: int) -> bool:
        return self.below(one_in) == 0

    def size(self, least: int, most: int) -> int:
        """In [least, most], small numbers as often as large ones."""
        span = most - least + 1
        end = 1 << self.below(span.bit_length())
        return least + self.below(2 * end) % span


def theme_of(number: int) -> str:
    return THEMES[number % len(THEMES)]


def _draw_sizes(draws: _Draws, theme: str, problem: Problem) -> None:
    problem.tokens, problem.hidden = draws.size(1, 40), draws.size(1, 160)
    problem.experts = draws.size(1, 16)
    if theme in ("one_token", "no_token"):
        problem.tokens = int(theme == "one_token")
    elif theme == "wide":  # more than 2^15 elements in K * T rows
        problem.tokens, problem.hidden = 6 + draws.below(3), 6000 + draws.below(4000)
    elif theme == "many_tokens":
        problem.tokens, problem.hidden = 500 + draws.below(2000), draws.size(1, 12)
    elif theme == "h_1":
        problem.hidden = 1
    elif theme == "odd_hidden":
        problem.hidden |= 1
    elif theme == "e_1":
        problem.experts = 1
    elif theme in ("skew", "one_expert"):
        problem.experts += 3
    problem.topk = draws.size(1, min(problem.experts, 8))
    if theme == "k_1":
        problem.topk = 1
    elif theme == "all_experts":
        problem.topk = problem.experts
    elif theme == "twice" and problem.mode == "ids":
        problem.topk = max(problem.topk, 2)
    elif theme == "twice" and problem.mode == "padded":  # many fill slots
        problem.tokens, problem.experts, problem.topk = problem.tokens + 3, problem.experts + 1, 1
    elif theme == "spare_rows":
        problem.spare_rows = draws.size(1, 8)


def _draw_types(draws: _Draws, suite: Suite, problem: Problem) -> None:
    problem.token_type = draws.of(suite.token_types)
    problem.index_type = draws.of(suite.index_types)
    problem.map_type = draws.of(suite.map_types)
    problem.probs_type = problem.token_type
    if problem.token_type in ("float16", "bfloat16") and draws.chance(2):
        problem.probs_type = "float32"


def _draw_capacity(draws: _Draws, theme: str, problem: Problem) -> None:
    tokens, mode = problem.tokens, problem.mode
    mean = -(-tokens * problem.topk // problem.experts)
    if mode == "dropless" or (mode == "ids" and problem.operator != "permute"):
        return
    if mode == "ids" and theme != "dropped" and not draws.chance(4):
        return
    if theme == "dropped":
        capacity = (mean + 1) // 2
    else:
        capacity = tokens if theme == "twice" or draws.chance(8) else mean
    problem.capacity = max(min(capacity, tokens), int(mode == "ids"))


def _draw_values(draws: _Draws, theme: str, problem: Problem) -> None:
    """10 % tiny, 30 % uniform, 40 % normal, 20 % outliers, where the theme has none of its own."""
    tenth = draws.below(10)
    drawn = ("within 0.001", *3 * ["within 5"], *4 * ["normal"], *2 * ["outliers"])[tenth]
    problem.values = _VALUES.get(theme, drawn)
    always = theme in ("zero_weights", "huge_weights", "twice") or problem.mode == "ids"
    problem.weighted = always or not draws.chance(6)
    problem.weights = {"zero_weights": "some 0", "huge_weights": "huge"}.get(theme, "shares")
    problem.shuffled = draws.chance(4)
    problem.skewed = theme == "skew"
    problem.random_fill = theme == "twice" and problem.mode == "padded"


def _draw_expert(draws: _Draws, problem: Problem) -> int:
    """Skewed: the least of four."""
    return min(draws.below(problem.experts) for _ in range(4 if problem.skewed else 1))


def _route_token(draws: _Draws, theme: str, problem: Problem, token: int) -> None:
    taken = [UNSET] * problem.experts
    ids: list[int] = []
    wanted = problem.topk
    if theme in ("holes", "spare_rows", "skew"):
        wanted = draws.below(problem.topk + 1)
    if theme == "no_slot" or (theme == "spare_rows" and token == 0):
        wanted = 0
    elif theme == "one_expert":
        wanted = 1
    by_ids = problem.mode == "ids"
    for k in range(wanted):
        again = theme == "twice" and by_ids and k > 0
        if theme == "one_expert":
            expert = problem.experts // 2
        elif again and (k >= problem.experts or draws.chance(2)):
            expert = ids[k - 1]
        else:
            expert = _draw_expert(draws, problem)
            while taken[expert] != UNSET:  # another one than those that the token has
                expert = (expert + 1) % problem.experts
        drops = theme == "dropped" and draws.chance(4)
        taken[expert] = DROPPED if drops and problem.mode == "dropless" else SET
        ids.append(-1 if drops and by_ids and problem.capacity == 0 else expert)
    problem.pairs[token] = taken
    problem.ids[token, : len(ids)] = ids


def _suits(theme: str, mode: str) -> bool:
    """Whether the theme can be seen in the mode."""
    return (theme, mode) not in (("twice", "dropless"), ("spare_rows", "padded"))


def draw_problem(suite: Suite, number: int) -> Problem:
    """Problem `number` of the suite."""
    seed = key(suite.seed, number)
    draws = _Draws(key(seed, 0))
    theme = theme_of(number)
    mode = draws.of(suite.modes)
    for _ in range(8):
        if _suits(theme, mode):
            break
        mode = draws.of(suite.modes)
    problem = Problem(suite.operator, mode, seed)
    _draw_sizes(draws, theme, problem)
    _draw_types(draws, suite, problem)
    _draw_capacity(draws, theme, problem)
    _draw_values(draws, theme, problem)
    problem.allocate()
    for token in range(problem.tokens):
        _route_token(draws, theme, problem, token)
    return problem
