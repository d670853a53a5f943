"""The router for PyTorch: from logits to experts and their weights, its losses and balancing."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from ..._arrays import flag
from ..._router_config import check_topk, real, settings
from .._checks import check_rank, count
from . import ops

__all__ = [
    "DropResult",
    "RouterResult",
    "router",
    "router_balance_loss",
    "router_drop",
    "router_grad",
    "router_update_bias",
    "router_z_loss",
]


class RouterResult(NamedTuple):
    """What :func:`router` returns."""

    expert_ids: Tensor  # [T, K]
    weights: Tensor  # [T, K]
    scores: Any  # Tensor [T, E]; None where it was not asked for
    rows_per_expert: Tensor  # [E] int64


class DropResult(NamedTuple):
    """What :func:`router_drop` returns."""

    kept_ids: Tensor  # [T, K]
    kept_weights: Tensor  # [T, K]
    rows_per_expert: Tensor  # [E] int64


def _weights_type(weights_dtype: Any, logits: Tensor) -> torch.dtype:
    """float32, or float64 with float64 logits, unless another is asked for."""
    if weights_dtype is None:
        return ops.loss_type(logits)
    if weights_dtype not in (torch.float32, torch.float64, logits.dtype):
        raise TypeError(
            f"weights_dtype is {weights_dtype!r}, expected torch.float32, torch.float64 or "
            f"{logits.dtype} as logits is"
        )
    return weights_dtype


def _check_bias(bias: Optional[Tensor], logits: Tensor) -> None:
    check_rank("bias", bias, 1, optional=True)
    if bias is not None and bias.shape[0] != logits.shape[1]:
        raise ValueError(
            f"bias has shape {list(bias.shape)}, expected [{logits.shape[1]}], the experts of "
            "logits"
        )


def router(
    logits: Tensor,
    *,
    topk: Optional[int] = None,
    recipe: Optional[str] = None,
    score: Optional[str] = None,
    bias: Optional[Tensor] = None,
    token_mask: Optional[Tensor] = None,
    groups_num: Optional[int] = None,
    groups_top: Optional[int] = None,
    group_score_count: Optional[int] = None,
    normalize: Optional[bool] = None,
    normalize_scores: Optional[bool] = None,
    eps: Optional[float] = None,
    scale: Optional[float] = None,
    weights_dtype: Optional[torch.dtype] = None,
    index_dtype: torch.dtype = torch.int64,
    with_scores: bool = True,
) -> RouterResult:
    """Chooses each token's experts, and the weight of each. Differentiable in `logits`, through
    `weights` and `scores`; the choice is constant.

    Parameters and results are those of :func:`moetoken.router`. Types are torch's.

    Examples
    --------
    >>> import torch, moetoken.torch
    >>> logits = torch.tensor([[1., 2., 3., 2.], [4., 1., 1., 2.]]).log().requires_grad_()
    >>> result = moetoken.torch.router(logits, topk=2, normalize=True)
    >>> result.expert_ids, result.rows_per_expert
    (tensor([[2, 1],
            [0, 3]]), tensor([1, 1, 1, 1]))
    >>> result.weights.detach()
    tensor([[0.6000, 0.4000],
            [0.6667, 0.3333]])
    >>> result.weights[0, 0].backward()
    >>> (logits.grad * 100).round()
    tensor([[  0., -24.,  24.,   0.],
            [  0.,   0.,   0.,   0.]])
    """
    config = settings(
        recipe, topk, score, normalize, normalize_scores, groups_num, groups_top,
        group_score_count, eps, scale,
    )  # fmt: skip
    check_rank("logits", logits, 2)
    _check_bias(bias, logits)
    check_rank("token_mask", token_mask, 1, optional=True)
    if index_dtype not in (torch.int32, torch.int64):
        raise TypeError(f"index_dtype is {index_dtype!r}, expected torch.int32 or torch.int64")
    numbers, with_scores = _weights_type(weights_dtype, logits), flag("with_scores", with_scores)
    inputs, kinds = (logits, bias, token_mask), (numbers, numbers, index_dtype, False, with_scores)
    weights, _, scores, ids, _, counts = ops.router(*inputs, *config, *kinds)
    return RouterResult(ids, weights, scores if with_scores else None, counts)


def router_grad(
    logits: Tensor,
    expert_ids: Optional[Tensor],
    weights_grad: Optional[Tensor],
    scores_grad: Optional[Tensor] = None,
    *,
    topk: Optional[int] = None,
    recipe: Optional[str] = None,
    score: Optional[str] = None,
    bias: Optional[Tensor] = None,
    token_mask: Optional[Tensor] = None,
    groups_num: Optional[int] = None,
    groups_top: Optional[int] = None,
    group_score_count: Optional[int] = None,
    normalize: Optional[bool] = None,
    normalize_scores: Optional[bool] = None,
    eps: Optional[float] = None,
    scale: Optional[float] = None,
) -> Tensor:
    """The gradient of :func:`router` by itself; see :func:`moetoken.router_grad`.

    Can be differentiated in `logits`, `weights_grad` and `scores_grad`.
    """
    check_rank("logits", logits, 2)
    check_rank("expert_ids", expert_ids, 2, optional=True)
    check_rank("weights_grad", weights_grad, 2, optional=True)
    check_rank("scores_grad", scores_grad, 2, optional=True)
    if weights_grad is None and scores_grad is None:
        raise ValueError("weights_grad and scores_grad are None, expected at least one of them")
    slots = 0 if expert_ids is None else expert_ids.shape[1]
    config = settings(
        recipe, check_topk(topk, slots), score, normalize, normalize_scores, groups_num,
        groups_top, group_score_count, eps, scale,
    )  # fmt: skip
    grads = (weights_grad, None, scores_grad)
    return ops.router_grad(logits, token_mask, expert_ids, *grads, *config)


def router_balance_loss(
    scores: Tensor,
    rows_per_expert: Tensor,
    *,
    topk: int,
    coeff: float = 1.0,
    total_tokens: Optional[int] = None,
) -> Tensor:
    """The switch load balancing loss, a tensor of one number. Differentiable in `scores`.

    Parameters are those of :func:`moetoken.router_balance_loss`.

    Examples
    --------
    >>> import torch, moetoken.torch
    >>> scores = torch.tensor([[0.5, 0.5], [0.25, 0.75]], requires_grad=True)
    >>> loss = moetoken.torch.router_balance_loss(scores, torch.tensor([0, 2]), topk=1)
    >>> loss.item()
    1.25
    >>> loss.backward()
    >>> scores.grad
    tensor([[0., 1.],
            [0., 1.]])
    """
    check_rank("scores", scores, 2)
    check_rank("rows_per_expert", rows_per_expert, 1)
    total = 0 if total_tokens is None else count("total_tokens", total_tokens)
    return ops.balance_loss(
        scores, rows_per_expert, count("topk", topk, least=1), total, real("coeff", coeff)
    )


def router_z_loss(
    logits: Tensor, *, coeff: float = 1.0, token_mask: Optional[Tensor] = None
) -> Tensor:
    """The z-loss, a tensor of one number. Differentiable in `logits`.

    Parameters are those of :func:`moetoken.router_z_loss`.

    Examples
    --------
    >>> import torch, moetoken.torch
    >>> logits = torch.tensor([[0., -torch.inf], [2., -torch.inf]], requires_grad=True)
    >>> loss = moetoken.torch.router_z_loss(logits)
    >>> loss.item()
    2.0
    >>> loss.backward()
    >>> logits.grad
    tensor([[0., 0.],
            [2., 0.]])
    """
    check_rank("logits", logits, 2)
    check_rank("token_mask", token_mask, 1, optional=True)
    return ops.z_loss(logits, token_mask, real("coeff", coeff))


def router_update_bias(bias: Tensor, rows_per_expert: Tensor, rate: float) -> Tensor:
    """``bias[e] + rate * sign(mean count - rows_per_expert[e])``, a new tensor without gradient.

    Parameters are those of :func:`moetoken.router_update_bias`.
    """
    check_rank("bias", bias, 1)
    check_rank("rows_per_expert", rows_per_expert, 1)
    with torch.no_grad():
        return ops.update_bias(bias, rows_per_expert, real("rate", rate))


def router_drop(
    expert_ids: Tensor, weights: Tensor, *, experts_num: int, capacity: int
) -> DropResult:
    """Each expert keeps its `capacity` heaviest slots. Differentiable in `weights`.

    Parameters and results are those of :func:`moetoken.router_drop`.
    """
    check_rank("expert_ids", expert_ids, 2)
    check_rank("weights", weights, 2)
    sizes = (count("experts_num", experts_num), count("capacity", capacity))
    kept_weights, kept_ids, counts = ops.drop(expert_ids, weights, *sizes)
    return DropResult(kept_ids, kept_weights, counts)
