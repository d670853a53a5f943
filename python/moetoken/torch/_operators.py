"""The four operators by routing map, as torch.library and autograd see them.

An operator returns a fixed number of tensors: one that is not wanted comes back empty, or as None
from the functions that need no dispatcher (_direct.py). Sizes are arguments, so that shapes never
depend on data. Backward passes are operators as well, and all derivatives of all orders are made of
the four: with

    S(x, g, p) = sum over slots of p[token, expert] * <x[row], g[token]>

unpermute is the derivative of S by g, and unpermute_grad those by x and p.
"""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch
from torch import Tensor
from torch.utils.dlpack import to_dlpack

from .. import _library
from . import _slots
from ._direct import direct
from ._memory import empty_rows
from ._registration import Rules, is_forward_mode, register

__all__ = [
    "call",
    "permute",
    "permute_grad",
    "slot_weights",
    "spread",
    "unpermute",
    "unpermute_grad",
    "unread_rows",
]

_EXCHANGES_IN_C = hasattr(torch.Tensor, "__dlpack_c_exchange_api__")


def _lent(value: Any) -> Any:
    """A tensor as DLPack capsule, where C cannot ask PyTorch for its memory directly."""
    return to_dlpack(value.detach()) if isinstance(value, Tensor) else value


def call(operator: Callable[..., Any], *values: Any) -> None:
    """Calls one of the C functions, which take tensors as they are and the threads to use last: 0
    stands for as many as PyTorch's own operators take."""
    values = (*values[:-1], values[-1] or torch.get_num_threads())
    operator(*(values if _EXCHANGES_IN_C else map(_lent, values)))


def unread_rows(rows_num: int, like: Tensor) -> Tensor:
    """Stands for [R, H] rows that the library asks for but, in this call, does not read."""
    return like.new_zeros(()).expand(rows_num, like.shape[1])


def _flags(mask_fill_slots: bool, tolerate_routing_mismatch: bool) -> int:
    return (
        mask_fill_slots * _library.MASK_FILL_SLOTS
        + tolerate_routing_mismatch * _library.TOLERATE_ROUTING_MISMATCH
    )


def _nothing(like: Tensor) -> Tensor:
    return like.new_empty(0)


def _sum(first: Optional[Tensor], second: Optional[Tensor]) -> Optional[Tensor]:
    """The sum of two gradients or tangents, either of which may be absent."""
    if first is None or second is None:
        return second if first is None else first
    return first + second


# ---- permute_grad -------------------------------------------------------------------------------


def _permute_grad_outputs(
    permuted_tokens_grad: Optional[Tensor],
    permuted_probs_grad: Optional[Tensor],
    sorted_indices: Tensor,
    routing_map: Optional[Tensor],
    tokens_num: int,
    experts_num: int,
    *_: Any,
) -> tuple[Tensor, Tensor]:
    tokens, probs = permuted_tokens_grad, permuted_probs_grad
    return (
        _nothing(sorted_indices)
        if tokens is None
        else empty_rows(tokens, tokens_num, tokens.shape[1]),
        _nothing(sorted_indices) if probs is None else probs.new_empty(tokens_num, experts_num),
    )


def _permute_grad(
    permuted_tokens_grad: Optional[Tensor],
    permuted_probs_grad: Optional[Tensor],
    sorted_indices: Tensor,
    routing_map: Optional[Tensor],
    tokens_num: int,
    experts_num: int,
    drop_and_pad: bool,
    tolerate_routing_mismatch: bool,
) -> tuple[Tensor, Tensor]:
    tokens_grad, probs_grad = _permute_grad_outputs(
        permuted_tokens_grad,
        permuted_probs_grad,
        sorted_indices,
        routing_map,
        tokens_num,
        experts_num,
    )
    call(
        _library.permute_grad,
        permuted_tokens_grad,
        permuted_probs_grad,
        sorted_indices,
        routing_map,
        None if permuted_tokens_grad is None else tokens_grad,
        None if permuted_probs_grad is None else probs_grad,
        drop_and_pad,
        tokens_num,
        experts_num,
        _flags(False, tolerate_routing_mismatch),
        0,
    )
    return tokens_grad, probs_grad


