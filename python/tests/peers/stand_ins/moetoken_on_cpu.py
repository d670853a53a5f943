"""Devices of other projects' tests become the CPU: "cuda" and "npu" in every call of PyTorch."""

from __future__ import annotations

import functools
import sys
import types
from typing import Any, Optional

import pytest
import torch
from torch.overrides import TorchFunctionMode

__all__ = ["install", "missing", "module", "refusing"]

_OTHERS = ("cuda", "npu")


def _on_cpu(value: Any) -> Any:
    if isinstance(value, torch.device) or (isinstance(value, str) and value[:4] in ("cuda", "npu")):
        return "cpu" if str(value).split(":")[0] in _OTHERS else value
    return value


class _Mode(TorchFunctionMode):
    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Optional[dict[str, Any]] = None
    ) -> Any:
        if function is torch.Tensor.cuda:
            return args[0].clone()  # another memory, as on a device
        kwargs = {name: _on_cpu(value) for name, value in (kwargs or {}).items()}
        kwargs.pop("non_blocking", None)
        return function(*map(_on_cpu, args), **kwargs)


class missing:
    """Stands for what moetoken does not have: the test that calls it is skipped. Its members are
    equal to themselves alone, so that enumerations work."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, *_: Any, **__: Any) -> Any:
        pytest.skip(f"moetoken has no {self.__name__}")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        member = missing(f"{self.__name__}.{name}")
        setattr(self, name, member)
        return member


def module(name: str, **members: Any) -> types.ModuleType:
    made = sys.modules[name] = types.ModuleType(name)
    made.__dict__.update(members)
    made.__path__ = []  # a package
    return made


class _Event:
    """Nothing runs beside the caller: every event has happened."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def record(self, *_: Any) -> None:
        pass

    def elapsed_time(self, _: Any) -> float:
        return 0.0


def _nothing() -> Any:
    """A function of its own for each name: torch.compile knows functions by what they are."""
    return lambda *_, **__: None


def refusing(function: Any) -> Any:
    """The function, but a test that asks it for what it says it does not do is skipped, in its words."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except NotImplementedError as error:
            pytest.skip(f"refused: {error}")

    return call


def install() -> None:
    _Mode().__enter__()
    for name in ("manual_seed", "manual_seed_all", "synchronize", "set_device", "empty_cache",
                 "reset_peak_memory_stats"):  # fmt: skip
        setattr(torch.cuda, name, _nothing())
    torch.cuda.current_device = lambda: "cpu"
    torch.cuda.Event = _Event
    torch.nn.Module.cuda = lambda self, *_: self
