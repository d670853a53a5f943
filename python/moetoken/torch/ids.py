"""The four operators on a routing by expert ids, for PyTorch: autograd and torch.compile included.

``expert_ids`` [T, K] lists the experts of each token (topk_ids, top_k_index), ``weights`` [T, K]
their weights; -1 stands for an unused slot. See :mod:`moetoken.ids`, whose functions these are, on
tensors. All can be differentiated, forward and backward, as often as wanted.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Union

from torch import Tensor

from . import _by_ids
from ._checks import check_rank, count

__all__ = [
    "PermuteGradResult",
    "PermuteResult",
    "UnpermuteGradResult",
    "permute",
    "permute_grad",
    "unpermute",
    "unpermute_grad",
]

# A field is None where nothing was given for it: which of both the call says, and type checkers
# cannot. They are told to trust the caller.


class PermuteResult(NamedTuple):
    """What :func:`permute` returns."""

    permuted_tokens: Union[Tensor, Any]  # [R, H]
    permuted_weights: Union[Tensor, Any]  # [R]
    sorted_indices: Tensor  # [T * K], the row of each slot
    source_slots: Tensor  # [R], the slot of each row
    rows_per_expert: Tensor  # [expert_end - expert_begin] int64


class PermuteGradResult(NamedTuple):
    """What :func:`permute_grad` returns."""

    tokens_grad: Union[Tensor, Any]  # [T, H]
    weights_grad: Union[Tensor, Any]  # [T, K]


class UnpermuteGradResult(NamedTuple):
    """What :func:`unpermute_grad` returns."""

    permuted_tokens_grad: Tensor  # [R, H]
    weights_grad: Union[Tensor, Any]  # [T, K]


def _tokens_of(sorted_indices: Tensor, topk: int) -> int:
    check_rank("sorted_indices", sorted_indices, 1)
    if sorted_indices.shape[0] % topk:
        raise ValueError(
            f"sorted_indices has size {sorted_indices.shape[0]}, expected a multiple of "
            f"topk = {topk}"
        )
    return sorted_indices.shape[0] // topk


def permute(
    tokens: Optional[Tensor],
    expert_ids: Tensor,
    weights: Optional[Tensor] = None,
    *,
    experts_num: int,
    expert_begin: int = 0,
    expert_end: Optional[int] = None,
    capacity: Optional[int] = None,
    rows_num: Optional[int] = None,
) -> PermuteResult:
    """Sends every token to its experts. Differentiable in `tokens` and `weights`.

    Parameters are those of :func:`moetoken.ids.permute`. Sizes are numbers, so that no shape
    depends on data: without `capacity` or `rows_num` there are T * K rows, those beyond the used
    slots zero.

    Examples
    --------
    >>> import torch
    >>> from moetoken.torch import ids
    >>> tokens = torch.tensor([[1., 2.], [3., 4.]], requires_grad=True)
    >>> result = ids.permute(tokens, torch.tensor([[1, 0], [-1, 1]]), experts_num=2, rows_num=3)
    >>> result.sorted_indices, result.rows_per_expert
    (tensor([ 1,  0, -1,  2]), tensor([1, 2]))
    >>> result.permuted_tokens.sum().backward()
    >>> tokens.grad
    tensor([[2., 2.],
            [1., 1.]])
    """
    experts_num = count("experts_num", experts_num)
    expert_begin = count("expert_begin", expert_begin)
    expert_end = experts_num if expert_end is None else count("expert_end", expert_end)
    if not 0 <= expert_begin <= expert_end <= experts_num:
        raise ValueError(
            f"expert_begin = {expert_begin}, expert_end = {expert_end}: expected "
            f"0 <= expert_begin <= expert_end <= experts_num = {experts_num}"
        )
    check_rank("tokens", tokens, 2, optional=True)
    check_rank("expert_ids", expert_ids, 2)
    check_rank("weights", weights, 2, optional=True)
    capacity = 0 if capacity is None else count("capacity", capacity, least=1)
    if rows_num is not None:
        rows_num = count("rows_num", rows_num)
    else:
        rows_num = expert_ids.shape[0] * expert_ids.shape[1]
        if capacity:
            rows_num = (expert_end - expert_begin) * capacity
    rows, row_weights, *indices = _by_ids.permute(
        tokens,
        expert_ids,
        weights,
        experts_num,
        expert_begin,
        expert_end,
        capacity,
        rows_num,
    )
    return PermuteResult(
        None if tokens is None else rows, None if weights is None else row_weights, *indices
    )


def permute_grad(
    permuted_tokens_grad: Optional[Tensor],
    sorted_indices: Tensor,
    *,
    topk: int,
    permuted_weights_grad: Optional[Tensor] = None,
) -> PermuteGradResult:
    """The gradient of :func:`permute` by itself; see :func:`moetoken.ids.permute_grad`."""
    check_rank("permuted_tokens_grad", permuted_tokens_grad, 2, optional=True)
    check_rank("permuted_weights_grad", permuted_weights_grad, 1, optional=True)
    topk = count("topk", topk, least=1)
    tokens_num = _tokens_of(sorted_indices, topk)
    if permuted_tokens_grad is None and permuted_weights_grad is None:
        return PermuteGradResult(None, None)
    tokens_grad, weights_grad = _by_ids.permute_grad(
        permuted_tokens_grad, permuted_weights_grad, sorted_indices, tokens_num
    )
    return PermuteGradResult(
        None if permuted_tokens_grad is None else tokens_grad,
        None if permuted_weights_grad is None else weights_grad.view(tokens_num, topk),
    )


def unpermute(
    permuted_tokens: Tensor,
    sorted_indices: Tensor,
    weights: Optional[Tensor] = None,
    *,
    topk: Optional[int] = None,
    residual: Optional[Tensor] = None,
    residual2: Optional[Tensor] = None,
    expert_bias: Optional[Tensor] = None,
    expert_ids: Optional[Tensor] = None,
) -> Tensor:
    """The weighted combine, unpermuted_tokens [T, H].

    Parameters are those of :func:`moetoken.ids.unpermute`. Differentiable in `permuted_tokens`,
    `weights`, `residual`, `residual2` and `expert_bias`; backward, no row may be named twice.

    Examples
    --------
    >>> import torch
    >>> from moetoken.torch import ids
    >>> rows = torch.tensor([[1., 2.], [3., 4.], [5., 6.]])
    >>> weights = torch.tensor([[1., 2.], [0., 0.5]], requires_grad=True)
    >>> y = ids.unpermute(rows, torch.tensor([1, 0, -1, 2]), weights, residual=torch.ones(2, 2))
    >>> y.detach()
    tensor([[6.0000, 9.0000],
            [3.5000, 4.0000]])
    >>> y.sum().backward()
    >>> weights.grad
    tensor([[ 7.,  3.],
            [ 0., 11.]])
    """
    check_rank("permuted_tokens", permuted_tokens, 2)
    if topk is not None:
        tokens_num = _tokens_of(sorted_indices, count("topk", topk, least=1))
    else:
        givers = (("weights", weights), ("expert_ids", expert_ids), ("residual", residual))
        name, source = next(((n, t) for n, t in givers if t is not None), ("", None))
        if source is None:
            raise ValueError(
                "topk is missing: without weights, expert_ids and residual it must be given"
            )
        check_rank(name, source, 2)
        tokens_num = source.shape[0]
    return _by_ids.unpermute(
        permuted_tokens,
        sorted_indices,
        weights,
        residual,
        residual2,
        expert_bias,
        expert_ids,
        tokens_num,
    )


def unpermute_grad(
    unpermuted_tokens_grad: Tensor,
    sorted_indices: Tensor,
    *,
    permuted_tokens: Optional[Tensor] = None,
    weights: Optional[Tensor] = None,
    expert_bias: Optional[Tensor] = None,
    expert_ids: Optional[Tensor] = None,
    rows_num: Optional[int] = None,
) -> UnpermuteGradResult:
    """The gradient of :func:`unpermute` by itself; see :func:`moetoken.ids.unpermute_grad`."""
    check_rank("unpermuted_tokens_grad", unpermuted_tokens_grad, 2)
    check_rank("sorted_indices", sorted_indices, 1)
    check_rank("permuted_tokens", permuted_tokens, 2, optional=True)
    if rows_num is None:
        rows_num = (sorted_indices if permuted_tokens is None else permuted_tokens).shape[0]
    wants_weights = weights is not None and permuted_tokens is not None
    rows, weights_grad = _by_ids.unpermute_grad(
        unpermuted_tokens_grad,
        sorted_indices,
        permuted_tokens,
        weights,
        expert_bias,
        expert_ids,
        count("rows_num", rows_num),
        True,
        wants_weights,
    )
    return UnpermuteGradResult(rows, weights_grad if wants_weights else None)
