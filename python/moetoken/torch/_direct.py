"""The way past PyTorch's dispatcher, for calls in which it has nothing to do.

A call of an operator that is registered from Python costs some 16 to 60 microseconds, several times
what the library needs for a token. The dispatcher records gradients, traces, vectorizes, serves
tensor subclasses and the profiler; where none of that is going on, the operator's function does the
same by itself. C decides that, and for the eight operators on plain tensors C does all the rest,
their outputs included: ``direct_*`` in :mod:`moetoken._library`, which return NotImplemented where
they do not know what to do. With MOETOKEN_TORCH_DIRECT=0, and before PyTorch 2.14, all of that is
done in Python.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Optional

import torch
from torch import Tensor
from torch.nn import Parameter

from .. import _library

__all__ = ["IS_PLAIN", "IS_PLAIN_BUT_RECORDED", "direct", "is_plain", "plainness"]

IS_PLAIN, IS_PLAIN_BUT_RECORDED = 1, 2


_NO_TENSORS = frozenset({int, bool, type(None), torch.dtype})
_is_compiling = torch.compiler.is_compiling


def _learn() -> tuple[list[int], list[int]]:
    """The dispatch keys of plain tensors, and those that a thread adds which does nothing special:
    both with and without inference mode."""
    tensors, threads = [], []
    for inference in (False, True):
        with torch.inference_mode(inference):
            tensors.append(torch._C._dispatch_keys(torch.empty(0, device="cpu")).raw_repr())
            threads.append(torch._C._dispatch_tls_local_include_set().raw_repr())
    return tensors, threads


try:  # in a fresh thread, for this one may be tracing; nothing is plain where PyTorch is another
    with ThreadPoolExecutor(1) as _executor:
        _TENSOR_KEYS, _THREAD_KEYS = _executor.submit(_learn).result()
    _profiles, _traces = torch._C._autograd._profiler_enabled, torch._C._get_tracing_state
    _tensor_keys, _thread_keys = torch._C._dispatch_keys, torch._C._dispatch_tls_local_include_set
except AttributeError:
    _TENSOR_KEYS, _THREAD_KEYS = [], []


def _set_up() -> bool:
    """Whether C is able to ask PyTorch, and to make tensors."""
    given = os.environ.get("MOETOKEN_TORCH_DIRECT", "").strip() or "1"
    if given not in ("0", "1"):
        raise ImportError(f"MOETOKEN_TORCH_DIRECT is {given!r}, expected 0 or 1")
    if given == "0" or not _THREAD_KEYS:
        return False
    found: bool = _library.torch_setup(
        *(Tensor, Parameter, torch.int32, torch.int64),
        *(_tensor_keys, _thread_keys, _profiles, _traces),
        *_TENSOR_KEYS,
        *_THREAD_KEYS,
    )
    return found


_IN_C = _set_up()


def _plainness(*arguments: Any) -> int:
    """IS_PLAIN where the dispatcher would do nothing but call the operator's function,
    IS_PLAIN_BUT_RECORDED where it would also record the call for a gradient, else 0."""
    if not _THREAD_KEYS or _thread_keys().raw_repr() not in _THREAD_KEYS:
        return 0
    if _profiles() or _traces() is not None:
        return 0
    found = IS_PLAIN
    for value in arguments:
        kind = type(value)
        if kind is Tensor or kind is Parameter:
            if value.requires_grad:
                found = IS_PLAIN_BUT_RECORDED
            if _tensor_keys(value).raw_repr() not in _TENSOR_KEYS:
                return 0
        elif kind not in _NO_TENSORS and isinstance(value, Tensor):
            return 0
    return found if found is IS_PLAIN or torch.is_grad_enabled() else IS_PLAIN


plainness: Callable[..., int] = _library.torch_plainness if _IN_C else _plainness


def is_plain(arguments: tuple[Any, ...]) -> bool:
    """Whether the dispatcher would do nothing but call the operator's function."""
    return not _is_compiling() and plainness(*arguments) == IS_PLAIN


def direct(name: str) -> Optional[Callable[..., Any]]:
    """The function of C that is an operator on plain tensors, if there is one."""
    return getattr(_library, f"direct_{name}") if _IN_C else None
