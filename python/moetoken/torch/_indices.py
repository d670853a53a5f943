"""Indices as the drop-ins on a routing by expert ids hold them, and in the library's terms."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from .. import _library
from . import _operators
from ._checks import check_float
from ._direct import direct, is_plain
from ._registration import Rules, register

__all__ = ["columns_first", "rows_of_slots", "tokens_first", "weights_for", "within"]


def _rows_outputs(expert_ids: Tensor) -> Tensor:
    return expert_ids.new_empty(expert_ids.numel(), dtype=torch.int32)


def _rows(expert_ids: Tensor) -> Tensor:
    """The row of each slot when slots are sorted by expert, however many experts there are."""
    rows = _rows_outputs(expert_ids)
    slots = expert_ids.reshape(-1, 1).to(torch.int64)
    experts_num = int(slots.max()) + 1 if slots.numel() else 0
    if experts_num > 4 * len(slots) + 1024:  # far apart: their order is what counts
        used = slots >= 0
        ranks = torch.unique(slots, return_inverse=True)[1]
        slots, experts_num = torch.where(used, ranks, -1), len(slots)
    slots = torch.where(slots < 0, -1, slots).to(torch.int32)
    _operators.call(
        _library.permute_by_ids,
        *(None, slots, None),
        *(None, None, rows, None, None),
        *(max(experts_num, 1), 0, max(experts_num, 1), 0),
        0,
        0,
    )
    return rows


_rows_op, rows_of_slots = register(
    "ids_rows", _rows, Rules(_rows_outputs, direct=direct("rows_of_slots"))
)
_within = direct("within")


def within(indices: Tensor, rows_num: int) -> Tensor:
    """Slots whose rows are there; the others, -1 among them, are skipped."""
    if _within is not None and is_plain((indices,)):
        found: Any = _within(indices, rows_num)
        if found is not NotImplemented:
            return found  # type: ignore[no-any-return]
    return torch.where((indices >= 0) & (indices < rows_num), indices, -1)


def weights_for(rows: Tensor, weights: Optional[Tensor]) -> Optional[Tensor]:
    """Weights of a type that goes with the rows: others take any two of the three."""
    check_float("weights", weights)
    if weights is None or weights.dtype == rows.dtype:
        return weights
    narrow = rows.dtype in (torch.float16, torch.bfloat16)
    return weights.to(torch.float32 if narrow else rows.dtype)


def tokens_first(indices: Tensor, tokens_num: int) -> Tensor:
    """From column order, slot k * T + t, to t * K + k."""
    return indices.view(-1, tokens_num).T.reshape(-1) if tokens_num else indices


def columns_first(indices: Tensor, topk: int) -> Tensor:
    """From t * K + k to column order, slot k * T + t."""
    return indices.view(-1, topk).T.reshape(-1) if topk else indices
