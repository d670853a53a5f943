"""Shapes and types, told while JAX traces: by the time that the library sees the tensors the program
has long been compiled, and names and line are far away."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import jax
import numpy as np

__all__ = ["Arg", "check", "whole"]

_TOKENS = ("float32", "float16", "bfloat16", "float64")
_KINDS: dict[str, tuple[str, ...]] = {
    "tokens": _TOKENS,
    "probs": _TOKENS,
    "indices": ("int32", "int64"),
    "map": ("bool", "int8", "uint8"),
}


class Arg(NamedTuple):
    """An argument: its name and array, the letters of its sizes, and what kind it is."""

    name: str
    array: Any
    sizes: str
    kind: str


def whole(name: str, value: Any, least: int = 0) -> int:
    """A Python number, known while JAX traces."""
    if isinstance(value, jax.core.Tracer):
        raise TypeError(f"{name} is traced by JAX, expected a number known while tracing")
    try:
        number = value.__index__()
    except (AttributeError, TypeError):
        raise TypeError(f"{name} is {value!r}, expected a whole number") from None
    if number < least:
        raise ValueError(f"{name} = {number}, expected at least {least}")
    return int(number)


def _check_one(argument: Arg, sizes: dict[str, tuple[int, str]]) -> Any:
    name, array, letters, kind = argument
    if not isinstance(array, (jax.Array, np.ndarray)):
        raise TypeError(f"{name} is a {type(array).__name__}, expected an array")
    found = jax.numpy.shape(array)
    if len(found) != len(letters):
        raise ValueError(
            f"{name} has {len(found)} dimension{'' if len(found) == 1 else 's'}, "
            f"expected {len(letters)}"
        )
    if str(array.dtype) not in _KINDS[kind]:
        raise TypeError(f"{name} is {array.dtype}, expected {' or '.join(_KINDS[kind])}")
    for dim, letter in enumerate(letters):
        wanted, source = sizes.setdefault(letter, (found[dim], f"{name} has"))
        if found[dim] != wanted:
            raise ValueError(
                f"{name} has shape {list(found)}, but {letter} = {wanted} as {source} it"
            )
    return jax.numpy.asarray(array)


def check(*arguments: Arg, **sizes: Optional[int]) -> list[Any]:
    """The arrays, None for those not given; raises for one that does not fit the others.

    `sizes` are letters whose sizes the call itself names.
    """
    known = {k: (v, "the call has") for k, v in sizes.items() if v is not None}
    arrays = [None if a.array is None else _check_one(a, known) for a in arguments]
    tokens: Optional[Arg] = None
    for argument in arguments:
        if argument.array is None or argument.kind not in ("tokens", "probs"):
            continue
        tokens = argument if tokens is None else tokens
        same = argument.array.dtype == tokens.array.dtype
        wide = (
            argument.kind == "probs"
            and argument.array.dtype == np.float32
            and tokens.array.dtype.itemsize == 2
        )
        if not (same or wide):
            raise TypeError(
                f"{argument.name} is {argument.array.dtype}, expected {tokens.array.dtype} as "
                f"{tokens.name} is" + (", or float32" if tokens.array.dtype.itemsize == 2 else "")
            )
    return arrays
