"""A pytest plugin: Megatron-Core from its checkout, on the CPU over gloo, with the functions of
moetoken.torch.megatron in place of its own."""

from __future__ import annotations

import typing

from typing import Any

import moetoken_on_cpu
import pytest
import torch
import torch.distributed

from moetoken.torch import megatron


def _without_cuda_marks() -> None:
    """Tests marked as in need of CUDA run: it is the CPU."""
    skipif = pytest.mark.skipif

    def marked(condition: Any, *, reason: str = "") -> Any:
        if reason == "CUDA not available":
            return lambda test: test
        return skipif(condition, reason=reason)

    pytest.mark.skipif = marked


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: Any, call: Any) -> Any:
    """One process without a GPU: what asks for more ranks or for a driver is skipped, and says so."""
    outcome = yield
    report = outcome.get_result()
    text = str(call.excinfo.value) if call.excinfo else ""
    asks = ("world_size (1) is not divisible", "Found no NVIDIA driver")
    if report.failed and text.startswith(asks):
        report.outcome = "skipped"
        report.longrepr = (str(item.path), item.location[1] or 0, f"Skipped: {text}")


def _install() -> None:
    _without_cuda_marks()
    if not hasattr(typing, "override"):  # Python 3.12
        typing.override = lambda method: method
    moetoken_on_cpu.install()
    torch.cuda.device_count = lambda: 1
    torch.cuda.get_rng_state = lambda *_: torch.get_rng_state()
    torch.cuda.set_rng_state = lambda state, *_: torch.set_rng_state(state)
    initialize = torch.distributed.init_process_group
    torch.distributed.init_process_group = lambda *args, **kwargs: initialize(
        "gloo", *args[1:], **{k: v for k, v in kwargs.items() if k not in ("backend", "device_id")}
    )
    new_group = torch.distributed.new_group
    torch.distributed.new_group = lambda *args, **kwargs: new_group(
        *args, **{k: v for k, v in kwargs.items() if k not in ("backend", "pg_options")}
    )
    from megatron.core.transformer.moe import moe_utils, router, token_dispatcher

    for name in megatron.__all__:
        for place in (moe_utils, router, token_dispatcher):
            if hasattr(place, name):
                setattr(place, name, getattr(megatron, name))


_install()
