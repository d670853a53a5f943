"""What is measured: an experts layer, or its routing alone, under each implementation."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any, Callable, Iterator, NamedTuple

import torch
from transformers.integrations import moe
from transformers.models.beam.modeling_beam import BeamExperts

import moetoken.torch.hf
from moetoken.torch import ids as by_ids

__all__ = ["IMPLEMENTATIONS", "Shape", "call_of"]

IMPLEMENTATIONS = ("moetoken", "grouped_mm", "batched_mm", "eager")
_TYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


class Shape(NamedTuple):
    tokens: int
    experts: int
    topk: int
    hidden: int
    inner: int
    dtype: str
    what: str  # "train" (forward and backward), "forward", "routing" (both, GEMMs left out)

    def is_heavy(self, implementation: str) -> bool:
        """Whether it would take gigabytes and minutes: a copy of the weights for each slot."""
        size = self.tokens * self.topk * self.hidden * self.inner * 3
        return implementation == "batched_mm" and self.what != "routing" and size > 2**26


def _layer(shape: Shape) -> Any:
    routing = shape.what == "routing"
    config = SimpleNamespace(
        num_experts=shape.experts,
        hidden_size=1 if routing else shape.hidden,
        moe_intermediate_size=1 if routing else shape.inner,
        hidden_act="silu",
        _experts_implementation="eager",
    )
    layer = BeamExperts(config).to(_TYPES[shape.dtype])
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    # As the other families have it, and so transformers' default.
    gate = (lambda rows: rows) if routing else (lambda up: moe._default_apply_gate(layer, up))
    layer._apply_gate = gate
    return layer


@contextlib.contextmanager
def _without_gemms() -> Iterator[None]:
    """transformers' implementations with linear layers that return what they are given."""
    places = [
        (moe, "_grouped_linear"),
        (moe, "_batched_linear"),
        (torch.nn.functional, "linear"),
    ]
    before = [getattr(*place) for place in places]
    try:
        for place in places:
            setattr(*place, lambda rows, *_, **__: rows)
        yield
    finally:
        for place, function in zip(places, before):
            setattr(*place, function)


def _own_routing(experts_num: int) -> Callable[..., torch.Tensor]:
    def route(x: torch.Tensor, expert_ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        sent = by_ids.permute(x, expert_ids, experts_num=experts_num)
        return by_ids.unpermute(sent.permuted_tokens, sent.sorted_indices, weights)

    return route


def call_of(shape: Shape, implementation: str, wants_tensors: bool = True) -> Callable[[], None]:
    """One step, ready to be timed; without `wants_tensors` the experts are frozen."""
    moetoken.torch.hf.register()
    torch.manual_seed(0)
    layer = _layer(shape).requires_grad_(wants_tensors)
    x = torch.randn(shape.tokens, shape.hidden).to(_TYPES[shape.dtype])
    weights, ids = torch.rand(shape.tokens, shape.experts).softmax(1).topk(shape.topk)
    weights = weights.to(x.dtype)
    layer.config._experts_implementation = implementation
    routing = shape.what == "routing"
    run: Any = _own_routing(shape.experts) if routing and implementation == "moetoken" else layer
    y_grad = torch.randn(shape.tokens, shape.hidden).to(x.dtype)

    def call() -> None:
        if shape.what == "forward":
            with torch.inference_mode():
                run(x, ids, weights)
            return
        given = x.detach().requires_grad_(), ids, weights.detach().requires_grad_()
        run(*given).backward(y_grad)
        layer.zero_grad(set_to_none=True)

    def plain() -> None:
        with _without_gemms() if routing else contextlib.nullcontext():
            call()

    return plain
