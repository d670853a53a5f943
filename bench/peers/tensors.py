"""The data as PyTorch tensors over the same memory, for the groups that use PyTorch."""

from __future__ import annotations

import dataclasses
import os
from typing import Any, Optional

import numpy as np
import torch
from torch import Tensor

from .cases import Data
from .registry import Result

__all__ = ["Tensors", "arrays", "set_threads", "tensors", "versions"]


@dataclasses.dataclass
class Tensors:
    tokens_grad: Tensor
    rows: Tensor
    probs: Optional[Tensor]
    routing_map: Tensor
    out_index: Tensor
    token_of_row: Tensor
    expert_of_row: Tensor


def set_threads() -> None:
    threads = os.environ.get("OMP_NUM_THREADS")
    if threads:
        torch.set_num_threads(int(threads))


def versions() -> dict[str, str]:
    return {"torch": torch.__version__}


def _tensor(array: np.ndarray) -> Tensor:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def tensors(data: Data) -> Tensors:
    lent: dict[str, Any] = {}
    for field in dataclasses.fields(Tensors):
        array = getattr(data, field.name)
        lent[field.name] = None if array is None else _tensor(array)
    return Tensors(**lent)


def _array(tensor: Tensor) -> np.ndarray:
    if tensor.dtype == torch.bfloat16:
        import ml_dtypes

        return tensor.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def arrays(result: Any) -> Result:
    """A pair of tensors, the second of which may be None, as arrays."""
    rows, probs = result
    return _array(rows.detach()), None if probs is None else _array(probs.detach())