def _permute_grad_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    rows, row_probs, sorted_indices, routing_map, *ctx.settings = inputs
    ctx.rows_num = (rows if rows is not None else row_probs).shape[0]
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(sorted_indices, routing_map)
    if is_forward_mode():
        ctx.save_for_forward(sorted_indices, routing_map)


def _permute_grad_backward(
    ctx: Any, tokens: Optional[Tensor], probs: Optional[Tensor]
) -> tuple[Optional[Tensor], ...]:
    sorted_indices, routing_map = ctx.saved_tensors
    padded, rows_num = ctx.settings[2], ctx.rows_num
    rows = row_probs = None
    if tokens is not None and ctx.needs_input_grad[0]:
        rows = spread(tokens, sorted_indices, rows_num, padded)
    if probs is not None and ctx.needs_input_grad[1]:
        row_probs = _slots.weights_of_rows(probs, sorted_indices, routing_map, rows_num, padded)
    return (rows, row_probs, *(None,) * 6)


def _permute_grad_jvp(
    ctx: Any, rows: Optional[Tensor], row_probs: Optional[Tensor], *_: Any
) -> tuple[Optional[Tensor], ...]:
    if rows is None and row_probs is None:
        return None, None
    sorted_indices, routing_map = ctx.saved_tensors
    tokens, probs = permute_grad(rows, row_probs, sorted_indices, routing_map, *ctx.settings)
    return None if rows is None else tokens, None if row_probs is None else probs


permute_grad_op, permute_grad = register(
    "permute_grad",
    _permute_grad,
    Rules(
        _permute_grad_outputs, _permute_grad_context, _permute_grad_backward, _permute_grad_jvp,
        widen=((0,), (1,)), direct=direct("permute_grad"), nothing_like=2,
    ),
)  # fmt: skip


# ---- permute ------------------------------------------------------------------------------------


def _permute_outputs(
    tokens: Tensor,
    routing_map: Tensor,
    probs: Optional[Tensor],
    num_out_tokens: int,
    rows_num: int,
    drop_and_pad: bool,
    index_dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        empty_rows(tokens, rows_num, tokens.shape[1]),
        _nothing(tokens) if probs is None else probs.new_empty(rows_num),
        tokens.new_empty(num_out_tokens, dtype=index_dtype),
    )


