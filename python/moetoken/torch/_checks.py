"""What can be told of arguments before PyTorch is asked for memory, in words that name them."""

from __future__ import annotations

from typing import Any, Sequence

from torch import Tensor

__all__ = ["check_count", "check_matrix", "shape_to_restore"]


def check_matrix(name: str, value: Any) -> None:
    """A tensor of two dimensions."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} is {type(value).__name__}, expected a torch.Tensor")
    if value.dim() != 2:
        plural = "" if value.dim() == 1 else "s"
        raise ValueError(f"{name} has {value.dim()} dimension{plural}, expected 2")


def check_count(name: str, value: Any) -> None:
    """A number of slots or rows; one that torch.compile does not know yet is left to it."""
    if isinstance(value, int) and value < 0:
        raise ValueError(f"{name} = {value}, expected at least 0")


def shape_to_restore(restore_shape: Sequence[int]) -> tuple[int, int]:
    """(T, H)."""
    if len(restore_shape) != 2:
        raise ValueError(
            f"restore_shape = {tuple(restore_shape)}, expected (tokens_num, hidden_size)"
        )
    tokens_num, hidden_size = restore_shape
    check_count("restore_shape[0]", tokens_num)
    check_count("restore_shape[1]", hidden_size)
    return tokens_num, hidden_size
