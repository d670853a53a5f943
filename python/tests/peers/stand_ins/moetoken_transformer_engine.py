"""A pytest plugin: `transformer_engine.pytorch` is moetoken.torch.transformer_engine, on the CPU.

What moetoken does not have - sorting of chunks, padding for FP8, quantised tensors - skips the test
that asks for it.
"""

from __future__ import annotations

import sys
import types
from typing import Any

import moetoken_on_cpu
from moetoken_on_cpu import missing, module, refusing

from moetoken.torch import transformer_engine

_UNAVAILABLE = "no FP8 here"


class _Recipe:
    """Names of FP8 recipes, none of which is available."""

    def __getattr__(self, name: str) -> Any:
        return type(name, (), {"__init__": lambda self, *_, **__: None, "mxfp8": lambda self: False,
                               "float8_block_scaling": lambda self: False})


def _is_available(return_reason: bool = False) -> Any:
    return (False, _UNAVAILABLE) if return_reason else False


class _PyTorch(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("is_") and name.endswith("_available"):
            return _is_available
        if name.startswith("__"):
            raise AttributeError(name)
        found = getattr(transformer_engine, name, None)
        found = refusing(found) if callable(found) else missing(name)
        setattr(self, name, found)
        return found


def _install() -> None:
    moetoken_on_cpu.install()
    module("transformer_engine")
    module("transformer_engine.common", recipe=_Recipe())
    pytorch = _PyTorch("transformer_engine.pytorch")
    pytorch.__path__ = []
    sys.modules["transformer_engine.pytorch"] = pytorch
    sys.modules["transformer_engine"].pytorch = pytorch
    module("transformer_engine_torch")
    router = types.ModuleType("transformer_engine.pytorch.router")
    router.__getattr__ = lambda name: getattr(transformer_engine, name, missing(name))
    sys.modules["transformer_engine.pytorch.router"] = router


_install()
