"""The operators for JAX on the CPU: jit, grad, jvp, vmap and shard_map, in any combination.

The functions have the names of the contract. All can be differentiated, forward and backward, as
often as wanted; only what is needed is computed. Sizes that shape the results
(``num_out_tokens``, ``rows_num``, ``restore_shape``) are Python numbers, known when JAX traces.
Shapes and types are checked then too, and raise ValueError or TypeError; what depends on values
is raised as JAX's runtime error, with the library's message, when the computation runs.
"""

from __future__ import annotations

from typing import Any, Optional, Sequence, overload

import numpy as np
from jax import Array, dtypes

from . import _operators
from ._checks import Arg, check, whole
from ._primitives import shape
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
]


@overload
def permute(
    tokens: Array,
    routing_map: Array,
    probs: None = None,
    num_out_tokens: Optional[int] = None,
    drop_and_pad: bool = False,
    *,
    rows_num: Optional[int] = None,
    index_dtype: Any = np.int32,
) -> tuple[Array, None, Array]: ...
@overload
def permute(
    tokens: Array,
    routing_map: Array,
    probs: Array,
    num_out_tokens: Optional[int] = None,
    drop_and_pad: bool = False,
    *,
    rows_num: Optional[int] = None,
    index_dtype: Any = np.int32,
) -> tuple[Array, Array, Array]: ...
def permute(
    tokens: Array,
    routing_map: Array,
    probs: Optional[Array] = None,
    num_out_tokens: Optional[int] = None,
    drop_and_pad: bool = False,
    *,
    rows_num: Optional[int] = None,
    index_dtype: Any = np.int32,
) -> tuple[Array, Optional[Array], Array]:
    """Sends every token to its experts. Differentiable in `tokens` and `probs`.

    Parameters
    ----------
    tokens : [T, H] float32, float16, bfloat16 or float64
    routing_map : [T, E] bool, int8 or uint8
    probs : [T, E] the token type, or float32 with float16 or bfloat16 tokens
    num_out_tokens : N, the number of slots: T * K, or E * C with `drop_and_pad`
    drop_and_pad : every expert takes C rows: its first C tokens, then fill slots.
    rows_num : R, at least the number of set pairs; rows beyond those are zero. N by default.
    index_dtype : int32 or int64 (which needs JAX's 64-bit mode), the type of `sorted_indices`

    Returns
    -------
    permuted_tokens [R, H], permuted_probs [R] (None without `probs`), sorted_indices [N]

    Raises
    ------
    ValueError, TypeError
        While JAX traces; what depends on values is JAX's runtime error when the program runs.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, moetoken.jax
    >>> tokens = jnp.array([[1., 2.], [3., 4.]])
    >>> routing_map = jnp.array([[True, True], [False, True]])
    >>> rows, _, sorted_indices = moetoken.jax.permute(tokens, routing_map, num_out_tokens=4)
    >>> sorted_indices
    Array([ 0,  1,  2, -1], dtype=int32)
    >>> jax.grad(lambda t: moetoken.jax.permute(t, routing_map, num_out_tokens=4)[0].sum())(tokens)
    Array([[2., 2.],
           [1., 1.]], dtype=float32)
    """
    if num_out_tokens is None:
        raise ValueError("num_out_tokens is missing, expected T * K, or E * C with drop_and_pad")
    slots_num = whole("num_out_tokens", num_out_tokens)
    rows = slots_num if rows_num is None else whole("rows_num", rows_num)
    tokens, routing_map, probs = check(
        Arg("tokens", tokens, "TH", "tokens"),
        Arg("routing_map", routing_map, "TE", "map"),
        Arg("probs", probs, "TE", "probs"),
    )
    if np.dtype(index_dtype) not in (np.dtype(np.int32), np.dtype(np.int64)):
        raise TypeError(f"index_dtype is {index_dtype}, expected int32 or int64")
    share, symbol = (routing_map.shape[1], "E") if drop_and_pad else (routing_map.shape[0], "T")
    if slots_num % share if share else slots_num:
        raise ValueError(
            f"num_out_tokens = {slots_num}, expected a multiple of {symbol} = {share} "
            "(from routing_map)"
        )
    settings = _operators.Permute(
        routing_map.shape[0], routing_map.shape[1], rows, slots_num, bool(drop_and_pad)
    )
    results = [
        shape((rows, tokens.shape[1]), tokens),
        None if probs is None else shape((rows,), probs),
        shape((slots_num,), _narrowed(index_dtype)),
    ]
    return tuple(_operators.permute.bind(settings, (tokens, routing_map, probs), results))


def _narrowed(dtype: Any) -> Any:
    """int64 is int32 outside of JAX's 64-bit mode."""
    return dtypes.canonicalize_dtype(dtype)


