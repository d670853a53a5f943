"""The four operators by expert ids, as torch.library and autograd see them.

As in _operators.py all derivatives are made of the operators themselves. The form is here

    S(x, g, w, b) = sum over slots of w[token, k] * <x[row] + b[expert], g[token]>

whose derivative by g is unpermute, and those by x and w unpermute_grad.
"""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch
from torch import Tensor

from .. import _library, ids
from . import _operators
from ._direct import direct
from ._memory import empty_rows
from ._operators import _nothing, _sum
from ._registration import Rules, is_forward_mode, register

__all__ = ["permute", "permute_grad", "spread", "unpermute", "unpermute_grad"]


def _call(
    operator: Callable[..., Any],
    inputs: tuple[Optional[Tensor], ...],
    outputs: tuple[Optional[Tensor], ...],
    numbers: tuple[int, ...] = (),
    flags: int = 0,
) -> None:
    with ids.names_as_here():
        _operators.call(operator, *inputs, *outputs, *numbers, flags, 0)


# ---- permute_grad -------------------------------------------------------------------------------


def _permute_grad_outputs(
    permuted_tokens_grad: Optional[Tensor],
    permuted_weights_grad: Optional[Tensor],
    sorted_indices: Tensor,
    tokens_num: int,
) -> tuple[Tensor, Tensor]:
    rows, weights = permuted_tokens_grad, permuted_weights_grad
    topk = sorted_indices.shape[0] // tokens_num if tokens_num else 0
    return (
        _nothing(sorted_indices) if rows is None else empty_rows(rows, tokens_num, rows.shape[1]),
        _nothing(sorted_indices) if weights is None else weights.new_empty(tokens_num, topk),
    )


def _permute_grad(
    permuted_tokens_grad: Optional[Tensor],
    permuted_weights_grad: Optional[Tensor],
    sorted_indices: Tensor,
    tokens_num: int,
) -> tuple[Tensor, Tensor]:
    inputs = (permuted_tokens_grad, permuted_weights_grad, sorted_indices)
    tokens_grad, weights_grad = _permute_grad_outputs(*inputs, tokens_num)
    outputs = (
        None if permuted_tokens_grad is None else tokens_grad,
        None if permuted_weights_grad is None else weights_grad,
    )
    _call(_library.permute_grad_by_ids, inputs, outputs, (tokens_num,))
    return tokens_grad, weights_grad


def _permute_grad_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    rows, row_weights, sorted_indices, ctx.tokens_num = inputs
    ctx.rows_num = (rows if rows is not None else row_weights).shape[0]
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(sorted_indices)
    if is_forward_mode():
        ctx.save_for_forward(sorted_indices)


def _permute_grad_backward(
    ctx: Any, tokens: Optional[Tensor], weights: Optional[Tensor]
) -> tuple[Optional[Tensor], ...]:
    (sorted_indices,) = ctx.saved_tensors
    rows = row_weights = None
    if tokens is not None and ctx.needs_input_grad[0]:
        rows = spread(tokens, sorted_indices, ctx.rows_num)
    if weights is not None and ctx.needs_input_grad[1]:
        row_weights = _spread_weights(weights, sorted_indices, ctx.rows_num)
    return rows, row_weights, None, None


def _permute_grad_jvp(
    ctx: Any, rows: Optional[Tensor], row_weights: Optional[Tensor], *_: Any
) -> tuple[Optional[Tensor], ...]:
    if rows is None and row_weights is None:
        return None, None
    (sorted_indices,) = ctx.saved_tensors
    tokens, weights = permute_grad(rows, row_weights, sorted_indices, ctx.tokens_num)
    return None if rows is None else tokens, None if row_weights is None else weights


permute_grad_op, permute_grad = register(
    "ids_permute_grad",
    _permute_grad,
    Rules(
        _permute_grad_outputs,
        _permute_grad_context,
        _permute_grad_backward,
        _permute_grad_jvp,
        widen=((0,), (1,)),
        direct=direct("permute_grad_by_ids"),
        nothing_like=2,
    ),
)


