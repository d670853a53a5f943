"""The slots of a routing by map in PyTorch's own words, for the few derivatives that no operator
of the library computes. PyTorch differentiates them further by itself."""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor

__all__ = ["combine", "weights_of_rows"]


def _experts(routing_map: Tensor, slots_a_token: int) -> tuple[Tensor, Tensor]:
    """The first set experts of each token, ascending, and which of them there are: [T, K] each."""
    unset = routing_map == 0
    order = unset.to(torch.int8).argsort(dim=1, stable=True)
    beyond = max(slots_a_token - order.shape[1], 0)
    order = torch.nn.functional.pad(order, (0, beyond))[:, :slots_a_token]
    counts = (~unset).sum(1, keepdim=True)
    return order, torch.arange(slots_a_token, device=order.device) < counts


def weights_of_rows(
    probs: Tensor,
    sorted_indices: Tensor,
    routing_map: Optional[Tensor],
    rows_num: int,
    drop_and_pad: bool,
) -> Tensor:
    """The entry of probs [T, E] that belongs to each row; 0 where no slot names the row."""
    tokens_num, experts_num = probs.shape
    slots_num = sorted_indices.shape[0]
    if drop_and_pad:
        capacity = slots_num // experts_num if experts_num else 0
        rows = torch.arange(slots_num, device=probs.device)
        return probs[sorted_indices.long(), rows // max(capacity, 1)]
    if routing_map is None:
        raise ValueError("routing_map is missing, expected a tensor as there are probs")
    slots_a_token = slots_num // tokens_num if tokens_num else 0
    experts, there = _experts(routing_map, slots_a_token)
    weights = torch.where(there, probs.gather(1, experts), 0).reshape(-1)
    rows = torch.where(sorted_indices < 0, rows_num, sorted_indices).long()
    return probs.new_zeros(rows_num + 1).scatter(0, rows, weights)[:rows_num]


def combine(
    x: Tensor,
    out_index: Tensor,
    token_id: Tensor,
    routing_map: Optional[Tensor],
    probs: Optional[Tensor],
    tokens_num: int,
) -> Tensor:
    """unpermute without drop_and_pad for slots in any order, whose tokens token_id names."""
    wide = torch.promote_types(x.dtype, torch.float32)
    used, rows, tokens = out_index >= 0, out_index.clamp(min=0).long(), token_id.long()
    weights = used.to(wide)
    if probs is not None and routing_map is not None:
        order = tokens.argsort(stable=True)
        starts = torch.bincount(tokens, minlength=tokens_num).cumsum(0).roll(1)
        starts[:1] = 0
        places = torch.arange(tokens.shape[0], device=x.device) - starts[tokens[order]]
        ordinal = torch.empty_like(order).scatter(0, order, places)
        experts, there = _experts(routing_map, routing_map.shape[1])
        inside = ordinal.clamp(max=routing_map.shape[1] - 1)
        found = probs[tokens, experts[tokens, inside]].to(wide)
        known = there[tokens, inside] & (ordinal < routing_map.shape[1])
        weights = torch.where(used & known, found, 0)
    weighted = x[rows].to(wide) * weights.unsqueeze(1)
    sums = x.new_zeros(tokens_num, x.shape[1], dtype=wide).index_add(0, tokens, weighted)
    return sums.to(x.dtype)
