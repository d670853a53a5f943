"""The four operators by expert ids as primitives, with the rules of their derivatives.

As in _operators.py all comes from one form, here

    S(x, g, w, b) = sum over slots of w[token, k] * <x[row] + b[expert], g[token]>

whose derivative by g is unpermute, and those by x and w unpermute_grad. What expert_bias adds by
itself is JAX's own arithmetic.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Sequence

import jax.numpy as jnp

from .. import _library
from . import _slots
from ._operators import _like, _linear_jvp, _sum, _zeros
from ._primitives import Call, Operator, Shape, call, shape

__all__ = ["Permute", "Slots", "gradients", "permute", "permute_grad", "unpermute"]


class Permute(NamedTuple):
    """The numbers of permute."""

    tokens_num: int
    topk: int
    rows_num: int
    experts_num: int = 0
    expert_begin: int = 0
    expert_end: int = 0
    capacity: int = 0


class Slots(NamedTuple):
    """The numbers of unpermute and unpermute_grad."""

    tokens_num: int


# ---- permute: tokens and weights to rows --------------------------------------------------------


def _permute_compute(about: Call, *arguments: Any) -> list[Any]:
    settings = about.settings
    begin, end = settings.expert_begin, settings.expert_end
    if begin == end:  # the library takes [0, 0) for all experts
        begin = end = settings.experts_num
    return call(
        "permute_by_ids",
        about.batch,
        arguments,
        about.results,
        experts_num=settings.experts_num,
        expert_begin=begin,
        expert_end=end,
        capacity=settings.capacity,
    )


permute = Operator("permute_by_ids", _permute_compute)  # tokens, ids, weights -> rows, ...


def _permute_jvp(
    about: Call, arguments: Sequence[Any], tangents: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    tokens, _, weights = tangents
    results = permute.bind(about.settings, arguments, about.results, about.batch)
    wanted = [r if t is not None else None for r, t in zip(about.results, (tokens, weights))]
    rows = spread.bind(about.settings, (tokens, weights, results[2]), wanted, about.batch)
    return results, [*rows, None, None]


permute.def_jvp(_permute_jvp)


def _spread_compute(about: Call, tokens: Any, weights: Any, indices: Any) -> list[Any]:
    rows = row_weights = None
    if about.results[0] is not None:
        rows, _ = call(
            "unpermute_grad_by_ids",
            about.batch,
            [tokens, indices, None, None, None, None],
            [about.results[0], None],
        )
    if about.results[1] is not None:
        flat = weights.reshape(*weights.shape[:-2], -1)
        row_weights = _slots.scatter_rows(about.batch, flat, indices, about.settings.rows_num)
    return [rows, row_weights]


spread = Operator("spread_by_ids", _spread_compute)


def _permute_grad_compute(about: Call, *arguments: Any) -> list[Any]:
    return call(
        "permute_grad_by_ids",
        about.batch,
        arguments,
        about.results,
        tokens_num=about.settings.tokens_num,
    )


permute_grad = Operator("permute_grad_by_ids", _permute_grad_compute)


def _opposite(operator: Operator, sizes: Any) -> Any:
    """The transpose of spread is permute_grad, and the other way round."""

    def transpose(
        about: Call, cotangents: Sequence[Any], arguments: Sequence[Any], linear: Sequence[Any]
    ) -> list[Any]:
        wanted = [
            None if change is None or aval is None else shape(size(about, aval), aval)
            for change, aval, size in zip(cotangents, linear, sizes)
        ]
        given = [change if w is not None else None for change, w in zip(cotangents, wanted)]
        found = operator.bind(about.settings, [*given, arguments[2]], wanted, about.batch)
        return [*found, None]

    return transpose


spread.def_jvp(_linear_jvp(spread))
permute_grad.def_jvp(_linear_jvp(permute_grad))
spread.def_transpose(
    _opposite(
        permute_grad,
        (
            lambda about, aval: (about.settings.tokens_num, aval.shape[-1]),
            lambda about, _: (about.settings.tokens_num, about.settings.topk),
        ),
    )
)
permute_grad.def_transpose(
    _opposite(
        spread,
        (
            lambda about, aval: (about.settings.rows_num, aval.shape[-1]),
            lambda about, _: (about.settings.rows_num,),
        ),
    )
)


# ---- unpermute: the derivative of S by g --------------------------------------------------------


def _unpermute_call(about: Call, *arguments: Any) -> Any:
    """x, indices, weights, residual, residual2, expert_bias, expert_ids."""
    repeats = arguments[2] is None and arguments[6] is None
    flags = repeats * _library.REPEATED_ROWS
    return call("unpermute_by_ids", about.batch, arguments, about.results, flags=flags)


unpermute = Operator("unpermute_by_ids", _unpermute_call)


def _bias_term(about: Call, weights: Any, bias: Any, ids: Any, indices: Any) -> Any:
    """What expert_bias adds to each token."""
    dtype = about.results[0].dtype  # type: ignore[union-attr]
    return _slots.bias_term(about.batch, weights, bias, ids, indices).astype(dtype)


def _unpermute_jvp(
    about: Call, arguments: Sequence[Any], tangents: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    x, indices, w, _, _, bias, ids = arguments
    x_, _, w_, residual_, residual2_, bias_, _ = tangents
    results = unpermute.bind(about.settings, arguments, about.results, about.batch)
    slots = (bias if w_ is not None else None, ids if bias is not None else None, indices)
    tangent = None
    if x_ is not None or w_ is not None:
        values = (x_, w_, x if w_ is not None else None, w)
        (tangent,) = combine.bind(about.settings, [*values, *slots], about.results, about.batch)
    if bias_ is not None:
        tangent = _sum(tangent, _bias_term(about, w, bias_, ids, indices))
    whole = [
        jnp.broadcast_to(change, results[0].shape)
        for change in (residual_, residual2_)
        if change is not None
    ]
    return results, [_sum(tangent, *whole)]


unpermute.def_jvp(_unpermute_jvp)


def _combine_compute(
    about: Call, x_: Any, w_: Any, x: Any, w: Any, bias: Any, ids: Any, indices: Any
) -> list[Any]:
    """The derivative of S by g at (x_, w, 0), plus that at (x, w_, b)."""
    terms = []
    if x_ is not None:
        terms += _unpermute_call(about, x_, indices, w, None, None, None, None)
    if w_ is not None:
        used_ids = None if bias is None else ids
        terms += _unpermute_call(about, x, indices, w_, None, None, bias, used_ids)
    return [_sum(*terms)]


combine = Operator("combine_by_ids", _combine_compute)


def _combine_jvp(
    about: Call, arguments: Sequence[Any], tangents: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    x_, w_, x, w, bias, ids, indices = arguments
    d_x_, d_w_, d_x, d_w, d_bias, *_ = tangents
    result = combine.bind(about.settings, arguments, about.results, about.batch)
    terms = []
    if d_x_ is not None or d_w_ is not None:
        terms.append((d_x_, d_w_, x, w, bias))
    if d_x is not None and w_ is not None:
        terms.append((d_x, None, None, w_, None))
    if d_w is not None and x_ is not None:
        terms.append((None, d_w, x_, None, None))
    found = [
        combine.bind(about.settings, [*term, ids, indices], about.results, about.batch)[0]
        for term in terms
    ]
    if d_bias is not None and w_ is not None:
        found.append(_bias_term(about, w_, d_bias, ids, indices))
    return result, [_sum(*found)]


def _combine_transpose(
    about: Call, cotangents: Sequence[Any], arguments: Sequence[Any], linear: Sequence[Any]
) -> list[Any]:
    _, _, x, w, bias, ids, indices = arguments
    rows, weights = linear[:2]
    wanted = [
        None if rows is None else _like(rows, about.batch),
        None if weights is None else _like(weights, about.batch),
    ]
    if weights is None:
        x = bias = None
    elif w is None:
        w = _zeros(weights)
    used_ids = None if bias is None else ids
    found = gradients.bind(
        about.settings, [cotangents[0], indices, x, w, bias, used_ids], wanted, about.batch
    )
    return [*found, *(None,) * 5]


combine.def_jvp(_combine_jvp)
combine.def_transpose(_combine_transpose)


# ---- unpermute_grad: the derivatives of S by x and w --------------------------------------------


def _gradients_compute(about: Call, *arguments: Any) -> list[Any]:
    return call("unpermute_grad_by_ids", about.batch, arguments, about.results)


gradients = Operator("unpermute_grad_by_ids", _gradients_compute)


def _gradients_jvp(
    about: Call, arguments: Sequence[Any], tangents: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    g, indices, x, w, bias, ids = arguments
    d_g, _, d_x, d_w, d_bias, _ = tangents
    by_x, by_w = about.results

    def bind(g: Any, x: Any, w: Any, bias: Any, *wanted: Optional[Shape]) -> list[Any]:
        slots = [g, indices, x, w, bias, None if bias is None else ids]
        return gradients.bind(about.settings, slots, wanted, about.batch)

    results = bind(g, x, w, bias, by_x, by_w)
    first: list[Any] = [None, None] if d_g is None else bind(d_g, x, w, bias, by_x, by_w)
    rows = None if d_w is None else bind(g, None, d_w, None, by_x, None)[0]
    weights = [first[1]]
    if d_x is not None:
        weights.append(bind(g, d_x, w, None, None, by_w)[1])
    if d_bias is not None and by_w is not None:
        products = _slots.bias_products(about.batch, g, d_bias, ids, indices)
        weights.append(products.astype(by_w.dtype))
    return results, [_sum(first[0], rows), _sum(*weights)]


def _gradients_transpose(
    about: Call, cotangents: Sequence[Any], arguments: Sequence[Any], linear: Sequence[Any]
) -> list[Any]:
    g, indices, x, w, bias, ids = arguments
    by_g, _, by_x, by_w, _, _ = linear
    rows, weights = cotangents
    if by_g is not None:
        if weights is None:
            x = bias = None
        values = [rows, weights, x, w, bias, None if bias is None else ids, indices]
        found = combine.bind(about.settings, values, [_like(by_g, about.batch)], about.batch)
        return [found[0], *(None,) * 5]
    if by_x is not None:  # only the derivative by w is linear in x
        wanted, x, w = [_like(by_x, about.batch), None], None, weights
    else:
        wanted, x, w = [None, _like(by_w, about.batch)], rows, _zeros(by_w)
    by_x, by_w = gradients.bind(
        about.settings, [g, indices, x, w, None, None], wanted, about.batch
    )
    return [None, None, by_x, by_w, None, None]


gradients.def_jvp(_gradients_jvp)
gradients.def_transpose(_gradients_transpose)
