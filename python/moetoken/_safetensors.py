"""Safetensors files: their header, read with the reference reader's care, and written.

A file is 8 bytes with the header's length, the header (a JSON object), and the tensors' bytes, one
tensor after the other without gaps.
"""

from __future__ import annotations

import json
from typing import Any, BinaryIO, Mapping, NamedTuple, Optional

import numpy as np

from ._arrays import _bfloat16

__all__ = ["METADATA", "Tensor", "dtype_name", "read_header", "write_safetensors"]

METADATA = "__metadata__"
_LONGEST_HEADER = 100_000_000  # as in the reference reader
_DEEPEST = 3

_TYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "U32": "uint32",
    "I32": "int32",
    "U64": "uint64",
    "I64": "int64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2": "float8_e5m2",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
}
_NAMES = {name: key for key, name in _TYPES.items()}


class Tensor(NamedTuple):
    """A tensor of a header: dtype is None, and problem says why, where NumPy cannot hold it."""

    dtype: Optional[np.dtype]
    shape: tuple[int, ...]
    begin: int
    end: int
    problem: str


def _numpy_type(name: str) -> np.dtype:
    if name not in _TYPES:
        raise TypeError(f"type {name!r}, expected {', '.join(_TYPES)}")
    if name == "BF16":
        return _bfloat16()
    if name.startswith("F8"):
        try:
            import ml_dtypes

            return np.dtype(getattr(ml_dtypes, _TYPES[name]))
        except (ImportError, AttributeError):
            raise TypeError(f"type {name!r} needs the package ml_dtypes, or a newer one") from None
    return np.dtype(_TYPES[name])


def dtype_name(dtype: np.dtype) -> str:
    """The name of an array's type in the file."""
    name = _NAMES.get(dtype.name)
    if name is None or not dtype.isnative:
        raise TypeError(f"type {dtype}, expected {', '.join(_NAMES)}")
    return name


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the header has {twice!r} twice")
    for name in found:
        name.encode()  # UnicodeEncodeError, a ValueError, for half of a surrogate pair
    return found


def _no_constant(text: str) -> Any:
    raise ValueError(f"the header holds {text}")


def _parse(text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text.decode(), object_pairs_hook=_once, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError(f"the header is nested deeper than {_DEEPEST}") from None
    if not isinstance(header, dict):
        raise ValueError("the header is no JSON object")
    return header


def _check_metadata(metadata: Any) -> dict[str, str]:
    if metadata is None:
        return {}
    if not isinstance(metadata, dict):
        raise ValueError(f"{METADATA} is no JSON object")
    for key, value in metadata.items():
        if not isinstance(value, str):
            raise ValueError(f"metadata {key!r}: {value!r}, expected a string")
        value.encode()
    return metadata


def _whole_numbers(values: Any) -> tuple[int, ...]:
    if not isinstance(values, list) or any(
        type(value) is not int or not 0 <= value < 2**64 for value in values
    ):
        raise ValueError(f"{values!r}, expected numbers from 0 to 2^64 - 1")
    return tuple(values)


def _read_entry(entry: Any) -> Tensor:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise ValueError("expected an object of dtype, shape and data_offsets")
    shape, offsets = _whole_numbers(entry["shape"]), _whole_numbers(entry["data_offsets"])
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise ValueError(f"data_offsets {list(offsets)}, expected a begin and an end")
    begin, end = offsets
    if not isinstance(entry["dtype"], str):
        raise ValueError(f"dtype {entry['dtype']!r}, expected a string")
    try:
        dtype = _numpy_type(entry["dtype"])
    except TypeError as error:
        return Tensor(None, shape, begin, end, str(error))
    size = dtype.itemsize
    for length in shape:
        size *= length
    if end - begin != size:
        raise ValueError(f"{end - begin} bytes for {entry['dtype']} {list(shape)}, expected {size}")
    return Tensor(dtype, shape, begin, end, "")


def read_header(start: bytes, available: int) -> tuple[dict[str, Tensor], dict[str, str], int]:
    """Tensors by name, metadata, and where the data begin.

    `start` is the file's beginning, as much of it as :func:`header_size` says; `available` the
    bytes of the whole file. ValueError for anything that the format does not allow.
    """
    length = header_size(start, available) - 8
    if start[8:9] != b"{":
        raise ValueError(
            "is neither .npz (begins with PK) nor safetensors (byte 8 is '{', "
            f"here {start[8:9]!r})"
        )
    header = _parse(start[8 : 8 + length])
    metadata = _check_metadata(header.pop(METADATA, None))
    tensors = {}
    for name, entry in header.items():
        try:
            tensors[name] = _read_entry(entry)
        except ValueError as error:
            raise ValueError(f"tensor {name!r}: {error}") from None
    data = available - 8 - length
    position = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1][2:4]):
        if tensor.begin != position or tensor.end > data:
            raise ValueError(
                f"tensor {name!r}: bytes {tensor.begin} to {tensor.end}, expected them to begin at "
                f"{position}, where the one before ends, in the file's {data}"
            )
        position = tensor.end
    if position != data:
        raise ValueError(f"{data - position} bytes after the last tensor")
    return tensors, metadata, 8 + length


def header_size(start: bytes, available: int) -> int:
    """The bytes up to the data, told by the first 8."""
    length = int.from_bytes(start[:8], "little")
    if not 2 <= length <= min(available - 8, _LONGEST_HEADER):
        raise ValueError(
            f"a header of {length} bytes in a file that has {max(available - 8, 0)} for it"
        )
    return 8 + length


def write_safetensors(
    file: BinaryIO, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]
) -> None:
    header: dict[str, Any] = {METADATA: dict(metadata)} if metadata else {}
    position = 0
    # Wider types first: then every tensor is aligned, since the header is.
    ordered = sorted(arrays.items(), key=lambda item: -item[1].dtype.itemsize)
    for name, array in ordered:
        header[name] = {
            "dtype": dtype_name(array.dtype),
            "shape": list(array.shape),
            "data_offsets": [position, position + array.nbytes],
        }
        position += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for _, array in ordered:
        file.write(np.ascontiguousarray(array).view(np.uint8).data if array.size else b"")