def _permute(
    tokens: Tensor,
    routing_map: Tensor,
    probs: Optional[Tensor],
    num_out_tokens: int,
    rows_num: int,
    drop_and_pad: bool,
    index_dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    permuted_tokens, permuted_probs, sorted_indices = _permute_outputs(
        tokens, routing_map, probs, num_out_tokens, rows_num, drop_and_pad, index_dtype
    )
    call(
        _library.permute,
        tokens,
        routing_map,
        probs,
        permuted_tokens,
        None if probs is None else permuted_probs,
        sorted_indices,
        drop_and_pad,
        num_out_tokens,
        0,
        0,
    )
    return permuted_tokens, permuted_probs, sorted_indices


def _permute_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    tokens, routing_map, probs, *ctx.settings = inputs
    ctx.tokens_num, ctx.experts_num = routing_map.shape
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(output[2], routing_map if ctx.needs_input_grad[2] else None)
    if is_forward_mode():
        ctx.save_for_forward(output[2], routing_map)


def _permute_backward(
    ctx: Any, tokens_grad: Optional[Tensor], probs_grad: Optional[Tensor], _: Any
) -> tuple[Optional[Tensor], ...]:
    sorted_indices, routing_map = ctx.saved_tensors
    tokens_grad = tokens_grad if ctx.needs_input_grad[0] else None
    probs_grad = probs_grad if ctx.needs_input_grad[2] else None
    results: tuple[Any, Any] = (None, None)
    if tokens_grad is not None or probs_grad is not None:
        results = permute_grad(
            tokens_grad,
            probs_grad,
            sorted_indices,
            routing_map if probs_grad is not None else None,
            ctx.tokens_num,
            ctx.experts_num,
            ctx.settings[2],
            False,
        )
    return (
        None if tokens_grad is None else results[0],
        None,
        None if probs_grad is None else results[1],
        *(None,) * 4,
    )


def _permute_jvp(
    ctx: Any, tokens: Optional[Tensor], _: Any, probs: Optional[Tensor], *__: Any
) -> tuple[Optional[Tensor], ...]:
    """The rows of the tangents: permute is linear in both."""
    sorted_indices, routing_map = ctx.saved_tensors
    _, rows_num, padded, _ = ctx.settings
    rows = row_probs = None
    if tokens is not None:
        rows = spread(tokens, sorted_indices, rows_num, padded)
    if probs is not None:
        row_probs = _slots.weights_of_rows(probs, sorted_indices, routing_map, rows_num, padded)
    return rows, row_probs, None


permute_op, permute = register(
    "permute",
    _permute,
    Rules(
        _permute_outputs, _permute_context, _permute_backward, _permute_jvp, ((0,), (2,)),
        direct("permute"),
    ),
)  # fmt: skip


# ---- unpermute_grad -----------------------------------------------------------------------------


def _unpermute_grad_outputs(
    unpermuted_tokens_grad: Tensor,
    out_index: Tensor,
    permute_token_id: Optional[Tensor],
    routing_map: Optional[Tensor],
    permuted_tokens: Optional[Tensor],
    probs: Optional[Tensor],
    rows_num: int,
    drop_and_pad: bool,
    wants_tokens_grad: bool,
    wants_probs_grad: bool,
    *_: Any,
) -> tuple[Tensor, Tensor]:
    g = unpermuted_tokens_grad
    return (
        empty_rows(g, rows_num, g.shape[1]) if wants_tokens_grad else _nothing(g),
        _nothing(g) if probs is None or not wants_probs_grad else probs.new_empty(*probs.shape),
    )


def _unpermute_grad(
    unpermuted_tokens_grad: Tensor,
    out_index: Tensor,
    permute_token_id: Optional[Tensor],
    routing_map: Optional[Tensor],
    permuted_tokens: Optional[Tensor],
    probs: Optional[Tensor],
    rows_num: int,
    drop_and_pad: bool,
    wants_tokens_grad: bool,
    wants_probs_grad: bool,
    mask_fill_slots: bool,
    tolerate_routing_mismatch: bool,
) -> tuple[Tensor, Tensor]:
    tokens_grad, probs_grad = _unpermute_grad_outputs(
        unpermuted_tokens_grad,
        out_index,
        permute_token_id,
        routing_map,
        permuted_tokens,
        probs,
        rows_num,
        drop_and_pad,
        wants_tokens_grad,
        wants_probs_grad,
    )
    if probs is not None and permuted_tokens is None and not wants_probs_grad:
        permuted_tokens = unread_rows(rows_num, unpermuted_tokens_grad)
    call(
        _library.unpermute_grad,
        unpermuted_tokens_grad,
        out_index,
        permute_token_id,
        routing_map,
        permuted_tokens,
        probs,
        tokens_grad if wants_tokens_grad else None,
        probs_grad if wants_probs_grad else None,
        drop_and_pad,
        None,
        None,
        _flags(mask_fill_slots, tolerate_routing_mismatch),
        0,
    )
    return tokens_grad, probs_grad


def _unpermute_grad_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    tensors, ctx.settings = inputs[:6], inputs[6:]
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors)
    if is_forward_mode():
        ctx.save_for_forward(*tensors)


def _by_x_and_p(
    ctx: Any, g: Tensor, x: Optional[Tensor], p: Optional[Tensor], wants: tuple[bool, bool]
) -> tuple[Optional[Tensor], Optional[Tensor]]:
    """unpermute_grad on the slots of ctx."""
    _, out_index, token_id, routing_map, _, probs = ctx.saved_tensors
    rows_num, padded, _, _, *options = ctx.settings
    if p is None and probs is not None:  # not read, but it says that there are weights
        p = probs
    found = unpermute_grad(
        g, out_index, token_id, routing_map, x, p, rows_num, padded, *wants, *options
    )
    return found[0] if wants[0] else None, found[1] if wants[1] else None


