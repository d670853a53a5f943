"""The four operators by routing map as primitives, with the rules of their derivatives.

All is made of one form, linear in each of x [R, H], g [T, H] and p [T, E]:

    S(x, g, p) = sum over slots of p[token, expert] * <x[row], g[token]>

unpermute is its derivative by g, unpermute_grad those by x and p; whatever one differentiates
further, one of the three comes out again.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Sequence

import jax
import jax.numpy as jnp

from .. import _library
from . import _slots
from ._primitives import Call, Operator, Shape, call, shape

__all__ = ["Permute", "Slots", "gradients", "permute", "permute_grad", "unpermute"]


class Permute(NamedTuple):
    """The numbers of permute and permute_grad."""

    tokens_num: int
    experts_num: int
    rows_num: int
    slots_num: int
    drop_and_pad: bool
    tolerate_routing_mismatch: bool = False


class Slots(NamedTuple):
    """The numbers of unpermute and unpermute_grad."""

    tokens_num: int
    drop_and_pad: bool
    mask_fill_slots: bool
    tolerate_routing_mismatch: bool

    @property
    def flags(self) -> int:
        return (
            self.mask_fill_slots * _library.MASK_FILL_SLOTS
            + self.tolerate_routing_mismatch * _library.TOLERATE_ROUTING_MISMATCH
        )


def _sum(*terms: Any) -> Any:
    """The sum of those that are not None; None without any."""
    present = [term for term in terms if term is not None]
    return sum(present[1:], present[0]) if present else None


def _like(array: Any, batch: tuple[int, ...]) -> Shape:
    return shape(array.shape[len(batch) :], array)


def _zeros(aval: Any) -> Any:
    """Stands for weights whose values are not read."""
    return jnp.zeros(aval.shape, aval.dtype)


# ---- permute: tokens and probs to rows ----------------------------------------------------------


def _permute_compute(about: Call, *arguments: Any) -> list[Any]:
    settings = about.settings
    return call(
        "permute",
        about.batch,
        arguments,
        about.results,
        num_out_tokens=settings.slots_num,
        drop_and_pad=settings.drop_and_pad,
    )


permute = Operator("permute", _permute_compute)  # tokens, map, probs -> rows, row probs, indices


def _permute_jvp(
    about: Call, arguments: Sequence[Any], tangents: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    _, routing_map, _ = arguments
    tokens, _, probs = tangents
    results = permute.bind(about.settings, arguments, about.results, about.batch)
    wanted = [r if t is not None else None for r, t in zip(about.results, (tokens, probs))]
    rows = spread.bind(
        about.settings, (tokens, probs, results[2], routing_map), wanted, about.batch
    )
    return results, [*rows, None]


permute.def_jvp(_permute_jvp)


# spread: what permute does to tokens and probs, by its indices; permute_grad: the opposite


def _spread_compute(
    about: Call, tokens: Any, probs: Any, indices: Any, routing_map: Any
) -> list[Any]:
    settings, batch = about.settings, about.batch
    rows = row_probs = None
    if about.results[0] is not None:
        out_index, token_id = indices, None
        if settings.drop_and_pad:
            ones = (1,) * len(batch)
            out_index = jnp.arange(settings.rows_num, dtype=indices.dtype).reshape(*ones, -1)
            token_id = indices
        rows, _ = call(
            "unpermute_grad",
            batch,
            [tokens, out_index, token_id, None, None, None],
            [about.results[0], None],
            drop_and_pad=settings.drop_and_pad,
        )
    if about.results[1] is not None:
        no_rows = jnp.zeros((*(1,) * len(batch), settings.rows_num, 0), probs.dtype)
        weights = call(
            "unpermute",
            batch,
            [no_rows, indices, routing_map, probs],
            [
                shape((settings.tokens_num, 0), probs),
                None,
                None,
                shape((settings.slots_num,), probs),
            ],
            drop_and_pad=settings.drop_and_pad,
            flags=settings.tolerate_routing_mismatch * _library.TOLERATE_ROUTING_MISMATCH,
        )[3]
        row_probs = weights
        if not settings.drop_and_pad:
            row_probs = _slots.scatter_rows(batch, weights, indices, settings.rows_num)
    return [rows, row_probs]


spread = Operator("spread", _spread_compute)


def _permute_grad_compute(about: Call, *arguments: Any) -> list[Any]:
    settings = about.settings
    return call(
        "permute_grad",
        about.batch,
        arguments,
        about.results,
        tokens_num=settings.tokens_num,
        experts_num=settings.experts_num,
        drop_and_pad=settings.drop_and_pad,
        flags=settings.tolerate_routing_mismatch * _library.TOLERATE_ROUTING_MISMATCH,
    )


permute_grad = Operator("permute_grad", _permute_grad_compute)


def _linear_jvp(operator: Operator) -> Any:
    """spread and permute_grad are linear in their first two arguments, each result in its own."""

    def jvp(
        about: Call, arguments: Sequence[Any], tangents: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        results = operator.bind(about.settings, arguments, about.results, about.batch)
        wanted = [r if t is not None else None for r, t in zip(about.results, tangents)]
        changes = [t if w is not None else None for t, w in zip(tangents, wanted)]
        found = operator.bind(
            about.settings, [*changes, *arguments[2:]], wanted, about.batch
        )
        return results, found

    return jvp


def _spread_transpose(
    about: Call, cotangents: Sequence[Any], arguments: Sequence[Any], linear: Sequence[Any]
) -> list[Any]:
    settings = about.settings
    sizes = (None, settings.experts_num)
    wanted = [
        None if c is None or aval is None else shape(
            (settings.tokens_num, aval.shape[-1] if n is None else n), aval
        )
        for c, aval, n in zip(cotangents, linear, sizes)
    ]  # fmt: skip
    given = [c if w is not None else None for c, w in zip(cotangents, wanted)]
    return [
        *permute_grad.bind(settings, [*given, *arguments[2:]], wanted, about.batch), None, None
    ]  # fmt: skip


def _permute_grad_transpose(
    about: Call, cotangents: Sequence[Any], arguments: Sequence[Any], linear: Sequence[Any]
) -> list[Any]:
    settings, rank = about.settings, len(about.batch)
    wanted = [
        None if c is None or aval is None else shape(
            (settings.rows_num, *aval.shape[rank + 1 :]), aval
        )
        for c, aval in zip(cotangents, linear)
    ]  # fmt: skip
    given = [c if w is not None else None for c, w in zip(cotangents, wanted)]
    return [*spread.bind(settings, [*given, *arguments[2:]], wanted, about.batch), None, None]


spread.def_jvp(_linear_jvp(spread))
spread.def_transpose(_spread_transpose)
permute_grad.def_jvp(_linear_jvp(permute_grad))
permute_grad.def_transpose(_permute_grad_transpose)


# ---- unpermute: the derivative of S by g --------------------------------------------------------


def _unpermute_call(
    about: Call, x: Any, indices: Any, routing_map: Any, probs: Any, results: Sequence[Any]
) -> list[Any]:
    return call(
        "unpermute",
        about.batch,
        [x, indices, routing_map, probs],
        results,
        drop_and_pad=about.settings.drop_and_pad,
        flags=about.settings.flags,
    )


def _unpermute_compute(
    about: Call, x: Any, indices: Any, routing_map: Any, probs: Any
) -> list[Any]:
    return _unpermute_call(about, x, indices, routing_map, probs, [*about.results, None])


unpermute = Operator("unpermute", _unpermute_compute)  # -> tokens, out_index, permute_token_id


def _unpermute_jvp(
    about: Call, arguments: Sequence[Any], tangents: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    x, indices, routing_map, probs = arguments
    wanted = list(about.results)
    if about.settings.drop_and_pad:  # the backward pass takes slots, not the tokens of the rows
        wanted[1:] = [_like(indices, about.batch)] * 2
    results = unpermute.bind(about.settings, arguments, wanted, about.batch)
    out_index, token_id = results[1:] if about.settings.drop_and_pad else (indices, None)
    slots = (routing_map, indices, out_index, token_id)
    changes = (tangents[0], tangents[3], x if tangents[3] is not None else None, probs)
    tangent = combine.bind(about.settings, [*changes, *slots], about.results[:1], about.batch)
    found = [r if w is not None else None for r, w in zip(results, about.results)]
    return found, [*tangent, None, None]


unpermute.def_jvp(_unpermute_jvp)


def _combine_compute(
    about: Call,
    x_: Any,
    p_: Any,
    x: Any,
    p: Any,
    routing_map: Any,
    indices: Any,
    out_index: Any,
    token_id: Any,
) -> list[Any]:
    """The derivative of S by g at (x_, p), plus that at (x, p_); an absent x_ or p_ is zero."""

    def one(rows: Any, weights: Any) -> Any:
        if indices is None:
            tokens_num = about.settings.tokens_num
            slots = (out_index, token_id, routing_map)
            return _slots.combine(about.batch, rows, *slots, weights, tokens_num)
        results = [about.results[0], None, None, None]
        return _unpermute_call(about, rows, indices, routing_map, weights, results)[0]

    first = None if x_ is None else one(x_, p)
    return [_sum(first, None if p_ is None else one(x, p_))]


combine = Operator("combine", _combine_compute)


def _combine_jvp(
    about: Call, arguments: Sequence[Any], tangents: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    x_, p_, x, p, *slots = arguments
    d_x_, d_p_, d_x, d_p, *_ = tangents
    result = combine.bind(about.settings, arguments, about.results, about.batch)
    terms = []
    if d_x_ is not None or d_p_ is not None:
        terms.append((d_x_, d_p_, x, p))
    if d_x is not None and p_ is not None:
        terms.append((d_x, None, None, p_))
    if d_p is not None and x_ is not None:
        terms.append((None, d_p, x_, None))
    found = [
        combine.bind(about.settings, [*term, *slots], about.results, about.batch)[0]
        for term in terms
    ]
    return result, [_sum(*found)]


def _combine_transpose(
    about: Call, cotangents: Sequence[Any], arguments: Sequence[Any], linear: Sequence[Any]
) -> list[Any]:
    _, _, x, p, routing_map, _, out_index, token_id = arguments
    rows, weights = linear[:2]
    if weights is not None and p is None:
        p = _zeros(weights)
    wanted = [
        None if rows is None else _like(rows, about.batch),
        None if weights is None else _like(weights, about.batch),
    ]
    if weights is None:
        x = None
    found = gradients.bind(
        about.settings, [cotangents[0], out_index, token_id, routing_map, x, p], wanted, about.batch
    )
    return [*found, *(None,) * 6]


combine.def_jvp(_combine_jvp)
combine.def_transpose(_combine_transpose)


# ---- unpermute_grad: the derivatives of S by x and p --------------------------------------------


def _gradients_compute(about: Call, *arguments: Any) -> list[Any]:
    return call(
        "unpermute_grad",
        about.batch,
        arguments,
        about.results,
        drop_and_pad=about.settings.drop_and_pad,
        flags=about.settings.flags,
    )


gradients = Operator("unpermute_grad", _gradients_compute)


def _gradients_jvp(
    about: Call, arguments: Sequence[Any], tangents: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    g, out_index, token_id, routing_map, x, p = arguments
    d_g, _, _, _, d_x, d_p = tangents
    by_x, by_p = about.results

    def bind(g: Any, x: Any, p: Any, *wanted: Optional[Shape]) -> list[Any]:
        slots = [g, out_index, token_id, routing_map, x, p]
        return gradients.bind(about.settings, slots, wanted, about.batch)

    results = bind(g, x, p, by_x, by_p)
    first: list[Any] = [None, None] if d_g is None else bind(d_g, x, p, by_x, by_p)
    rows = None if d_p is None else bind(g, None, d_p, by_x, None)[0]
    probs = None if d_x is None else bind(g, d_x, p, None, by_p)[1]
    return results, [_sum(first[0], rows), _sum(first[1], probs)]


def _gradients_transpose(
    about: Call, cotangents: Sequence[Any], arguments: Sequence[Any], linear: Sequence[Any]
) -> list[Any]:
    g, out_index, token_id, routing_map, x, p = arguments
    by_g, by_x, by_p = linear[0], linear[4], linear[5]
    rows, probs = cotangents
    if by_g is not None:
        indices = _slots.sorted_indices(out_index, token_id, about.settings.drop_and_pad)
        values = (rows, probs, x if probs is not None else None, p)
        slots = (routing_map, indices, out_index, token_id)
        found = combine.bind(
            about.settings, [*values, *slots], [_like(by_g, about.batch)], about.batch
        )
        return [found[0], *(None,) * 5]
    if by_x is not None:  # only the derivative by p is linear in x
        wanted, x, p = [_like(by_x, about.batch), None], None, probs
    else:
        wanted, x, p = [None, _like(by_p, about.batch)], rows, _zeros(by_p)
    found = gradients.bind(
        about.settings, [g, out_index, token_id, routing_map, x, p], wanted, about.batch
    )
    return [None, None, None, None, *found]


gradients.def_jvp(_gradients_jvp)
gradients.def_transpose(_gradients_transpose)
