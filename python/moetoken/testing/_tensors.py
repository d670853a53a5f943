"""A problem's tensors, filled by its rules: a value depends on the seed and on its place alone."""

from __future__ import annotations

import numpy as np

from ._exact import round_once
from ._layout import Layout
from ._problem import UNSET, Problem
from ._random import bits, bits_of, key, keys, units
from ._types import is_float, numpy_type

__all__ = ["make_tensors"]

# The streams of values; 1 to 3 are those of the layout.
_TOKENS, _ROWS, _WEIGHTS, _ROW_WEIGHTS, _MAP = 16, 17, 18, 19, 20

_SUBNORMAL = {"float16": 2.0**-16, "float64": 2.0**-1030}
_SUBNORMAL_ELSE = 2.0**-130


def _symmetric(random_bits: np.ndarray) -> np.ndarray:
    """In [-1, 1]."""
    found: np.ndarray = (random_bits.view(np.int64) >> 10).astype(np.float64) * 2.0**-53
    return found


def _normal(stream_keys: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """The sum of twelve uniform numbers, less 6: close enough to a normal distribution."""
    total = np.full(np.broadcast_shapes(stream_keys.shape, columns.shape), -6.0)
    for n in range(12):
        total += units(bits_of(stream_keys, 12 * columns + n))
    return total


def _values(problem: Problem, stream: int, who: np.ndarray, columns: int) -> np.ndarray:
    """Elements [who, column] of a stream of token-like values."""
    stream_key = key(problem.seed, stream)
    row_keys = keys(stream_key, who)[:, None]
    column = np.arange(columns)[None, :]
    rule = problem.values
    if rule == "ones":
        return np.ones((len(who), columns))
    if rule == "normal":
        level = bits(stream_key, 2**64 - 2)
        mean = 100 * float(_symmetric(np.array([level], np.uint64))[0])
        return mean + (1 + 24 * float(level % 1024) / 1023) * _normal(row_keys, column)
    drawn = bits_of(row_keys, column)
    unit = _symmetric(drawn)
    plain = 5 * unit
    if rule == "within 0.001":
        return 0.001 * unit
    if rule == "whole numbers":
        return (1 + drawn % np.uint64(3)).astype(np.float64) * np.where(unit < 0, -1, 1)
    if rule == "outliers":
        return np.where(drawn % np.uint64(1000) == 0, 5000 * unit, plain)
    in_8 = drawn % np.uint64(8) == 0
    special = drawn % np.uint64(problem.special_one_in) == 0
    if rule == "subnormals":
        return np.where(in_8, plain * _SUBNORMAL.get(problem.token_type, _SUBNORMAL_ELSE), plain)
    if rule == "some -0":
        return np.where(in_8, -0.0, plain)
    if rule == "some NaN":
        return np.where(special, np.nan, plain)
    if rule == "some infinite":
        return np.where(special, np.copysign(np.inf, plain), plain)
    return plain


def _weights(problem: Problem, width: int) -> np.ndarray:
    """[T, width]"""
    who = np.arange(problem.tokens)[:, None] * 4096 + np.arange(width)
    drawn = bits_of(np.full(1, key(problem.seed, _WEIGHTS), np.uint64), who)
    share = units(drawn)
    if problem.weights == "some 0":
        return np.where(drawn % np.uint64(problem.zero_one_in) == 0, 0, share)
    if problem.weights == "huge":
        return (1 + share) * (512 if problem.probs_type == "float16" else 2.0**40)
    return np.ones_like(share) if problem.weights == "ones" else share


def _map(problem: Problem) -> np.ndarray:
    """bool: 0 or 1. int8 and uint8: any byte but 0 is set, so any comes up."""
    routed: np.ndarray = problem.pairs != UNSET
    if problem.map_type == "bool":
        return routed
    places = np.arange(routed.size).reshape(routed.shape)
    drawn = bits_of(np.full(1, key(problem.seed, _MAP), np.uint64), places)
    byte = (1 + drawn % np.uint64(255)).astype(np.uint8)
    found: np.ndarray = np.where(routed, byte, np.uint8(0)).view(numpy_type(problem.map_type))
    return found


def _rows(problem: Problem, layout: Layout, name: str) -> np.ndarray:
    by_row = name.startswith("permuted")
    who = layout.row_key if by_row else np.arange(problem.tokens)
    return _values(problem, _ROWS if by_row else _TOKENS, who, problem.hidden)


def _names(problem: Problem) -> dict[str, str]:
    """The inputs of the operator with their types, in the order of its arguments."""
    p, ids = problem, problem.mode == "ids"
    found: dict[str, str] = {}
    if p.operator == "unpermute_grad":
        found = {"unpermuted_tokens_grad": p.token_type, "out_index": p.index_type}
        if not ids:
            found["permute_token_id"] = p.index_type
        if p.weighted:
            found["permuted_tokens"] = p.token_type
    elif p.operator == "unpermute":
        found = {"permuted_tokens": p.token_type, "sorted_indices": p.index_type}
    elif p.operator == "permute":
        found = {"tokens": p.token_type}
        if ids:
            found["expert_ids"] = p.index_type
    else:
        found = {"permuted_tokens_grad": p.token_type}
        if p.weighted:
            found["permuted_probs_grad"] = p.probs_type
        found["sorted_indices"] = p.index_type
    if not ids and (p.weighted or p.mode == "padded" or p.operator == "permute"):
        found["routing_map"] = p.map_type
    if p.weighted and p.operator != "permute_grad":
        found["weights" if ids else "probs"] = p.probs_type
    return found


def _fill(problem: Problem, layout: Layout, name: str, dtype: str) -> np.ndarray:
    if name == "routing_map":
        return _map(problem)
    if name in ("probs", "weights"):
        width = problem.topk if name == "weights" else problem.experts
        return round_once(_weights(problem, width), dtype)
    if name == "permuted_probs_grad":
        return round_once(_values(problem, _ROW_WEIGHTS, layout.row_key, 1)[:, 0], dtype)
    if is_float(dtype):
        return round_once(_rows(problem, layout, name), dtype)
    whole = layout.row
    if name == "permute_token_id":
        whole = layout.token
    elif name == "expert_ids":
        whole = problem.ids
    elif name == "sorted_indices" and problem.mode == "padded":
        whole = layout.by_row
    return whole.astype(numpy_type(dtype))


def make_tensors(problem: Problem, layout: Layout) -> dict[str, np.ndarray]:
    """What the operator is given, in the order of its arguments."""
    with np.errstate(all="ignore"):
        return {
            name: _fill(problem, layout, name, dtype) for name, dtype in _names(problem).items()
        }
