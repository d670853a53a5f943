"""The way past PyTorch's dispatcher, for calls in which it has nothing to do.

A call of an operator that is registered from Python costs some 60 microseconds, several times what
the library needs for a token. The dispatcher records gradients, traces, vectorizes, serves tensor
subclasses and the profiler; where none of that is going on, the operator's function does the same
by itself.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

__all__ = ["IS_PLAIN", "IS_PLAIN_BUT_RECORDED", "is_plain", "plainness"]

IS_PLAIN, IS_PLAIN_BUT_RECORDED = 1, 2


_NO_TENSORS = frozenset({int, bool, type(None), torch.dtype})
_is_compiling = torch.compiler.is_compiling


def _learn() -> tuple[frozenset[int], frozenset[int]]:
    """The dispatch keys of plain tensors, and those that a thread adds which does nothing special:
    both with and without inference mode."""
    tensors, threads = set(), set()
    for inference in (False, True):
        with torch.inference_mode(inference):
            tensors.add(torch._C._dispatch_keys(torch.empty(0, device="cpu")).raw_repr())
            threads.add(torch._C._dispatch_tls_local_include_set().raw_repr())
    return frozenset(tensors), frozenset(threads)


try:  # in a fresh thread, for this one may be tracing; empty sets where PyTorch is another
    with ThreadPoolExecutor(1) as _executor:
        _TENSOR_KEYS, _THREAD_KEYS = _executor.submit(_learn).result()
    _profiles, _traces = torch._C._autograd._profiler_enabled, torch._C._get_tracing_state
    _tensor_keys, _thread_keys = torch._C._dispatch_keys, torch._C._dispatch_tls_local_include_set
except AttributeError:
    _TENSOR_KEYS = _THREAD_KEYS = frozenset()


def plainness(arguments: tuple[Any, ...]) -> int:
    """IS_PLAIN where the dispatcher would do nothing but call the operator's function,
    IS_PLAIN_BUT_RECORDED where it would also record the call for a gradient, else 0."""
    if _is_compiling() or not _THREAD_KEYS:
        return 0
    if _thread_keys().raw_repr() not in _THREAD_KEYS or _profiles() or _traces() is not None:
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


def is_plain(arguments: tuple[Any, ...]) -> bool:
    """Whether the dispatcher would do nothing but call the operator's function."""
    return plainness(arguments) == IS_PLAIN
