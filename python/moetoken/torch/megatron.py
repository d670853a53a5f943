"""`permute` and `unpermute` of Megatron-Core's ``moe_utils``, on the CPU, as drop-ins.

The calling convention is Megatron's: ``sorted_indices`` holds the token of each row, in expert
order. Sums are made in float32 (float64 for float64), whatever the type of the tokens, and rounded
once, so results in bfloat16 and float16 are closer to the truth than Megatron's.

Since release 0.17 Megatron's `permute` takes two more arguments and returns two more values; which
form this module has follows the megatron-core that is installed, and the newer one without any.
"""

from __future__ import annotations

from importlib import metadata
from typing import Any, Optional, Sequence

import torch
from torch import Tensor

from .. import _library
from . import _operators
from ._memory import in_huge_pages
from ._operators import call, unread_rows

__all__ = ["permute", "unpermute"]


def _returns_five_values() -> bool:
    try:
        release = metadata.version("megatron-core").split(".")[:2]
    except metadata.PackageNotFoundError:
        return True
    return tuple(map(int, release)) >= (0, 17)


RETURNS_FIVE_VALUES = _returns_five_values()


# ---- operators without drop_and_pad: rows in expert order, as many as there are set pairs -------


def _find_rows(routing_map: Tensor) -> tuple[Tensor, Tensor]:
    """The row of each slot, K slots a token, -1 where one is unused; and the token of each row."""
    set_pairs = routing_map.sum(1, dtype=torch.int64)
    slots_a_token = int(set_pairs.max()) if len(set_pairs) else 0
    slots_num = slots_a_token * len(set_pairs)
    row_of_slot = torch.empty(slots_num, dtype=torch.int64)
    tokens = unread_rows(len(set_pairs), torch.empty(0, 0))
    call(
        _library.permute, tokens, routing_map, None, None, None, row_of_slot, False, slots_num, 0, 0
    )
    token_of_row = torch.empty(int(set_pairs.sum()), dtype=torch.int64)
    used = row_of_slot >= 0
    slots = used.nonzero().view(-1)
    token_of_row[row_of_slot[used]] = slots // max(slots_a_token, 1)
    return row_of_slot, token_of_row


@torch.library.custom_op("moetoken::megatron_permute", mutates_args=(), device_types="cpu")
def _permute_op(
    tokens: Tensor, routing_map: Tensor, probs: Optional[Tensor], rows_num: Optional[int]
) -> tuple[Tensor, Tensor, Tensor]:
    row_of_slot, sorted_indices = _find_rows(routing_map)
    found = sorted_indices.shape[0]
    if rows_num is not None and rows_num != found:
        raise ValueError(f"num_out_tokens is {rows_num}, but routing_map has {found} set pairs")
    permuted_tokens = in_huge_pages(tokens.new_empty(found, tokens.shape[1]))
    permuted_probs = tokens.new_empty(0) if probs is None else probs.new_empty(found)
    call(
        _library.permute,
        tokens,
        routing_map,
        probs,
        permuted_tokens,
        None if probs is None else permuted_probs,
        None,
        False,
        row_of_slot.shape[0],
        0,
        0,
    )
    return permuted_tokens, permuted_probs, sorted_indices


@_permute_op.register_fake
def _(
    tokens: Tensor, routing_map: Tensor, probs: Optional[Tensor], rows_num: Optional[int]
) -> tuple[Tensor, Tensor, Tensor]:
    rows: Any = torch.library.get_ctx().new_dynamic_size() if rows_num is None else rows_num
    return (
        tokens.new_empty(rows, tokens.shape[1]),
        tokens.new_empty(0) if probs is None else probs.new_empty(rows),
        tokens.new_empty(rows, dtype=torch.int64),
    )


def _permute_grad_outputs(
    permuted_tokens_grad: Optional[Tensor],
    permuted_probs_grad: Optional[Tensor],
    routing_map: Tensor,
) -> tuple[Tensor, Tensor]:
    nothing = routing_map.new_empty(0)
    tokens, probs = permuted_tokens_grad, permuted_probs_grad
    return (
        nothing if tokens is None else tokens.new_empty(routing_map.shape[0], tokens.shape[1]),
        nothing.clone() if probs is None else probs.new_empty(routing_map.shape),
    )


