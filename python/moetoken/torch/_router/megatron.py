"""Megatron-Core's router functions of ``moe_utils``: same names, same arguments, on the CPU.

Everything is computed in binary64 and rounded once. Megatron rounds the scores to the type of the
logits before it chooses; with logits in bfloat16 or float16 experts whose scores are equal after
that rounding may come out differently there.
"""

from __future__ import annotations

import math
import sys
from typing import Any, Optional

import torch
from torch import Tensor

from ..._arrays import flag
from ..._router_config import real
from .._checks import check_float, check_rank, check_tensor, count, naming
from . import ops
from .drop_ins import (
    OPTIONS,
    aux_scores,
    balance_loss,
    naming_loss,
    naming_options,
    route,
    weights_at,
)

__all__ = [
    "apply_router_token_dropping",
    "compute_routing_scores_for_aux_loss",
    "get_updated_expert_bias",
    "group_limited_topk",
    "switch_load_balancing_loss_func",
    "topk_routing_with_score_function",
    "z_loss_func",
]


@naming_options
def topk_routing_with_score_function(
    logits: Tensor,
    topk: int,
    use_pre_softmax: bool = False,
    num_groups: Optional[int] = None,
    group_topk: Optional[int] = None,
    scaling_factor: Optional[float] = None,
    score_function: str = "softmax",
    expert_bias: Optional[Tensor] = None,
    fused: bool = False,
    router_replay: Any = None,
    dense_output: bool = False,
    precomputed_indices: Optional[Tensor] = None,
) -> tuple[Tensor, Tensor]:
    """routing_probs [T, E] of the type of the logits, routing_map [T, E] bool; with `dense_output`
    the probs of the chosen experts [T, K] and the experts [T, K], int64.

    `score_function` is "softmax" (over the chosen, or over all with `use_pre_softmax`; the bias is
    not used), "sigmoid" or "sqrtsoftplus" (divided by their sum over the chosen if `topk` > 1).
    `precomputed_indices` [T, K] are experts that the caller chose. `fused` changes nothing here;
    `router_replay` must be None. Differentiable in `logits`.
    """
    if router_replay is not None:
        raise NotImplementedError("router_replay is given, expected None: the choice is made here")
    if precomputed_indices is not None:
        ids = precomputed_indices
        weights = weights_at(logits, ids, use_pre_softmax, scaling_factor, score_function)
        if dense_output:
            return weights, ids
        routing_map = torch.zeros_like(logits, dtype=torch.bool).scatter(1, ids.long(), True)
        return torch.zeros_like(logits).scatter(1, ids.long(), weights), routing_map
    probs, routing_map, ids = route(
        logits, topk, use_pre_softmax, num_groups, group_topk, scaling_factor, score_function,
        expert_bias,
    )  # fmt: skip
    return (probs.gather(1, ids), ids) if dense_output else (probs, routing_map)


@naming(logits="scores", **OPTIONS)
def group_limited_topk(
    scores: Tensor,
    topk: int,
    num_tokens: int,
    num_experts: int,
    num_groups: int,
    group_topk: int,
) -> tuple[Tensor, Tensor]:
    """The best scores [T, K] and their indices (int64), best first, from the best groups alone.

    A group's value is the sum of its topk // group_topk best scores. Ties go to the lower index.
    Differentiable in `scores`.
    """
    check_rank("scores", scores, 2)
    sizes = (count("num_tokens", num_tokens), count("num_experts", num_experts))
    if tuple(scores.shape) != sizes:
        raise ValueError(
            f"scores has shape {list(scores.shape)}, expected [num_tokens, num_experts] = "
            f"{list(sizes)}"
        )
    ids = route(scores, topk, False, num_groups, group_topk, None, "softmax", None)[2]
    return scores.gather(1, ids), ids


@naming_loss
def switch_load_balancing_loss_func(
    probs: Tensor,
    tokens_per_expert: Tensor,
    total_num_tokens: int,
    topk: int,
    num_experts: int,
    moe_aux_loss_coeff: float,
    fused: bool = False,
    padding_mask: Optional[Tensor] = None,
) -> Tensor:
    """The load balancing loss, a tensor of one number of the type of `probs`.

    `tokens_per_expert` may hold averages, and `total_num_tokens` may be a tensor. The mask is true
    for tokens that count, as in the release of Megatron that has it here - and unlike the mask of
    :func:`z_loss_func`. `fused` changes nothing. Differentiable in `probs`.
    """
    check_rank("probs", probs, 2)
    if padding_mask is not None:
        check_rank("padding_mask", padding_mask, 1)
        probs = torch.where((padding_mask != 0).unsqueeze(1), probs, 0)
    return balance_loss(
        probs, tokens_per_expert, total_num_tokens, topk, num_experts,
        real("moe_aux_loss_coeff", moe_aux_loss_coeff),
    )  # fmt: skip


def z_loss_func(
    logits: Tensor, z_loss_coeff: float, padding_mask: Optional[Tensor] = None
) -> Tensor:
    """The z-loss, a tensor of one number of the type of the logits [..., E].

    `padding_mask` is true for tokens that do **not** count. Differentiable in `logits`.
    """
    check_tensor("logits", logits)
    if logits.dim() == 0:
        raise ValueError("logits has 0 dimensions, expected [..., E]")
    rows = logits.reshape(-1, logits.shape[-1]) if logits.dim() != 2 else logits
    mask = None if padding_mask is None else (padding_mask == 0).reshape(-1)
    if mask is not None and mask.shape[0] != rows.shape[0]:
        raise ValueError(
            f"padding_mask has {mask.shape[0]} entries, expected {rows.shape[0]}, the tokens of "
            "logits"
        )
    loss = ops.z_loss(rows, mask, real("z_loss_coeff", z_loss_coeff))
    return loss.to(logits.dtype)


