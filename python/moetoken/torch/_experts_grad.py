"""The backward pass of a block of experts: see _experts.py for what the forward pass has kept."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Sequence

import torch
from torch import Tensor

from . import _by_ids
from ._experts import Block, Part, Plan, multiply, no_autocast, spans

__all__ = ["Wanted", "backward"]

_NAMES = ("up", "up_bias", "down", "down_bias")
_HALF = (torch.float16, torch.bfloat16)


class Wanted(NamedTuple):
    """Whose gradients are asked for."""

    x: bool
    weights: bool
    tensors: Sequence[bool]  # in the order of _NAMES
    extras: Sequence[bool]


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.float32 if tensor.dtype in _HALF else tensor.dtype


class _Gradients:
    """The gradients of the experts' tensors, one expert after another; zero where none works."""

    def __init__(self, block: Block, wanted: Wanted, parts: list[Part]) -> None:
        self._is_transposed = block.is_transposed
        self._found: dict[str, Tensor] = {}
        idle = set(range(block.experts_num)).difference(part.expert for part in parts)
        for name, is_wanted in zip(_NAMES, wanted.tensors):
            if is_wanted:
                tensor = getattr(block, name)
                # Not in huge pages: of gigabytes, a virtual machine may find those slower than small.
                found = self._found[name] = tensor.new_empty(tensor.shape)
                for expert in idle:
                    found[expert] = 0

    def __contains__(self, name: str) -> bool:
        return name in self._found

    def matrix(self, name: str, expert: int, taken: Tensor, given_grad: Tensor) -> None:
        if name in self._found:
            a, b = (taken, given_grad) if self._is_transposed else (given_grad, taken)
            multiply(a.t(), b, self._found[name][expert])

    def bias(self, name: str, expert: int, given_grad: Tensor) -> None:
        if name in self._found:
            self._found[name][expert] = given_grad.sum(0, dtype=_wide(given_grad))

    def results(self) -> list[Optional[Tensor]]:
        return [self._found.get(name) for name in _NAMES]


