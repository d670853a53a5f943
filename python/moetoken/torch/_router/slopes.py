"""The router in PyTorch's own words, in float64: for derivatives that no operator computes.

With the choice constant the router is a smooth function of the logits. Its gradient is an operator
of the library; the derivatives of that gradient, and forward-mode tangents, come from here. PyTorch
differentiates them further by itself, as often as wanted.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from ..._router_config import SCORES, Config

__all__ = ["Slopes", "router_slopes", "router_tangents", "z_loss_slope"]


class Slopes(NamedTuple):
    """Derivatives of <change, router_grad(...)> by what router_grad takes."""

    logits: Tensor  # [T, E]
    weights: Tensor  # [T, K], by weights_grad; what `change` does to the weights
    scores: Tensor  # [T, E], by scores_grad; what `change` does to the scores


def _scores(x: Tensor, name: str) -> Tensor:
    if name == "sigmoid":
        return torch.sigmoid(x)
    if name == "sqrtsoftplus":
        inner = torch.logaddexp(x, x.new_zeros(()))
        there = inner > 0
        return torch.where(there, torch.where(there, inner, 1).sqrt(), 0)
    return torch.softmax(x, 1)


def _values(
    x: Tensor, token_mask: Optional[Tensor], ids: Tensor, config: Config
) -> tuple[Tensor, Tensor]:
    """(weights [T, K], scores [T, E]) of float64 logits."""
    name = SCORES[config.score]
    scores, used, places = _scores(x, name), ids >= 0, ids.clamp(min=0).long()
    if name == "softmax_after":
        picked = torch.where(used, x.gather(1, places), -torch.inf)
        some = used.any(1, keepdim=True)  # a softmax over nothing has no derivative
        weights = torch.softmax(torch.where(some, picked, 0), 1)
    else:
        weights = scores.gather(1, places)
    weights = torch.where(used, weights, 0)
    if config.normalize:
        sums = weights.sum(1, keepdim=True) + config.eps
        weights = weights / torch.where(used.any(1, keepdim=True), sums, 1)
    if config.normalize_scores:
        scores = scores / (scores.sum(1, keepdim=True) + config.eps)
    if token_mask is not None:
        routed = (token_mask != 0).unsqueeze(1)
        weights, scores = torch.where(routed, weights, 0), torch.where(routed, scores, 0)
    return weights * config.scale, scores


def router_slopes(
    logits: Tensor,
    token_mask: Optional[Tensor],
    ids: Tensor,
    weights_grad: Optional[Tensor],
    scores_grad: Optional[Tensor],
    change: Tensor,
    config: Config,
) -> Slopes:
    """All in float64. As a Hessian is symmetric, `logits` is also what `change` does to the
    gradient of the logits."""

    def inner(x: Tensor, by_weights: Tensor, by_scores: Tensor) -> Tensor:
        weights, scores = _values(x, token_mask, ids, config)
        return (weights * by_weights).sum() + (scores * by_scores).sum()

    x = logits.double()
    by_weights = x.new_zeros(ids.shape) if weights_grad is None else weights_grad.double()
    by_scores = x.new_zeros(x.shape) if scores_grad is None else scores_grad.double()
    pull_back = torch.func.vjp(torch.func.grad(inner), x, by_weights, by_scores)[1]
    return Slopes(*pull_back(change.double()))


def router_tangents(
    logits: Tensor, token_mask: Optional[Tensor], ids: Tensor, change: Tensor, config: Config
) -> tuple[Tensor, Tensor]:
    """What a change of the logits does to the weights [T, K] and the scores [T, E]."""
    found = router_slopes(logits, token_mask, ids, None, None, change, config)
    return found.weights, found.scores


def z_loss_slope(
    logits: Tensor, token_mask: Optional[Tensor], coeff: float, change: Tensor
) -> Tensor:
    """The Hessian of the z-loss times `change`, in float64."""

    def loss(x: Tensor) -> Tensor:
        squares: Any = torch.logsumexp(x, 1) ** 2
        if token_mask is None:
            return coeff * squares.sum() / max(x.shape[0], 1)
        routed = token_mask != 0
        return coeff * torch.where(routed, squares, 0).sum() / routed.sum().clamp(min=1)

    pull_back = torch.func.vjp(torch.func.grad(loss), logits.double())[1]
    return pull_back(change.double())[0]
