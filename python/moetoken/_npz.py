"""NumPy's .npz files: zip archives of arrays, read without trust and written uncompressed.

numpy.load would do for files of good will. Hostile ones make it raise whatever its parser, zlib or
the zip module raise, and allocate what a header claims: here a header is read by rules, and an
array allocated only where the archive can hold its bytes.
"""

from __future__ import annotations

import ast
import errno
import re
import struct
import zipfile
import zlib
from typing import Any, BinaryIO, Callable, Mapping, NamedTuple

import numpy as np

from ._arrays import _bfloat16
from ._safetensors import METADATA

__all__ = ["read_npz", "write_npz"]

_LONGEST_HEADER = 65_536
_MOST_INFLATION = 1032  # no deflate stream yields more bytes from one
_BROKEN = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    NotImplementedError,  # a way of compression that the zip module does not know
    RuntimeError,  # an encrypted member
    LookupError,
    OverflowError,
    SyntaxError,
    TypeError,
    ValueError,
)


class _Header(NamedTuple):
    descr: Any
    fortran: bool
    shape: tuple[int, ...]


def _exactly(member: Any, count: int) -> bytes:
    found = member.read(count)
    if len(found) != count:
        raise ValueError(f"ends after {len(found)} of {count} bytes")
    return found


def _read_header(member: Any) -> _Header:
    """The beginning of a .npy: magic, version, length, and a Python literal."""
    magic = _exactly(member, 8)
    if magic[:6] != b"\x93NUMPY" or magic[6:] not in (b"\x01\x00", b"\x02\x00", b"\x03\x00"):
        raise ValueError(f"begins with {magic!r}, expected an array of NumPy's format 1 to 3")
    length = int.from_bytes(_exactly(member, 2 if magic[6] == 1 else 4), "little")
    if length > _LONGEST_HEADER:
        raise ValueError(f"a header of {length} bytes, expected at most {_LONGEST_HEADER}")
    text = _exactly(member, length).decode("utf-8" if magic[6] == 3 else "latin-1")
    if len(re.findall(r"[\[({]", text)) > 1000:
        raise ValueError("a header nested too deep")
    try:
        header = ast.literal_eval(text.strip())
    except (SyntaxError, ValueError, MemoryError, RecursionError, SystemError, TypeError):
        raise ValueError(f"a header that is no literal: {text[:60]!r}") from None
    if not isinstance(header, dict) or set(header) != {"descr", "fortran_order", "shape"}:
        raise ValueError(f"header {text[:60]!r}, expected descr, fortran_order and shape")
    shape, fortran = header["shape"], header["fortran_order"]
    if not isinstance(shape, tuple) or any(type(n) is not int or n < 0 for n in shape):
        raise ValueError(f"shape {shape!r}, expected numbers from 0")
    if not isinstance(fortran, bool):
        raise ValueError(f"fortran_order {fortran!r}, expected True or False")
    return _Header(header["descr"], fortran, shape)


def _dtype(descr: Any) -> np.dtype:
    """TypeError for what can be no array here: the others of the file can."""
    try:
        dtype = np.lib.format.descr_to_dtype(descr)
    except (TypeError, ValueError, LookupError, RecursionError, SyntaxError):
        raise TypeError(f"type {descr!r}, which NumPy does not know") from None
    if dtype.hasobject:
        raise TypeError(f"type {dtype}, Python objects, which are never loaded")
    if not dtype.itemsize:
        raise TypeError(f"type {dtype}, elements without bytes")
    if dtype.kind == "V" and dtype.names is None and dtype.itemsize == 2:
        return _bfloat16()  # NumPy's files have no name for it
    return dtype


def _read_array(archive: zipfile.ZipFile, info: zipfile.ZipInfo, size: int) -> np.ndarray:
    """One member's array; `size` is that of the file."""
    member: Any
    with archive.open(info) as member:
        header = _read_header(member)
        dtype = _dtype(header.descr)
        count = 1
        for length in header.shape:
            count *= length
        nbytes = count * dtype.itemsize
        if nbytes >= info.file_size or nbytes > min(info.compress_size, size) * _MOST_INFLATION:
            raise ValueError(
                f"shape {list(header.shape)} of {dtype}: {nbytes} bytes, "
                f"of which the file does not have so many ({info.file_size})"
            )
        data = bytearray(nbytes)
        view, filled = memoryview(data), 0
        while filled < nbytes:
            got = member.readinto(view[filled:])
            if not got:
                raise ValueError(f"ends after {filled} of {nbytes} bytes")
            filled += got
        if member.read(1):  # and at the end the checksum is looked at
            raise ValueError(f"more than the {nbytes} bytes of {dtype} {list(header.shape)}")
    flat = np.frombuffer(data, dtype) if nbytes else np.empty(count, dtype)
    return flat.reshape(header.shape, order="F" if header.fortran else "C")


def _text(array: np.ndarray) -> str:
    if array.ndim or array.dtype.kind not in "SU":
        raise ValueError(f"{array.dtype} {list(array.shape)}, expected a text")
    text = array[()]
    return text.decode() if isinstance(text, bytes) else str(text)


def read_npz(
    file: BinaryIO, size: int, take: Callable[[str, np.ndarray], None]
) -> tuple[dict[str, str], dict[str, str]]:
    """Hands every array to `take`. (metadata, why an array could not be read) by name.

    ValueError for a broken archive, which names the array where one is broken.
    """
    metadata: dict[str, str] = {}
    unread: dict[str, str] = {}
    seen = set()
    try:
        archive = zipfile.ZipFile(file)
    except _BROKEN as error:
        raise ValueError(f"no whole zip archive: {error}") from None
    with archive:
        for info in archive.infolist():
            if not info.filename.endswith(".npy"):
                continue
            name = info.filename[: -len(".npy")]
            if name in seen:
                raise ValueError(f"two arrays of the name {name!r}")
            seen.add(name)
            is_text = name.startswith(METADATA + ".")
            try:
                array = _read_array(archive, info, size)
                if is_text:
                    metadata[name[len(METADATA) + 1 :]] = _text(array)
            except OSError as error:
                if error.errno != errno.EINVAL:  # a place before the file's beginning
                    raise
                raise ValueError(f"array {name!r}: lies outside the file") from None
            except TypeError as error:
                if is_text:
                    raise ValueError(f"{name}: {error}") from None
                unread[name] = str(error)
            except _BROKEN as error:
                raise ValueError(f"array {name!r}: {error}") from None
            else:
                if not is_text:
                    take(name, array)
    return metadata, unread


def write_npz(
    file: BinaryIO, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]
) -> None:
    texts = {f"{METADATA}.{key}": np.array(value.encode()) for key, value in metadata.items()}
    with zipfile.ZipFile(file, "w") as archive:  # stored, not compressed; any name will do
        for name, array in {**arrays, **texts}.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
