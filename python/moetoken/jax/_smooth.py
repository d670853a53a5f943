"""A function of the library whose gradient is another one, differentiated as often as wanted.

The library has y = f(x) and the gradient, ct -> J(x)^T ct. JAX differentiates forward first: for
that there is a third primitive, the tangent d -> J(x) d, whose transpose is the gradient. What the
library has no function for, tangents and second derivatives, comes from a formula of f in JAX's own
words, in the widest type that JAX has: float32 unless it is in 64-bit mode.
"""

from __future__ import annotations

from typing import Any, Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from ._operators import _like, _sum
from ._primitives import Call, Operator, Shape

__all__ = ["Smooth"]


def _wide(array: Any) -> Any:
    return array.astype(jax.dtypes.canonicalize_dtype(np.float64))


def _whole(about: Call, arrays: Sequence[Any]) -> list[Any]:
    """Arrays with all batch dimensions at their full size."""
    rank = len(about.batch)
    return [
        None if a is None else jnp.broadcast_to(a, (*about.batch, *a.shape[rank:])) for a in arrays
    ]


class Smooth:
    """The primitives `gradient` and `tangent` of a formula.

    gradient: x, *fixed, *cotangents -> change of x. tangent: d, x, *fixed -> changes of results.
    """

    def __init__(
        self,
        name: str,
        compute: Callable[..., Sequence[Any]],
        formula: Callable[..., tuple[Any, ...]],
        fixed: int,
    ) -> None:
        """`compute` is the gradient's (see Operator), `formula(settings, x, *fixed)` is f."""
        self.formula, self.fixed = formula, fixed
        self.gradient = Operator(f"{name}_grad", compute)
        self.gradient.def_jvp(self._gradient_jvp)
        self.gradient.def_transpose(self._gradient_transpose)
        self.tangent = Operator(f"{name}_tangent", self._tangent_compute)
        self.tangent.def_jvp(self._tangent_jvp)
        self.tangent.def_transpose(self._tangent_transpose)

    def _push(self, about: Call, d: Any, x: Any, fixed: Sequence[Any]) -> tuple[Any, ...]:
        """J(x) d by the formula, wide."""
        d, x, *fixed = _whole(about, [d, x, *fixed])
        results = jax.jvp(
            lambda z: self.formula(about.settings, z, *fixed), (_wide(x),), (_wide(d),)
        )
        return results[1]

    def _pull(
        self, about: Call, x: Any, fixed: Sequence[Any], cotangents: Sequence[Any]
    ) -> Callable[[Any], Any]:
        """z -> J(z)^T ct by the formula, wide."""
        fixed, cotangents = _whole(about, fixed), _whole(about, cotangents)

        def pull(z: Any) -> Any:
            results, back = jax.vjp(lambda y: self.formula(about.settings, y, *fixed), z)
            given = [
                jnp.zeros_like(r) if ct is None else _wide(ct) for r, ct in zip(results, cotangents)
            ]
            return back(tuple(given))[0]

        return pull

    # ---- the gradient: linear in the cotangents

    def _gradient_jvp(
        self, about: Call, arguments: Sequence[Any], tangents: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        x, *others = arguments
        fixed, cotangents = others[: self.fixed], others[self.fixed :]
        results = self.gradient.bind(about.settings, arguments, about.results, about.batch)
        changes, terms = tangents[1 + self.fixed :], []
        if any(change is not None for change in changes):
            terms += self.gradient.bind(
                about.settings, [x, *fixed, *changes], about.results, about.batch
            )
        if tangents[0] is not None:
            d, z = _whole(about, [tangents[0], x])
            pull = self._pull(about, x, fixed, cotangents)
            curve = jax.jvp(pull, (_wide(z),), (_wide(d),))[1]
            terms.append(curve.astype(results[0].dtype))
        return results, [_sum(*terms)]

    def _gradient_transpose(
        self,
        about: Call,
        cotangents: Sequence[Any],
        arguments: Sequence[Any],
        linear: Sequence[Any],
    ) -> list[Any]:
        kept = 1 + self.fixed
        wanted = [None if aval is None else _like(aval, about.batch) for aval in linear[kept:]]
        found = self.tangent.bind(
            about.settings, [cotangents[0], *arguments[:kept]], wanted, about.batch
        )
        return [*(None,) * kept, *found]

    # ---- the tangent: linear in d

    def _tangent_compute(self, about: Call, d: Any, x: Any, *fixed: Any) -> list[Any]:
        found = self._push(about, d, x, fixed)
        return [
            None if shape is None else value.astype(shape.dtype)
            for shape, value in zip(about.results, found)
        ]

    def _tangent_jvp(
        self, about: Call, arguments: Sequence[Any], tangents: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        d, x, *fixed = arguments
        results = self.tangent.bind(about.settings, arguments, about.results, about.batch)
        changes: list[Any] = [None] * len(results)
        if tangents[0] is not None:
            given = [tangents[0], x, *fixed]
            changes = self.tangent.bind(about.settings, given, about.results, about.batch)
        if tangents[1] is not None:
            z, dz = _whole(about, [x, tangents[1]])
            curves = jax.jvp(lambda y: self._push(about, d, y, fixed), (_wide(z),), (_wide(dz),))[1]
            more = [None if r is None else c.astype(r.dtype) for r, c in zip(results, curves)]
            changes = [_sum(change, curve) for change, curve in zip(changes, more)]
        return results, changes

    def _tangent_transpose(
        self,
        about: Call,
        cotangents: Sequence[Any],
        arguments: Sequence[Any],
        linear: Sequence[Any],
    ) -> list[Any]:
        wanted: list[Shape] = [_like(linear[0], about.batch)]
        given = [*arguments[1:], *cotangents]
        found = self.gradient.bind(about.settings, given, wanted, about.batch)
        return [found[0], *(None,) * (1 + self.fixed)]
