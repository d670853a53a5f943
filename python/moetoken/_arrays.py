"""What the NumPy interface needs beside the operators: output arrays, copies where they must be.

Arrays are handed to C as they are. Only the slow paths are here: arrays of other libraries, whose
type has to be translated, and strides that DLPack cannot express.
"""

from __future__ import annotations

import math
import operator as _operator
import sys
from typing import Any, Callable, NoReturn, Optional, Sequence, Union

import numpy as np

from ._buffers import LEAST_BYTES, numpy_empty
from ._overlap import check_overlap, span_of

__all__ = [
    "Result",
    "dtype_of",
    "empty",
    "flag",
    "flags",
    "index_type",
    "new",
    "pair",
    "refuse",
    "rerun_with_copies",
    "shape_of",
    "to_dtype",
    "whole",
]

# An array, or None where it was not asked for. Which of both the call says, and type checkers
# cannot: they are told to trust the caller.
Result = Union[np.ndarray, Any]

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


def dtype_of(array: Any) -> np.dtype:
    """The element type of an array of any library."""
    dtype = getattr(array, "dtype", None)
    return np.asarray(memoryview(array)).dtype if dtype is None else to_dtype(dtype)


def to_dtype(dtype: Any) -> np.dtype:
    """A type of any library, or its name, as NumPy's."""
    if isinstance(dtype, (type, np.dtype)):
        return np.dtype(dtype)
    name = str(dtype).rpartition(".")[2]  # "torch.float32" and "float32" alike
    return _bfloat16() if name == "bfloat16" else np.dtype(name)


def empty(shape: tuple[int, ...], like: Any) -> np.ndarray:
    """A NumPy array of this shape with the element type of `like`, an array of any library."""
    return new(shape, like.dtype if type(like) is _ndarray else dtype_of(like))


def new(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """numpy.empty, whose own message for a size beyond all memory says nothing about the call."""
    try:
        size = dtype.itemsize * math.prod(shape)
        if LEAST_BYTES <= size <= sys.maxsize and not dtype.hasobject and min(shape) > 0:
            return numpy_empty(shape, dtype, size)
        return _empty(shape, dtype)
    except ValueError as error:
        raise ValueError(f"a result of shape {list(shape)} cannot be made: {error}") from None


def index_type(dtype: Any) -> np.dtype:
    """int32 or int64, refused otherwise."""
    try:
        found = _INDEX_TYPES.get(dtype) or np.dtype(dtype)
    except TypeError:
        raise TypeError(f"index_dtype is {dtype!r}, expected int32 or int64") from None
    if found not in _INDEX_TYPES.values():
        raise TypeError(f"index_dtype is {found}, expected int32 or int64")
    return found


def _item(value: Any) -> Any:
    """The element of an array that has just one, as attributes come out of .npz files."""
    if getattr(value, "shape", None) in ((), (1,)):
        return value.item()
    return value


def flag(name: str, value: Any) -> bool:
    """True or False; also 0, 1, and arrays of one such element. Words like "false" are refused."""
    if value is True or value is False:
        return value
    item = _item(value)
    if isinstance(item, (bool, np.bool_)) or (isinstance(item, int) and item in (0, 1)):
        return bool(item)
    raise TypeError(f"{name} is {value!r}, expected True or False")


def flags(name: str, values: Any, count: int) -> Sequence[bool]:
    """A sequence of `count` flags."""
    try:
        found = tuple(values)
    except TypeError:
        found = ()
    if len(found) != count or isinstance(values, (str, bytes)):
        raise ValueError(f"{name} is {values!r}, expected {count} flags")
    return [flag(f"{name}[{i}]", value) for i, value in enumerate(found)]


def whole(name: str, value: Any, least: int = 0) -> int:
    """A whole number, at least `least`, that 64 bits hold; also an array of one."""
    try:
        number = _operator.index(_item(value))
    except TypeError:
        raise TypeError(f"{name} is {value!r}, expected a whole number") from None
    if not least <= number < 2**63:
        raise ValueError(f"{name} = {number}, expected at least {least} and below 2^63")
    return number


def pair(name: str, value: Any) -> tuple[int, int]:
    """Two whole numbers, as a sequence or an array."""
    try:
        first, second = value
    except (TypeError, ValueError):
        raise ValueError(f"{name} is {value!r}, expected (tokens_num, hidden_size)") from None
    return whole(f"{name}[0]", first), whole(f"{name}[1]", second)


def refuse(
    error: Exception, *arrays: tuple[str, Any, int], optional: Sequence[tuple[str, Any, int]] = ()
) -> NoReturn:
    """Says which of the (name, array, rank) is no array of its rank; else passes the error on.

    Those that are optional may be None.
    """
    for name, array, rank in [*arrays, *(given for given in optional if given[1] is not None)]:
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
    operator: Callable[..., Any],
    inputs: Sequence[str],
    outputs: Sequence[str],
    values: tuple[Any, ...],
    replaced: Optional[str] = None,
) -> None:
    """Calls a C operator again, with contiguous copies of the arrays it could not take.

    These are arrays with negative strides, or strides that are no multiple of the element size.
    `inputs` and `outputs` name the first values; the first output may replace the input `replaced`.
    """
    names = [*inputs, *outputs]
    spans = [span_of(name, values[i], i >= len(inputs)) for i, name in enumerate(names)]
    in_place = spans[names.index(replaced)] if replaced is not None else None
    check_overlap(spans[: len(inputs)], spans[len(inputs) :], in_place)
    given = list(values)
    written = []
    for i in range(len(names)):
        if not _needs_copy(given[i]):
            continue
        original = np.asarray(given[i])
        given[i] = original.copy("C")
        if i >= len(inputs):
            written.append((original, given[i]))
    operator(*given)
    for original, copy in written:
        original[...] = copy
