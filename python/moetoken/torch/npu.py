"""PyTorch's Ascend plug-in's functions for these operators, on the CPU: same names, same results.

Code that calls ``torch_npu.npu_moe_token_unpermute_with_routing_map(...)`` and its sisters, those
on a routing by expert ids included, runs without an NPU when it takes them from here. Differences:
rows and entries that no slot reaches are zero where the NPU leaves them unwritten, ``probs_grad``
has the type of ``probs``, and all functions can be differentiated.
"""

from __future__ import annotations

from typing import Optional, Sequence

import torch
from torch import Tensor

from . import _operators, unpermute_with_indices
from ._checks import check_rank, check_restore_shape, count, naming, to_restore
from ._npu_by_ids import (
    npu_moe_finalize_routing,
    npu_moe_init_routing,
    npu_moe_init_routing_v2,
    npu_moe_re_routing,
    npu_moe_token_permute,
    npu_moe_token_unpermute,
)
from ._router.npu import (
    npu_moe_compute_expert_tokens,
    npu_moe_gating_top_k,
    npu_moe_gating_top_k_softmax,
    npu_moe_gating_top_k_softmax_v2,
)

__all__ = [
    "_npu_moe_token_unpermute_with_routing_map",
    "npu_moe_compute_expert_tokens",
    "npu_moe_finalize_routing",
    "npu_moe_gating_top_k",
    "npu_moe_gating_top_k_softmax",
    "npu_moe_gating_top_k_softmax_v2",
    "npu_moe_init_routing",
    "npu_moe_init_routing_v2",
    "npu_moe_re_routing",
    "npu_moe_token_permute",
    "npu_moe_token_permute_with_routing_map",
    "npu_moe_token_permute_with_routing_map_grad",
    "npu_moe_token_unpermute",
    "npu_moe_token_unpermute_with_routing_map",
    "npu_moe_token_unpermute_with_routing_map_grad",
]


def npu_moe_token_permute_with_routing_map(
    tokens: Tensor,
    routing_map: Tensor,
    *,
    probs: Optional[Tensor] = None,
    num_out_tokens: Optional[int] = None,
    drop_and_pad: bool = False,
) -> tuple[Tensor, Optional[Tensor], Tensor]:
    """permuted_tokens [N, H], permuted_probs [N] or None, sorted_indices [N] (int32).

    N is `num_out_tokens` (by default the number of tokens), rounded down to a multiple of T, or of
    E with `drop_and_pad`. Differentiable in `tokens` and `probs`.
    """
    check_rank("tokens", tokens, 2)
    check_rank("routing_map", routing_map, 2)
    wanted = tokens.shape[0] if num_out_tokens is None else count("num_out_tokens", num_out_tokens)
    divisor = routing_map.shape[1 if drop_and_pad else 0]
    slots_num = wanted // divisor * divisor if divisor else 0
    permuted_tokens, permuted_probs, sorted_indices = _operators.permute(
        tokens, routing_map, probs, slots_num, slots_num, drop_and_pad, torch.int32
    )
    return permuted_tokens, None if probs is None else permuted_probs, sorted_indices


@naming(permuted_tokens_grad="permuted_token_out_grad", permuted_probs_grad="probs_grad")
def npu_moe_token_permute_with_routing_map_grad(
    permuted_token_out_grad: Tensor,
    probs_grad: Optional[Tensor],
    sorted_indices: Tensor,
    routing_map: Tensor,
    experts_num: int,
    tokens_num: int,
    drop_and_pad: bool,
) -> tuple[Tensor, Optional[Tensor]]:
    """tokens_grad [T, H], probs_grad [T, E] or None without `probs_grad`."""
    check_rank("permuted_tokens_grad", permuted_token_out_grad, 2)
    check_rank("permuted_probs_grad", probs_grad, 1, optional=True)
    tokens, probs = _operators.permute_grad(
        permuted_token_out_grad,
        probs_grad,
        sorted_indices,
        routing_map,
        count("tokens_num", tokens_num),
        count("experts_num", experts_num),
        drop_and_pad,
        True,
    )
    return tokens, None if probs_grad is None else probs


def npu_moe_token_unpermute_with_routing_map(
    permuted_tokens: Tensor,
    sorted_indices: Tensor,
    restore_shape: Sequence[int],
    *,
    probs: Optional[Tensor] = None,
    routing_map: Optional[Tensor] = None,
    drop_and_pad: bool = False,
) -> Tensor:
    """unpermuted_tokens [T, H]. Differentiable in `permuted_tokens` and `probs`."""
    tokens_num, hidden_size = to_restore(restore_shape)
    return _operators.unpermute(
        permuted_tokens,
        sorted_indices,
        None if probs is None else routing_map,
        probs,
        tokens_num,
        hidden_size,
        drop_and_pad,
        False,
        True,
    )[0]


def _npu_moe_token_unpermute_with_routing_map(
    permuted_tokens: Tensor,
    sorted_indices: Tensor,
    restore_shape: Sequence[int],
    *,
    probs: Optional[Tensor] = None,
    routing_map: Optional[Tensor] = None,
    drop_and_pad: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Optional[Tensor]]:
    """unpermuted_tokens [T, H], out_index [N], permuted_token_id [N], permuted_probs [N] or None.

    MindSpeed's fused path calls this function of the plug-in, and hands the second and third
    result to :func:`npu_moe_token_unpermute_with_routing_map_grad`.
    """
    found = unpermute_with_indices(
        permuted_tokens,
        sorted_indices,
        routing_map=None if probs is None else routing_map,
        probs=probs,
        restore_shape=restore_shape,
        drop_and_pad=drop_and_pad,
        tolerate_routing_mismatch=True,
    )
    return found.unpermuted_tokens, found.out_index, found.permute_token_id, found.permuted_probs


@naming(permute_token_id="permuted_token_id")
def npu_moe_token_unpermute_with_routing_map_grad(
    unpermuted_tokens_grad: Tensor,
    out_index: Tensor,
    permuted_token_id: Tensor,
    routing_map: Optional[Tensor] = None,
    permuted_tokens: Optional[Tensor] = None,
    probs: Optional[Tensor] = None,
    drop_and_pad: bool = False,
    restore_shape: Optional[Sequence[int]] = None,
) -> tuple[Tensor, Optional[Tensor]]:
    """permuted_tokens_grad, probs_grad [T, E] or None without `probs`.

    Unless `drop_and_pad`, slot i belongs to token i // K whatever `permuted_token_id` holds: the
    plug-in hands in `out_index` a second time there. `permuted_tokens_grad` has the rows of
    `permuted_tokens`, or one a slot where that is not given.
    """
    check_rank("unpermuted_tokens_grad", unpermuted_tokens_grad, 2)
    check_rank("out_index", out_index, 1)
    check_rank("permuted_tokens", permuted_tokens, 2, optional=True)
    check_restore_shape(restore_shape, unpermuted_tokens_grad)
    tokens_grad, probs_grad = _operators.unpermute_grad(
        unpermuted_tokens_grad,
        out_index,
        permuted_token_id if drop_and_pad else None,
        None if probs is None else routing_map,
        None if probs is None else permuted_tokens,
        probs,
        (out_index if permuted_tokens is None else permuted_tokens).shape[0],
        drop_and_pad,
        True,
        probs is not None,
        False,
        True,
    )
    return tokens_grad, None if probs is None else probs_grad
