"""A case's index tensors and routing -> row, token, expert and weight of every slot.

Written down from sections 2, 3 and 8 of the contract, one rule after the other; what makes the
cases has its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Optional

import numpy as np

from ._layout import ordinals

if TYPE_CHECKING:
    from ._case import Case

__all__ = ["Slots", "find_slots"]


@dataclass
class Slots:
    """Every slot of a call; N slots, R rows."""

    row: np.ndarray  # [N] -1: hole
    token: np.ndarray  # [N]
    expert: np.ndarray  # [N] -1: none, or of no use to the operator
    weight: np.ndarray  # [N] float64
    of_row: np.ndarray  # [R] -1: no slot names the row
    rows: int
    topk: int  # slots of each token; padded: of no use

    def of_token(self, token: int) -> np.ndarray:
        """In slot order."""
        return np.flatnonzero(self.token == token)


def _whole(case: Case, name: str) -> np.ndarray:
    return case.inputs[name].reshape(-1).astype(np.int64)


def _routed(case: Case) -> Optional[np.ndarray]:
    routing_map = case.inputs.get("routing_map")
    return None if routing_map is None else routing_map.view(np.uint8) != 0


def _topk(case: Case, slots: int) -> int:
    tokens = case.tokens_num
    return slots // tokens if tokens > 0 else int(case.attributes.get("topK_num", 0))


def _rows_by_map(case: Case, slots: int) -> np.ndarray:
    """Dropless permute: the row of each slot. Expert order, ascending token inside an expert."""
    routed = _routed(case)
    assert routed is not None
    topk = _topk(case, slots)
    row = np.full(slots, -1, np.int64)
    rank = np.cumsum(routed, axis=1) - 1  # the j-th set expert of its token
    expert, token = np.nonzero(routed.T)
    row[token * topk + rank[token, expert]] = np.arange(len(token))
    return row


def _tokens_by_map(case: Case) -> np.ndarray:
    """Padded permute: of each expert the first C tokens that are set, then the lowest others."""
    routed = _routed(case)
    assert routed is not None
    capacity = case.slots_num // routed.shape[1] if routed.shape[1] else 0
    first = np.argsort(~routed, axis=0, kind="stable")[:capacity]
    return first.T.reshape(-1)


def _rows_by_ids(case: Case) -> tuple[np.ndarray, int]:
    """Permute by ids: rows in expert order, inside an expert in slot order; and R."""
    ids = _whole(case, "expert_ids")
    capacity = int(case.attributes.get("capacity", 0))
    used = np.flatnonzero(ids >= 0)
    used = used[np.argsort(ids[used], kind="stable")]
    row = np.full(len(ids), -1, np.int64)
    if capacity == 0:
        row[used] = np.arange(len(used))
        return row, len(used)
    place = ordinals(ids[used])
    kept, place = used[place < capacity], place[place < capacity]
    row[kept] = ids[kept] * capacity + place
    return row, case.experts_num * capacity


def _rows_and_tokens(case: Case) -> tuple[np.ndarray, np.ndarray, int]:
    """Of each slot; and R."""
    padded = case.mode == "padded"
    rows_tensor = case.inputs.get("permuted_tokens", case.inputs.get("permuted_tokens_grad"))
    rows = -1 if rows_tensor is None else len(rows_tensor)
    if case.operator == "unpermute_grad":
        row = _whole(case, "out_index")
        if "permute_token_id" in case.inputs:
            token = _whole(case, "permute_token_id")
        else:
            token = np.arange(len(row)) // max(_topk(case, len(row)), 1)
        return row, token, len(row) if rows < 0 else rows
    if case.operator == "permute" and case.mode == "ids":
        row, rows = _rows_by_ids(case)
    elif case.operator == "permute" and not padded:
        row = _rows_by_map(case, case.slots_num)
        rows = int((row >= 0).sum())
    else:  # rows, or tokens of the rows
        permutes = case.operator == "permute"
        row = _tokens_by_map(case) if permutes else _whole(case, "sorted_indices")
    if padded:
        return np.arange(len(row)), row, len(row)
    return row, np.arange(len(row)) // max(_topk(case, len(row)), 1), rows


def _experts(case: Case, row: np.ndarray, token: np.ndarray) -> np.ndarray:
    none = np.full(len(row), -1, np.int64)
    if case.mode == "ids":
        if case.operator != "permute":
            return none
        return np.where(row >= 0, _whole(case, "expert_ids"), -1)
    if case.operator != "permute" and not {"probs", "permuted_probs_grad"} & set(case.inputs):
        return none
    if case.mode == "padded":
        capacity = len(row) // case.experts_num if case.experts_num else 1
        return row // max(capacity, 1)
    routed = _routed(case)
    assert routed is not None
    of_token, expert = np.nonzero(routed)
    rank = ordinals(token)
    width = int(rank.max()) + 1 if len(rank) else 0
    table = np.full((case.tokens_num, width), -1, np.int64)
    place = ordinals(of_token)
    fits = place < width
    table[of_token[fits], place[fits]] = expert[fits]
    return table[token, rank] if len(row) else none


def _slot_weights(case: Case, row: np.ndarray, token: np.ndarray, expert: np.ndarray) -> np.ndarray:
    weight = np.ones(len(row))
    if case.operator in ("unpermute_grad", "unpermute"):
        if "weights" in case.inputs:
            weight = case.inputs["weights"].reshape(-1).astype(np.float64)
        elif "probs" in case.inputs:
            probs = case.inputs["probs"].astype(np.float64)
            named = expert >= 0
            weight = np.zeros(len(row))
            weight[named] = probs[token[named], expert[named]]
    return np.where(row < 0, 0.0, weight)


def find_slots(case: Case) -> Slots:
    """The slots of a case."""
    row, token, rows = _rows_and_tokens(case)
    expert = _experts(case, row, token)
    of_row = np.full(rows, -1, np.int64)
    named = np.flatnonzero(row >= 0)
    of_row[row[named]] = named
    weight = _slot_weights(case, row, token, expert)
    return Slots(row, token, expert, weight, of_row, rows, _topk(case, len(row)))
