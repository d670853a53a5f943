"""Mixture-of-experts layers of Hugging Face transformers, on the CPU.

>>> import moetoken.torch.hf
>>> moetoken.torch.hf.register()  # doctest: +SKIP
>>> model = AutoModelForCausalLM.from_pretrained(  # doctest: +SKIP
...     name, experts_implementation="moetoken")

or, for a model that is there, ``model.set_experts_implementation("moetoken")``. transformers 5.7 or
newer is needed. Forward and backward, training and inference, every experts class that transformers
decorates with ``use_experts_implementation``.

What is kept for the backward pass: the tokens [T, H], the routing [T, K], two index tensors and what
the first GEMM of the experts gave, [T * K, 2 * I]; of size [T * K, H] nothing.
"""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from . import _experts
from ._checks import check_rank, check_tensor, naming
from ._experts import Block, Plan, composed
from ._experts_grad import Wanted, backward
from ._registration import is_forward_mode

__all__ = ["experts_forward", "register"]


def register(name: str = "moetoken") -> None:
    """Makes `experts_implementation=name` known to transformers, in this process.

    Calling it again changes nothing.
    """
    try:
        from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
    except ImportError as error:
        raise ImportError(
            "moetoken.torch.hf needs transformers 5.7 or newer: pip install 'transformers>=5.7'"
        ) from error
    ALL_EXPERTS_FUNCTIONS.register(name, experts_forward)


@naming(tokens="hidden_states", expert_ids="top_k_index", weights="top_k_weights")
def experts_forward(
    self: torch.nn.Module, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    """What :func:`register` registers: the answers of the experts module `self`, [T, H].

    Parameters
    ----------
    hidden_states : [T, H]
    top_k_index : [T, K] ids of experts; `num_experts` or more, and -1, stand for none: such slots
        add nothing, and no row is computed for them
    top_k_weights : [T, K]

    torch.compile breaks its graph around it; torch.export, which cannot, is given the "grouped_mm"
    of transformers.
    """
    if torch.compiler.is_exporting():
        from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

        return ALL_EXPERTS_FUNCTIONS["grouped_mm"](self, hidden_states, top_k_index, top_k_weights)
    return _run(self, hidden_states, top_k_index, top_k_weights)


@torch.compiler.disable
def _run(module: torch.nn.Module, x: Tensor, expert_ids: Tensor, weights: Tensor) -> Tensor:
    _check(x, expert_ids, weights)
    block = _block(module)
    if is_forward_mode() or torch._C._functorch.peek_interpreter_stack() is not None:
        return composed(block, x, expert_ids, weights)
    inputs = (x, weights, block.up, block.up_bias, block.down, block.down_bias, *block.extras)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs):
        found: Tensor = _Experts.apply(block, expert_ids, *inputs)
        return found
    return _computed(block, x, expert_ids, weights, False)[0]


def _check(x: Tensor, expert_ids: Tensor, weights: Tensor) -> None:
    check_rank("hidden_states", x, 2)
    check_rank("top_k_index", expert_ids, 2)
    check_rank("top_k_weights", weights, 2)
    if expert_ids.shape != weights.shape or len(x) != len(expert_ids):
        raise ValueError(
            f"hidden_states has shape {list(x.shape)}, top_k_index {list(expert_ids.shape)}, "
            f"top_k_weights {list(weights.shape)}: expected [T, H], [T, K] and [T, K]"
        )
    if x.device.type not in ("cpu", "meta"):
        raise ValueError(f"hidden_states is on {x.device}, expected the CPU")


def _block(module: Any) -> Block:
    """The tensors and functions of an experts module, whose names say what it has."""
    has_gate = getattr(module, "has_gate", True)
    up = "gate_up_proj" if has_gate else "up_proj"
    names = {up, "down_proj"}
    biases: list[Optional[Tensor]] = [None, None]
    if getattr(module, "has_bias", False):
        biases = [getattr(module, f"{up}_bias"), module.down_proj_bias]
        names |= {f"{up}_bias", "down_proj_bias"}
    for name in (up, "down_proj"):
        check_tensor(name, getattr(module, name, None))
    return Block(
        getattr(module, up),
        biases[0],
        module.down_proj,
        biases[1],
        module.num_experts,
        getattr(module, "is_transposed", False),
        module._apply_gate if has_gate else module.act_fn,
        module.post_expert_norm if getattr(module, "has_post_expert_norm", False) else None,
        tuple(p for name, p in module.named_parameters() if name not in names),
    )


def _computed(
    block: Block, x: Tensor, expert_ids: Tensor, weights: Tensor, keeps: bool
) -> tuple[Tensor, Optional[Tensor], Optional[Plan]]:
    if x.is_meta or isinstance(x, torch._subclasses.FakeTensor):
        return torch.empty_like(x), None, None  # shapes alone: no one knows whose rows there are
    return _experts.forward(block, x, expert_ids, weights, keeps)


class _Experts(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, block: Block, expert_ids: Tensor, x: Tensor, weights: Tensor, *tensors: Any
    ) -> Tensor:
        y, kept, plan = _computed(block, x, expert_ids, weights, True)
        ctx.block, ctx.parts = block, None if plan is None else (plan.parts, plan.used)
        places = (None, None) if plan is None else (plan.indices, plan.slots)
        ctx.autocast = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
        ctx.save_for_backward(expert_ids, x, weights, *places, kept, *tensors)
        return y

    @staticmethod
    def backward(ctx: Any, y_grad: Tensor) -> tuple[Optional[Tensor], ...]:
        expert_ids, x, weights, indices, slots, kept, *tensors = ctx.saved_tensors
        needs = ctx.needs_input_grad[2:]
        inputs = (x, weights, *tensors)
        if torch.is_grad_enabled():
            return (None, None, *_differentiable(ctx, expert_ids, inputs, y_grad))
        if ctx.parts is None:
            return (None, None, *(torch.empty_like(t) if n else None for t, n in zip(inputs, needs)))
        wanted = Wanted(needs[0], needs[1], needs[2:6], needs[6:])
        block = _with(ctx.block, tensors)
        found = backward(block, Plan(indices, slots, *ctx.parts), wanted, kept, x, weights, y_grad)
        return (None, None, *found)


def _with(block: Block, tensors: Any) -> Block:
    """The block with the tensors that autograd has kept for it."""
    up, up_bias, down, down_bias, *_ = tensors
    return block._replace(up=up, up_bias=up_bias, down=down, down_bias=down_bias)


def _differentiable(
    ctx: Any, expert_ids: Tensor, inputs: tuple[Any, ...], y_grad: Tensor
) -> list[Optional[Tensor]]:
    """The gradients, by operators that can be differentiated in turn: the block once more.

    Of its inputs it takes views, for one may come of another, and parameters of its functions as
    they are.
    """
    is_autocast, dtype = ctx.autocast
    with torch.autocast("cpu", dtype, enabled=is_autocast):
        views = [t if t is None or i > 5 else t.view_as(t) for i, t in enumerate(inputs)]
        block = _with(ctx.block, views[2:])
        y = composed(block, views[0], expert_ids, views[1])
    asked = [i for i, needed in enumerate(ctx.needs_input_grad[2:]) if needed]
    found = torch.autograd.grad(
        y, [views[i] for i in asked], y_grad, create_graph=True, allow_unused=True
    )
    results: list[Optional[Tensor]] = [None] * len(inputs)
    for i, grad in zip(asked, found):
        results[i] = grad
    return results
