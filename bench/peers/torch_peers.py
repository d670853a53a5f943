"""PyTorch without a compiler: the gradient written out, autograd, and both made as lean as it gets.

`eager` is the chain of operators that frameworks' own backward code consists of. The index of the
rows and the map are at hand, as they are after a forward pass; looking up the weights and putting
probs_grad in its place belong to the work.
"""

from __future__ import annotations

from typing import Callable, Optional

import torch
from torch import Tensor

from .cases import Data
from .registry import Call
from .tensors import Tensors, arrays, set_threads, tensors, versions

__all__ = ["BUILDERS", "versions"]

Pair = tuple[Tensor, Optional[Tensor]]


def _weights(t: Tensors) -> Tensor:
    """The weight of each row."""
    assert t.probs is not None
    return t.probs.T.masked_select(t.routing_map.T)


def _probs_grad(t: Tensors, dots: Tensor) -> Tensor:
    """One number a row back to its place in [T, E]."""
    assert t.probs is not None
    zeros = t.probs.new_zeros(t.probs.T.shape)
    return zeros.masked_scatter(t.routing_map.T, dots).T


def eager(t: Tensors) -> Pair:
    gathered = t.tokens_grad.index_select(0, t.token_of_row)
    if t.probs is None:
        return gathered, None
    dots = (t.rows * gathered).sum(-1, dtype=torch.float32)
    rows_grad = (gathered * _weights(t).unsqueeze(-1)).to(gathered.dtype)
    return rows_grad, _probs_grad(t, dots)


def eager_tuned(t: Tensors) -> Pair:
    """Fewest bytes: no float32 rows, no tensor of products, the last product in place."""
    gathered = t.tokens_grad.index_select(0, t.token_of_row)
    if t.probs is None:
        return gathered, None
    dots = torch.bmm(t.rows.unsqueeze(1), gathered.unsqueeze(2)).flatten().float()
    gathered.mul_(_weights(t).to(gathered.dtype).unsqueeze(-1))
    return gathered, _probs_grad(t, dots)


def forward(t: Tensors, rows: Tensor, probs: Optional[Tensor], routing_map: Tensor) -> Tensor:
    """The weighted combine as Megatron-Core's unpermute has it; `routing_map` is transposed."""
    if probs is not None:
        weights = probs.T.contiguous().masked_select(routing_map)
        weighted = rows * weights.unsqueeze(-1)
    else:
        weighted = rows
    combined = weighted.new_zeros(t.tokens_grad.shape)
    index = t.token_of_row.unsqueeze(1).expand(-1, rows.shape[1])
    return combined.scatter_add(0, index, weighted).to(rows.dtype)


def gradients_of(t: Tensors, run_forward: Callable[..., Tensor]) -> Callable[[], Pair]:
    """The backward pass alone: the forward pass is run once, here."""
    rows = t.rows.detach().requires_grad_()
    probs = None if t.probs is None else t.probs.detach().requires_grad_()
    inputs = [rows] if probs is None else [rows, probs]
    combined = run_forward(rows, probs)

    def backward() -> Pair:
        found = torch.autograd.grad(combined, inputs, t.tokens_grad, retain_graph=True)
        return found[0], found[1] if len(found) > 1 else None

    return backward


def _build_eager(compute: Callable[[Tensors], Pair]) -> Callable[[Data], Call]:
    def build(data: Data) -> Call:
        set_threads()
        t = tensors(data)
        return Call(lambda: compute(t), arrays)

    return build


def _build_autograd(data: Data) -> Call:
    set_threads()
    t = tensors(data)
    routing_map = t.routing_map.T.contiguous()
    backward = gradients_of(t, lambda rows, probs: forward(t, rows, probs, routing_map))
    return Call(backward, arrays)


BUILDERS: dict[str, Callable[[Data], Call]] = {
    "eager": _build_eager(eager),
    "eager-autograd": _build_autograd,
    "eager-tuned": _build_eager(eager_tuned),
}