@torch.library.custom_op("moetoken::megatron_permute_grad", mutates_args=(), device_types="cpu")
def _permute_grad_op(
    permuted_tokens_grad: Optional[Tensor],
    permuted_probs_grad: Optional[Tensor],
    routing_map: Tensor,
) -> tuple[Tensor, Tensor]:
    tokens_grad, probs_grad = _permute_grad_outputs(
        permuted_tokens_grad, permuted_probs_grad, routing_map
    )
    in_huge_pages(tokens_grad)
    call(
        _library.permute_grad,
        permuted_tokens_grad,
        permuted_probs_grad,
        _find_rows(routing_map)[0],
        routing_map,
        None if permuted_tokens_grad is None else tokens_grad,
        None if permuted_probs_grad is None else probs_grad,
        False,
        *routing_map.shape,
        0,
        0,
    )
    return tokens_grad, probs_grad


@_permute_grad_op.register_fake
def _(
    permuted_tokens_grad: Optional[Tensor],
    permuted_probs_grad: Optional[Tensor],
    routing_map: Tensor,
) -> tuple[Tensor, Tensor]:
    return _permute_grad_outputs(permuted_tokens_grad, permuted_probs_grad, routing_map)


def _permute_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(inputs[1])


def _permute_backward(
    ctx: Any, tokens_grad: Optional[Tensor], probs_grad: Optional[Tensor], _: Any
) -> tuple[Optional[Tensor], ...]:
    (routing_map,) = ctx.saved_tensors
    tokens_grad = tokens_grad if ctx.needs_input_grad[0] else None
    probs_grad = probs_grad if ctx.needs_input_grad[2] else None
    results: tuple[Any, Any] = (None, None)
    if tokens_grad is not None or probs_grad is not None:
        results = _permute_grad_op(tokens_grad, probs_grad, routing_map)
    return (
        None if tokens_grad is None else results[0],
        None,
        None if probs_grad is None else results[1],
        None,
    )


_permute_op.register_autograd(_permute_backward, setup_context=_permute_context)


@torch.library.custom_op("moetoken::megatron_unpermute", mutates_args=(), device_types="cpu")
def _unpermute_op(
    permuted_tokens: Tensor,
    sorted_indices: Tensor,
    routing_map: Tensor,
    probs: Tensor,
    hidden_size: int,
) -> Tensor:
    row_of_slot, token_of_row = _find_rows(routing_map)
    if not torch.equal(token_of_row, sorted_indices.to(torch.int64)):
        raise ValueError(
            "sorted_indices and routing_map do not belong together: expected the tokens of "
            f"routing_map's {token_of_row.shape[0]} set pairs in expert order"
        )
    tokens = in_huge_pages(permuted_tokens.new_empty(routing_map.shape[0], hidden_size))
    call(
        _library.unpermute,
        permuted_tokens,
        row_of_slot,
        routing_map,
        probs,
        tokens,
        None,
        None,
        None,
        False,
        *tokens.shape,
        0,
        0,
    )
    return tokens


@_unpermute_op.register_fake
def _(
    permuted_tokens: Tensor,
    sorted_indices: Tensor,
    routing_map: Tensor,
    probs: Tensor,
    hidden_size: int,
) -> Tensor:
    return permuted_tokens.new_empty(routing_map.shape[0], hidden_size)


def _unpermute_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    permuted_tokens, sorted_indices, routing_map, probs, _ = inputs
    ctx.rows_num = permuted_tokens.shape[0]
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(
        sorted_indices, routing_map, permuted_tokens if ctx.needs_input_grad[3] else None, probs
    )


def _unpermute_backward(ctx: Any, tokens_grad: Optional[Tensor]) -> tuple[Optional[Tensor], ...]:
    sorted_indices, routing_map, permuted_tokens, probs = ctx.saved_tensors
    wants = (ctx.needs_input_grad[0], ctx.needs_input_grad[3])
    results: tuple[Any, Any] = (None, None)
    if tokens_grad is not None and any(wants):
        # Slot i is row i: expert order is as good as any for the backward operator.
        rows = torch.arange(ctx.rows_num, dtype=sorted_indices.dtype, device=probs.device)
        results = _operators.unpermute_grad(
            tokens_grad,
            rows,
            sorted_indices,
            routing_map,
            permuted_tokens,
            probs,
            ctx.rows_num,
            False,
            *wants,
            False,
            False,
        )
    return (
        results[0] if wants[0] else None,
        None,
        None,
        results[1] if wants[1] else None,
        None,
    )


_unpermute_op.register_autograd(_unpermute_backward, setup_context=_unpermute_context)


# ---- Megatron's functions -----------------------------------------------------------------------


