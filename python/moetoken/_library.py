"""The shared library behind the package: found, loaded, and its functions given Python types.

Every call of the package goes through this module. The four operators come as built-in functions
that the library makes itself (they unpack arrays in C and release the GIL); the rest is ctypes.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any, Callable

import numpy

__all__ = [
    "MASK_FILL_SLOTS",
    "TOLERATE_ROUTING_MISMATCH",
    "isa",
    "library",
    "permute",
    "permute_grad",
    "unpermute",
    "unpermute_grad",
    "version",
]

MASK_FILL_SLOTS = 1
TOLERATE_ROUTING_MISMATCH = 2


def _load() -> ctypes.PyDLL:
    """Loads the library next to this file, or the one that MOETOKEN_PYTHON_LIBRARY names."""
    named = os.environ.get("MOETOKEN_PYTHON_LIBRARY")
    path = Path(named) if named else Path(__file__).parent / "libmoetoken_python.so"
    if not path.exists():
        raise ImportError(
            f"moetoken's library is not at {path}: install the package with `pip install .`, "
            "or name a built libmoetoken_python.so in MOETOKEN_PYTHON_LIBRARY"
        )
    return ctypes.PyDLL(str(path))


library = _load()

library.moetoken_python_functions.restype = ctypes.py_object
library.moetoken_python_functions.argtypes = [ctypes.py_object]
library.moetoken_version.restype = ctypes.c_char_p
library.moetoken_isa_chosen.restype = ctypes.c_uint32
library.moetoken_isa_chosen.argtypes = [ctypes.c_uint32]
library.moetoken_isa_name.restype = ctypes.c_char_p
library.moetoken_isa_name.argtypes = [ctypes.c_uint32]

permute: Callable[..., Any]
permute_grad: Callable[..., Any]
unpermute: Callable[..., Any]
unpermute_grad: Callable[..., Any]
permute, permute_grad, unpermute, unpermute_grad = library.moetoken_python_functions(numpy.ndarray)


def version() -> str:
    """The version of the C library, for example ``"0.2.0"``."""
    return library.moetoken_version().decode()


def isa() -> str:
    """The instruction set whose kernels run: ``scalar``, ``avx2``, ``avx512`` or ``neon``.

    The environment variable ``MOETOKEN_ISA`` sets an upper bound.
    """
    return library.moetoken_isa_name(library.moetoken_isa_chosen(0)).decode()
