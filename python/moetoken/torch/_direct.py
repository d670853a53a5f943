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

__all__ = ["is_plain"]


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


def is_plain(arguments: tuple[Any, ...]) -> bool:
    """Whether the dispatcher would do nothing but call the operator's function."""
    if torch.compiler.is_compiling() or not _THREAD_KEYS:
        return False
    if _thread_keys().raw_repr() not in _THREAD_KEYS or _profiles() or _traces() is not None:
        return False
    records = torch.is_grad_enabled()
    for value in arguments:
        kind = type(value)
        if kind is Tensor or kind is Parameter:
            if records and value.requires_grad:
                return False
            if _tensor_keys(value).raw_repr() not in _TENSOR_KEYS:
                return False
        elif kind is not int and kind is not bool and isinstance(value, Tensor):
            return False
    return True
