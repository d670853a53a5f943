"""The operators for PyTorch on the CPU: autograd, torch.compile and torch.export work with them.

The functions here have the names of the contract and take and return tensors. ``permute`` and
``unpermute`` are differentiable, and so are ``router`` and its losses; only the gradients that are
needed are computed. Beneath are operators registered with torch.library as ``torch.ops.moetoken.*``.

``moetoken.torch.ids`` has the functions for a routing by expert ids. Other frameworks' functions:
``moetoken.torch.npu`` as PyTorch's Ascend plug-in has them, ``moetoken.torch.megatron`` as
Megatron-Core's ``moe_utils``, ``moetoken.torch.transformer_engine`` and ``moetoken.torch.vllm``.
"""

from __future__ import annotations

from typing import NamedTuple, Optional, Sequence, overload

import torch
from torch import Tensor

from .._arrays import flags
from . import _operators
from ._checks import check_rank, check_restore_shape, count, to_restore
from ._router import (
    DropResult,
    RouterResult,
    router,
    router_balance_loss,
    router_drop,
    router_grad,
    router_update_bias,
    router_z_loss,
)

__all__ = [
    "DropResult",
    "RouterResult",
    "Unpermuted",
    "permute",
    "permute_grad",
    "router",
    "router_balance_loss",
    "router_drop",
    "router_grad",
    "router_update_bias",
    "router_z_loss",
    "unpermute",
    "unpermute_grad",
    "unpermute_with_indices",
]

_BOTH = (True, True)  # the default output_mask, told by identity


@overload
def permute(
    tokens: Tensor,
    routing_map: Tensor,
    probs: None = None,
    num_out_tokens: Optional[int] = None,
    drop_and_pad: bool = False,
    *,
    rows_num: Optional[int] = None,
    index_dtype: torch.dtype = torch.int32,
) -> tuple[Tensor, None, Tensor]: ...
@overload
def permute(
    tokens: Tensor,
    routing_map: Tensor,
    probs: Tensor,
    num_out_tokens: Optional[int] = None,
    drop_and_pad: bool = False,
    *,
    rows_num: Optional[int] = None,
    index_dtype: torch.dtype = torch.int32,
) -> tuple[Tensor, Tensor, Tensor]: ...
def permute(
    tokens: Tensor,
    routing_map: Tensor,
    probs: Optional[Tensor] = None,
    num_out_tokens: Optional[int] = None,
    drop_and_pad: bool = False,
    *,
    rows_num: Optional[int] = None,
    index_dtype: torch.dtype = torch.int32,
) -> tuple[Tensor, Optional[Tensor], Tensor]:
    """Sends every token to its experts. Differentiable in `tokens` and `probs`.

    Parameters
    ----------
    tokens : [T, H] float32, float16, bfloat16 or float64
    routing_map : [T, E] bool, int8 or uint8
    probs : [T, E] the token type, or float32 with float16 or bfloat16 tokens
    num_out_tokens : N, the number of slots: T * K, or E * C with `drop_and_pad`. Where it is not
        given, K is the most experts that a token of `routing_map` has; that looks at the data, so
        torch.compile and torch.export need it to be given.
    drop_and_pad : every expert takes C rows: its first C tokens, then fill slots.
    rows_num : R, at least the number of set pairs; rows beyond those are zero. N by default.
    index_dtype : torch.int32 or torch.int64, the type of `sorted_indices`

    Returns
    -------
    permuted_tokens [R, H], permuted_probs [R] (None without `probs`), sorted_indices [N]

    Raises
    ------
    ValueError, TypeError, IndexError
        With a message that names the argument, the place and the values.

    Examples
    --------
    >>> import torch, moetoken.torch
    >>> tokens = torch.tensor([[1., 2.], [3., 4.]], requires_grad=True)
    >>> routing_map = torch.tensor([[True, True], [False, True]])
    >>> rows, _, sorted_indices = moetoken.torch.permute(tokens, routing_map, num_out_tokens=4)
    >>> sorted_indices
    tensor([ 0,  1,  2, -1], dtype=torch.int32)
    >>> rows.sum().backward()
    >>> tokens.grad
    tensor([[2., 2.],
            [1., 1.]])
    """
    check_rank("tokens", tokens, 2)
    check_rank("routing_map", routing_map, 2)
    if index_dtype not in (torch.int32, torch.int64):
        raise TypeError(f"index_dtype is {index_dtype!r}, expected torch.int32 or torch.int64")
    if num_out_tokens is None:
        if drop_and_pad:
            raise ValueError("num_out_tokens is missing, expected E * C when drop_and_pad is set")
        set_pairs = (routing_map != 0).sum(1)
        num_out_tokens = int(set_pairs.max()) * len(set_pairs) if len(set_pairs) else 0
    num_out_tokens = count("num_out_tokens", num_out_tokens)
    rows_num = num_out_tokens if rows_num is None else count("rows_num", rows_num)
    permuted_tokens, permuted_probs, sorted_indices = _operators.permute(
        tokens,
        routing_map,
        probs,
        num_out_tokens,
        rows_num,
        drop_and_pad,
        index_dtype,
    )
    return permuted_tokens, None if probs is None else permuted_probs, sorted_indices


