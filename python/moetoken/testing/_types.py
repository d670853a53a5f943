"""The types of tensors by their names, those of NumPy and the short ones of the tool's options."""

from __future__ import annotations

from typing import Any, Sequence

import numpy as np

from .._arrays import to_dtype

__all__ = ["FLOATS", "INDICES", "MAPS", "bits_type", "choices", "is_float", "numpy_type"]

FLOATS = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "f64": "float64"}
INDICES = {"i32": "int32", "i64": "int64"}
MAPS = {"bool": "bool", "i8": "int8", "u8": "uint8"}

_BITS: dict[int, np.dtype] = {
    1: np.dtype(np.uint8),
    2: np.dtype(np.uint16),
    4: np.dtype(np.uint32),
    8: np.dtype(np.uint64),
}


def numpy_type(name: str) -> np.dtype:
    """bfloat16 needs the package ml_dtypes; TypeError says so."""
    return to_dtype(name)


def is_float(name: str) -> bool:
    return name in FLOATS.values()


def bits_type(dtype: np.dtype) -> np.dtype:
    """The unsigned integer of that size."""
    return _BITS[dtype.itemsize]


def choices(name: str, given: Any, known: dict[str, str]) -> tuple[str, ...]:
    """Names of types, of NumPy, the tool or any framework, as NumPy's names."""
    one = isinstance(given, (str, type, np.dtype)) or not isinstance(given, Sequence)
    found = []
    for word in [given] if one else given:
        text = word.__name__ if isinstance(word, type) else str(word)
        text = text.rpartition(".")[2]  # "torch.float32" and "float32" alike
        text = known.get(text, text)
        if text not in known.values():
            expected = ", ".join(known.values())
            raise ValueError(f"{name} has {word!r}, expected some of {expected}")
        found.append(text)
    if not found:
        raise ValueError(f"{name} is empty, expected some of {', '.join(known.values())}")
    return tuple(found)
