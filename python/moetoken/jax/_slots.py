"""The slots of a routing by map in JAX's own words, for what no custom call computes."""

from __future__ import annotations

import math
from typing import Any, Callable

import jax
import jax.numpy as jnp

__all__ = ["bias_products", "bias_term", "combine", "scatter_rows", "sorted_indices"]


def _each(batch: tuple[int, ...], function: Callable[..., Any], *arrays: Any) -> Any:
    """The function for each item of the batch, whose leading dimensions have its size or 1."""
    rank = len(batch)
    if rank == 0:
        return function(*arrays)

    def flattened(array: Any) -> Any:
        own = array.shape[rank:]
        return jnp.broadcast_to(array, (*batch, *own)).reshape(math.prod(batch), *own)

    flat = [None if array is None else flattened(array) for array in arrays]
    found = jax.vmap(function, [None if a is None else 0 for a in flat])(*flat)
    return found.reshape(*batch, *found.shape[1:])


def scatter_rows(batch: tuple[int, ...], weights: Any, indices: Any, rows_num: int) -> Any:
    """The weight of each slot at its row; 0 at rows that no slot names."""

    def one(weights: Any, indices: Any) -> Any:
        rows = jnp.where(indices < 0, rows_num, indices)
        return jnp.zeros(rows_num + 1, weights.dtype).at[rows].set(weights)[:rows_num]

    return _each(batch, one, weights, indices)


def sorted_indices(out_index: Any, token_id: Any, drop_and_pad: bool) -> Any:
    """What unpermute takes for these slots; None where there is no such thing."""
    if token_id is None:
        return out_index
    if not drop_and_pad:
        return None
    batch = jnp.broadcast_shapes(out_index.shape[:-1], token_id.shape[:-1])

    def one(out_index: Any, token_id: Any) -> Any:
        return jnp.zeros_like(token_id).at[out_index].set(token_id)

    return _each(batch, one, out_index, token_id)


def combine(
    batch: tuple[int, ...],
    x: Any,
    out_index: Any,
    token_id: Any,
    routing_map: Any,
    probs: Any,
    tokens_num: int,
) -> Any:
    """unpermute without drop_and_pad for slots in any order, whose tokens token_id names."""
    wide = jnp.promote_types(x.dtype, jnp.float32)

    def one(x: Any, out_index: Any, token_id: Any, routing_map: Any, probs: Any) -> Any:
        used = out_index >= 0
        weights = used.astype(wide)
        if probs is not None:
            ordinals = _ordinals(token_id)
            experts = jnp.argsort(routing_map == 0, axis=1, stable=True)
            inside = jnp.clip(ordinals, 0, routing_map.shape[1] - 1)
            there = used & (ordinals < jnp.sum(routing_map != 0, 1)[token_id])
            found = probs[token_id, experts[token_id, inside]].astype(wide)
            weights = jnp.where(there, found, 0)
        rows = jnp.where(used[:, None], x[jnp.maximum(out_index, 0)].astype(wide), 0)
        rows = rows * weights[:, None]
        return jnp.zeros((tokens_num, x.shape[1]), wide).at[token_id].add(rows).astype(x.dtype)

    return _each(batch, one, x, out_index, token_id, routing_map, probs)


def _ordinals(token_id: Any) -> Any:
    """Which of its token's slots each slot is."""
    order = jnp.argsort(token_id, stable=True)
    ranked = token_id[order]
    places = jnp.arange(len(order)) - jnp.searchsorted(ranked, ranked)
    return jnp.zeros_like(order).at[order].set(places)


# ---- by expert ids: what expert_bias adds -------------------------------------------------------


def _bias_of_slots(bias: Any, ids: Any, indices: Any) -> tuple[Any, Any]:
    """The bias of each slot [T, K, H], zero for an unused one, and which are used [T, K].

    Widened before it is read: backward, JAX adds a column's gradient up in the type that is read.
    Unused slots are zero by choice, not by their factor 0, which makes NaN of an infinite number.
    """
    used = indices.reshape(ids.shape) >= 0
    wide = jnp.promote_types(bias.dtype, jnp.float32)
    rows = bias.astype(wide)[jnp.where(used, ids, 0)]
    return jnp.where(used[..., None], rows, 0), used


def bias_term(batch: tuple[int, ...], weights: Any, bias: Any, ids: Any, indices: Any) -> Any:
    """The sum over each token's slots of weight * bias[expert]: [T, H]."""

    def one(weights: Any, bias: Any, ids: Any, indices: Any) -> Any:
        rows, used = _bias_of_slots(bias, ids, indices)
        factors = used if weights is None else jnp.where(used, weights, 0)
        return jnp.sum(factors[..., None].astype(rows.dtype) * rows, 1)

    return _each(batch, one, weights, bias, ids, indices)


def bias_products(batch: tuple[int, ...], g: Any, bias: Any, ids: Any, indices: Any) -> Any:
    """<bias[expert], g[token]> of each slot [T, K], 0 for an unused one."""

    def one(g: Any, bias: Any, ids: Any, indices: Any) -> Any:
        rows, used = _bias_of_slots(bias, ids, indices)
        return jnp.where(used, jnp.sum(rows * g[:, None].astype(rows.dtype), 2), 0)

    return _each(batch, one, g, bias, ids, indices)
