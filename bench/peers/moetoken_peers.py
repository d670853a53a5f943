"""moetoken: through its PyTorch operators, with outputs that are kept, and the bare C function."""

from __future__ import annotations

import ctypes
from typing import Any, Callable, Optional

import numpy as np
import torch
from torch import Tensor

import moetoken
import moetoken.torch
from c_interface import Arguments, Options, make_arguments
from moetoken import _library

from .cases import Data
from .registry import Call, Result
from .tensors import Tensors, arrays, set_threads, tensors
from .torch_peers import gradients_of

__all__ = ["BUILDERS", "versions"]


def versions() -> dict[str, str]:
    return {"moetoken": f"{moetoken.version()} ({moetoken.isa()})"}


def _options(t: Tensors) -> dict[str, Any]:
    if t.probs is None:
        return {}
    return {"routing_map": t.routing_map, "permuted_tokens": t.rows, "probs": t.probs}


def _build_torch(data: Data) -> Call:
    set_threads()
    t = tensors(data)
    options = _options(t)
    return Call(
        lambda: moetoken.torch.unpermute_grad(t.tokens_grad, t.out_index, **options), arrays
    )


def _build_autograd(data: Data) -> Call:
    set_threads()
    t = tensors(data)

    def forward(rows: Tensor, probs: Optional[Tensor]) -> Tensor:
        return moetoken.torch.unpermute(
            rows,
            t.out_index,
            routing_map=None if probs is None else t.routing_map,
            probs=probs,
            restore_shape=t.tokens_grad.shape,
        )

    return Call(gradients_of(t, forward), arrays)


def _build_kept(data: Data) -> Call:
    set_threads()
    t = tensors(data)
    options = _options(t)
    out = torch.empty_like(t.rows), None if t.probs is None else torch.empty_like(t.probs)
    return Call(
        lambda: moetoken.unpermute_grad(t.tokens_grad, t.out_index, out=out, **options), arrays
    )


def _arguments(data: Data, rows_grad: np.ndarray, probs_grad: Optional[np.ndarray]) -> Arguments:
    given: dict[str, Any] = {
        "unpermuted_tokens_grad": data.tokens_grad,
        "out_index": data.out_index,
        "permuted_tokens_grad": rows_grad,
    }
    if probs_grad is not None:
        given["routing_map"], given["permuted_tokens"] = data.routing_map, data.rows
        given["probs"], given["probs_grad"] = data.probs, probs_grad
    return make_arguments(**given)


def _build_c(data: Data) -> Call:
    """Everything is prepared; what is left beside the C function is a call through ctypes."""
    rows_grad = arrays((torch.empty_like(tensors(data).rows), None))[0]
    probs_grad = None if data.probs is None else np.empty_like(data.probs)
    arguments = _arguments(data, rows_grad, probs_grad)
    workspace = np.empty(16 * (data.shape.tokens + data.shape.rows), np.uint8)
    options = Options(workspace=workspace.ctypes.data, workspace_bytes=workspace.nbytes)
    library = ctypes.CDLL(_library.library._name)
    function = library.moetoken_unpermute_grad
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    library.moetoken_last_error.restype = ctypes.c_char_p
    addresses = ctypes.addressof(arguments), ctypes.addressof(options)

    def call() -> Result:
        if function(*addresses) != 0:
            raise RuntimeError(library.moetoken_last_error().decode())
        return rows_grad, probs_grad

    run: Any = call
    run.kept = (arguments, options, workspace, data)  # what the addresses are those of
    return Call(run, lambda result: result)


BUILDERS: dict[str, Callable[[Data], Call]] = {
    "moetoken": _build_torch,
    "moetoken-autograd": _build_autograd,
    "moetoken-out": _build_kept,
    "moetoken-c": _build_c,
}