def _as_map(routing_map: Tensor) -> Tensor:
    """The library's maps are of one byte; Megatron takes any type."""
    return routing_map if routing_map.element_size() == 1 else routing_map != 0


def _go_together(tokens: Tensor, probs: Tensor) -> bool:
    """Whether the library takes these two types in one call."""
    narrow = tokens.dtype in (torch.bfloat16, torch.float16)
    return tokens.dtype == probs.dtype or (narrow and probs.dtype == torch.float32)


def _permute(
    tokens: Tensor,
    routing_map: Tensor,
    probs: Optional[Tensor],
    num_out_tokens: Optional[int],
    drop_and_pad: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The operator of the mode, for types that go together."""
    if drop_and_pad and num_out_tokens is not None:
        experts_num = routing_map.shape[1]
        rows_num = num_out_tokens // experts_num * experts_num if experts_num else 0
        return _operators.permute(tokens, routing_map, probs, rows_num, rows_num, True, torch.int64)
    rows = num_out_tokens if RETURNS_FIVE_VALUES else None
    return _permute_op(tokens, routing_map, probs, rows)


def permute(
    tokens: Tensor,
    routing_map: Tensor,
    probs: Optional[Tensor] = None,
    num_out_tokens: Optional[int] = None,
    fused: bool = False,
    drop_and_pad: bool = False,
    tokens_per_expert: Optional[Tensor] = None,
    align_size: int = 0,
) -> tuple[Any, ...]:
    """Rows in expert order: permuted_tokens [R, H], permuted_probs [R] or None, sorted_indices [R].

    Since Megatron-Core 0.17 two more values: None (no offsets of padding) and `tokens_per_expert`.
    `sorted_indices` (int64) is the token of each row. With `drop_and_pad` every expert has
    num_out_tokens // E rows. Without, R is the number of set pairs of `routing_map`; since 0.17
    `num_out_tokens`, when given, must be that number (and lets torch.compile know it).
    `fused` and `align_size` are for CUDA kernels and change nothing here.
    """
    routing_map = _as_map(routing_map)
    if probs is None or _go_together(tokens, probs):
        rows, row_probs, indices = _permute(
            tokens, routing_map, probs, num_out_tokens, drop_and_pad
        )
    else:  # a copy of each by itself: any two types will do
        rows, _, indices = _permute(tokens, routing_map, None, num_out_tokens, drop_and_pad)
        no_tokens = probs.detach()[:, :0]
        _, row_probs, _ = _permute(no_tokens, routing_map, probs, num_out_tokens, drop_and_pad)
    values = (rows, None if probs is None else row_probs, indices)
    return (*values, None, tokens_per_expert) if RETURNS_FIVE_VALUES else values


def _common_types(tokens: Tensor, probs: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens and probs in types that the library takes together, widened as PyTorch would."""
    if _go_together(tokens, probs):
        return tokens, probs
    wide = torch.promote_types(tokens.dtype, probs.dtype)
    return tokens.to(wide), probs.to(wide)


def unpermute(
    permuted_tokens: Tensor,
    sorted_indices: Tensor,
    restore_shape: Sequence[int],
    probs: Optional[Tensor] = None,
    routing_map: Optional[Tensor] = None,
    fused: bool = False,
    drop_and_pad: bool = False,
    pad_offsets: Optional[Tensor] = None,
) -> Tensor:
    """The rows added up again in token order, weighted by `probs`: [T, H], the type of the rows.

    `sorted_indices` is what :func:`permute` returned for the same `routing_map`. `fused` changes
    nothing here; `pad_offsets` must be None, as `permute` returns it.
    """
    if pad_offsets is not None:
        raise ValueError("pad_offsets is given, expected None: permute here never pads rows")
    tokens_num, hidden_size = restore_shape
    if probs is None:
        # Without weights only the token of each row counts, which is the padded form of indices.
        return _operators.unpermute(
            permuted_tokens,
            sorted_indices,
            None,
            None,
            tokens_num,
            hidden_size,
            True,
            False,
            False,
        )[0]
    if routing_map is None:
        raise ValueError("routing_map is None, expected a tensor as probs is given")
    rows, weights = _common_types(permuted_tokens, probs)
    if drop_and_pad:
        combined = _operators.unpermute(
            rows,
            sorted_indices,
            _as_map(routing_map),
            weights,
            tokens_num,
            hidden_size,
            True,
            False,
            False,
        )[0]
    else:
        combined = _unpermute_op(rows, sorted_indices, _as_map(routing_map), weights, hidden_size)
    return combined.to(permuted_tokens.dtype)
