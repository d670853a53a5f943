"""The operators for JAX on the CPU: under jit, grad and vmap, over the arrays' own memory.

The functions have the names of the contract. ``permute`` and ``unpermute`` have gradients
(reverse mode); only those that are needed are computed. Sizes that shape the results
(``num_out_tokens``, ``rows_num``, ``restore_shape``) are Python numbers, known when JAX traces.
Errors are raised as JAX's runtime error, with the library's message, when the computation runs.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple, Optional, Sequence

import jax
import numpy as np
from jax import Array
from jax.custom_derivatives import SymbolicZero

from . import _library

__all__ = ["permute", "permute_grad", "unpermute", "unpermute_grad"]

for _name in ("permute", "permute_grad", "unpermute", "unpermute_grad"):
    jax.ffi.register_ffi_target(
        f"moetoken_{_name}",
        jax.ffi.pycapsule(getattr(_library.library, f"moetoken_xla_{_name}")),
        platform="cpu",
    )

Shape = Optional[jax.ShapeDtypeStruct]


def _mask(values: Sequence[Any]) -> int:
    return sum(1 << i for i, value in enumerate(values) if value is not None)


def _call(
    name: str, arguments: Sequence[Optional[Array]], results: Sequence[Shape], **numbers: int
) -> list[Any]:
    """One custom call: absent tensors are None on both sides, numbers go as int64."""
    wanted = [shape for shape in results if shape is not None]
    numbers = {"flags": 0, "threads": 0, **numbers}
    numbers.update(arguments=_mask(arguments), results=_mask(results))
    call = jax.ffi.ffi_call(f"moetoken_{name}", wanted, vmap_method="expand_dims")
    found = iter(
        call(
            *(array for array in arguments if array is not None),
            **{key: np.int64(value) for key, value in numbers.items()},
        )
    )
    return [None if shape is None else next(found) for shape in results]


def _shape(sizes: Sequence[int], dtype: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(tuple(sizes), dtype)


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class _Wanted:
    """Which gradients are needed: known when JAX traces, kept with the residuals."""

    tokens: bool
    probs: bool


def _primal(argument: Any) -> Any:
    """The value of an argument of a forward rule; None stays None."""
    return None if argument is None else argument.value


def _is_perturbed(argument: Any) -> bool:
    return argument is not None and argument.perturbed


# ---- the gradients, which are operators themselves ----------------------------------------------


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
    """
    g = unpermuted_tokens_grad
    if rows_num is None:
        rows_num = (out_index if permuted_tokens is None else permuted_tokens).shape[0]
    wants_probs = output_mask[1] and probs is not None
    tokens_grad, probs_grad = _call(
        "unpermute_grad",
        [g, out_index, permute_token_id, routing_map, permuted_tokens, probs],
        [
            _shape((rows_num, g.shape[1]), g.dtype) if output_mask[0] else None,
            _shape(probs.shape, probs.dtype) if wants_probs and probs is not None else None,
        ],
        drop_and_pad=drop_and_pad,
        flags=_flags(mask_fill_slots, tolerate_routing_mismatch),
    )
    return tokens_grad, probs_grad


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
    """The gradient of :func:`permute` by itself; see :func:`moetoken.permute_grad`."""
    if routing_map is not None:
        tokens_num = routing_map.shape[0] if tokens_num is None else tokens_num
        experts_num = routing_map.shape[1] if experts_num is None else experts_num
    if tokens_num is None or (experts_num is None and permuted_probs_grad is not None):
        raise ValueError("tokens_num or experts_num is missing: without routing_map both are due")
    experts_num = 1 if experts_num is None else experts_num
    tokens, probs = permuted_tokens_grad, permuted_probs_grad
    tokens_grad, probs_grad = _call(
        "permute_grad",
        [tokens, probs, sorted_indices, routing_map],
        [
            None if tokens is None else _shape((tokens_num, tokens.shape[1]), tokens.dtype),
            None if probs is None else _shape((tokens_num, experts_num), probs.dtype),
        ],
        tokens_num=tokens_num,
        experts_num=experts_num,
        drop_and_pad=drop_and_pad,
        flags=_flags(False, tolerate_routing_mismatch),
    )
    return tokens_grad, probs_grad


def _flags(mask_fill_slots: bool, tolerate_routing_mismatch: bool) -> int:
    return (
        mask_fill_slots * _library.MASK_FILL_SLOTS
        + tolerate_routing_mismatch * _library.TOLERATE_ROUTING_MISMATCH
    )


# ---- permute ------------------------------------------------------------------------------------


class _Permute(NamedTuple):
    num_out_tokens: int
    rows_num: int
    drop_and_pad: bool
    index_dtype: Any


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _permute(settings: _Permute, tokens: Array, routing_map: Array, probs: Any) -> tuple[Any, ...]:
    rows = settings.rows_num
    return tuple(
        _call(
            "permute",
            [tokens, routing_map, probs],
            [
                _shape((rows, tokens.shape[1]), tokens.dtype),
                None if probs is None else _shape((rows,), probs.dtype),
                _shape((settings.num_out_tokens,), settings.index_dtype),
            ],
            num_out_tokens=settings.num_out_tokens,
            drop_and_pad=settings.drop_and_pad,
        )
    )


