"""The router's settings: the options that every interface takes, and those of models by name."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, NoReturn, Optional

from . import _library
from ._arrays import flag, whole

__all__ = ["RECIPES", "SCORES", "Config", "check_topk", "raise_as_here", "real", "settings"]

SCORES = ("softmax", "sigmoid", "sqrtsoftplus", "softmax_after")  # by their numbers in C


class Config(NamedTuple):
    """The fields of a moetoken_router_config, in its order."""

    topk: int
    score: int = 0
    normalize: bool = False
    normalize_scores: bool = False
    groups_num: int = 1
    groups_top: int = 1
    group_score_count: int = 2
    eps: float = 1e-20
    scale: float = 1.0


def _recipe(name: str) -> Config:
    topk, score, normalize, all_scores, groups, top, best, eps, scale = _library.router_recipe(
        name.encode()
    )
    flags = (bool(normalize), bool(all_scores))  # in numbers a 0 stands for the default
    return Config(topk, score, *flags, groups or 1, top or 1, best or 1, eps, scale or 1.0)


RECIPES = {
    name: _recipe(name)
    for name in (
        "mixtral", "qwen3", "deepseek-v3", "gpt-oss", "llama-4", "olmoe", "kimi-k2", "glm-4.5"
    )
}  # fmt: skip


def real(name: str, value: Any) -> float:
    """A finite number."""
    try:
        if isinstance(value, (str, bytes)):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} is {value!r}, expected a number") from None
    if not math.isfinite(number):
        raise ValueError(f"{name} = {number}, expected a finite number")
    return number


def _score_number(score: Any) -> int:
    if not isinstance(score, str) or score not in SCORES:
        raise ValueError(f"score is {score!r}, expected {', '.join(SCORES[:-1])} or {SCORES[-1]}")
    return SCORES.index(score)


def _start(recipe: Optional[str], topk: Any) -> Config:
    """What holds where nothing else is given."""
    if recipe is None:
        if topk is None:
            raise ValueError("topk is missing: without recipe it must be given")
        return Config(0)
    found = RECIPES.get(recipe)
    if found is None:
        *names, last = RECIPES
        raise ValueError(f"recipe is {recipe!r}, expected {', '.join(names)} or {last}")
    return found


def settings(
    recipe: Optional[str],
    topk: Any,
    score: Any,
    normalize: Any,
    normalize_scores: Any,
    groups_num: Any,
    groups_top: Any,
    group_score_count: Any,
    eps: Any,
    scale: Any,
) -> Config:
    """The options of a call: each as given, else as the recipe has it, else its default."""
    start = _start(recipe, topk)
    eps = start.eps if eps is None else real("eps", eps)
    scale = start.scale if scale is None else real("scale", scale)
    if eps < 0:
        raise ValueError(f"eps = {eps}, expected at least 0")
    if scale == 0:
        raise ValueError("scale = 0, expected another number: all weights would be 0")
    return Config(
        start.topk if topk is None else whole("topk", topk),
        start.score if score is None else _score_number(score),
        start.normalize if normalize is None else flag("normalize", normalize),
        start.normalize_scores
        if normalize_scores is None
        else flag("normalize_scores", normalize_scores),
        start.groups_num if groups_num is None else whole("groups_num", groups_num, 1),
        start.groups_top if groups_top is None else whole("groups_top", groups_top, 1),
        start.group_score_count
        if group_score_count is None
        else whole("group_score_count", group_score_count, 1),
        eps,
        scale,
    )


def check_topk(topk: Any, slots: int) -> int:
    """The topk of a gradient: that of expert_ids, whether it is given or not."""
    if topk is not None and whole("topk", topk) != slots:
        raise ValueError(f"topk = {topk}, but expert_ids has K = {slots}")
    return slots


def raise_as_here(error: ValueError) -> NoReturn:
    """The library's error with the names that options have in Python: "topk", not "config.topk"."""
    if "config." not in str(error):
        raise error
    raise ValueError(str(error).replace("config.", "")) from None