def _spread_weights(weights: Tensor, sorted_indices: Tensor, rows_num: int) -> Tensor:
    """The weight of each slot at its row; 0 at rows that no slot names."""
    rows = torch.where(sorted_indices < 0, rows_num, sorted_indices).long()
    return weights.new_zeros(rows_num + 1).scatter(0, rows, weights.reshape(-1))[:rows_num]


# ---- permute ------------------------------------------------------------------------------------


def _permute_outputs(
    tokens: Optional[Tensor],
    expert_ids: Tensor,
    weights: Optional[Tensor],
    experts_num: int,
    expert_begin: int,
    expert_end: int,
    capacity: int,
    rows_num: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return (
        _nothing(expert_ids) if tokens is None else empty_rows(tokens, rows_num, tokens.shape[1]),
        _nothing(expert_ids) if weights is None else weights.new_empty(rows_num),
        expert_ids.new_empty(expert_ids.shape[0] * expert_ids.shape[1]),
        expert_ids.new_empty(rows_num),
        expert_ids.new_empty(expert_end - expert_begin, dtype=torch.int64),
    )


def _permute(
    tokens: Optional[Tensor],
    expert_ids: Tensor,
    weights: Optional[Tensor],
    experts_num: int,
    expert_begin: int,
    expert_end: int,
    capacity: int,
    rows_num: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    rows, row_weights, *indices = results = _permute_outputs(
        tokens, expert_ids, weights, experts_num, expert_begin, expert_end, capacity, rows_num
    )
    if expert_begin == expert_end:  # the library takes [0, 0) for all experts
        expert_begin = expert_end = experts_num
    _call(
        _library.permute_by_ids,
        (tokens, expert_ids, weights),
        (None if tokens is None else rows, None if weights is None else row_weights, *indices),
        (experts_num, expert_begin, expert_end, capacity),
    )
    return results


def _permute_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, expert_ids, _, *_, ctx.rows_num = inputs
    ctx.tokens_num = expert_ids.shape[0]
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(output[2])
    if is_forward_mode():
        ctx.save_for_forward(output[2])


def _permute_backward(
    ctx: Any, rows: Optional[Tensor], row_weights: Optional[Tensor], *_: Any
) -> tuple[Optional[Tensor], ...]:
    (sorted_indices,) = ctx.saved_tensors
    rows = rows if ctx.needs_input_grad[0] else None
    row_weights = row_weights if ctx.needs_input_grad[2] else None
    tokens: Any = None
    weights: Any = None
    if rows is not None or row_weights is not None:
        tokens, weights = permute_grad(rows, row_weights, sorted_indices, ctx.tokens_num)
    return (
        None if rows is None else tokens,
        None,
        None if row_weights is None else weights,
        *(None,) * 5,
    )


def _permute_jvp(
    ctx: Any, tokens: Optional[Tensor], _: Any, weights: Optional[Tensor], *__: Any
) -> tuple[Optional[Tensor], ...]:
    (sorted_indices,) = ctx.saved_tensors
    return (
        None if tokens is None else spread(tokens, sorted_indices, ctx.rows_num),
        None if weights is None else _spread_weights(weights, sorted_indices, ctx.rows_num),
        None,
        None,
        None,
    )


permute_op, permute = register(
    "ids_permute",
    _permute,
    Rules(
        _permute_outputs, _permute_context, _permute_backward, _permute_jvp, ((0,), (2,)),
        direct("permute_by_ids"), nothing_like=1,
    ),
)  # fmt: skip


# ---- unpermute_grad -----------------------------------------------------------------------------


def _unpermute_grad_outputs(
    unpermuted_tokens_grad: Tensor,
    sorted_indices: Tensor,
    permuted_tokens: Optional[Tensor],
    weights: Optional[Tensor],
    expert_bias: Optional[Tensor],
    expert_ids: Optional[Tensor],
    rows_num: int,
    wants_rows: bool,
    wants_weights: bool,
) -> tuple[Tensor, Tensor]:
    g = unpermuted_tokens_grad
    return (
        empty_rows(g, rows_num, g.shape[1]) if wants_rows else _nothing(g),
        _nothing(g) if weights is None or not wants_weights else weights.new_empty(*weights.shape),
    )


def _unpermute_grad(
    unpermuted_tokens_grad: Tensor,
    sorted_indices: Tensor,
    permuted_tokens: Optional[Tensor],
    weights: Optional[Tensor],
    expert_bias: Optional[Tensor],
    expert_ids: Optional[Tensor],
    rows_num: int,
    wants_rows: bool,
    wants_weights: bool,
) -> tuple[Tensor, Tensor]:
    inputs = (
        unpermuted_tokens_grad, sorted_indices, permuted_tokens, weights, expert_bias, expert_ids
    )  # fmt: skip
    rows, weights_grad = _unpermute_grad_outputs(*inputs, rows_num, wants_rows, wants_weights)
    outputs = (rows if wants_rows else None, weights_grad if wants_weights else None)
    _call(_library.unpermute_grad_by_ids, inputs, outputs)
    return rows, weights_grad


def _unpermute_grad_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.settings = inputs[6:]
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:6])
    if is_forward_mode():
        ctx.save_for_forward(*inputs[:6])