def compute_routing_scores_for_aux_loss(
    logits: Tensor,
    topk: int,
    score_function: str,
    fused: bool = False,
    padding_mask: Optional[Tensor] = None,
) -> tuple[Tensor, Tensor]:
    """routing_map [T, E] by plain top-k, and the scores [T, E] in float32, sigmoids divided by
    their sum over all experts.

    `padding_mask` is true for tokens that do **not** count: what Megatron's code does, whatever its
    docstring says. `fused` changes nothing. Differentiable in `logits`.
    """
    routing_map, scores = aux_scores(logits, topk, score_function, True)
    if padding_mask is not None:
        check_rank("padding_mask", padding_mask, 1)
        counts = (padding_mask == 0).unsqueeze(1)
        routing_map, scores = routing_map & counts, torch.where(counts, scores, 0)
    return routing_map, scores


def _kept(weights: Tensor, routed: Tensor, capacity: int) -> Tensor:
    """Each expert's `capacity` heaviest routed tokens, ties to the lower one: a map."""
    columns = torch.arange(routed.shape[1], device=routed.device)
    ids = torch.where(routed, columns, -1)
    kept = ops.drop(ids, weights.detach(), routed.shape[1], capacity)[1]
    return kept >= 0


def _filled_up(kept: Tensor, capacity: int) -> Tensor:
    """Each expert's lowest other tokens besides, up to the capacity."""
    missing = capacity - kept.sum(0)
    return kept | (~kept & ((~kept).cumsum(0) <= missing))


def apply_router_token_dropping(
    routing_probs: Tensor,
    routing_map: Tensor,
    router_topk: int,
    capacity_factor: float,
    drop_policy: str = "probs",
    pad_to_capacity: bool = False,
) -> tuple[Tensor, Tensor]:
    """final_probs and final_map [T, E]: each expert keeps C = ceil(T * K / E * capacity_factor).

    With `drop_policy` "probs" its heaviest tokens, ties to the lower one; with "position" its
    first ones. `pad_to_capacity` fills up to exactly C with the lowest tokens that are not kept,
    or marks every pair where C is above T. Differentiable in `routing_probs`.
    """
    check_rank("routing_probs", routing_probs, 2)
    check_float("routing_probs", routing_probs)
    check_rank("routing_map", routing_map, 2)
    if routing_map.shape != routing_probs.shape:
        raise ValueError(
            f"routing_map has shape {list(routing_map.shape)}, expected "
            f"{list(routing_probs.shape)} as routing_probs"
        )
    if drop_policy not in ("probs", "position"):
        raise ValueError(f"drop_policy is {drop_policy!r}, expected 'probs' or 'position'")
    pad_to_capacity = flag("pad_to_capacity", pad_to_capacity)
    tokens_num, experts_num = routing_probs.shape
    slots = tokens_num * count("router_topk", router_topk)
    share = slots / experts_num if experts_num else 0
    capacity = max(math.ceil(share * real("capacity_factor", capacity_factor)), 0)
    final_map = routing_map != 0
    if capacity > tokens_num:
        final_map = torch.ones_like(final_map) if pad_to_capacity else final_map
    else:
        by_position = drop_policy == "position"
        weights = torch.zeros_like(routing_probs) if by_position else routing_probs
        final_map = _kept(weights, final_map, capacity)
        if pad_to_capacity:
            final_map = _filled_up(final_map, capacity)
    return torch.where(final_map, routing_probs, 0), final_map


def _sum_over_ranks(tokens_per_expert: Tensor) -> None:
    """In place, as Megatron does, over its group where there is one."""
    state = sys.modules.get("megatron.core.parallel_state")
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized() and state is not None):
        return
    if state.model_parallel_is_initialized():
        group = state.get_tensor_and_data_parallel_group(with_context_parallel=True)
        distributed.all_reduce(tokens_per_expert, group=group)


def get_updated_expert_bias(
    tokens_per_expert: Tensor, expert_bias: Tensor, expert_bias_update_rate: float
) -> Tensor:
    """``expert_bias + rate * sign(mean count - tokens_per_expert)``, over the last dimension.

    Counts are first added up, in place, over Megatron's group of ranks, if it is initialized.
    """
    check_tensor("tokens_per_expert", tokens_per_expert)
    check_tensor("expert_bias", expert_bias)
    check_float("expert_bias", expert_bias)
    if tokens_per_expert.shape != expert_bias.shape or expert_bias.dim() == 0:
        raise ValueError(
            f"tokens_per_expert has shape {list(tokens_per_expert.shape)}, expert_bias "
            f"{list(expert_bias.shape)}: expected [..., E] of both"
        )
    rate = real("expert_bias_update_rate", expert_bias_update_rate)
    with torch.no_grad():
        _sum_over_ranks(tokens_per_expert)
        counts = tokens_per_expert.double()  # sums of whole numbers: exact
        below = counts.sum(-1, keepdim=True) - counts.shape[-1] * counts
        return (expert_bias.double() + torch.sign(below) * rate).to(expert_bias.dtype)
