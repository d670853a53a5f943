"""Outputs that belong to another framework, which must hear of it when they are written to.

NumPy's own arrays say themselves whether they may be written. PyTorch keeps a version of every
tensor, by which autograd finds out that one was changed which it still needs; JAX takes every array
for constant. Neither can be told from the memory that the array lends.
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["announce_write"]


def _announce_to_torch(torch: Any, name: str, tensor: Any) -> None:
    if tensor.requires_grad:
        raise ValueError(
            f"{name} is a tensor that requires gradients, which writing to its memory would make "
            "wrong: expected one that does not"
        )
    if tensor.is_neg() or tensor.is_conj():
        raise ValueError(
            f"{name} is a lazy view, negated or conjugated when read: expected memory of its own"
        )
    if not tensor.is_inference():  # those have no version
        torch.autograd.graph.increment_version(tensor)


def announce_write(name: str, array: Any) -> None:
    """Refuses an output that must not be written to; tells its framework of the others."""
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    if torch is not None and isinstance(array, torch.Tensor):
        _announce_to_torch(torch, name, array)
    elif jax is not None and isinstance(array, jax.Array):
        raise ValueError(f"{name} is a JAX array, which is immutable: expected one to write into")