def unpermute(
    permuted_tokens: Tensor,
    sorted_indices: Tensor,
    *,
    routing_map: Optional[Tensor] = None,
    probs: Optional[Tensor] = None,
    restore_shape: Optional[Sequence[int]] = None,
    drop_and_pad: bool = False,
    mask_fill_slots: bool = False,
    tolerate_routing_mismatch: bool = False,
) -> Tensor:
    """Adds the experts' rows up again, weighted. Differentiable in `permuted_tokens` and `probs`.

    Parameters
    ----------
    permuted_tokens : [R, H] float32, float16, bfloat16 or float64
    sorted_indices : [N] int32 or int64, what :func:`permute` returned
    routing_map : [T, E] bool, int8 or uint8. Required with `probs`.
    probs : [T, E] the token type, or float32 with float16 or bfloat16 tokens; without: all are 1
    restore_shape : (T, H). May be left out with `probs` or `routing_map`.
    drop_and_pad : as it was for :func:`permute`
    mask_fill_slots : with `drop_and_pad`, slots whose pair is not in `routing_map` have weight 0.
    tolerate_routing_mismatch : a slot that `routing_map` has no expert for gets weight 0 instead
        of an error.

    Returns
    -------
    unpermuted_tokens [T, H]

    Raises
    ------
    ValueError, TypeError, IndexError
        With a message that names the argument, the place and the values.

    Examples
    --------
    >>> import torch, moetoken.torch
    >>> x = torch.tensor([[1., 2.], [3., 4.], [5., 6.]], requires_grad=True)
    >>> routing_map = torch.tensor([[True, True], [False, True]])
    >>> probs = torch.tensor([[.5, .5], [0., 2.]])
    >>> y = moetoken.torch.unpermute(
    ...     x, torch.tensor([0, 1, 2, -1]), routing_map=routing_map, probs=probs)
    >>> y.detach()
    tensor([[ 2.,  3.],
            [10., 12.]])
    >>> y.sum().backward()
    >>> x.grad
    tensor([[0.5000, 0.5000],
            [0.5000, 0.5000],
            [2.0000, 2.0000]])
    """
    return _operators.unpermute(
        permuted_tokens,
        sorted_indices,
        routing_map,
        probs,
        *_restored(restore_shape, permuted_tokens, routing_map, probs),
        drop_and_pad,
        mask_fill_slots,
        tolerate_routing_mismatch,
    )[0]


def _restored(
    restore_shape: Optional[Sequence[int]],
    permuted_tokens: Tensor,
    routing_map: Optional[Tensor],
    probs: Optional[Tensor],
) -> tuple[int, int]:
    """(T, H), as given or from the tensors."""
    check_rank("permuted_tokens", permuted_tokens, 2)
    name, source = ("routing_map", routing_map) if probs is None else ("probs", probs)
    check_rank(name, source, 2, optional=True)
    if restore_shape is None:
        if source is None:
            raise ValueError("restore_shape is missing, expected (tokens_num, hidden_size)")
        return source.shape[0], permuted_tokens.shape[1]
    tokens_num, hidden_size = to_restore(restore_shape)
    if source is not None and source.shape[0] != tokens_num:
        raise ValueError(
            f"restore_shape = {tuple(restore_shape)}, expected T = {source.shape[0]} (from {name})"
        )
    return tokens_num, hidden_size


class Unpermuted(NamedTuple):
    """All results of the weighted combine."""

    unpermuted_tokens: Tensor  # [T, H]
    out_index: Tensor  # [N]
    permute_token_id: Tensor  # [N]
    permuted_probs: Optional[Tensor]  # [N]; None without probs