def _by_g(ctx: Any, x: Tensor, p: Optional[Tensor], tokens_num: int) -> Tensor:
    """unpermute on the slots of ctx."""
    _, out_index, token_id, routing_map, _, _ = ctx.saved_tensors
    _, padded, _, _, *options = ctx.settings
    if token_id is not None and not padded:
        return _slots.combine(x, out_index, token_id, routing_map, p, tokens_num)
    indices = out_index
    if padded:  # the token of each row
        indices = torch.empty_like(token_id).scatter(0, out_index.long(), token_id)
    return unpermute(x, indices, routing_map, p, tokens_num, x.shape[1], padded, *options)[0]


def _unpermute_grad_backward(
    ctx: Any, rows: Optional[Tensor], probs_grad: Optional[Tensor]
) -> tuple[Optional[Tensor], ...]:
    g, _, _, _, x, p = ctx.saved_tensors
    needs = ctx.needs_input_grad
    by_g = by_x = by_p = None
    if needs[0] and rows is not None:
        by_g = _by_g(ctx, rows, p, g.shape[0])
    if needs[0] and probs_grad is not None:
        by_g = _sum(by_g, _by_g(ctx, x, probs_grad, g.shape[0]))
    if needs[4] and probs_grad is not None:
        by_x = _by_x_and_p(ctx, g, None, probs_grad, (True, False))[0]
    if needs[5] and p is not None and rows is not None:
        by_p = _by_x_and_p(ctx, g, rows, None, (False, True))[1]
    return (by_g, None, None, None, by_x, by_p, *(None,) * 6)


def _unpermute_grad_jvp(
    ctx: Any, g_: Optional[Tensor], _: Any, __: Any, ___: Any, x_: Any, p_: Any, *____: Any
) -> tuple[Optional[Tensor], ...]:
    g, _, _, _, x, p = ctx.saved_tensors
    wants = (ctx.settings[2], ctx.settings[3] and p is not None)
    rows = probs_grad = None
    if g_ is not None:
        rows, probs_grad = _by_x_and_p(ctx, g_, x, p, wants)
    if p_ is not None and wants[0]:
        rows = _sum(rows, _by_x_and_p(ctx, g, None, p_, (True, False))[0])
    if x_ is not None and wants[1]:
        probs_grad = _sum(probs_grad, _by_x_and_p(ctx, g, x_, None, (False, True))[1])
    return rows, probs_grad


unpermute_grad_op, unpermute_grad = register(
    "unpermute_grad",
    _unpermute_grad,
    Rules(
        _unpermute_grad_outputs,
        _unpermute_grad_context,
        _unpermute_grad_backward,
        _unpermute_grad_jvp,
        widen=((0, 4), (5,)),
        direct=direct("unpermute_grad"),
    ),
)


def spread(tokens: Tensor, sorted_indices: Tensor, rows_num: int, drop_and_pad: bool) -> Tensor:
    """The row of each token at each of its places: what permute does, by its sorted_indices."""
    out_index, token_id = sorted_indices, None
    if drop_and_pad:
        out_index, token_id = torch.arange(rows_num, device=tokens.device), sorted_indices.long()
    return unpermute_grad(
        tokens, out_index, token_id, None, None, None, rows_num, drop_and_pad,
        True, False, False, False,
    )[0]  # fmt: skip


# ---- unpermute ----------------------------------------------------------------------------------


