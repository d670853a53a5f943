"""What the NumPy interface needs beside the operators: output arrays, copies where they must be.

Arrays are handed to C as they are. Only the slow paths are here: arrays of other libraries, whose
type has to be translated, and strides that DLPack cannot express.
"""

from __future__ import annotations

from typing import Any, Callable, NoReturn

import numpy as np

__all__ = ["empty", "index_type", "refuse", "rerun_with_copies", "shape_of"]

_empty = np.empty
_ndarray = np.ndarray
_INDEX_TYPES: dict[object, np.dtype] = {np.int32: np.dtype(np.int32), np.int64: np.dtype(np.int64)}


def _bfloat16() -> np.dtype:
    try:
        import ml_dtypes
    except ImportError as error:
        raise TypeError("bfloat16 arrays in NumPy need the package ml_dtypes") from error
    return np.dtype(ml_dtypes.bfloat16)


def shape_of(array: Any) -> tuple[int, ...]:
    """The shape of any array, that of a plain buffer included."""
    if type(array) is _ndarray:
        return array.shape
    shape = getattr(array, "shape", None)
    return tuple(memoryview(array).shape or () if shape is None else shape)


def _dtype_of(array: Any) -> np.dtype:
    dtype = getattr(array, "dtype", None)
    if dtype is None:
        return np.asarray(memoryview(array)).dtype
    name = str(dtype).rpartition(".")[2]  # "torch.float32" and "float32" alike
    return _bfloat16() if name == "bfloat16" else np.dtype(name)


def empty(shape: tuple[int, ...], like: Any) -> np.ndarray:
    """A NumPy array of this shape with the element type of `like`, an array of any library."""
    if type(like) is _ndarray:
        return _empty(shape, like.dtype)
    return _empty(shape, _dtype_of(like))


def index_type(dtype: Any) -> np.dtype:
    """int32 or int64, refused otherwise."""
    found = _INDEX_TYPES.get(dtype)
    if found is None:
        found = np.dtype(dtype)
        if found not in _INDEX_TYPES.values():
            raise TypeError(f"index_dtype is {found}, expected int32 or int64")
    return found


def refuse(error: Exception, *arrays: tuple[str, Any, int]) -> NoReturn:
    """Says which of the (name, array, rank) is no array of its rank; else passes the error on."""
    for name, array, rank in arrays:
        if array is None:
            raise ValueError(f"{name} is missing") from None
        try:
            shape = shape_of(array)
        except TypeError:
            raise TypeError(
                f"{name} is no array, expected an object with DLPack or the buffer protocol"
            ) from None
        if len(shape) != rank:
            raise ValueError(
                f"{name} has {len(shape)} dimension{'' if len(shape) == 1 else 's'}, "
                f"expected {rank}"
            ) from None
    raise error


def _needs_copy(array: Any) -> bool:
    if array is None or (hasattr(array, "__dlpack__") and not isinstance(array, np.ndarray)):
        return False
    view = np.asarray(array)
    return any(
        stride < 0 or stride % view.itemsize
        for stride, size in zip(view.strides, view.shape)
        if size > 1
    )


def rerun_with_copies(
    operator: Callable[..., Any], inputs: int, outputs: int, values: tuple[Any, ...]
) -> None:
    """Calls a C operator again, with contiguous copies of the arrays it could not take.

    These are arrays with negative strides, or strides that are no multiple of the element size.
    """
    given = list(values)
    written = []
    for i in range(inputs + outputs):
        if not _needs_copy(given[i]):
            continue
        original = np.asarray(given[i])
        given[i] = original.copy("C")
        if i >= inputs:
            written.append((original, given[i]))
    operator(*given)
    for original, copy in written:
        original[...] = copy