def unpermute_with_indices(
    permuted_tokens: Tensor,
    sorted_indices: Tensor,
    *,
    routing_map: Optional[Tensor] = None,
    probs: Optional[Tensor] = None,
    restore_shape: Optional[Sequence[int]] = None,
    drop_and_pad: bool = False,
    mask_fill_slots: bool = False,
    tolerate_routing_mismatch: bool = False,
) -> Unpermuted:
    """:func:`unpermute` with the index tensors that :func:`unpermute_grad` takes, in both modes.

    `out_index` and `permute_token_id` are what the gradient needs with `drop_and_pad`, where
    `sorted_indices` holds tokens instead of rows. Differentiable in `unpermuted_tokens`;
    `permuted_probs`, the weight of each slot of `sorted_indices`, is not.

    Raises
    ------
    ValueError, TypeError, IndexError
        With a message that names the argument, the place and the values.

    Examples
    --------
    >>> import torch, moetoken.torch
    >>> x = torch.tensor([[1., 2.], [3., 4.], [5., 6.]])
    >>> found = moetoken.torch.unpermute_with_indices(
    ...     x, torch.tensor([1, 0, 1]), restore_shape=(2, 2), drop_and_pad=True)
    >>> found.out_index, found.permute_token_id
    (tensor([1, 0, 2]), tensor([0, 1, 1]))
    >>> moetoken.torch.unpermute_grad(
    ...     found.unpermuted_tokens, *found[1:3], drop_and_pad=True)[0]
    tensor([[6., 8.],
            [3., 4.],
            [6., 8.]])
    """
    tokens_num, hidden_size = _restored(restore_shape, permuted_tokens, routing_map, probs)
    options = (drop_and_pad, mask_fill_slots, tolerate_routing_mismatch)
    tokens, out_index, token_id = _operators.unpermute(
        permuted_tokens, sorted_indices, routing_map, probs, tokens_num, hidden_size, *options
    )
    if not drop_and_pad:
        out_index = sorted_indices.clone()
        slots_num = out_index.shape[0]
        slots = torch.arange(slots_num, dtype=out_index.dtype, device=out_index.device)
        token_id = slots // max(slots_num // max(tokens_num, 1), 1)
    weights = None
    if probs is not None and routing_map is not None:
        weights = _operators.slot_weights(
            sorted_indices, routing_map, probs.detach(), permuted_tokens.shape[0], *options
        )
    return Unpermuted(tokens, out_index, token_id, weights)


@overload
def unpermute_grad(
    unpermuted_tokens_grad: Tensor,
    out_index: Tensor,
    permute_token_id: Optional[Tensor] = None,
    *,
    routing_map: Optional[Tensor] = None,
    permuted_tokens: Optional[Tensor] = None,
    probs: None = None,
    drop_and_pad: bool = False,
    restore_shape: Optional[Sequence[int]] = None,
    rows_num: Optional[int] = None,
    mask_fill_slots: bool = False,
    tolerate_routing_mismatch: bool = False,
) -> tuple[Tensor, None]: ...
@overload
def unpermute_grad(
    unpermuted_tokens_grad: Tensor,
    out_index: Tensor,
    permute_token_id: Optional[Tensor] = None,
    *,
    routing_map: Optional[Tensor] = None,
    permuted_tokens: Optional[Tensor] = None,
    probs: Tensor,
    drop_and_pad: bool = False,
    restore_shape: Optional[Sequence[int]] = None,
    rows_num: Optional[int] = None,
    mask_fill_slots: bool = False,
    tolerate_routing_mismatch: bool = False,
) -> tuple[Tensor, Tensor]: ...
@overload
def unpermute_grad(
    unpermuted_tokens_grad: Tensor,
    out_index: Tensor,
    permute_token_id: Optional[Tensor] = None,
    *,
    routing_map: Optional[Tensor] = None,
    permuted_tokens: Optional[Tensor] = None,
    probs: Optional[Tensor] = None,
    drop_and_pad: bool = False,
    restore_shape: Optional[Sequence[int]] = None,
    rows_num: Optional[int] = None,
    output_mask: Sequence[bool],
    mask_fill_slots: bool = False,
    tolerate_routing_mismatch: bool = False,
) -> tuple[Optional[Tensor], Optional[Tensor]]: ...
def unpermute_grad(
    unpermuted_tokens_grad: Tensor,
    out_index: Tensor,
    permute_token_id: Optional[Tensor] = None,
    *,
    routing_map: Optional[Tensor] = None,
    permuted_tokens: Optional[Tensor] = None,
    probs: Optional[Tensor] = None,
    drop_and_pad: bool = False,
    restore_shape: Optional[Sequence[int]] = None,
    rows_num: Optional[int] = None,
    output_mask: Sequence[bool] = _BOTH,
    mask_fill_slots: bool = False,
    tolerate_routing_mismatch: bool = False,
) -> tuple[Optional[Tensor], Optional[Tensor]]:
    """The gradient of :func:`unpermute` by itself; see :func:`moetoken.unpermute_grad`.

    Returns
    -------
    permuted_tokens_grad [R, H], probs_grad [T, E]; None for what `output_mask` leaves out, and for
    `probs_grad` without `probs`

    Raises
    ------
    ValueError, TypeError, IndexError
        With a message that names the argument, the place and the values.
    """
    check_rank("unpermuted_tokens_grad", unpermuted_tokens_grad, 2)
    check_rank("out_index", out_index, 1)
    check_rank("permuted_tokens", permuted_tokens, 2, optional=True)
    check_restore_shape(restore_shape, unpermuted_tokens_grad)
    if rows_num is None:
        rows_num = (out_index if permuted_tokens is None else permuted_tokens).shape[0]
    wants_tokens_grad = wants_probs_grad = True
    if output_mask is not _BOTH:
        wants_tokens_grad, wants_probs_grad = flags("output_mask", output_mask, 2)
    wants_probs_grad = wants_probs_grad and probs is not None
    tokens_grad, probs_grad = _operators.unpermute_grad(
        unpermuted_tokens_grad,
        out_index,
        permute_token_id,
        routing_map,
        permuted_tokens,
        probs,
        count("rows_num", rows_num),
        drop_and_pad,
        wants_tokens_grad,
        wants_probs_grad,
        mask_fill_slots,
        tolerate_routing_mismatch,
    )
    return (tokens_grad if wants_tokens_grad else None, probs_grad if wants_probs_grad else None)