def _permute_forward(
    settings: _Permute, tokens: Any, routing_map: Any, probs: Any
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    wanted = _Wanted(_is_perturbed(tokens), _is_perturbed(probs))
    results = _permute(settings, tokens.value, routing_map.value, _primal(probs))
    return results, (results[2], routing_map.value, wanted)


def _permute_backward(
    settings: _Permute, residuals: tuple[Any, ...], gradients: tuple[Any, ...]
) -> tuple[Any, ...]:
    sorted_indices, routing_map, wanted = residuals
    tokens, probs = (
        None if gradient is None or isinstance(gradient, SymbolicZero) or not wants else gradient
        for gradient, wants in zip(gradients, (wanted.tokens, wanted.probs))
    )
    if tokens is None and probs is None:
        return None, None, None
    tokens_grad, probs_grad = permute_grad(
        tokens, probs, sorted_indices, routing_map, drop_and_pad=settings.drop_and_pad
    )
    return tokens_grad, None, probs_grad


_permute.defvjp(_permute_forward, _permute_backward, symbolic_zeros=True)


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
    rows = num_out_tokens if rows_num is None else rows_num
    settings = _Permute(num_out_tokens, rows, bool(drop_and_pad), np.dtype(index_dtype))
    return _permute(settings, tokens, routing_map, probs)


# ---- unpermute ----------------------------------------------------------------------------------


class _Unpermute(NamedTuple):
    tokens_num: int
    hidden_size: int
    drop_and_pad: bool
    mask_fill_slots: bool
    tolerate_routing_mismatch: bool


def _combine(
    settings: _Unpermute, x: Array, indices: Array, routing_map: Any, probs: Any, backward: bool
) -> list[Any]:
    """unpermuted_tokens and, for a backward pass with drop_and_pad, out_index and token ids."""
    slots = _shape(indices.shape, indices.dtype) if backward and settings.drop_and_pad else None
    return _call(
        "unpermute",
        [x, indices, routing_map, probs],
        [_shape((settings.tokens_num, settings.hidden_size), x.dtype), slots, slots, None],
        drop_and_pad=settings.drop_and_pad,
        flags=_flags(settings.mask_fill_slots, settings.tolerate_routing_mismatch),
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _unpermute(
    settings: _Unpermute, x: Array, indices: Array, routing_map: Any, probs: Any
) -> Array:
    return _combine(settings, x, indices, routing_map, probs, False)[0]


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class _Rows:
    """The number of rows, where the rows themselves are not kept."""

    rows_num: int


def _unpermute_forward(
    settings: _Unpermute, x: Any, indices: Any, routing_map: Any, probs: Any
) -> tuple[Array, tuple[Any, ...]]:
    wanted = _Wanted(_is_perturbed(x), _is_perturbed(probs))
    values = (x.value, indices.value, _primal(routing_map), _primal(probs))
    tokens, out_index, token_id, _ = _combine(settings, *values, True)
    if not settings.drop_and_pad:
        out_index = indices.value
    kept = x.value if wanted.probs else None
    rows = _Rows(x.value.shape[0])
    return tokens, (out_index, token_id, *values[2:], kept, rows, wanted)


def _unpermute_backward(
    settings: _Unpermute, residuals: tuple[Any, ...], gradient: Any
) -> tuple[Any, ...]:
    out_index, token_id, routing_map, probs, x, rows, wanted = residuals
    if isinstance(gradient, SymbolicZero) or not (wanted.tokens or wanted.probs):
        return None, None, None, None
    tokens_grad, probs_grad = unpermute_grad(
        gradient,
        out_index,
        token_id,
        routing_map=routing_map if probs is not None or settings.mask_fill_slots else None,
        permuted_tokens=x,
        probs=probs,
        drop_and_pad=settings.drop_and_pad,
        rows_num=rows.rows_num,
        output_mask=(wanted.tokens, wanted.probs),
        mask_fill_slots=settings.mask_fill_slots,
        tolerate_routing_mismatch=settings.tolerate_routing_mismatch,
    )
    return tokens_grad, None, None, probs_grad


_unpermute.defvjp(_unpermute_forward, _unpermute_backward, symbolic_zeros=True)


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

    Examples
    --------
    >>> import jax.numpy as jnp, moetoken.jax
    >>> x = jnp.array([[1., 2.], [3., 4.], [5., 6.]])
    >>> moetoken.jax.unpermute(x, jnp.array([2, 0, 1, -1]), restore_shape=(2, 2))
    Array([[6., 8.],
           [3., 4.]], dtype=float32)
    """
    if restore_shape is None:
        source = probs if probs is not None else routing_map
        if source is None:
            raise ValueError("restore_shape is missing, expected (tokens_num, hidden_size)")
        restore_shape = (source.shape[0], permuted_tokens.shape[1])
    tokens_num, hidden_size = restore_shape
    settings = _Unpermute(
        int(tokens_num),
        int(hidden_size),
        bool(drop_and_pad),
        bool(mask_fill_slots),
        bool(tolerate_routing_mismatch),
    )
    return _unpermute(settings, permuted_tokens, sorted_indices, routing_map, probs)
