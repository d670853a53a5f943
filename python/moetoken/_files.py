"""Case files: named arrays and a few words of metadata, as safetensors or NumPy's .npz.

The same files as the command-line tool's: tensors have the names of the operators' arguments, the
metadata says what else a call needs (``drop_and_pad``, ``restore_shape``, ...).
"""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
from typing import Any, BinaryIO, Mapping, Optional, Union

import numpy as np

from ._arrays import _bfloat16

__all__ = ["Case", "load", "save"]

_TYPES = {
    "BOOL": np.bool_,
    "I8": np.int8,
    "U8": np.uint8,
    "I32": np.int32,
    "I64": np.int64,
    "F16": np.float16,
    "F32": np.float32,
    "F64": np.float64,
}
_METADATA = "__metadata__"


class Case(dict):
    """The arrays of a file by name, and its ``metadata``, a dict of strings."""

    metadata: dict[str, str]

    def __init__(
        self,
        arrays: Optional[Mapping[str, np.ndarray]] = None,
        metadata: Optional[Mapping[str, str]] = None,
    ) -> None:
        super().__init__(arrays or {})
        self.metadata = dict(metadata or {})


def _dtype_from_safetensors(name: Any) -> np.dtype:
    if name == "BF16":
        return _bfloat16()
    if name not in _TYPES:
        raise ValueError(f"type {name!r}, expected BF16, {', '.join(_TYPES)}")
    return np.dtype(_TYPES[name])


def _safetensors_name(dtype: np.dtype) -> str:
    if dtype.name == "bfloat16":
        return "BF16"
    for name, known in _TYPES.items():
        if dtype == np.dtype(known):
            return name
    raise TypeError(f"type {dtype}, expected bfloat16 or one of {', '.join(_TYPES)}")


def _array_from_safetensors(data: np.ndarray, entry: Mapping[str, Any]) -> np.ndarray:
    """One tensor out of the bytes after the header, of which `entry` describes a part."""
    dtype = _dtype_from_safetensors(entry["dtype"])
    shape = tuple(entry["shape"])
    begin, end = entry["data_offsets"]
    numbers = (*shape, begin, end)
    if any(type(number) is not int or number < 0 for number in numbers):
        raise ValueError(f"shape {list(shape)} at {[begin, end]}, expected numbers from 0")
    size = dtype.itemsize
    for length in shape:
        size *= length
    if not begin <= end <= data.size:
        raise ValueError(f"bytes {begin} to {end}, expected a part of the file's {data.size}")
    if end - begin != size:
        raise ValueError(f"{end - begin} bytes for {entry['dtype']} {list(shape)}, expected {size}")
    return data[begin:end].view(dtype).reshape(shape)


def _load_safetensors(path: Union[str, os.PathLike]) -> Case:
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        available = os.fstat(file.fileno()).st_size - 8
        if not 2 <= length <= available:
            raise ValueError(f"{path}: a header of {length} bytes in a file that has {available}")
        header = json.loads(file.read(length))
    if not isinstance(header, dict):
        raise ValueError(f"{path}: the header is no JSON object")
    data = np.zeros(0, np.uint8)
    if available > length:  # memory of its own, read when touched; the file is never written
        data = np.asarray(np.memmap(path, np.uint8, "c", 8 + length))
    case = Case(metadata=header.pop(_METADATA, {}))
    for name, entry in header.items():
        try:
            case[name] = _array_from_safetensors(data, entry)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: tensor {name!r}: {error}") from None
    return case


def _load_npz(path: Union[str, os.PathLike]) -> Case:
    case = Case()
    with np.load(path, allow_pickle=False) as archive:
        for name in archive.files:
            array = archive[name]
            if name.startswith(_METADATA + "."):
                text = array[()]
                text = text.decode() if isinstance(text, bytes) else str(text)
                case.metadata[name[len(_METADATA) + 1 :]] = text
            elif array.dtype.kind == "V" and array.dtype.itemsize == 2:
                case[name] = array.view(_bfloat16())  # NumPy's files have no name for it
            else:
                case[name] = array
    return case


def load(path: Union[str, os.PathLike]) -> Case:
    """Reads a case file, safetensors or .npz, told apart by content.

    Returns
    -------
    Case
        A dict of arrays with an attribute ``metadata``. Safetensors are memory-mapped; changing
        such an array does not change the file. bfloat16 needs the package ml_dtypes.

    Raises
    ------
    OSError, ValueError
        The file cannot be read, or is broken: the message names the tensor and the values.
    """
    if zipfile.is_zipfile(path):
        return _load_npz(path)
    return _load_safetensors(path)


def _write_safetensors(
    file: BinaryIO, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]
) -> None:
    header: dict[str, Any] = {_METADATA: dict(metadata)} if metadata else {}
    position = 0
    # Wider types first: then every tensor is aligned, since the header is.
    ordered = sorted(arrays.items(), key=lambda item: -item[1].dtype.itemsize)
    for name, array in ordered:
        header[name] = {
            "dtype": _safetensors_name(array.dtype),
            "shape": list(array.shape),
            "data_offsets": [position, position + array.nbytes],
        }
        position += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for _, array in ordered:
        file.write(np.ascontiguousarray(array).view(np.uint8).data if array.size else b"")


def _write_npz(
    file: BinaryIO, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]
) -> None:
    texts = {f"{_METADATA}.{key}": np.array(value.encode()) for key, value in metadata.items()}
    with zipfile.ZipFile(file, "w") as archive:  # stored, not compressed; any name will do
        for name, array in {**arrays, **texts}.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def save(
    path: Union[str, os.PathLike],
    arrays: Mapping[str, Any],
    metadata: Optional[Mapping[str, str]] = None,
) -> None:
    """Writes arrays as a case file: .npz when `path` ends so, else safetensors.

    `metadata` is taken from `arrays` when that is a :class:`Case` and none is given. Nothing
    exists under the final name before the file is complete.

    Examples
    --------
    >>> import numpy as np, moetoken, os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "case.safetensors")
    >>> moetoken.save(path, {"out_index": np.array([1, 0])}, {"drop_and_pad": "false"})
    >>> case = moetoken.load(path)
    >>> case["out_index"], case.metadata
    (array([1, 0]), {'drop_and_pad': 'false'})
    """
    if metadata is None:
        metadata = getattr(arrays, "metadata", {})
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"metadata {key!r}: {value!r}, expected strings")
    given = {name: np.asarray(array) for name, array in arrays.items()}
    for name, array in given.items():
        try:
            _safetensors_name(array.dtype)
        except TypeError as error:
            raise TypeError(f"array {name!r}: {error}") from None
    path = os.fspath(path)
    handle, temporary = tempfile.mkstemp(dir=os.path.dirname(path) or ".", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            if path.endswith(".npz"):
                _write_npz(file, given, metadata)
            else:
                _write_safetensors(file, given, metadata)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
