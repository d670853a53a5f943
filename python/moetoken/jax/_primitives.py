"""How a custom call becomes a primitive of JAX that can be differentiated, batched and sharded.

A custom call by itself has no derivative, and jax.custom_vjp knows but one direction of one order.
A primitive has rules for both directions, and JAX applies them to what the rules are made of, again
and again. Arguments and results that are absent are None on both sides of bind(); a rule sees them
so as well. Under vmap tensors have leading batch dimensions, of the batch's size or 1.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, NamedTuple, Optional, Sequence

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import NamedSharding, PartitionSpec

from .. import _library

__all__ = ["Operator", "Shape", "call", "shape", "sum_to"]

for _name in (
    "permute",
    "permute_grad",
    "unpermute",
    "unpermute_grad",
    "permute_by_ids",
    "permute_grad_by_ids",
    "unpermute_by_ids",
    "unpermute_grad_by_ids",
    "router",
    "router_grad",
    "router_balance_loss",
    "router_z_loss",
    "router_drop",
):
    jax.ffi.register_ffi_target(
        f"moetoken_{_name}",
        jax.ffi.pycapsule(getattr(_library.library, f"moetoken_xla_{_name}")),
        platform="cpu",
    )


class Shape(NamedTuple):
    """The shape and type of one item of a batch."""

    sizes: tuple[int, ...]
    dtype: np.dtype


def shape(sizes: Sequence[int], like: Any) -> Shape:
    """A shape with the type of an array, or this type."""
    return Shape(tuple(int(n) for n in sizes), np.dtype(getattr(like, "dtype", like)))


# ---- custom calls -------------------------------------------------------------------------------


def _mask(values: Sequence[Any]) -> int:
    return sum(1 << i for i, value in enumerate(values) if value is not None)


def call(
    name: str,
    batch: tuple[int, ...],
    arguments: Sequence[Any],
    results: Sequence[Optional[Shape]],
    **numbers: float,
) -> list[Any]:
    """One custom call: absent tensors are None on both sides, whole numbers go as int64."""
    wanted = [jax.ShapeDtypeStruct((*batch, *s.sizes), s.dtype) for s in results if s is not None]
    numbers = {"flags": 0, "threads": 0, **numbers}
    numbers.update(arguments=_mask(arguments), results=_mask(results))
    found = iter(
        jax.ffi.ffi_call(f"moetoken_{name}", wanted)(
            *(array for array in arguments if array is not None),
            **{k: np.float64(v) if type(v) is float else np.int64(v) for k, v in numbers.items()},
        )
    )
    return [None if result is None else next(found) for result in results]


# ---- shard_map: what varies over which axes of the mesh -----------------------------------------


def _varying(aval: Any) -> frozenset[Any]:
    kind = getattr(aval, "mat", None)  # since JAX 0.10
    return kind.varying if kind is not None else getattr(aval, "vma", frozenset())


def _unified(arrays: Sequence[Any]) -> list[Any]:
    """All arrays vary over the axes that any of them varies over, as a primitive needs."""
    axes = [_varying(jax.typeof(array)) for array in arrays]
    union = frozenset().union(*axes)
    given = []
    for array, own in zip(arrays, axes):
        missing = tuple(name for name in union if name not in own)
        if missing and hasattr(jax.lax, "pcast"):
            array = jax.lax.pcast(array, missing, to="varying")
        elif missing:
            array = jax.lax.pvary(array, missing)  # type: ignore[attr-defined]
        given.append(array)
    return given


def _aval(like: Any, sizes: tuple[int, ...], dtype: np.dtype) -> Any:
    sharding = NamedSharding(like.sharding.mesh, PartitionSpec(*(None,) * len(sizes)))
    return like.update(shape=sizes, dtype=dtype, weak_type=False, sharding=sharding)


# ---- primitives ---------------------------------------------------------------------------------


def sum_to(array: Any, sizes: Sequence[int]) -> Any:
    """Summed over the batch dimensions that have size 1 in `sizes`: a broadcast undone."""
    axes = tuple(i for i, n in enumerate(sizes) if n == 1 and array.shape[i] != 1)
    return jax.numpy.sum(array, axes, keepdims=True) if axes else array


class Call(NamedTuple):
    """What a primitive knows beside its arrays."""

    settings: Any
    there: tuple[bool, ...]  # which arguments
    results: tuple[Optional[Shape], ...]  # which results are wanted, and their shapes
    batch: tuple[int, ...]


def _spread_out(there: Sequence[bool], values: Sequence[Any]) -> list[Any]:
    given = iter(values)
    return [next(given) if here else None for here in there]


class Operator:
    """A primitive whose arguments and results may be absent."""

    def __init__(self, name: str, compute: Callable[..., Sequence[Any]]) -> None:
        """`compute(call, *arguments)` makes the results, None for those not wanted."""
        self.primitive = primitive = Primitive(f"moetoken_{name}")
        primitive.multiple_results = True
        primitive.def_impl(functools.partial(_run, primitive))
        primitive.def_abstract_eval(
            lambda *avals, call: [
                _aval(avals[0], (*call.batch, *s.sizes), s.dtype)
                for s in call.results
                if s is not None
            ]
        )

        def lowered(*arrays: Any, call: Call) -> list[Any]:
            results = compute(call, *_spread_out(call.there, arrays))
            return [result for result in results if result is not None]

        mlir.register_lowering(primitive, mlir.lower_fun(lowered, multiple_results=True))
        batching.primitive_batchers[primitive] = functools.partial(_batch, self)

    def bind(
        self,
        settings: Any,
        arguments: Sequence[Any],
        results: Sequence[Optional[Shape]],
        batch: tuple[int, ...] = (),
    ) -> list[Any]:
        there = tuple(argument is not None for argument in arguments)
        about = Call(settings, there, tuple(results), batch)
        if all(result is None for result in results):
            return [None] * len(results)
        arrays = _unified([argument for argument in arguments if argument is not None])
        found = iter(self.primitive.bind(*arrays, call=about))
        return [None if result is None else next(found) for result in results]

    def def_jvp(self, rule: Callable[..., tuple[Sequence[Any], Sequence[Any]]]) -> None:
        """`rule(call, arguments, tangents)` -> results, their tangents; None for what is zero."""

        def jvp(arrays: Any, tangents: Any, *, call: Call) -> tuple[list[Any], list[Any]]:
            changes = [None if isinstance(tangent, ad.Zero) else tangent for tangent in tangents]
            results, found = rule(
                call, _spread_out(call.there, arrays), _spread_out(call.there, changes)
            )
            pairs = [(r, t) for r, t in zip(results, found) if r is not None]
            return [r for r, _ in pairs], [
                _zero(result) if tangent is None else tangent for result, tangent in pairs
            ]

        ad.primitive_jvps[self.primitive] = jvp

    def def_transpose(self, rule: Callable[..., Sequence[Any]]) -> None:
        """`rule(call, cotangents, arguments, linear)` -> the cotangent of each argument.

        `linear[i]` is the shape of the argument that the call is linear in, else None; such
        arguments are None among `arguments`.
        """

        def transpose(cotangents: Any, *arrays: Any, call: Call) -> list[Any]:
            given = _spread_out(call.there, arrays)
            linear = [a.aval if ad.is_undefined_primal(a) else None for a in given]
            values = [None if shape is not None else a for a, shape in zip(given, linear)]
            incoming = iter(cotangents)
            present = [None if s is None else next(incoming) for s in call.results]
            changes = [None if isinstance(c, ad.Zero) else c for c in present]
            if all(change is None for change in changes):
                return [None] * len(arrays)
            found = rule(call, changes, values, linear)
            answers = [
                None if shape is None or answer is None else sum_to(answer, shape.shape)
                for answer, shape in zip(found, linear)
            ]
            return [answer for answer, here in zip(answers, call.there) if here]

        ad.primitive_transposes[self.primitive] = transpose


def _zero(result: Any) -> Any:
    return ad.Zero(jax.typeof(result).to_tangent_aval())


@functools.lru_cache(maxsize=4096)
def _compiled(primitive: Primitive, about: Call) -> Callable[..., Any]:
    return jax.jit(lambda *arrays: primitive.bind(*arrays, call=about))


def _run(primitive: Primitive, *arrays: Any, call: Call) -> Any:
    with jax.disable_jit(False):  # a custom call exists in compiled programs alone
        return _compiled(primitive, call)(*arrays)


def _batch(
    operator: Operator, arrays: Sequence[Any], places: Sequence[Any], *, call: Call
) -> tuple[list[Any], list[int]]:
    """One more batch dimension in front; arrays that are the same for all items have size 1."""
    mapped = [
        jax.numpy.expand_dims(a, 0) if place is None else jax.numpy.moveaxis(a, place, 0)
        for a, place in zip(arrays, places)
    ]
    size = next(a.shape[0] for a, place in zip(mapped, places) if place is not None)
    wider = call._replace(batch=(size, *call.batch))
    found = operator.primitive.bind(*mapped, call=wider)
    return found, [0] * len(found)