class _Backward:
    """One backward pass. Rows' gradients are replaced in place by those of what was read."""

    def __init__(self, block: Block, plan: Plan, wanted: Wanted, kept: Tensor) -> None:
        self.block, self.plan, self.wanted, self.kept = block, plan, wanted, kept
        self.tensors = _Gradients(block, wanted, plan.parts)
        self.extras: list[Optional[Tensor]] = [None] * len(block.extras)

    def _through(self, function: Any, into: Tensor) -> tuple[Tensor, Tensor]:
        """(what goes in, what comes out), for _back."""
        with torch.enable_grad():
            into = into.detach().requires_grad_()
            return into, function(into)

    def _back(self, into: Tensor, out: Tensor, out_grad: Tensor) -> Tensor:
        """The gradient of what went in; those of parameters in between are added up."""
        asked = [i for i, is_wanted in enumerate(self.wanted.extras) if is_wanted]
        inputs = [into, *(self.block.extras[i] for i in asked)]
        found = torch.autograd.grad(out, inputs, out_grad.to(out.dtype), allow_unused=True)
        for i, grad in zip(asked, found[1:]):
            if grad is not None:
                before = self.extras[i]
                self.extras[i] = grad if before is None else before + grad
        return found[0]

    def _answers(self, inner: Tensor, begin: int, parts: list[Part]) -> Tensor:
        """What experts answered before the norm, once more."""
        block = self.block
        answers = inner.new_empty(len(inner), block.down.shape[2 if block.is_transposed else 1])
        for expert, first, last in parts:
            out = answers[first - begin : last - begin]
            matrix = block.into_hidden("down", expert, inner.dtype)
            multiply(inner[first - begin : last - begin], matrix, out)
            if block.down_bias is not None:
                out += block.down_bias[expert]
        return answers

    def _inner_grad(
        self, answers_grad: Tensor, inner: Tensor, begin: int, parts: list[Part]
    ) -> Tensor:
        found = torch.empty_like(inner)
        for expert, first, last in parts:
            matrix = self.block.into_hidden("down", expert, inner.dtype).t()
            mine = slice(first - begin, last - begin)
            multiply(answers_grad[mine], matrix, found[mine])
        return found

    def _down(
        self, grads: Tensor, weights: Tensor, up: Tensor, begin: int, parts: list[Part]
    ) -> tuple[Optional[Tensor], Tensor]:
        """(what the weight of each row is worth, the gradient of what the first GEMM gave)."""
        block, by_weight = self.block, None
        into, gated = self._through(block.gate, up)
        inner = gated.detach().to(up.dtype)
        if block.norm is not None:
            answers, normed = self._through(block.norm, self._answers(inner, begin, parts))
            by_weight = _dots(normed.detach(), grads)
            grads = self._back(answers, normed, grads * weights)
            weights = weights.new_ones(()).expand_as(weights)
        inner_grad = self._inner_grad(grads, inner, begin, parts)
        if self.wanted.weights and by_weight is None:
            by_weight = _dots(inner, inner_grad)
        weighted = (inner * weights).to(inner.dtype) if "down" in self.tensors else inner
        for expert, first, last in parts:
            mine = slice(first - begin, last - begin)
            self.tensors.matrix("down", expert, weighted[mine], grads[mine])
            if "down_bias" in self.tensors:
                self.tensors.bias("down_bias", expert, grads[mine] * weights[mine])
            if block.down_bias is not None and block.norm is None and by_weight is not None:
                bias = block.down_bias[expert].to(by_weight.dtype)
                by_weight[mine] += grads[mine].to(bias.dtype) @ bias
        return by_weight, self._back(into, gated, inner_grad * weights)

    def run(self, x: Tensor, rows_grad: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """(gradients of the rows read, in rows_grad; what weights are worth, by slot)."""
        wanted, dtype = self.wanted, self.kept.dtype
        slots, topk = self.plan.slots.long(), weights.shape[1]
        of_rows = weights.reshape(-1)[slots].unsqueeze(1).to(_wide(x))
        by_weight = of_rows.new_zeros(weights.numel())
        reads = wanted.x or any(wanted.tensors[:2]) or any(wanted.extras)
        for begin, end, parts in spans(self.plan.parts):
            grads = rows_grad[begin:end].to(dtype)
            up = self.kept[begin:end]
            worth, up_grad = self._down(grads, of_rows[begin:end], up, begin, parts)
            if worth is not None:
                by_weight[slots[begin:end]] = worth.to(by_weight.dtype)
            if not reads:
                continue
            taken = x[slots[begin:end] // topk].to(dtype) if "up" in self.tensors else grads
            for expert, first, last in parts:
                mine = slice(first - begin, last - begin)
                self.tensors.matrix("up", expert, taken[mine], up_grad[mine])
                self.tensors.bias("up_bias", expert, up_grad[mine])
                if wanted.x:
                    matrix = self.block.into_hidden("up", expert, dtype).t()
                    multiply(up_grad[mine], matrix, rows_grad[first:last])
        return rows_grad, by_weight


def _dots(a: Tensor, b: Tensor) -> Tensor:
    """The dot product of each two rows, added up wide."""
    wide = _wide(a)
    return torch.linalg.vecdot(a.to(wide), b.to(wide))


def backward(
    block: Block,
    plan: Plan,
    wanted: Wanted,
    kept: Tensor,
    x: Tensor,
    weights: Tensor,
    y_grad: Tensor,
) -> list[Optional[Tensor]]:
    """The gradients of x, weights, the experts' four tensors and the extras, None if not wanted."""
    with no_autocast(), torch.no_grad():
        step = _Backward(block, plan, wanted, kept)
        grads = _by_ids.spread(y_grad, plan.indices, plan.used)
        rows_grad, by_weight = step.run(x, grads, weights)
        x_grad = None
        if wanted.x:
            x_grad = _by_ids.permute_grad(rows_grad, None, plan.indices, x.shape[0])[0]
        weights_grad = by_weight.view(weights.shape).to(weights.dtype) if wanted.weights else None
        extras = [
            torch.zeros_like(parameter) if is_wanted and grad is None else grad
            for parameter, is_wanted, grad in zip(block.extras, wanted.extras, step.extras)
        ]
        return [x_grad, weights_grad, *step.tensors.results(), *extras]