@overload
def permute_grad(
    permuted_tokens_grad: Tensor,
    permuted_probs_grad: None,
    sorted_indices: Tensor,
    routing_map: Optional[Tensor] = None,
    *,
    tokens_num: Optional[int] = None,
    experts_num: Optional[int] = None,
    drop_and_pad: bool = False,
    tolerate_routing_mismatch: bool = False,
) -> tuple[Tensor, None]: ...
@overload
def permute_grad(
    permuted_tokens_grad: None,
    permuted_probs_grad: Tensor,
    sorted_indices: Tensor,
    routing_map: Optional[Tensor] = None,
    *,
    tokens_num: Optional[int] = None,
    experts_num: Optional[int] = None,
    drop_and_pad: bool = False,
    tolerate_routing_mismatch: bool = False,
) -> tuple[None, Tensor]: ...
@overload
def permute_grad(
    permuted_tokens_grad: Tensor,
    permuted_probs_grad: Tensor,
    sorted_indices: Tensor,
    routing_map: Optional[Tensor] = None,
    *,
    tokens_num: Optional[int] = None,
    experts_num: Optional[int] = None,
    drop_and_pad: bool = False,
    tolerate_routing_mismatch: bool = False,
) -> tuple[Tensor, Tensor]: ...
def permute_grad(
    permuted_tokens_grad: Optional[Tensor],
    permuted_probs_grad: Optional[Tensor],
    sorted_indices: Tensor,
    routing_map: Optional[Tensor] = None,
    *,
    tokens_num: Optional[int] = None,
    experts_num: Optional[int] = None,
    drop_and_pad: bool = False,
    tolerate_routing_mismatch: bool = False,
) -> tuple[Optional[Tensor], Optional[Tensor]]:
    """The gradient of :func:`permute` by itself; see :func:`moetoken.permute_grad`.

    Returns
    -------
    tokens_grad [T, H], probs_grad [T, E]; None where the gradient it comes from is None

    Raises
    ------
    ValueError, TypeError, IndexError
        With a message that names the argument, the place and the values.
    """
    check_rank("permuted_tokens_grad", permuted_tokens_grad, 2, optional=True)
    check_rank("permuted_probs_grad", permuted_probs_grad, 1, optional=True)
    check_rank("routing_map", routing_map, 2, optional=True)
    if routing_map is not None:
        tokens_num = routing_map.shape[0] if tokens_num is None else tokens_num
        experts_num = routing_map.shape[1] if experts_num is None else experts_num
    if tokens_num is None or (experts_num is None and permuted_probs_grad is not None):
        raise ValueError("tokens_num or experts_num is missing: without routing_map both are due")
    tokens_grad, probs_grad = _operators.permute_grad(
        permuted_tokens_grad,
        permuted_probs_grad,
        sorted_indices,
        routing_map,
        count("tokens_num", tokens_num),
        1 if experts_num is None else count("experts_num", experts_num),
        drop_and_pad,
        tolerate_routing_mismatch,
    )
    return (
        None if permuted_tokens_grad is None else tokens_grad,
        None if permuted_probs_grad is None else probs_grad,
    )
