"""A whole block of experts as one step of autograd: rows out, two GEMMs an expert, rows back.

Kept for the backward pass are the tokens, the indices, the weights and what the first GEMM gave,
[T * K, 2 * I]; not the rows that experts read, which come again from the tokens, nor those they
wrote: with g the gradient of a token, what a weight is worth is <h @ W, g> = <h, g @ W>, and the
right-hand side is wanted anyway. One buffer of [T * K, H] holds the rows an expert reads and then
those it writes; another, backward, the gradients that come in and then those that go out.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterator, NamedTuple, Optional

import torch
from torch import Tensor
from torch.nn import functional

from . import _by_ids
from ._indices import weights_for

__all__ = ["Block", "Plan", "composed", "forward", "multiply", "no_autocast", "spans"]

# Experts that share few rows have their gates computed together; a larger share stays in the cache.
_ROWS_TOGETHER = 512


class Block(NamedTuple):
    """An experts module: its tensors, and its functions between them."""

    up: Tensor  # [E, width, H], [E, H, width] if transposed; the gate's part included
    up_bias: Optional[Tensor]  # [E, width]
    down: Tensor  # [E, H, I], [E, I, H] if transposed
    down_bias: Optional[Tensor]  # [E, H]
    experts_num: int
    is_transposed: bool
    gate: Callable[[Tensor], Tensor]  # [n, width] to [n, I]
    norm: Optional[Callable[[Tensor], Tensor]]  # of an expert's answer
    extras: tuple[Tensor, ...]  # parameters that gate and norm have

    def into_hidden(self, name: str, expert: int, dtype: torch.dtype) -> Tensor:
        """The matrix that rows are multiplied by from the right."""
        matrix: Tensor = getattr(self, name)[expert]
        return (matrix if self.is_transposed else matrix.t()).to(dtype)


class Part(NamedTuple):
    """The rows of an expert."""

    expert: int
    begin: int
    end: int


class Plan(NamedTuple):
    """Where rows are."""

    indices: Tensor  # [T * K] the row of each slot
    slots: Tensor  # [rows] the slot of each row
    parts: list[Part]
    used: int  # rows


def spans(parts: list[Part]) -> Iterator[tuple[int, int, list[Part]]]:
    """(begin, end, parts): rows whose gates are computed together."""
    together: list[Part] = []
    for part in parts:
        if together and part.end - together[0].begin > _ROWS_TOGETHER:
            yield together[0].begin, together[-1].end, together
            together = []
        together.append(part)
    if together:
        yield together[0].begin, together[-1].end, together


def _plan(block: Block, expert_ids: Tensor) -> Plan:
    """Rows in expert order; ids from experts_num on, the sentinels of expert parallelism, and -1
    have none."""
    ids, experts = expert_ids.clamp(max=block.experts_num), block.experts_num
    _, _, indices, slots, counts = _by_ids.permute(
        None, ids, None, experts + 1, 0, experts, 0, ids.numel()
    )
    parts, begin = [], 0
    for expert, count in enumerate(counts.tolist()):
        if count:
            parts.append(Part(expert, begin, begin + count))
            begin += count
    return Plan(indices, slots[:begin], parts, begin)


def multiply(a: Tensor, b: Tensor, out: Tensor) -> None:
    if a.dtype == out.dtype and b.dtype == out.dtype:
        torch.mm(a, b, out=out)
    else:
        out.copy_(a @ b)


def _gemm_type(x: Tensor) -> torch.dtype:
    """The type that GEMMs are computed in: autocast's, where that would cast them."""
    if torch.is_autocast_enabled("cpu") and x.dtype != torch.float64:
        return torch.get_autocast_dtype("cpu")
    return x.dtype


def no_autocast() -> Any:
    if torch.is_autocast_enabled("cpu"):
        return torch.autocast("cpu", enabled=False)
    return contextlib.nullcontext()


def forward(
    block: Block, x: Tensor, expert_ids: Tensor, weights: Tensor, keeps: bool
) -> tuple[Tensor, Optional[Tensor], Plan]:
    """The result, what the first GEMM gave if that is to be kept, and where rows are."""
    dtype = _gemm_type(x)
    with no_autocast():
        plan = _plan(block, expert_ids)
        rows = _by_ids.spread(x, plan.indices, plan.used)
        width = block.up.shape[2 if block.is_transposed else 1]
        kept = x.new_empty(plan.used, width, dtype=dtype) if keeps else None
        for begin, end, parts in spans(plan.parts):
            up = x.new_empty(end - begin, width, dtype=dtype) if kept is None else kept[begin:end]
            for expert, first, last in parts:
                out = up[first - begin : last - begin]
                taken = rows[first:last].to(dtype)
                multiply(taken, block.into_hidden("up", expert, dtype), out)
                if block.up_bias is not None:
                    out += block.up_bias[expert]
            inner = block.gate(up).to(dtype)
            for expert, first, last in parts:
                out = rows[first:last]
                taken = inner[first - begin : last - begin]
                multiply(taken, block.into_hidden("down", expert, dtype), out)
                if block.down_bias is not None:
                    out += block.down_bias[expert]
            if block.norm is not None:
                rows[begin:end] = block.norm(rows[begin:end].to(dtype))
        y = _combine(x, rows, plan.indices, weights)
    return y, kept, plan


def _combine(x: Tensor, rows: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
    nothing = (None, None, None, None)
    return _by_ids.unpermute(rows, indices, weights_for(rows, weights), *nothing, x.shape[0])


def composed(block: Block, x: Tensor, expert_ids: Tensor, weights: Tensor) -> Tensor:
    """The same of PyTorch's own operators and this package's, for derivatives of all kinds."""
    plan = _plan(block, expert_ids)
    rows = _by_ids.spread(x, plan.indices, plan.used)
    answers = [rows.new_zeros(0, rows.shape[1])]
    for expert, begin, end in plan.parts:
        inner = block.gate(_linear(block, "up", block.up_bias, expert, rows[begin:end]))
        answer = _linear(block, "down", block.down_bias, expert, inner)
        answers.append(answer if block.norm is None else block.norm(answer))
    answers_of_all = torch.cat([answer.to(x.dtype) for answer in answers])
    return _combine(x, answers_of_all, plan.indices, weights)


def _linear(block: Block, name: str, bias: Optional[Tensor], expert: int, rows: Tensor) -> Tensor:
    matrix: Tensor = getattr(block, name)[expert]
    matrix = matrix.t() if block.is_transposed else matrix
    return functional.linear(rows, matrix, None if bias is None else bias[expert].to(rows.dtype))
