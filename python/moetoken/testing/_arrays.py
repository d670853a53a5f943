"""Arrays of other libraries: inputs made for them, outputs that come from them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import jax
    import torch

__all__ = ["to_jax", "to_numpy", "to_torch"]


def to_torch(array: np.ndarray, device: Any) -> torch.Tensor:
    import torch

    copy = array.copy("C")
    if array.dtype.name == "bfloat16":
        tensor = torch.from_numpy(copy.view(np.int16)).view(torch.bfloat16)
    else:
        tensor = torch.from_numpy(copy)
    return tensor if device is None else tensor.to(device)


def to_jax(name: str, array: np.ndarray) -> jax.Array:
    import jax.numpy as jnp

    found = jnp.asarray(array)
    if array.dtype == np.float64 and found.dtype != np.float64:
        raise TypeError(f"{name} is float64, which JAX takes only with jax_enable_x64")
    return found


def to_numpy(name: str, array: Any) -> np.ndarray:
    """An output of any library as a NumPy array; TypeError with its name when it is no array."""
    torch = sys.modules.get("torch")
    if isinstance(array, np.ndarray):
        return array
    if torch is not None and isinstance(array, torch.Tensor):
        tensor = array.detach().cpu().contiguous()
        if tensor.dtype == torch.bfloat16:
            from .._arrays import _bfloat16

            found: np.ndarray = tensor.view(torch.int16).numpy().view(_bfloat16())
        else:
            found = tensor.resolve_neg().numpy()
        return found
    if not hasattr(array, "shape") and not hasattr(array, "__dlpack__"):
        raise TypeError(f"{name} is a {type(array).__name__}, expected an array")
    if hasattr(array, "__array__"):
        return np.asarray(array)
    return np.from_dlpack(array)