def _unpermute_outputs(
    permuted_tokens: Tensor,
    sorted_indices: Tensor,
    routing_map: Optional[Tensor],
    probs: Optional[Tensor],
    tokens_num: int,
    hidden_size: int,
    drop_and_pad: bool,
    *_: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    slots_num = sorted_indices.shape[0] if drop_and_pad else 0
    return (
        empty_rows(permuted_tokens, tokens_num, hidden_size),
        sorted_indices.new_empty(slots_num),
        sorted_indices.new_empty(slots_num),
    )


def _unpermute(
    permuted_tokens: Tensor,
    sorted_indices: Tensor,
    routing_map: Optional[Tensor],
    probs: Optional[Tensor],
    tokens_num: int,
    hidden_size: int,
    drop_and_pad: bool,
    mask_fill_slots: bool,
    tolerate_routing_mismatch: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """unpermuted_tokens, out_index, permute_token_id.

    Without drop_and_pad the last two are empty: sorted_indices is out_index, and the tokens of the
    slots follow from their places.
    """
    tokens, out_index, token_id = _unpermute_outputs(
        permuted_tokens, sorted_indices, routing_map, probs, tokens_num, hidden_size, drop_and_pad
    )
    call(
        _library.unpermute,
        permuted_tokens,
        sorted_indices,
        routing_map,
        probs,
        tokens,
        out_index if drop_and_pad else None,
        token_id if drop_and_pad else None,
        None,
        drop_and_pad,
        tokens_num,
        hidden_size,
        _flags(mask_fill_slots, tolerate_routing_mismatch),
        0,
    )
    return tokens, out_index, token_id


def _unpermute_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, sorted_indices, routing_map, probs, *ctx.settings = inputs
    padded = ctx.settings[2]
    ctx.rows_num = x.shape[0]
    ctx.set_materialize_grads(False)
    out_index, token_id = (output[1], output[2]) if padded else (sorted_indices, None)
    kept = x if ctx.needs_input_grad[3] else None
    ctx.save_for_backward(out_index, token_id, routing_map, kept, probs)
    if is_forward_mode():
        ctx.save_for_forward(sorted_indices, None, routing_map, x, probs)


def _unpermute_backward(
    ctx: Any, tokens_grad: Optional[Tensor], _: Any, __: Any
) -> tuple[Optional[Tensor], ...]:
    out_index, token_id, routing_map, permuted_tokens, probs = ctx.saved_tensors
    wants = (ctx.needs_input_grad[0], ctx.needs_input_grad[3])
    results: tuple[Any, Any] = (None, None)
    if tokens_grad is not None and any(wants):
        results = unpermute_grad(
            tokens_grad,
            out_index,
            token_id,
            routing_map,
            permuted_tokens,
            probs,
            ctx.rows_num,
            ctx.settings[2],
            *wants,
            *ctx.settings[3:],
        )
    return (
        results[0] if wants[0] else None,
        None,
        None,
        results[1] if wants[1] else None,
        *(None,) * 5,
    )


def _unpermute_jvp(
    ctx: Any, x_: Optional[Tensor], _: Any, __: Any, p_: Optional[Tensor], *___: Any
) -> tuple[Optional[Tensor], ...]:
    sorted_indices, _, routing_map, x, p = ctx.saved_tensors
    by_x = by_p = None
    if x_ is not None:
        by_x = unpermute(x_, sorted_indices, routing_map, p, *ctx.settings)[0]
    if p_ is not None:
        by_p = unpermute(x, sorted_indices, routing_map, p_, *ctx.settings)[0]
    return _sum(by_x, by_p), None, None


unpermute_op, unpermute = register(
    "unpermute",
    _unpermute,
    Rules(
        _unpermute_outputs, _unpermute_context, _unpermute_backward, _unpermute_jvp, ((0,), (3,)),
        direct("unpermute"), nothing_like=1,
    ),
)  # fmt: skip


# ---- the weights of the slots: a result of unpermute that most callers have no use for ----------


def _slot_weights_outputs(
    sorted_indices: Tensor, routing_map: Tensor, probs: Tensor, *_: Any
) -> Tensor:
    return probs.new_empty(sorted_indices.shape)


def _slot_weights(
    sorted_indices: Tensor,
    routing_map: Tensor,
    probs: Tensor,
    rows_num: int,
    drop_and_pad: bool,
    mask_fill_slots: bool,
    tolerate_routing_mismatch: bool,
) -> Tensor:
    """permuted_probs [N]: the weight of each slot of sorted_indices, 0 for a hole."""
    weights = _slot_weights_outputs(sorted_indices, routing_map, probs)
    call(
        _library.unpermute,
        probs.new_empty(rows_num, 0),
        sorted_indices,
        routing_map,
        probs,
        None,
        None,
        None,
        weights,
        drop_and_pad,
        probs.shape[0],
        0,
        _flags(mask_fill_slots, tolerate_routing_mismatch),
        0,
    )
    return weights


slot_weights_op, slot_weights = register(
    "slot_weights", _slot_weights, Rules(_slot_weights_outputs)
)
