"""The router's functions as torch.library and autograd see them.

As in ../_operators.py an operator returns a fixed number of tensors, those not wanted empty. The
gradient of the logits is an operator of the library; what that leaves, derivatives of the gradient
and forward-mode tangents, is in slopes.py.
"""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch
from torch import Tensor

from ... import _library
from ..._router_config import Config, raise_as_here
from .. import _operators
from .._operators import _sum
from .._registration import Rules, is_forward_mode, register
from .slopes import router_slopes, router_tangents, z_loss_slope

__all__ = [
    "balance_loss",
    "balance_loss_grad",
    "drop",
    "loss_type",
    "router",
    "router_grad",
    "update_bias",
    "z_loss",
    "z_loss_grad",
]


def _call(operator: Callable[..., Any], *values: Any) -> None:
    try:
        _operators.call(operator, *values, 0, 0)
    except ValueError as error:
        raise_as_here(error)


def loss_type(numbers: Tensor) -> torch.dtype:
    return torch.float64 if numbers.dtype == torch.float64 else torch.float32


def _save(ctx: Any, *tensors: Optional[Tensor]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors)
    if is_forward_mode():
        ctx.save_for_forward(*tensors)


# ---- router_grad --------------------------------------------------------------------------------


def _router_grad_output(logits: Tensor, *_: Any) -> Tensor:
    return logits.new_empty(logits.shape)


def _router_grad(
    logits: Tensor,
    token_mask: Optional[Tensor],
    expert_ids: Optional[Tensor],
    weights_grad: Optional[Tensor],
    probs_grad: Optional[Tensor],
    scores_grad: Optional[Tensor],
    topk: int,
    score: int,
    normalize: bool,
    normalize_scores: bool,
    groups_num: int,
    groups_top: int,
    group_score_count: int,
    eps: float,
    scale: float,
) -> Tensor:
    logits_grad = _router_grad_output(logits)
    config = Config(
        topk, score, normalize, normalize_scores, groups_num, groups_top, group_score_count, eps,
        scale,
    )  # fmt: skip
    inputs = (logits, token_mask, expert_ids, weights_grad, probs_grad, scores_grad)
    _call(_library.router_grad, *inputs, logits_grad, *config)
    return logits_grad


def _router_grad_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.config = Config(*inputs[6:])
    _save(ctx, *inputs[:6])


def _used(expert_ids: Optional[Tensor], logits: Tensor) -> Tensor:
    if expert_ids is None:  # scores alone
        return torch.full((logits.shape[0], 0), -1, device=logits.device)
    return expert_ids


def _by_ids(probs: Tensor, ids: Tensor) -> Tensor:
    """The entries of [T, E] that the slots name."""
    return torch.where(ids >= 0, probs.gather(1, ids.clamp(min=0).long()), 0)


def _by_map(weights: Tensor, ids: Tensor, experts_num: int) -> Tensor:
    """[T, E], the slots' numbers at their experts, zero elsewhere."""
    places = torch.where(ids >= 0, ids, experts_num).long()
    wide = weights.new_zeros(ids.shape[0], experts_num + 1)
    return wide.scatter(1, places, weights)[:, :experts_num]


def _router_grad_slopes(ctx: Any, change: Tensor) -> tuple[Any, Tensor]:
    logits, token_mask, expert_ids, weights_grad, probs_grad, scores_grad = ctx.saved_tensors
    ids = _used(expert_ids, logits)
    both = _sum(
        None if weights_grad is None else weights_grad.double(),
        None if probs_grad is None else _by_ids(probs_grad.double(), ids),
    )
    return router_slopes(logits, token_mask, ids, both, scores_grad, change, ctx.config), ids


def _router_grad_backward(ctx: Any, change: Optional[Tensor]) -> tuple[Optional[Tensor], ...]:
    by_logits = by_weights = by_probs = by_scores = None
    needs = ctx.needs_input_grad
    if change is not None:
        logits, _, _, weights_grad, probs_grad, scores_grad = ctx.saved_tensors
        slopes, ids = _router_grad_slopes(ctx, change)
        if needs[0]:
            by_logits = slopes.logits.to(logits.dtype)
        if needs[3]:
            by_weights = slopes.weights.to(weights_grad.dtype)
        if needs[4]:
            by_probs = _by_map(slopes.weights, ids, logits.shape[1]).to(probs_grad.dtype)
        if needs[5]:
            by_scores = slopes.scores.to(scores_grad.dtype)
    return (by_logits, None, None, by_weights, by_probs, by_scores, *(None,) * 9)


