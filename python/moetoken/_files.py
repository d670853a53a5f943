"""Case files: named arrays and a few words of metadata, as safetensors or NumPy's .npz.

The same files as the command-line tool's: tensors have the names of the operators' arguments, the
metadata says what else a call needs (``drop_and_pad``, ``restore_shape``, ...).
"""

from __future__ import annotations

import io
import os
import stat
from typing import Any, BinaryIO, Mapping, Optional, Union

import numpy as np

from ._npz import read_npz, write_npz
from ._output_file import write_whole
from ._safetensors import METADATA, dtype_name, header_size, read_header, write_safetensors

__all__ = ["Case", "load", "save"]

# What NumPy users store as arrays: how many numbers each has.
_ATTRIBUTES = {"drop_and_pad": 1, "num_out_tokens": 1, "restore_shape": 2}


class Case(dict):
    """The arrays of a file by name, and its ``metadata``, a dict of strings.

    ``unread`` says by name why an array could not be read, because NumPy has no such type; asking
    for one raises a TypeError with these words.
    """

    metadata: dict[str, str]
    unread: dict[str, str]

    def __init__(
        self,
        arrays: Optional[Mapping[str, np.ndarray]] = None,
        metadata: Optional[Mapping[str, str]] = None,
        unread: Optional[Mapping[str, str]] = None,
    ) -> None:
        super().__init__(arrays or {})
        self.metadata = dict(metadata or {})
        self.unread = dict(unread or {})

    def __missing__(self, name: str) -> np.ndarray:
        if name in self.unread:
            raise TypeError(self.unread[name])
        raise KeyError(name)


def _load_safetensors(path: str, file: BinaryIO, size: int, mapped: bool) -> Case:
    start = file.read(8)
    start += file.read(header_size(start, size) - 8)
    tensors, metadata, begin = read_header(start, size)
    case = Case(metadata=metadata)
    data = np.zeros(0, np.uint8)
    if size > begin and mapped:  # memory of its own, read when touched; the file is never written
        data = np.asarray(np.memmap(path, np.uint8, "c", begin))
    elif size > begin:
        data = np.frombuffer(bytearray(file.read()), np.uint8)
    for name, tensor in tensors.items():
        problem = tensor.problem
        if tensor.dtype is not None:
            part = data[tensor.begin : tensor.end].view(tensor.dtype)
            try:
                case[name] = part.reshape(tensor.shape)
                continue
            except (ValueError, OverflowError) as error:  # more than NumPy can count
                problem = f"shape {list(tensor.shape)}: {error}"
        case.unread[name] = f"{path}: tensor {name!r}: {problem}"
    return case


def _attribute(array: np.ndarray, count: int) -> str:
    """The text of an attribute that a NumPy user has stored as an array."""
    fits = array.dtype.kind in "iu" or (array.dtype.kind == "b" and count == 1)
    if not fits or array.shape not in ([(), (1,)] if count == 1 else [(count,)]):
        kinds = "one whole number or bool" if count == 1 else f"{count} whole numbers"
        raise ValueError(f"{array.dtype} {list(array.shape)}, expected {kinds}")
    return ",".join(str(value).lower() for value in array.reshape(-1).tolist())


def _load_npz(path: str, file: BinaryIO, size: int) -> Case:
    case = Case()
    case.metadata, unread = read_npz(file, size, case.__setitem__)
    case.unread = {name: f"{path}: array {name!r}: {why}" for name, why in unread.items()}
    for name, count in _ATTRIBUTES.items():
        if name not in case and name not in unread:
            continue
        try:
            text = _attribute(case[name], count)
        except (TypeError, ValueError) as error:
            raise ValueError(f"array {name!r}: {error}") from None
        case.metadata.setdefault(name, text)
    return case