def _unpermute_grad_backward(
    ctx: Any, rows: Optional[Tensor], weights_grad: Optional[Tensor]
) -> tuple[Optional[Tensor], ...]:
    g, indices, x, w, bias, expert_ids = ctx.saved_tensors
    needs, tokens_num, rows_num = ctx.needs_input_grad, g.shape[0], ctx.settings[0]
    by_g = by_x = by_w = by_bias = None
    if needs[0] and rows is not None:
        by_g = unpermute(rows, indices, w, None, None, None, None, tokens_num)
    if needs[0] and weights_grad is not None:
        both = (bias, expert_ids if bias is not None else None)
        more = unpermute(x, indices, weights_grad, None, None, *both, tokens_num)
        by_g = _sum(by_g, more)
    if needs[2] and weights_grad is not None:
        by_x = unpermute_grad(
            g, indices, None, weights_grad, None, None, rows_num, True, False
        )[0]  # fmt: skip
    if needs[3] and w is not None and rows is not None:
        by_w = unpermute_grad(g, indices, rows, w, None, None, rows_num, False, True)[1]
    if needs[4] and weights_grad is not None:
        by_bias = _bias_grad(g, indices, weights_grad, bias, expert_ids)
    return (by_g, None, by_x, by_w, by_bias, *(None,) * 4)


def _unpermute_grad_jvp(
    ctx: Any, g_: Any, _: Any, x_: Any, w_: Any, b_: Any, *__: Any
) -> tuple[Optional[Tensor], ...]:
    g, indices, x, w, bias, expert_ids = ctx.saved_tensors
    rows_num, wants_rows, wants_weights = ctx.settings
    rows = weights = None
    if g_ is not None:
        found = unpermute_grad(g_, indices, x, w, bias, expert_ids, *ctx.settings)
        rows, weights = found[0] if wants_rows else None, found[1] if wants_weights else None
    if w_ is not None and wants_rows:
        more = unpermute_grad(g, indices, None, w_, None, None, rows_num, True, False)[0]
        rows = _sum(rows, more)
    if (x_ is not None or b_ is not None) and wants_weights:
        x_ = torch.zeros_like(x) if x_ is None else x_
        used_ids = None if b_ is None else expert_ids
        more = unpermute_grad(g, indices, x_, w, b_, used_ids, rows_num, False, True)[1]
        weights = _sum(weights, more)
    return rows, weights


unpermute_grad_op, unpermute_grad = register(
    "ids_unpermute_grad",
    _unpermute_grad,
    Rules(
        _unpermute_grad_outputs,
        _unpermute_grad_context,
        _unpermute_grad_backward,
        _unpermute_grad_jvp,
        widen=((0, 2, 4), (3,)),
        direct=direct("unpermute_grad_by_ids"),
    ),
)


def spread(tokens: Tensor, sorted_indices: Tensor, rows_num: int) -> Tensor:
    """The row of each token at each of its places: what permute does, by its sorted_indices."""
    return unpermute_grad(
        tokens, sorted_indices, None, None, None, None, rows_num, True, False
    )[0]  # fmt: skip


