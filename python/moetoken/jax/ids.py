"""The four operators on a routing by expert ids, for JAX: jit, grad, jvp, vmap and shard_map.

``expert_ids`` [T, K] lists the experts of each token (topk_ids, top_k_index), ``weights`` [T, K]
their weights; -1 stands for an unused slot. See :mod:`moetoken.ids`, whose functions these are, on
JAX's arrays. Sizes are Python numbers, known when JAX traces, and shapes and types are checked
then; all functions can be differentiated, forward and backward, as often as wanted.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Union

import jax.numpy as jnp
from jax import Array

from . import _by_ids
from ._checks import Arg, check, whole
from ._primitives import shape

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

    permuted_tokens: Union[Array, Any]  # [R, H]
    permuted_weights: Union[Array, Any]  # [R]
    sorted_indices: Array  # [T * K], the row of each slot
    source_slots: Array  # [R], the slot of each row
    rows_per_expert: Array  # [expert_end - expert_begin], int64 in JAX's 64-bit mode


class PermuteGradResult(NamedTuple):
    """What :func:`permute_grad` returns."""

    tokens_grad: Union[Array, Any]  # [T, H]
    weights_grad: Union[Array, Any]  # [T, K]


class UnpermuteGradResult(NamedTuple):
    """What :func:`unpermute_grad` returns."""

    permuted_tokens_grad: Array  # [R, H]
    weights_grad: Union[Array, Any]  # [T, K]


def _tokens_of(slots_num: int, topk: int) -> int:
    if slots_num % topk:
        raise ValueError(
            f"sorted_indices has size {slots_num}, expected a multiple of topk = {topk}"
        )
    return slots_num // topk


def permute(
    tokens: Optional[Array],
    expert_ids: Array,
    weights: Optional[Array] = None,
    *,
    experts_num: int,
    expert_begin: int = 0,
    expert_end: Optional[int] = None,
    capacity: Optional[int] = None,
    rows_num: Optional[int] = None,
) -> PermuteResult:
    """Sends every token to its experts. Differentiable in `tokens` and `weights`.

    Parameters are those of :func:`moetoken.ids.permute`.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> from moetoken.jax import ids
    >>> tokens, expert_ids = jnp.array([[1., 2.], [3., 4.]]), jnp.array([[1, 0], [-1, 1]])
    >>> result = ids.permute(tokens, expert_ids, experts_num=2, rows_num=3)
    >>> result.sorted_indices, result.rows_per_expert
    (Array([ 1,  0, -1,  2], dtype=int32), Array([1, 2], dtype=int32))
    >>> jax.grad(lambda t: ids.permute(t, expert_ids, experts_num=2)[0].sum())(tokens)
    Array([[2., 2.],
           [1., 1.]], dtype=float32)
    """
    experts_num = whole("experts_num", experts_num)
    begin = whole("expert_begin", expert_begin)
    end = experts_num if expert_end is None else whole("expert_end", expert_end)
    if not begin <= end <= experts_num:
        raise ValueError(
            f"expert_begin = {begin}, expert_end = {end}: expected "
            f"0 <= expert_begin <= expert_end <= experts_num = {experts_num}"
        )
    tokens, ids, weights = check(
        Arg("tokens", tokens, "TH", "tokens"),
        Arg("expert_ids", expert_ids, "TK", "indices"),
        Arg("weights", weights, "TK", "probs"),
    )
    tokens_num, topk = ids.shape
    slots = 0 if capacity is None else whole("capacity", capacity, 1)
    if rows_num is not None:
        rows = whole("rows_num", rows_num)
    else:
        rows = (end - begin) * slots if slots else tokens_num * topk
    settings = _by_ids.Permute(tokens_num, topk, rows, experts_num, begin, end, slots)
    results = [
        None if tokens is None else shape((rows, tokens.shape[1]), tokens),
        None if weights is None else shape((rows,), weights),
        shape((tokens_num * topk,), ids),
        shape((rows,), ids),
    ]
    found = _by_ids.permute.bind(settings, (tokens, ids, weights), results)
    experts = jnp.where(found[2].reshape(ids.shape) >= 0, ids - begin, end - begin)
    counts = jnp.zeros(end - begin + 1, int).at[experts.ravel()].add(1)[:-1]
    rows_made, row_weights, indices, sources = found
    return PermuteResult(rows_made, row_weights, indices, sources, counts)


def permute_grad(
    permuted_tokens_grad: Optional[Array],
    sorted_indices: Array,
    *,
    topk: int,
    permuted_weights_grad: Optional[Array] = None,
) -> PermuteGradResult:
    """The gradient of :func:`permute` by itself; see :func:`moetoken.ids.permute_grad`."""
    topk = whole("topk", topk, 1)
    rows, row_weights, indices = check(
        Arg("permuted_tokens_grad", permuted_tokens_grad, "RH", "tokens"),
        Arg("permuted_weights_grad", permuted_weights_grad, "R", "probs"),
        Arg("sorted_indices", sorted_indices, "N", "indices"),
    )
    tokens_num = _tokens_of(indices.shape[0], topk)
    if rows is None and row_weights is None:
        return PermuteGradResult(None, None)
    rows_num = (row_weights if rows is None else rows).shape[0]
    results = [
        None if rows is None else shape((tokens_num, rows.shape[1]), rows),
        None if row_weights is None else shape((tokens_num, topk), row_weights),
    ]
    settings = _by_ids.Permute(tokens_num, topk, rows_num)
    found = _by_ids.permute_grad.bind(settings, (rows, row_weights, indices), results)
    return PermuteGradResult(*found)


def unpermute(
    permuted_tokens: Array,
    sorted_indices: Array,
    weights: Optional[Array] = None,
    *,
    topk: Optional[int] = None,
    residual: Optional[Array] = None,
    residual2: Optional[Array] = None,
    expert_bias: Optional[Array] = None,
    expert_ids: Optional[Array] = None,
) -> Array:
    """The weighted combine, unpermuted_tokens [T, H].

    Parameters are those of :func:`moetoken.ids.unpermute`. Differentiable in `permuted_tokens`,
    `weights`, `residual`, `residual2` and `expert_bias`; backward, no row may be named twice.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> from moetoken.jax import ids
    >>> rows, indices = jnp.array([[1., 2.], [3., 4.], [5., 6.]]), jnp.array([1, 0, -1, 2])
    >>> weights = jnp.array([[1., 2.], [0., 0.5]])
    >>> ids.unpermute(rows, indices, weights, residual=jnp.ones((2, 2)))
    Array([[6. , 9. ],
           [3.5, 4. ]], dtype=float32)
    >>> jax.grad(lambda w: ids.unpermute(rows, indices, w).sum())(weights)
    Array([[ 7.,  3.],
           [ 0., 11.]], dtype=float32)
    """
    x, indices, weights, residual, residual2, bias, ids = check(
        Arg("permuted_tokens", permuted_tokens, "RH", "tokens"),
        Arg("sorted_indices", sorted_indices, "N", "indices"),
        Arg("weights", weights, "TK", "probs"),
        Arg("residual", residual, "TH", "tokens"),
        Arg("residual2", residual2, "TH", "tokens"),
        Arg("expert_bias", expert_bias, "EH", "tokens"),
        Arg("expert_ids", expert_ids, "TK", "indices"),
        K=None if topk is None else whole("topk", topk, 1),
    )
    if bias is not None and ids is None:
        raise ValueError("expert_ids is missing, expected an array as expert_bias is given")
    if residual2 is not None and residual is None:
        raise ValueError("residual is missing, expected an array as residual2 is given")
    source = next((a for a in (weights, ids, residual) if a is not None), None)
    if topk is not None:
        tokens_num = _tokens_of(indices.shape[0], topk)
    elif source is not None:
        tokens_num = source.shape[0]
    else:
        raise ValueError(
            "topk is missing: without weights, expert_ids and residual it must be given"
        )
    arguments = (x, indices, weights, residual, residual2, bias, ids)
    results = [shape((tokens_num, x.shape[1]), x)]
    return _by_ids.unpermute.bind(_by_ids.Slots(tokens_num), arguments, results)[0]


def unpermute_grad(
    unpermuted_tokens_grad: Array,
    sorted_indices: Array,
    *,
    permuted_tokens: Optional[Array] = None,
    weights: Optional[Array] = None,
    expert_bias: Optional[Array] = None,
    expert_ids: Optional[Array] = None,
    rows_num: Optional[int] = None,
) -> UnpermuteGradResult:
    """The gradient of :func:`unpermute` by itself; see :func:`moetoken.ids.unpermute_grad`."""
    rows = None if rows_num is None else whole("rows_num", rows_num)
    g, indices, x, weights, bias, ids = check(
        Arg("unpermuted_tokens_grad", unpermuted_tokens_grad, "TH", "tokens"),
        Arg("sorted_indices", sorted_indices, "N", "indices"),
        Arg("permuted_tokens", permuted_tokens, "RH", "tokens"),
        Arg("weights", weights, "TK", "probs"),
        Arg("expert_bias", expert_bias, "EH", "tokens"),
        Arg("expert_ids", expert_ids, "TK", "indices"),
        R=rows,
    )
    if bias is not None and ids is None:
        raise ValueError("expert_ids is missing, expected an array as expert_bias is given")
    if rows is None:
        rows = (indices if x is None else x).shape[0]
    wants_weights = weights is not None and x is not None
    results = [
        shape((rows, g.shape[1]), g),
        shape(weights.shape, weights) if wants_weights else None,
    ]
    arguments = (g, indices, x if wants_weights else None, weights, bias, ids)
    found = _by_ids.gradients.bind(_by_ids.Slots(g.shape[0]), arguments, results)
    return UnpermuteGradResult(*found)
