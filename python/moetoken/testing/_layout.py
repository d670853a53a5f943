"""Which row each slot of a problem has, as sections 2, 3 and 8 of the contract say."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ._problem import DROPPED, UNSET, Problem
from ._random import bits_of, key

__all__ = ["Layout", "lay_out", "ordinals"]

_NOBODY = (2**31 - 1) * 4096  # + r % 4096: what the values of a row depend on that no slot names


@dataclass
class Layout:
    """Rows and slots, in the order of the index tensors."""

    row: np.ndarray  # [N] of each slot, -1: none
    token: np.ndarray  # [N]
    by_row: np.ndarray  # [R] the token of each row, -1: no slot names it
    row_key: np.ndarray  # [R] what the values of a row depend on


def ordinals(groups: np.ndarray) -> np.ndarray:
    """How many elements before it each element finds in its group."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    found = np.empty(len(groups), np.int64)
    found[order] = np.arange(len(groups)) - np.searchsorted(ordered, ordered)
    return found


def _draw_order(stream: int, keys: np.ndarray) -> np.ndarray:
    """The places of `keys` in an order that is drawn for each key, whatever else there is."""
    drawn = bits_of(np.full(len(keys), stream, np.uint64), keys)
    return np.argsort(drawn, kind="stable")


def _name_slots(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """The expert of each slot in token-major order, -1 for none; a key that tells slots apart."""
    tokens, topk = problem.tokens, problem.topk
    first = np.arange(tokens)[:, None] * 4096
    if problem.mode == "ids":
        return problem.ids.reshape(-1), (first + np.arange(topk)).reshape(-1)
    expert = np.full((tokens, topk), -1, np.int64)
    slot_key = np.repeat(first + 4095, topk, axis=1)
    token, chosen = np.nonzero(problem.pairs)
    place = ordinals(token)
    fits = place < topk
    token, chosen, place = token[fits], chosen[fits], place[fits]
    drops = problem.pairs[token, chosen] == DROPPED
    if problem.operator == "permute":
        drops[:] = False
    expert[token, place] = np.where(drops, -1, chosen)
    slot_key[token, place] = token * 4096 + chosen
    return expert.reshape(-1), slot_key.reshape(-1)


def _place_slots(problem: Problem, expert: np.ndarray, slot_key: np.ndarray) -> Layout:
    """Rows in expert order, inside an expert in slot order; with a capacity, C of each expert."""
    slots = len(expert)
    layout = Layout(np.full(slots, -1), np.arange(slots) // problem.topk, *2 * [np.zeros(0)])
    used = np.flatnonzero(expert >= 0)
    used = used[np.argsort(expert[used], kind="stable")]
    rows = np.arange(len(used))
    count = len(used)
    if problem.mode == "ids" and problem.capacity > 0:
        place = ordinals(expert[used])
        kept = place < problem.capacity
        used, place = used[kept], place[kept]
        rows = expert[used] * problem.capacity + place
        count = problem.experts * problem.capacity
    elif problem.operator == "unpermute_grad" and not problem.weighted:
        count = slots  # no tensor of the case tells R: it is N
    elif problem.operator != "permute":
        count = min(count + problem.spare_rows, slots)
    layout.row[used] = rows
    layout.by_row = np.full(count, -1)
    layout.by_row[rows] = layout.token[used]
    layout.row_key = _NOBODY + np.arange(count) % 4096
    layout.row_key[rows] = slot_key[used]
    return layout


def _shuffle_rows(problem: Problem, layout: Layout) -> None:
    order = _draw_order(key(problem.seed, 1), layout.row_key)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    layout.row_key, layout.by_row = layout.row_key[order], layout.by_row[order]
    has_row = layout.row >= 0
    layout.row[has_row] = place[layout.row[has_row]]


def _shuffle_slots(problem: Problem, slot_key: np.ndarray, layout: Layout) -> None:
    """Slots in any order, but those of a token among themselves as before."""
    layout.token = _draw_order(key(problem.seed, 2), slot_key) // problem.topk
    layout.row = layout.row[layout.token * problem.topk + ordinals(layout.token)]


def _fill_expert(problem: Problem, expert: int) -> np.ndarray:
    """Padded: the tokens of an expert's rows. The first C set ones, then fill slots."""
    routed = problem.pairs[:, expert] != UNSET
    first = np.flatnonzero(routed)[: problem.capacity]
    missing = problem.capacity - len(first)
    if problem.random_fill and problem.operator != "permute":
        stream = np.full(missing, key(problem.seed, 3), np.uint64)
        begin = expert * problem.capacity + len(first)
        drawn = bits_of(stream, np.arange(begin, begin + missing)) % np.uint64(problem.tokens or 1)
        return np.concatenate([first, drawn.astype(np.int64)])
    return np.concatenate([first, np.flatnonzero(~routed)[:missing]])


def _lay_out_padded(problem: Problem) -> Layout:
    """The slots are the rows in a stable ascending order of their tokens, or in any order."""
    parts = [_fill_expert(problem, expert) for expert in range(problem.experts)]
    by_row = np.concatenate([np.zeros(0, np.int64), *parts])
    row_key = by_row * 4096 + np.repeat(np.arange(problem.experts), problem.capacity)
    if problem.shuffled:
        row = _draw_order(key(problem.seed, 2), row_key)
    else:
        row = np.argsort(by_row, kind="stable")
    return Layout(row, by_row[row], by_row, row_key)


def lay_out(problem: Problem) -> Layout:
    """The layout of a problem."""
    if problem.mode == "padded":
        return _lay_out_padded(problem)
    expert, slot_key = _name_slots(problem)
    layout = _place_slots(problem, expert, slot_key)
    if problem.shuffled and problem.operator != "permute":
        _shuffle_rows(problem, layout)
        if problem.operator == "unpermute_grad" and problem.mode == "dropless":
            _shuffle_slots(problem, slot_key, layout)
    return layout
