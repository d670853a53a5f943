"""NumPy: whole-array expressions, as one would write them with some care. NumPy has one thread."""

from __future__ import annotations

from typing import Callable

import numpy as np

from .cases import Data
from .registry import Call, Result

__all__ = ["BUILDERS", "versions"]


def versions() -> dict[str, str]:
    return {"numpy": np.__version__}


def gradient(data: Data) -> Result:
    """Arithmetic in float32, in place where that saves a pass."""
    assert data.probs is not None
    gathered = data.tokens_grad[data.token_of_row].astype(np.float32, copy=False)
    weights = data.probs[data.token_of_row, data.expert_of_row]
    rows = data.rows.astype(np.float32, copy=False)
    probs_grad = np.zeros_like(data.probs)
    probs_grad[data.token_of_row, data.expert_of_row] = np.einsum("rh,rh->r", rows, gathered)
    gathered *= weights[:, None]
    return gathered.astype(data.rows.dtype, copy=False), probs_grad


def gradient_without_probs(data: Data) -> Result:
    return data.tokens_grad[data.token_of_row], None


def build(data: Data) -> Call:
    compute = gradient if data.shape.probs else gradient_without_probs
    return Call(lambda: compute(data), lambda result: result)


BUILDERS: dict[str, Callable[[Data], Call]] = {"numpy": build}