@overload
def permute_grad(
    permuted_tokens_grad: Array,
    permuted_probs_grad: None,
    sorted_indices: Array,
    routing_map: Optional[Array] = None,
    *,
    tokens_num: Optional[int] = None,
    experts_num: Optional[int] = None,
    drop_and_pad: bool = False,
    tolerate_routing_mismatch: bool = False,
) -> tuple[Array, None]: ...
@overload
def permute_grad(
    permuted_tokens_grad: None,
    permuted_probs_grad: Array,
    sorted_indices: Array,
    routing_map: Optional[Array] = None,
    *,
    tokens_num: Optional[int] = None,
    experts_num: Optional[int] = None,
    drop_and_pad: bool = False,
    tolerate_routing_mismatch: bool = False,
) -> tuple[None, Array]: ...
@overload
def permute_grad(
    permuted_tokens_grad: Array,
    permuted_probs_grad: Array,
    sorted_indices: Array,
    routing_map: Optional[Array] = None,
    *,
    tokens_num: Optional[int] = None,
    experts_num: Optional[int] = None,
    drop_and_pad: bool = False,
    tolerate_routing_mismatch: bool = False,
) -> tuple[Array, Array]: ...
def permute_grad(
    permuted_tokens_grad: Optional[Array],
    permuted_probs_grad: Optional[Array],
    sorted_indices: Array,
    routing_map: Optional[Array] = None,
    *,
    tokens_num: Optional[int] = None,
    experts_num: Optional[int] = None,
    drop_and_pad: bool = False,
    tolerate_routing_mismatch: bool = False,
) -> tuple[Optional[Array], Optional[Array]]:
    """The gradient of :func:`permute` by itself; see :func:`moetoken.permute_grad`.

    Returns
    -------
    tokens_grad [T, H], probs_grad [T, E]; None where the gradient it comes from is None

    Raises
    ------
    ValueError, TypeError
        While JAX traces; what depends on values is JAX's runtime error when the program runs.
    """
    if routing_map is not None and np.ndim(routing_map) == 2:
        tokens_num = routing_map.shape[0] if tokens_num is None else tokens_num
        experts_num = routing_map.shape[1] if experts_num is None else experts_num
    if tokens_num is None or (experts_num is None and permuted_probs_grad is not None):
        raise ValueError("tokens_num or experts_num is missing: without routing_map both are due")
    tokens_num = whole("tokens_num", tokens_num)
    experts_num = whole("experts_num", 1 if experts_num is None else experts_num)
    rows, row_probs, indices, routing_map = check(
        Arg("permuted_tokens_grad", permuted_tokens_grad, "RH", "tokens"),
        Arg("permuted_probs_grad", permuted_probs_grad, "R", "probs"),
        Arg("sorted_indices", sorted_indices, "N", "indices"),
        Arg("routing_map", routing_map, "TE", "map"),
        T=tokens_num,
        E=experts_num,
    )
    if rows is None and row_probs is None:
        return None, None
    if row_probs is not None and routing_map is None and not drop_and_pad:
        raise ValueError(
            "routing_map is missing, expected an array as permuted_probs_grad is given"
        )
    settings = _operators.Permute(
        tokens_num,
        experts_num,
        (row_probs if rows is None else rows).shape[0],
        indices.shape[0],
        bool(drop_and_pad),
        bool(tolerate_routing_mismatch),
    )
    results = [
        None if rows is None else shape((tokens_num, rows.shape[1]), rows),
        None if row_probs is None else shape((tokens_num, experts_num), row_probs),
    ]
    arguments = (rows, row_probs, indices, routing_map)
    return tuple(_operators.permute_grad.bind(settings, arguments, results))