def _router_grad_jvp(
    ctx: Any, logits_: Any, _: Any, __: Any, weights_: Any, probs_: Any, scores_: Any, *___: Any
) -> tuple[Optional[Tensor]]:
    logits, token_mask, expert_ids, *_grads = ctx.saved_tensors
    tangent = None
    if logits_ is not None:
        tangent = _router_grad_slopes(ctx, logits_)[0].logits.to(logits.dtype)
    if weights_ is not None or probs_ is not None or scores_ is not None:
        changes = (weights_, probs_, scores_)
        more = router_grad(logits, token_mask, expert_ids, *changes, *ctx.config)
        tangent = _sum(tangent, more)
    return (tangent,)


router_grad_op, router_grad = register(
    "router_grad",
    _router_grad,
    Rules(_router_grad_output, _router_grad_context, _router_grad_backward, _router_grad_jvp),
)


# ---- router -------------------------------------------------------------------------------------


def _router_outputs(
    logits: Tensor,
    bias: Optional[Tensor],
    token_mask: Optional[Tensor],
    topk: int,
    *others: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    *_, weights_dtype, scores_dtype, index_dtype, by_map, with_scores = others
    tokens_num, experts_num = logits.shape
    slots, pairs = (tokens_num, topk), (tokens_num, experts_num)
    return (
        logits.new_empty(0 if by_map else slots, dtype=weights_dtype),
        logits.new_empty(pairs if by_map else 0, dtype=weights_dtype),
        logits.new_empty(pairs if with_scores else 0, dtype=scores_dtype),
        logits.new_empty(slots, dtype=index_dtype),
        logits.new_empty(pairs if by_map else 0, dtype=torch.bool),
        logits.new_empty(experts_num, dtype=torch.int64),
    )


def _router(
    logits: Tensor,
    bias: Optional[Tensor],
    token_mask: Optional[Tensor],
    topk: int,
    score: int,
    normalize: bool,
    normalize_scores: bool,
    groups_num: int,
    groups_top: int,
    group_score_count: int,
    eps: float,
    scale: float,
    weights_dtype: torch.dtype,
    scores_dtype: torch.dtype,
    index_dtype: torch.dtype,
    by_map: bool,
    with_scores: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    config = Config(
        topk, score, normalize, normalize_scores, groups_num, groups_top, group_score_count, eps,
        scale,
    )  # fmt: skip
    inputs = (logits, bias, token_mask)
    kinds = (weights_dtype, scores_dtype, index_dtype, by_map, with_scores)
    weights, probs, scores, ids, routing_map, counts = results = _router_outputs(
        *inputs, *config, *kinds
    )
    outputs = (
        ids,
        None if by_map else weights,
        routing_map if by_map else None,
        probs if by_map else None,
        scores if with_scores else None,
        counts,
    )
    _call(_library.router, *inputs, *outputs, *config)
    return results


def _router_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    logits, _, token_mask = inputs[:3]
    ctx.config = Config(*inputs[3:12])
    *ctx.dtypes, _, ctx.by_map, ctx.with_scores = inputs[12:]
    _save(ctx, logits, token_mask, output[3])


def _router_backward(
    ctx: Any, weights: Any, probs: Any, scores: Any, *_: Any
) -> tuple[Optional[Tensor], ...]:
    logits, token_mask, ids = ctx.saved_tensors
    grads = (
        None if ctx.by_map else weights,
        probs if ctx.by_map else None,
        scores if ctx.with_scores else None,
    )
    result = None
    if ctx.needs_input_grad[0] and any(grad is not None for grad in grads):
        result = router_grad(logits, token_mask, ids, *grads, *ctx.config)
    return (result, *(None,) * 16)


def _router_jvp(ctx: Any, change: Optional[Tensor], *_: Any) -> tuple[Optional[Tensor], ...]:
    if change is None:
        return (None,) * 6
    logits, token_mask, ids = ctx.saved_tensors
    weights, scores = router_tangents(logits, token_mask, ids, change, ctx.config)
    weights, scores = weights.to(ctx.dtypes[0]), scores.to(ctx.dtypes[1])
    return (
        None if ctx.by_map else weights,
        _by_map(weights, ids, logits.shape[1]) if ctx.by_map else None,
        scores if ctx.with_scores else None,
        None,
        None,
        None,
    )


router_op, router = register(
    "router", _router, Rules(_router_outputs, _router_context, _router_backward, _router_jvp)
)


# ---- the balance loss: linear in the scores, so that each of the two derives the other ----------


def _balance_loss_grad_output(
    rows_per_expert: Tensor,
    loss_grad: Tensor,
    tokens_num: int,
    dtype: torch.dtype,
    *_: Any,
) -> Tensor:
    return loss_grad.new_empty(tokens_num, rows_per_expert.shape[0], dtype=dtype)


def _balance_loss_grad(
    rows_per_expert: Tensor,
    loss_grad: Tensor,
    tokens_num: int,
    dtype: torch.dtype,
    topk: int,
    total_tokens: int,
    coeff: float,
) -> Tensor:
    scores_grad = _balance_loss_grad_output(rows_per_expert, loss_grad, tokens_num, dtype)
    unread = scores_grad.new_zeros(()).expand(scores_grad.shape)
    inputs = (unread, rows_per_expert, loss_grad.reshape(1))
    outputs = (None, scores_grad)
    _call(_library.router_balance_loss, *inputs, *outputs, topk, total_tokens, coeff)
    return scores_grad


def _balance_loss_grad_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    rows_per_expert, loss_grad, ctx.tokens_num, ctx.dtype, *ctx.settings = inputs
    ctx.loss_dtype = loss_grad.dtype
    _save(ctx, rows_per_expert)


def _balance_loss_grad_backward(ctx: Any, change: Optional[Tensor]) -> tuple[Any, ...]:
    (rows_per_expert,) = ctx.saved_tensors
    by_loss = None
    if change is not None and ctx.needs_input_grad[1]:
        by_loss = balance_loss(change, rows_per_expert, *ctx.settings).to(ctx.loss_dtype)
    return (None, by_loss, *(None,) * 5)


def _balance_loss_grad_jvp(ctx: Any, _: Any, change: Any, *__: Any) -> tuple[Optional[Tensor]]:
    if change is None:
        return (None,)
    (rows_per_expert,) = ctx.saved_tensors
    sizes = (ctx.tokens_num, ctx.dtype)
    return (balance_loss_grad(rows_per_expert, change, *sizes, *ctx.settings),)


balance_loss_grad_op, balance_loss_grad = register(
    "router_balance_loss_grad",
    _balance_loss_grad,
    Rules(
        _balance_loss_grad_output,
        _balance_loss_grad_context,
        _balance_loss_grad_backward,
        _balance_loss_grad_jvp,
    ),
)


def _loss_output(numbers: Tensor, *_: Any) -> Tensor:
    return numbers.new_empty((), dtype=loss_type(numbers))


def _balance_loss(
    scores: Tensor, rows_per_expert: Tensor, topk: int, total_tokens: int, coeff: float
) -> Tensor:
    loss = _loss_output(scores)
    inputs, numbers = (scores, rows_per_expert, None), (topk, total_tokens, coeff)
    _call(_library.router_balance_loss, *inputs, loss.view(1), None, *numbers)
    return loss


def _balance_loss_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    scores, rows_per_expert, topk, total_tokens, coeff = inputs
    ctx.sizes = (scores.shape[0], scores.dtype)
    ctx.settings = (topk, total_tokens, coeff)
    _save(ctx, rows_per_expert)


def _balance_loss_backward(ctx: Any, loss_grad: Optional[Tensor]) -> tuple[Any, ...]:
    (rows_per_expert,) = ctx.saved_tensors
    by_scores = None
    if loss_grad is not None and ctx.needs_input_grad[0]:
        by_scores = balance_loss_grad(rows_per_expert, loss_grad, *ctx.sizes, *ctx.settings)
    return (by_scores, *(None,) * 4)


def _balance_loss_jvp(ctx: Any, change: Optional[Tensor], *_: Any) -> tuple[Optional[Tensor]]:
    if change is None:
        return (None,)
    (rows_per_expert,) = ctx.saved_tensors
    return (balance_loss(change, rows_per_expert, *ctx.settings),)


balance_loss_op, balance_loss = register(
    "router_balance_loss",
    _balance_loss,
    Rules(_loss_output, _balance_loss_context, _balance_loss_backward, _balance_loss_jvp),
)


# ---- the z-loss ---------------------------------------------------------------------------------


def _z_loss_grad_output(logits: Tensor, *_: Any) -> Tensor:
    return logits.new_empty(logits.shape)


def _z_loss_grad(
    logits: Tensor, token_mask: Optional[Tensor], loss_grad: Tensor, coeff: float
) -> Tensor:
    logits_grad = _z_loss_grad_output(logits)
    inputs = (logits, token_mask, loss_grad.reshape(1))
    _call(_library.router_z_loss, *inputs, None, logits_grad, coeff)
    return logits_grad


def _z_loss_grad_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.coeff = inputs
    _save(ctx, *tensors)


def _per_loss(logits: Tensor, token_mask: Optional[Tensor], coeff: float, change: Tensor) -> Tensor:
    """<change, the gradient of the z-loss>."""
    one = logits.new_ones((), dtype=loss_type(logits))
    return (z_loss_grad(logits, token_mask, one, coeff).double() * change.double()).sum()


def _z_loss_grad_backward(ctx: Any, change: Optional[Tensor]) -> tuple[Any, ...]:
    logits, token_mask, loss_grad = ctx.saved_tensors
    by_logits = by_loss = None
    if change is not None and ctx.needs_input_grad[0]:
        slope = z_loss_slope(logits, token_mask, ctx.coeff, change) * loss_grad
        by_logits = slope.to(logits.dtype)
    if change is not None and ctx.needs_input_grad[2]:
        by_loss = _per_loss(logits, token_mask, ctx.coeff, change).to(loss_grad.dtype)
    return by_logits, None, by_loss, None


def _z_loss_grad_jvp(
    ctx: Any, logits_: Any, _: Any, loss_grad_: Any, __: Any
) -> tuple[Optional[Tensor]]:
    logits, token_mask, loss_grad = ctx.saved_tensors
    tangent = None
    if logits_ is not None:
        slope = z_loss_slope(logits, token_mask, ctx.coeff, logits_) * loss_grad
        tangent = slope.to(logits.dtype)
    if loss_grad_ is not None:
        more = z_loss_grad(logits, token_mask, loss_grad_, ctx.coeff)
        tangent = _sum(tangent, more)
    return (tangent,)


z_loss_grad_op, z_loss_grad = register(
    "router_z_loss_grad",
    _z_loss_grad,
    Rules(_z_loss_grad_output, _z_loss_grad_context, _z_loss_grad_backward, _z_loss_grad_jvp),
)


def _z_loss(logits: Tensor, token_mask: Optional[Tensor], coeff: float) -> Tensor:
    loss = _loss_output(logits)
    _call(_library.router_z_loss, logits, token_mask, None, loss.view(1), None, coeff)
    return loss


def _z_loss_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.coeff = inputs
    _save(ctx, *tensors)


def _z_loss_backward(ctx: Any, loss_grad: Optional[Tensor]) -> tuple[Optional[Tensor], ...]:
    logits, token_mask = ctx.saved_tensors
    if loss_grad is None or not ctx.needs_input_grad[0]:
        return (None,) * 3
    return z_loss_grad(logits, token_mask, loss_grad, ctx.coeff), None, None


def _z_loss_jvp(ctx: Any, change: Optional[Tensor], *_: Any) -> tuple[Optional[Tensor]]:
    if change is None:
        return (None,)
    logits, token_mask = ctx.saved_tensors
    return (_per_loss(logits, token_mask, ctx.coeff, change).to(loss_type(logits)),)


z_loss_op, z_loss = register(
    "router_z_loss", _z_loss, Rules(_loss_output, _z_loss_context, _z_loss_backward, _z_loss_jvp)
)


# ---- balancing by bias, dropping by weight ------------------------------------------------------


def _update_bias_output(bias: Tensor, *_: Any) -> Tensor:
    return bias.new_empty(bias.shape)


def _update_bias(bias: Tensor, rows_per_expert: Tensor, rate: float) -> Tensor:
    updated = _update_bias_output(bias)
    _call(_library.router_update_bias, bias, rows_per_expert, updated, rate)
    return updated


update_bias_op, update_bias = register(
    "router_update_bias", _update_bias, Rules(_update_bias_output)
)


def _drop_outputs(
    expert_ids: Tensor, weights: Tensor, experts_num: int, capacity: int
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        weights.new_empty(weights.shape),
        expert_ids.new_empty(expert_ids.shape),
        expert_ids.new_empty(experts_num, dtype=torch.int64),
    )


def _drop(
    expert_ids: Tensor, weights: Tensor, experts_num: int, capacity: int
) -> tuple[Tensor, Tensor, Tensor]:
    results = _drop_outputs(expert_ids, weights, experts_num, capacity)
    kept_weights, kept_ids, counts = results
    outputs = (kept_ids, kept_weights, counts)
    _call(_library.router_drop, expert_ids, weights, *outputs, experts_num, capacity)
    return results


def _drop_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _save(ctx, inputs[0], output[1])


def _drop_backward(ctx: Any, weights: Any, *_: Any) -> tuple[Optional[Tensor], ...]:
    expert_ids, kept_ids = ctx.saved_tensors
    grad = None if weights is None else torch.where(kept_ids == expert_ids, weights, 0)
    return None, grad, None, None


def _drop_jvp(ctx: Any, _: Any, weights: Any, *__: Any) -> tuple[Optional[Tensor], ...]:
    return _drop_backward(ctx, weights)[1], None, None


drop_op, drop = register(
    "router_drop", _drop, Rules(_drop_outputs, _drop_context, _drop_backward, _drop_jvp)
)
