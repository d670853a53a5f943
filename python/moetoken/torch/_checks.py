"""What can be told of arguments before PyTorch is asked for memory, in words that name them."""

from __future__ import annotations

import functools
import re
import sys
from typing import Any, Callable, Optional, Sequence, TypeVar

import torch
from torch import Tensor

from .._arrays import whole

__all__ = [
    "ANY",
    "check_float",
    "check_rank",
    "check_restore_shape",
    "check_tensor",
    "count",
    "naming",
    "to_restore",
]

ANY = -(2**63)  # the least of all numbers
_Function = TypeVar("_Function", bound=Callable[..., Any])


def check_tensor(name: str, value: Any) -> None:
    """A tensor."""
    if value is None:
        raise ValueError(f"{name} is missing, expected a torch.Tensor")
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} is {type(value).__name__}, expected a torch.Tensor")


def check_rank(name: str, value: Any, rank: int, optional: bool = False) -> None:
    """A tensor of so many dimensions."""
    if isinstance(value, Tensor) and value.dim() == rank:
        return
    if value is None and optional:
        return
    check_tensor(name, value)
    if value.dim() != rank:
        plural = "" if value.dim() == 1 else "s"
        raise ValueError(f"{name} has {value.dim()} dimension{plural}, expected {rank}")


def check_float(name: str, value: Optional[Tensor]) -> None:
    """A tensor that can be made one of float32 or float64, or none."""
    if value is not None and not value.is_floating_point():
        raise TypeError(f"{name} is {value.dtype}, expected a floating-point type")


def count(name: str, value: Any, least: int = 0) -> int:
    """A whole number, at least `least`; one that a traced program leaves open stays so."""
    if (type(value) is int and least <= value <= sys.maxsize) or isinstance(value, torch.SymInt):
        return value  # type: ignore[return-value]
    return whole(name, value, least)


def to_restore(restore_shape: Any) -> tuple[int, int]:
    """(T, H)."""
    try:
        shape = tuple(restore_shape)
    except TypeError:
        shape = ()
    if len(shape) != 2:
        raise ValueError(f"restore_shape = {restore_shape!r}, expected (tokens_num, hidden_size)")
    return count("restore_shape[0]", shape[0]), count("restore_shape[1]", shape[1])


def check_restore_shape(restore_shape: Optional[Sequence[int]], tokens: Tensor) -> None:
    """That it is the shape of `tokens`, the gradient of what was restored."""
    if restore_shape is not None and to_restore(restore_shape) != tuple(tokens.shape):
        raise ValueError(
            f"restore_shape is {tuple(restore_shape)}, but unpermuted_tokens_grad is "
            f"{tuple(tokens.shape)}"
        )


def naming(**names: str) -> Callable[[_Function], _Function]:
    """A function whose errors have its own names for what the library calls otherwise."""
    pattern = re.compile(r"\b(" + "|".join(names) + r")\b")

    def decorate(function: _Function) -> _Function:
        @functools.wraps(function)
        def call(*values: Any, **keywords: Any) -> Any:
            if torch.compiler.is_compiling():
                return function(*values, **keywords)
            try:
                return function(*values, **keywords)
            except (ValueError, TypeError, IndexError) as error:
                text = pattern.sub(lambda found: names[found[0]], str(error))
                if text == str(error):
                    raise
                raise type(error)(text) from None

        return call  # type: ignore[return-value]

    return decorate
