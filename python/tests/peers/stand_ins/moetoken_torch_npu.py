"""A pytest plugin: `torch_npu` is moetoken.torch.npu, on the CPU.

What the tests of op-plugin take from torch_npu beside the operators - `.npu()`, a TestCase,
decorators - stands here in few words.
"""

from __future__ import annotations

import sys
import types
import unittest
from typing import Any, Callable

import moetoken_on_cpu
import numpy as np
import torch
from moetoken_on_cpu import missing, module, refusing
from torch.testing._internal import common_utils

from moetoken.torch import npu


class _TorchNpu(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("npu_") or name.startswith("_npu_"):
            return refusing(getattr(npu, name)) if hasattr(npu, name) else missing(name)
        raise AttributeError(name)


class TestCase(common_utils.TestCase):
    """With torch_npu's comparison: prec for numbers of more than 16 bits, prec16 for the others."""

    __test__ = False  # for itself; those that inherit from it say True below

    def __init_subclass__(cls) -> None:
        cls.__test__ = True

    def assertRtolEqual(
        self, x: Any, y: Any, prec: float = 1e-4, prec16: float = 1e-3, **_: Any
    ) -> None:
        if isinstance(x, (list, tuple)):
            self.assertEqual(len(x), len(y))
            for a, b in zip(x, y):
                self.assertRtolEqual(a, b, prec, prec16)
            return
        narrow = False
        arrays = []
        for side in (x, y):
            if isinstance(side, torch.Tensor):
                narrow |= side.dtype in (torch.float16, torch.bfloat16)
                side = side.detach()
                side = side.float() if side.is_floating_point() else side
                side = side.numpy()
            narrow |= getattr(side, "dtype", None) == np.float16
            arrays.append(np.asarray(side, np.float64))
        a, b = arrays
        self.assertEqual(a.shape, b.shape)
        limit = prec16 if narrow else prec
        close = np.abs(a - b) <= limit * np.maximum(1, np.maximum(np.abs(a), np.abs(b)))
        close |= (a == b) | (np.isnan(a) & np.isnan(b))
        if not close.all():
            place = tuple(int(i) for i in np.argwhere(~close)[0])
            self.fail(f"{(~close).sum()} of {a.size} differ by more than {limit}; first at "
                      f"{place}: {a[place]} and {b[place]}")


def _create_common_tensor(item: Any, low: float, high: float, device: Any = None) -> Any:
    """[NumPy type, format, shape]: an array and the same as a tensor."""
    dtype, _, shape = item
    array = np.random.uniform(low, high, shape).astype(dtype)
    tensor = torch.from_numpy(np.array(array))
    return tensor, tensor.clone()


def _supported_devices(names: list[str]) -> Callable[..., Any]:
    """An Ascend910B is what moetoken.torch.npu behaves like."""
    if "Ascend910B" in names:
        return lambda function: function
    return unittest.skip(f"for {', '.join(names)} alone")


_unittest_skip = unittest.skip


def _skip(reason: str) -> Any:
    """What waits for a newer CANN need not wait here."""
    return (lambda test: test) if "cann" in reason.lower() else _unittest_skip(reason)


def _install() -> None:
    moetoken_on_cpu.install()
    torch_npu = sys.modules["torch_npu"] = _TorchNpu("torch_npu")
    torch_npu.__path__ = []
    for kind in ("float8_e5m2", "float8_e4m3fn", "int8"):
        setattr(torch_npu, kind, getattr(torch, kind))
    torch_npu.hifloat8 = "hifloat8"
    torch_npu.float4_e2m1fn_x2 = "float4_e2m1fn_x2"
    module("torch_npu.testing")
    module("torch_npu.testing.testcase", TestCase=TestCase, run_tests=common_utils.run_tests)
    module(
        "torch_npu.testing.common_utils",
        SupportedDevices=_supported_devices,
        create_common_tensor=_create_common_tensor,
        get_npu_device=lambda: "cpu",
    )
    module("torch_npu.contrib", transfer_to_npu=None)
    torch.Tensor.npu = lambda self, *_, **__: self.clone()  # another memory, as on a device
    torch.nn.Module.npu = lambda self, *_: self
    torch.npu = types.SimpleNamespace(
        synchronize=lambda *_: None, set_device=lambda *_: None, is_available=lambda: True
    )
    unittest.skip = _skip


_install()