def unpermute(
    permuted_tokens: Array,
    sorted_indices: Array,
    *,
    routing_map: Optional[Array] = None,
    probs: Optional[Array] = None,
    restore_shape: Optional[Sequence[int]] = None,
    drop_and_pad: bool = False,
    mask_fill_slots: bool = False,
    tolerate_routing_mismatch: bool = False,
) -> Array:
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
    ValueError, TypeError
        While JAX traces; what depends on values is JAX's runtime error when the program runs.

    Examples
    --------
    >>> import jax.numpy as jnp, moetoken.jax
    >>> x = jnp.array([[1., 2.], [3., 4.], [5., 6.]])
    >>> moetoken.jax.unpermute(x, jnp.array([2, 0, 1, -1]), restore_shape=(2, 2))
    Array([[6., 8.],
           [3., 4.]], dtype=float32)
    """
    tokens_num = hidden_size = None
    if restore_shape is not None:
        tokens_num, hidden_size = (
            whole(f"restore_shape[{i}]", n) for i, n in enumerate(restore_shape)
        )
    elif probs is None and routing_map is None:
        raise ValueError("restore_shape is missing, expected (tokens_num, hidden_size)")
    x, indices, routing_map, probs = check(
        Arg("permuted_tokens", permuted_tokens, "RH", "tokens"),
        Arg("sorted_indices", sorted_indices, "N", "indices"),
        Arg("routing_map", routing_map, "TE", "map"),
        Arg("probs", probs, "TE", "probs"),
        T=tokens_num,
        H=hidden_size,
    )
    if probs is not None and routing_map is None:
        raise ValueError("routing_map is missing, expected an array as probs is given")
    if tokens_num is None:
        tokens_num = routing_map.shape[0]
    settings = _operators.Slots(
        tokens_num, bool(drop_and_pad), bool(mask_fill_slots), bool(tolerate_routing_mismatch)
    )
    results = [shape((tokens_num, x.shape[1]), x), None, None]
    return _operators.unpermute.bind(settings, (x, indices, routing_map, probs), results)[0]


@overload
def unpermute_grad(
    unpermuted_tokens_grad: Array,
    out_index: Array,
    permute_token_id: Optional[Array] = None,
    *,
    routing_map: Optional[Array] = None,
    permuted_tokens: Optional[Array] = None,
    probs: None = None,
    drop_and_pad: bool = False,
    rows_num: Optional[int] = None,
    mask_fill_slots: bool = False,
    tolerate_routing_mismatch: bool = False,
) -> tuple[Array, None]: ...
@overload
def unpermute_grad(
    unpermuted_tokens_grad: Array,
    out_index: Array,
    permute_token_id: Optional[Array] = None,
    *,
    routing_map: Optional[Array] = None,
    permuted_tokens: Optional[Array] = None,
    probs: Array,
    drop_and_pad: bool = False,
    rows_num: Optional[int] = None,
    mask_fill_slots: bool = False,
    tolerate_routing_mismatch: bool = False,
) -> tuple[Array, Array]: ...
@overload
def unpermute_grad(
    unpermuted_tokens_grad: Array,
    out_index: Array,
    permute_token_id: Optional[Array] = None,
    *,
    routing_map: Optional[Array] = None,
    permuted_tokens: Optional[Array] = None,
    probs: Optional[Array] = None,
    drop_and_pad: bool = False,
    rows_num: Optional[int] = None,
    output_mask: Sequence[bool],
    mask_fill_slots: bool = False,
    tolerate_routing_mismatch: bool = False,
) -> tuple[Optional[Array], Optional[Array]]: ...
def unpermute_grad(
    unpermuted_tokens_grad: Array,
    out_index: Array,
    permute_token_id: Optional[Array] = None,
    *,
    routing_map: Optional[Array] = None,
    permuted_tokens: Optional[Array] = None,
    probs: Optional[Array] = None,
    drop_and_pad: bool = False,
    rows_num: Optional[int] = None,
    output_mask: Sequence[bool] = (True, True),
    mask_fill_slots: bool = False,
    tolerate_routing_mismatch: bool = False,
) -> tuple[Optional[Array], Optional[Array]]:
    """The gradient of :func:`unpermute` by itself; see :func:`moetoken.unpermute_grad`.

    `permuted_tokens` may be left out where `output_mask` leaves out `probs_grad`; `rows_num` is
    due then.

    Returns
    -------
    permuted_tokens_grad [R, H], probs_grad [T, E]; None for what is left out

    Raises
    ------
    ValueError, TypeError
        While JAX traces; what depends on values is JAX's runtime error when the program runs.
    """
    rows = None if rows_num is None else whole("rows_num", rows_num)
    g, out_index, token_id, routing_map, x, probs = check(
        Arg("unpermuted_tokens_grad", unpermuted_tokens_grad, "TH", "tokens"),
        Arg("out_index", out_index, "N", "indices"),
        Arg("permute_token_id", permute_token_id, "N", "indices"),
        Arg("routing_map", routing_map, "TE", "map"),
        Arg("permuted_tokens", permuted_tokens, "RH", "tokens"),
        Arg("probs", probs, "TE", "probs"),
        R=rows,
    )
    wants_tokens, wants_probs = bool(output_mask[0]), bool(output_mask[1]) and probs is not None
    if probs is not None and routing_map is None:
        raise ValueError("routing_map is missing, expected an array as probs is given")
    if wants_probs and x is None:
        raise ValueError("permuted_tokens is missing, expected an array as probs_grad is wanted")
    if drop_and_pad and token_id is None:
        raise ValueError("permute_token_id is missing, expected an array with drop_and_pad")
    if rows is None:
        rows = (out_index if x is None else x).shape[0]
    settings = _operators.Slots(
        g.shape[0], bool(drop_and_pad), bool(mask_fill_slots), bool(tolerate_routing_mismatch)
    )
    results = [
        shape((rows, g.shape[1]), g) if wants_tokens else None,
        shape(probs.shape, probs) if wants_probs else None,
    ]
    arguments = (g, out_index, token_id, routing_map, x if wants_probs else None, probs)
    return tuple(_operators.gradients.bind(settings, arguments, results))
