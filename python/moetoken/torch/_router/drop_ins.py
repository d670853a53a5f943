"""What the drop-ins for Megatron-Core's and TransformerEngine's router functions share."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from ..._router_config import SCORES, Config, real
from .._checks import check_float, check_rank, count, naming
from . import ops

__all__ = [
    "OPTIONS",
    "aux_scores",
    "balance_loss",
    "bias_for",
    "naming_loss",
    "naming_options",
    "route",
    "weights_at",
]

# The library's names, and those of the two frameworks.
OPTIONS = {
    "bias": "expert_bias",
    "groups_num": "num_groups",
    "groups_top": "group_topk",
    "group_score_count": "topk // group_topk",
    "scale": "scaling_factor",
}
naming_options = naming(**OPTIONS)
naming_loss = naming(scores="probs", rows_per_expert="tokens_per_expert")


def bias_for(logits: Tensor, expert_bias: Optional[Tensor]) -> Optional[Tensor]:
    """The bias in a type that goes with the logits: they take any."""
    check_rank("expert_bias", expert_bias, 1, optional=True)
    check_float("expert_bias", expert_bias)
    if expert_bias is None or expert_bias.dtype in (torch.float32, torch.float64, logits.dtype):
        return expert_bias
    return expert_bias.double()


def _groups(
    topk: int, num_groups: Optional[int], group_topk: Optional[int]
) -> tuple[int, int, int]:
    """groups_num, groups_top, group_score_count."""
    group_topk = 0 if group_topk is None else count("group_topk", group_topk)
    if group_topk == 0:
        return 1, 1, 1
    if num_groups is None:
        raise ValueError(f"num_groups is missing, expected a number as group_topk = {group_topk}")
    if topk < group_topk:
        raise ValueError(
            f"group_topk = {group_topk}, expected at most topk = {topk}: a group's value is the "
            "sum of its topk // group_topk best scores"
        )
    num_groups = count("num_groups", num_groups, least=1)
    if group_topk > num_groups:
        raise ValueError(f"group_topk = {group_topk}, expected 1 to num_groups = {num_groups}")
    return num_groups, group_topk, topk // group_topk


def _check_score(score_function: str) -> None:
    if score_function not in ("softmax", "sigmoid", "sqrtsoftplus"):
        raise ValueError(
            f"score_function is {score_function!r}, expected 'softmax', 'sigmoid' or 'sqrtsoftplus'"
        )


def route(
    logits: Tensor,
    topk: int,
    use_pre_softmax: bool,
    num_groups: Optional[int],
    group_topk: Optional[int],
    scaling_factor: Optional[float],
    score_function: str,
    expert_bias: Optional[Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """probs [T, E] of the type of the logits, routing_map [T, E], expert_ids [T, K]."""
    check_rank("logits", logits, 2)
    _check_score(score_function)
    topk = count("topk", topk)
    scale = 1.0 if scaling_factor is None else real("scaling_factor", scaling_factor)
    after = score_function == "softmax" and not use_pre_softmax
    config = Config(
        topk,
        SCORES.index("softmax_after" if after else score_function),
        score_function != "softmax" and topk > 1,
        False,
        *_groups(topk, num_groups, group_topk),
        1e-20,
        scale or 1.0,  # 0 stands for none in both
    )
    bias = None if score_function == "softmax" else bias_for(logits, expert_bias)
    kinds = (logits.dtype, logits.dtype, torch.int64, True, False)
    _, probs, _, ids, routing_map, _ = ops.router(logits, bias, None, *config, *kinds)
    return probs, routing_map, ids


def weights_at(
    logits: Tensor,
    indices: Tensor,
    use_pre_softmax: bool,
    scaling_factor: Optional[float],
    score_function: str,
) -> Tensor:
    """The weights [T, K] of the type of the logits that chosen experts [T, K] have."""
    check_rank("logits", logits, 2)
    check_rank("precomputed_indices", indices, 2)
    _check_score(score_function)
    if indices.shape[0] != logits.shape[0]:
        raise ValueError(
            f"precomputed_indices has shape {list(indices.shape)}, "
            f"expected [{logits.shape[0]}, topk], a row for each of logits"
        )
    wide, at = logits.double(), indices.long()
    if score_function == "softmax":
        weights = wide.softmax(1).gather(1, at) if use_pre_softmax else wide.gather(1, at).softmax(1)
    else:
        chosen = wide.gather(1, at)
        weights = torch.sigmoid(chosen)
        if score_function == "sqrtsoftplus":
            weights = torch.logaddexp(chosen, torch.zeros_like(chosen)).sqrt()
        if indices.shape[1] > 1:
            weights = weights / (weights.sum(1, keepdim=True) + 1e-20)
    scale = 1.0 if scaling_factor is None else real("scaling_factor", scaling_factor)
    return (weights * (scale or 1.0)).to(logits.dtype)


def aux_scores(
    logits: Tensor, topk: int, score_function: str, normalize: bool
) -> tuple[Tensor, Tensor]:
    """routing_map [T, E] by plain top-k, and the scores [T, E], float32."""
    check_rank("logits", logits, 2)
    _check_score(score_function)
    config = Config(
        count("topk", topk),
        SCORES.index(score_function),
        normalize_scores=normalize and score_function != "softmax",
        group_score_count=1,
    )
    wide = ops.loss_type(logits)
    kinds = (wide, wide, torch.int64, True, True)
    _, _, scores, _, routing_map, _ = ops.router(logits, None, None, *config, *kinds)
    return routing_map, scores


def balance_loss(
    probs: Tensor,
    tokens_per_expert: Tensor,
    total_num_tokens: Any,
    topk: int,
    num_experts: int,
    coeff: float,
) -> Tensor:
    """The switch load balancing loss, in the type of `probs`.

    There may be several columns for an expert, one a sequence: the factor is `num_experts` all the
    same. Averages for counts, and a number of tokens that is a tensor, are PyTorch's to compute.
    """
    check_rank("probs", probs, 2)
    check_float("probs", probs)
    check_rank("tokens_per_expert", tokens_per_expert, 1)
    topk, num_experts = count("topk", topk, least=1), count("num_experts", num_experts)
    columns, coeff = probs.shape[1], real("coeff", coeff)
    if tokens_per_expert.shape[0] != columns:
        raise ValueError(
            f"tokens_per_expert has shape {list(tokens_per_expert.shape)}, expected [{columns}], "
            "the columns of probs"
        )
    if tokens_per_expert.is_floating_point() or isinstance(total_num_tokens, Tensor):
        sums = (probs.double().sum(0) * tokens_per_expert.double()).sum()
        total: Any = torch.as_tensor(total_num_tokens, dtype=torch.float64, device=probs.device)
        loss = sums * (num_experts * coeff / topk) / torch.where(total == 0, 1, total) ** 2
        return loss.to(probs.dtype)
    share = coeff if num_experts == columns else coeff * num_experts / max(columns, 1)
    total = count("total_num_tokens", total_num_tokens)
    counts = tokens_per_expert.to(torch.int64)
    return ops.balance_loss(probs, counts, topk, total, share).to(probs.dtype)