def _bias_grad(
    g: Tensor,
    sorted_indices: Tensor,
    weights: Optional[Tensor],
    expert_bias: Tensor,
    expert_ids: Tensor,
) -> Tensor:
    """The derivative of S by expert_bias, which no operator computes: PyTorch's own, in float64.

    One choice of all tokens after another, so that nothing of size T * K * H is made.
    """
    used = sorted_indices.view(expert_ids.shape) >= 0
    factors = used.double() if weights is None else torch.where(used, weights.double(), 0)
    experts = torch.where(used, expert_ids, 0).long()
    sums, wide = torch.zeros_like(expert_bias, dtype=torch.float64), g.double()
    for k in range(expert_ids.shape[1]):
        # Masked once more: a factor of 0 makes NaN of an infinite gradient.
        rows = torch.where(used[:, k : k + 1], factors[:, k : k + 1] * wide, 0)
        sums = sums.index_add(0, experts[:, k], rows)
    return sums.to(expert_bias.dtype)


# ---- unpermute ----------------------------------------------------------------------------------


def _unpermute_output(permuted_tokens: Tensor, *others: Any) -> Tensor:
    return empty_rows(permuted_tokens, others[-1], permuted_tokens.shape[1])


def _unpermute(
    permuted_tokens: Tensor,
    sorted_indices: Tensor,
    weights: Optional[Tensor],
    residual: Optional[Tensor],
    residual2: Optional[Tensor],
    expert_bias: Optional[Tensor],
    expert_ids: Optional[Tensor],
    tokens_num: int,
) -> Tensor:
    inputs = (
        permuted_tokens, sorted_indices, weights, residual, residual2, expert_bias, expert_ids
    )  # fmt: skip
    tokens = _unpermute_output(*inputs, tokens_num)
    flags = _library.REPEATED_ROWS if weights is None and expert_ids is None else 0
    _call(_library.unpermute_by_ids, inputs, (tokens,), (), flags)
    return tokens


def _unpermute_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, indices, w, residual, residual2, bias, expert_ids, ctx.tokens_num = inputs
    ctx.rows_num = x.shape[0]
    ctx.set_materialize_grads(False)
    kept = x if ctx.needs_input_grad[2] else None
    ctx.save_for_backward(indices, kept, w, bias, expert_ids)
    if is_forward_mode():
        ctx.save_for_forward(indices, x, w, bias, expert_ids)


def _unpermute_backward(ctx: Any, g: Optional[Tensor]) -> tuple[Optional[Tensor], ...]:
    indices, x, w, bias, expert_ids = ctx.saved_tensors
    needs = ctx.needs_input_grad
    if g is None:
        return (None,) * 8
    rows: Any = None
    weights: Any = None
    if needs[0] or needs[2]:
        wants = (needs[0], needs[2])
        rows, weights = unpermute_grad(g, indices, x, w, bias, expert_ids, ctx.rows_num, *wants)
    return (
        rows if needs[0] else None,
        None,
        weights if needs[2] else None,
        g if needs[3] else None,
        g if needs[4] else None,
        _bias_grad(g, indices, w, bias, expert_ids) if needs[5] else None,
        None,
        None,
    )


def _unpermute_jvp(
    ctx: Any, x_: Any, _: Any, w_: Any, residual_: Any, residual2_: Any, bias_: Any, *__: Any
) -> tuple[Optional[Tensor]]:
    indices, x, w, bias, expert_ids = ctx.saved_tensors
    tokens = None
    if x_ is not None or bias_ is not None:
        x_ = torch.zeros_like(x) if x_ is None else x_
        used_ids = None if bias_ is None else expert_ids
        tokens = unpermute(x_, indices, w, None, None, bias_, used_ids, ctx.tokens_num)
    if w_ is not None:
        used_ids = None if bias is None else expert_ids
        more = unpermute(x, indices, w_, None, None, bias, used_ids, ctx.tokens_num)
        tokens = _sum(tokens, more)
    return (_sum(_sum(residual_, residual2_), tokens),)


unpermute_op, unpermute = register(
    "ids_unpermute",
    _unpermute,
    Rules(
        _unpermute_output,
        _unpermute_context,
        _unpermute_backward,
        _unpermute_jvp,
        widen=((0, 3, 4, 5), (2,)),
        direct=direct("unpermute_by_ids"),
    ),
)
