"""The operators as torch.library sees them: what they compute, which shapes, which gradients.

An operator returns a fixed number of tensors: one that is not wanted comes back empty. Sizes are
arguments, so that shapes never depend on data. Backward passes are operators as well. Operators end
in ``_op``; the functions without are for all calls, and leave the dispatcher out where they can.
"""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch
from torch import Tensor
from torch.utils.dlpack import to_dlpack

from .. import _library
from ._direct import directly
from ._memory import in_huge_pages

__all__ = ["call", "permute", "permute_grad", "unpermute", "unpermute_grad", "unread_rows"]

_EXCHANGES_IN_C = hasattr(torch.Tensor, "__dlpack_c_exchange_api__")


def _lent(value: Any) -> Any:
    """A tensor as DLPack capsule, where C cannot ask PyTorch for its memory directly."""
    return to_dlpack(value.detach()) if isinstance(value, Tensor) else value


def call(operator: Callable[..., Any], *values: Any) -> None:
    """Calls one of the C functions, which take tensors as they are."""
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


def _register(name: str, function: Callable[..., Any]) -> torch.library.CustomOpDef:
    """The operator torch.ops.moetoken.*, for CPU tensors, which changes none of its arguments."""
    return torch.library.custom_op(name, function, mutates_args=(), device_types="cpu")


# ---- permute_grad -------------------------------------------------------------------------------


def _permute_grad_outputs(
    permuted_tokens_grad: Optional[Tensor],
    permuted_probs_grad: Optional[Tensor],
    sorted_indices: Tensor,
    tokens_num: int,
    experts_num: int,
) -> tuple[Tensor, Tensor]:
    tokens, probs = permuted_tokens_grad, permuted_probs_grad
    return (
        _nothing(sorted_indices)
        if tokens is None
        else tokens.new_empty(tokens_num, tokens.shape[1]),
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
        permuted_tokens_grad, permuted_probs_grad, sorted_indices, tokens_num, experts_num
    )
    in_huge_pages(tokens_grad)
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


permute_grad_op = _register("moetoken::permute_grad", _permute_grad)
permute_grad = directly(_permute_grad, permute_grad_op)


@permute_grad_op.register_fake
def _(
    permuted_tokens_grad: Optional[Tensor],
    permuted_probs_grad: Optional[Tensor],
    sorted_indices: Tensor,
    routing_map: Optional[Tensor],
    tokens_num: int,
    experts_num: int,
    drop_and_pad: bool,
    tolerate_routing_mismatch: bool,
) -> tuple[Tensor, Tensor]:
    return _permute_grad_outputs(
        permuted_tokens_grad, permuted_probs_grad, sorted_indices, tokens_num, experts_num
    )


# ---- permute ------------------------------------------------------------------------------------


def _permute_outputs(
    tokens: Tensor,
    probs: Optional[Tensor],
    num_out_tokens: int,
    rows_num: int,
    index_dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        tokens.new_empty(rows_num, tokens.shape[1]),
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
        tokens, probs, num_out_tokens, rows_num, index_dtype
    )
    in_huge_pages(permuted_tokens)
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


permute_op = _register("moetoken::permute", _permute)
permute = directly(_permute, permute_op)


@permute_op.register_fake
def _(
    tokens: Tensor,
    routing_map: Tensor,
    probs: Optional[Tensor],
    num_out_tokens: int,
    rows_num: int,
    drop_and_pad: bool,
    index_dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    return _permute_outputs(tokens, probs, num_out_tokens, rows_num, index_dtype)


def _permute_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, routing_map, _, _, _, ctx.drop_and_pad, _ = inputs
    ctx.tokens_num, ctx.experts_num = routing_map.shape
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(output[2], routing_map if ctx.needs_input_grad[2] else None)


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
            ctx.drop_and_pad,
            False,
        )
    return (
        None if tokens_grad is None else results[0],
        None,
        None if probs_grad is None else results[1],
        None,
        None,
        None,
        None,
    )


permute_op.register_autograd(_permute_backward, setup_context=_permute_context)


# ---- unpermute_grad -----------------------------------------------------------------------------


def _unpermute_grad_outputs(
    unpermuted_tokens_grad: Tensor,
    probs: Optional[Tensor],
    rows_num: int,
    wants_tokens_grad: bool,
    wants_probs_grad: bool,
) -> tuple[Tensor, Tensor]:
    g = unpermuted_tokens_grad
    return (
        g.new_empty(rows_num, g.shape[1]) if wants_tokens_grad else _nothing(g),
        _nothing(g) if probs is None or not wants_probs_grad else probs.new_empty(probs.shape),
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
        unpermuted_tokens_grad, probs, rows_num, wants_tokens_grad, wants_probs_grad
    )
    in_huge_pages(tokens_grad)
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


unpermute_grad_op = _register("moetoken::unpermute_grad", _unpermute_grad)
unpermute_grad = directly(_unpermute_grad, unpermute_grad_op)


@unpermute_grad_op.register_fake
def _(
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
    return _unpermute_grad_outputs(
        unpermuted_tokens_grad, probs, rows_num, wants_tokens_grad, wants_probs_grad
    )


# ---- unpermute ----------------------------------------------------------------------------------


def _unpermute_outputs(
    permuted_tokens: Tensor,
    sorted_indices: Tensor,
    tokens_num: int,
    hidden_size: int,
    drop_and_pad: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    slots_num = sorted_indices.shape[0] if drop_and_pad else 0
    return (
        permuted_tokens.new_empty(tokens_num, hidden_size),
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
        permuted_tokens, sorted_indices, tokens_num, hidden_size, drop_and_pad
    )
    in_huge_pages(tokens)
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


unpermute_op = _register("moetoken::unpermute", _unpermute)
unpermute = directly(_unpermute, unpermute_op)


@unpermute_op.register_fake
def _(
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
    return _unpermute_outputs(
        permuted_tokens, sorted_indices, tokens_num, hidden_size, drop_and_pad
    )


def _unpermute_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    permuted_tokens, sorted_indices, routing_map, probs, _, _, ctx.drop_and_pad = inputs[:7]
    ctx.mask_fill_slots, ctx.tolerate_routing_mismatch = inputs[7:]
    ctx.rows_num = permuted_tokens.shape[0]
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(
        output[1] if ctx.drop_and_pad else sorted_indices,
        output[2] if ctx.drop_and_pad else None,
        routing_map,
        permuted_tokens if ctx.needs_input_grad[3] else None,
        probs,
    )


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
            ctx.drop_and_pad,
            *wants,
            ctx.mask_fill_slots,
            ctx.tolerate_routing_mismatch,
        )
    return (
        results[0] if wants[0] else None,
        None,
        None,
        results[1] if wants[1] else None,
        *(None,) * 5,
    )


unpermute_op.register_autograd(_unpermute_backward, setup_context=_unpermute_context)
