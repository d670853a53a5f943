"""TransformerEngine's fused router functions: same names, same arguments, on the CPU."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from .._checks import check_tensor, count
from .drop_ins import aux_scores, balance_loss, naming_loss, naming_options, route

__all__ = [
    "fused_compute_score_for_moe_aux_loss",
    "fused_moe_aux_loss",
    "fused_topk_with_score_function",
]


def _as_bits(routing_map: Tensor) -> Tensor:
    """Eight experts a byte, the first one in the lowest bit."""
    rows, columns = routing_map.shape
    padded = torch.nn.functional.pad(routing_map.to(torch.uint8), (0, -columns % 8))
    places = 1 << torch.arange(8, dtype=torch.uint8, device=routing_map.device)
    return (padded.view(rows, -1, 8) * places).sum(2, dtype=torch.uint8)


def _check_format(routing_map_format: Any) -> bool:
    """Whether the map is wanted as bits: "bytemap" or "bitmap_u8", their numbers or the enum."""
    name = str(getattr(routing_map_format, "name", routing_map_format)).lower()
    if name in ("bytemap", "0"):
        return False
    if name in ("bitmap_u8", "1"):
        return True
    raise ValueError(
        f"routing_map_format is {routing_map_format!r}, expected 'bytemap' or 'bitmap_u8'"
    )


def _flat(logits: Tensor) -> Tensor:
    """Tokens in one dimension."""
    check_tensor("logits", logits)
    if logits.dim() < 2:
        raise ValueError(f"logits has shape {list(logits.shape)}, expected [..., T, E]")
    return logits if logits.dim() == 2 else logits.reshape(-1, logits.shape[-1])


def _write_indices(topk_indices: Tensor, ids: Tensor) -> Tensor:
    check_tensor("topk_indices", topk_indices)
    if topk_indices.shape != ids.shape or topk_indices.is_floating_point():
        raise ValueError(
            f"topk_indices is {list(topk_indices.shape)} of {topk_indices.dtype}, expected "
            f"{list(ids.shape)}, [T, K], of a type of whole numbers"
        )
    return topk_indices.copy_(ids)


@naming_options
def fused_topk_with_score_function(
    logits: Tensor,
    topk: int,
    use_pre_softmax: bool,
    num_groups: Optional[int],
    group_topk: Optional[int],
    scaling_factor: Optional[float],
    score_function: str,
    expert_bias: Optional[Tensor],
    routing_map_format: Any = "bytemap",
    topk_indices: Optional[Tensor] = None,
    qb_histogram: Optional[Tensor] = None,
    qb_bin_bounds: Optional[Tensor] = None,
    qb_histogram_mode: Optional[str] = None,
) -> tuple[Tensor, Tensor]:
    """probs [..., E] of the type of the logits, and routing_map: bool [..., E], or with "bitmap_u8"
    uint8 [..., ceil(E / 8)], or `topk_indices` [T, K], where it is given and written, best first.

    As `topk_routing_with_score_function` of :mod:`moetoken.torch.megatron`. Quantile balancing
    (`qb_...`) is not here. Differentiable in `logits`.

    Examples
    --------
    >>> import torch
    >>> from moetoken.torch import transformer_engine as te
    >>> logits = torch.tensor([[1., 2., 4.]]).log()
    >>> te.fused_topk_with_score_function(logits, 2, False, None, None, 3., "softmax", None)
    (tensor([[0., 1., 2.]]), tensor([[False,  True,  True]]))
    """
    for name, value in (
        ("qb_histogram", qb_histogram),
        ("qb_bin_bounds", qb_bin_bounds),
        ("qb_histogram_mode", qb_histogram_mode),
    ):
        if value is not None:
            raise NotImplementedError(f"{name} is given, expected None: no quantile balancing here")
    wants_bits = _check_format(routing_map_format)
    probs, routing_map, ids = route(
        _flat(logits), topk, use_pre_softmax, num_groups, group_topk, scaling_factor,
        score_function, expert_bias,
    )  # fmt: skip
    probs = probs.view(logits.shape)
    if topk_indices is not None:
        return probs, _write_indices(topk_indices, ids)
    routing_map = _as_bits(routing_map) if wants_bits else routing_map
    return probs, routing_map.view(*logits.shape[:-1], routing_map.shape[1])


def fused_compute_score_for_moe_aux_loss(
    logits: Tensor, topk: int, score_function: str, routing_map_format: Any = "bytemap"
) -> tuple[Tensor, Tensor]:
    """routing_map by plain top-k, and the scores [..., E] in float32: softmax, or sigmoid or
    sqrtsoftplus divided by its sum over all experts if `topk` > 1. Differentiable in `logits`.
    """
    wants_bits = _check_format(routing_map_format)
    normalize = count("topk", topk) > 1
    routing_map, scores = aux_scores(_flat(logits), topk, score_function, normalize)
    routing_map = _as_bits(routing_map) if wants_bits else routing_map
    return routing_map.view(*logits.shape[:-1], routing_map.shape[1]), scores.view(logits.shape)


@naming_loss
def fused_moe_aux_loss(
    probs: Tensor,
    tokens_per_expert: Tensor,
    total_num_tokens: int,
    num_experts: int,
    topk: int,
    coeff: float,
) -> Tensor:
    """The load balancing loss, a tensor of one number of the type of `probs` [T, E].

    As `switch_load_balancing_loss_func` of :mod:`moetoken.torch.megatron`. Differentiable in
    `probs`.
    """
    return balance_loss(probs, tokens_per_expert, total_num_tokens, topk, num_experts, coeff)
