"""The shared library behind the package: found, loaded, and its functions given Python types.

Every call of the package goes through this module. The operators come as built-in functions
that the library makes itself (they unpack arrays in C and release the GIL); the rest is ctypes.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
import os
from pathlib import Path
from typing import Any, Callable, Optional
from urllib.parse import unquote, urlsplit

import numpy

__all__ = [
    "MASK_FILL_SLOTS",
    "REPEATED_ROWS",
    "TOLERATE_ROUTING_MISMATCH",
    "buffer_give",
    "buffer_limit",
    "buffer_stats",
    "buffer_take",
    "direct_map_rows",
    "direct_map_slots",
    "direct_permute",
    "direct_permute_by_ids",
    "direct_permute_grad",
    "direct_permute_grad_by_ids",
    "direct_rows_of_slots",
    "direct_unpermute",
    "direct_unpermute_by_ids",
    "direct_unpermute_grad",
    "direct_unpermute_grad_by_ids",
    "direct_within",
    "isa",
    "library",
    "new_tensor",
    "permute",
    "permute_by_ids",
    "permute_grad",
    "permute_grad_by_ids",
    "router",
    "router_balance_loss",
    "router_drop",
    "router_grad",
    "router_recipe",
    "router_update_bias",
    "router_z_loss",
    "span",
    "torch_plainness",
    "torch_setup",
    "unpermute",
    "unpermute_by_ids",
    "unpermute_grad",
    "unpermute_grad_by_ids",
    "version",
]

MASK_FILL_SLOTS = 1
TOLERATE_ROUTING_MISMATCH = 2
REPEATED_ROWS = 16

_HERE = Path(__file__).resolve().parent
_NAME = "libmoetoken_python.so"


def _editable_library() -> Optional[Path]:
    """Where `pip install -e` put the library: beside the installed package, not the sources."""
    try:
        distribution = importlib.metadata.distribution("moetoken")
        origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return None
    sources = Path(unquote(urlsplit(origin.get("url", "")).path)).resolve()
    if not origin.get("dir_info", {}).get("editable") or sources not in _HERE.parents:
        return None  # another installation, which need not go with these sources
    for file in distribution.files or ():
        if file.name == _NAME:
            return Path(str(file.locate()))
    return None


def _load() -> ctypes.PyDLL:
    """Loads the library next to this file, or the one that MOETOKEN_PYTHON_LIBRARY names."""
    named = os.environ.get("MOETOKEN_PYTHON_LIBRARY")
    path = Path(named) if named else _HERE / _NAME
    if not named and not path.exists():
        path = _editable_library() or path
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
permute_by_ids: Callable[..., Any]
permute_grad_by_ids: Callable[..., Any]
unpermute_by_ids: Callable[..., Any]
unpermute_grad_by_ids: Callable[..., Any]
router: Callable[..., Any]
router_grad: Callable[..., Any]
router_balance_loss: Callable[..., Any]
router_z_loss: Callable[..., Any]
router_update_bias: Callable[..., Any]
router_drop: Callable[..., Any]
router_recipe: Callable[..., Any]
buffer_take: Callable[..., Any]
buffer_give: Callable[..., Any]
buffer_limit: Callable[..., Any]
buffer_stats: Callable[..., Any]
new_tensor: Callable[..., Any]
span: Callable[..., Any]
torch_setup: Callable[..., Any]
torch_plainness: Callable[..., Any]
direct_permute: Callable[..., Any]
direct_permute_grad: Callable[..., Any]
direct_unpermute: Callable[..., Any]
direct_unpermute_grad: Callable[..., Any]
direct_permute_by_ids: Callable[..., Any]
direct_permute_grad_by_ids: Callable[..., Any]
direct_unpermute_by_ids: Callable[..., Any]
direct_unpermute_grad_by_ids: Callable[..., Any]
direct_within: Callable[..., Any]
direct_rows_of_slots: Callable[..., Any]
direct_map_rows: Callable[..., Any]
direct_map_slots: Callable[..., Any]
(
    permute,
    permute_grad,
    unpermute,
    unpermute_grad,
    permute_by_ids,
    permute_grad_by_ids,
    unpermute_by_ids,
    unpermute_grad_by_ids,
    router,
    router_grad,
    router_balance_loss,
    router_z_loss,
    router_update_bias,
    router_drop,
    router_recipe,
    buffer_take,
    buffer_give,
    buffer_limit,
    buffer_stats,
    new_tensor,
    span,
    torch_setup,
    torch_plainness,
    direct_permute,
    direct_permute_grad,
    direct_unpermute,
    direct_unpermute_grad,
    direct_permute_by_ids,
    direct_permute_grad_by_ids,
    direct_unpermute_by_ids,
    direct_unpermute_grad_by_ids,
    direct_within,
    direct_rows_of_slots,
    direct_map_rows,
    direct_map_slots,
) = library.moetoken_python_functions(numpy.ndarray)


def version() -> str:
    """The version of the C library, for example ``"0.2.0"``."""
    return library.moetoken_version().decode()


def isa() -> str:
    """The instruction set whose kernels run: ``scalar``, ``avx2``, ``avx512`` or ``neon``.

    The environment variable ``MOETOKEN_ISA`` sets an upper bound.
    """
    return library.moetoken_isa_name(library.moetoken_isa_chosen(0)).decode()
