"""torch.compile: the gradient written out, the backward pass of a compiled forward pass.

Indices instead of masks, so that shapes do not depend on data and all of it becomes one graph;
with fixed shapes, so that the compiler knows every size. Arithmetic is in float32: in a fused loop
that costs no memory.
"""

from __future__ import annotations

from typing import Callable, Optional

import torch
import torch._dynamo
import torch._functorch.config
from torch import Tensor

from .cases import Data
from .registry import Call
from .tensors import Tensors, arrays, set_threads, tensors, versions
from .torch_peers import Pair, gradients_of

__all__ = ["BUILDERS", "reset", "versions"]

# Lets the compiled backward pass run again and again after one forward pass.
torch._functorch.config.donated_buffer = False


def reset() -> None:
    """Between cases: PyTorch stops compiling a function that has come with too many shapes."""
    torch._dynamo.reset()


def gradient(
    tokens_grad: Tensor, rows: Tensor, probs: Optional[Tensor], tokens: Tensor, experts: Tensor
) -> Pair:
    if probs is None:
        return tokens_grad[tokens], None
    gathered = tokens_grad[tokens].float()
    dots = (rows.float() * gathered).sum(-1)
    rows_grad = (gathered * probs[tokens, experts].unsqueeze(-1)).to(rows.dtype)
    return rows_grad, torch.zeros_like(probs).index_put((tokens, experts), dots)


def forward(
    rows: Tensor, probs: Optional[Tensor], tokens: Tensor, experts: Tensor, tokens_num: int
) -> Tensor:
    weighted = rows if probs is None else rows * probs[tokens, experts].unsqueeze(-1)
    combined = weighted.new_zeros(tokens_num, rows.shape[1])
    return combined.index_add(0, tokens, weighted).to(rows.dtype)


def _compiled(function: Callable) -> Callable:
    return torch.compile(function, dynamic=False, fullgraph=True)


def _inputs(t: Tensors) -> tuple[Optional[Tensor], ...]:
    return t.tokens_grad, t.rows, t.probs, t.token_of_row, t.expert_of_row


def _build_gradient(data: Data) -> Call:
    set_threads()
    inputs, run = _inputs(tensors(data)), _compiled(gradient)
    return Call(lambda: run(*inputs), arrays)


def _build_autograd(data: Data) -> Call:
    set_threads()
    t, run = tensors(data), _compiled(forward)
    indices = t.token_of_row, t.expert_of_row, len(t.tokens_grad)
    return Call(gradients_of(t, lambda rows, probs: run(rows, probs, *indices)), arrays)


BUILDERS: dict[str, Callable[[Data], Call]] = {
    "compile": _build_gradient,
    "compile-autograd": _build_autograd,
}