def load(path: Union[str, os.PathLike]) -> Case:
    """Reads a case file, safetensors or .npz, told apart by content.

    Returns
    -------
    Case
        A dict of arrays with an attribute ``metadata``. Safetensors are memory-mapped; changing
        such an array does not change the file. bfloat16 needs the package ml_dtypes. An array of
        a type that NumPy does not have is left out, and named in ``unread``. ``drop_and_pad``,
        ``num_out_tokens`` and ``restore_shape`` that a .npz holds as arrays are in ``metadata``
        too, unless that has them.

    Raises
    ------
    OSError
        The file cannot be read.
    ValueError
        It is broken: the message names the file, the tensor and the values. Files from anywhere
        can be given; nothing in them is ever executed, and no more memory is asked for than the
        data can fill.
    MemoryError
        Its arrays do not fit into memory.
    """
    path = os.fspath(path)
    path = os.fsdecode(path)
    with open(path, "rb") as opened:
        status = os.fstat(opened.fileno())
        mapped = stat.S_ISREG(status.st_mode)
        file: BinaryIO = opened if mapped else io.BytesIO(opened.read())
        size = status.st_size if mapped else len(file.getbuffer())  # type: ignore[attr-defined]
        start = file.read(9)
        file.seek(0)
        try:
            if start[:2] == b"PK" and start[8:] != b"{":
                return _load_npz(path, file, size)
            return _load_safetensors(path, file, size, mapped)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None


def _check_name(kind: str, name: Any) -> None:
    if not isinstance(name, str):
        raise TypeError(f"{kind} {name!r}: expected a string as its name")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{kind} {name!r}: its name is no Unicode text") from None
    if "\0" in name:
        raise ValueError(f"{kind} {name!r}: its name holds a zero byte")


def _check_array(name: Any, array: Any, is_npz: bool) -> np.ndarray:
    _check_name("array", name)
    if name == METADATA or name.startswith(METADATA + "."):
        raise ValueError(f"array {name!r}: the file keeps its metadata under this name")
    try:
        found = np.asarray(array)
    except Exception as error:
        raise TypeError(f"array {name!r}: {error}") from None
    try:
        stored = dtype_name(found.dtype)
        if is_npz and stored.startswith("F8"):
            raise TypeError(f"type {found.dtype}, which NumPy's files cannot tell from others")
    except TypeError as error:
        raise TypeError(f"array {name!r}: {error}") from None
    return found


def _check_metadata(metadata: Mapping[str, str]) -> None:
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"metadata {key!r}: {value!r}, expected strings")
        _check_name("metadata", key)
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError(f"metadata {key!r}: {value!r} is no Unicode text") from None


def save(
    path: Union[str, os.PathLike],
    arrays: Mapping[str, Any],
    metadata: Optional[Mapping[str, str]] = None,
) -> None:
    """Writes arrays as a case file: .npz when `path` ends so, else safetensors.

    `metadata` is taken from `arrays` when that is a :class:`Case` and none is given.

    The file appears whole or not at all: it is written under another name in the same folder,
    brought to the disk, and renamed. A symbolic link is followed; an existing file keeps its
    permissions. A FIFO or a device is written to as it is.

    Raises
    ------
    TypeError, ValueError
        A name, type or text that the file cannot hold; the message names it.
    OSError
        The file cannot be written. What was there before is there still.

    Examples
    --------
    >>> import numpy as np, moetoken, os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "case.safetensors")
    >>> moetoken.save(path, {"out_index": np.array([1, 0])}, {"drop_and_pad": "false"})
    >>> case = moetoken.load(path)
    >>> case["out_index"], case.metadata
    (array([1, 0]), {'drop_and_pad': 'false'})
    """
    path = os.fsdecode(os.fspath(path))
    texts = dict(getattr(arrays, "metadata", None) or {} if metadata is None else metadata)
    _check_metadata(texts)
    is_npz = path.endswith(".npz")
    given = {name: _check_array(name, array, is_npz) for name, array in arrays.items()}
    write = write_npz if is_npz else write_safetensors
    write_whole(path, lambda file: write(file, given, texts))
