"""PyTorch's Ascend plug-in's gating functions: same names, same results, on the CPU.

Everything is computed in binary64 and rounded once, to the type of `x`; the plug-in computes in
float32.
"""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor

from ..._arrays import flag
from ..._router_config import SCORES, Config, real
from .._checks import check_rank, check_tensor, count, naming
from . import ops
from .drop_ins import bias_for

__all__ = [
    "npu_moe_compute_expert_tokens",
    "npu_moe_gating_top_k",
    "npu_moe_gating_top_k_softmax",
    "npu_moe_gating_top_k_softmax_v2",
]

_NORMS = (SCORES.index("softmax"), SCORES.index("sigmoid"), SCORES.index("sqrtsoftplus"))


def _choice(name: str, value: int, most: int) -> int:
    if isinstance(value, bool) or value not in range(most + 1):
        raise ValueError(f"{name} = {value}, expected 0 to {most}")
    return value


@naming(
    logits="x",
    topk="k",
    groups_num="group_count",
    groups_top="k_group",
    expert_bias="bias",
    scale="routed_scaling_factor",
)
def npu_moe_gating_top_k(
    x: Tensor,
    k: int,
    *,
    bias: Optional[Tensor] = None,
    input_ids: Optional[Tensor] = None,
    tid2eid: Optional[Tensor] = None,
    k_group: int = 1,
    group_count: int = 1,
    group_select_mode: int = 0,
    renorm: int = 0,
    norm_type: int = 0,
    out_flag: bool = False,
    routed_scaling_factor: float = 1.0,
    eps: float = 1e-20,
) -> tuple[Tensor, Tensor, Tensor]:
    """y [T, k] of the type of `x`, expert_idx [T, k] (int32), out [T, E] (float32).

    Scores are the softmax (`norm_type` 0), sigmoid (1) or sqrtsoftplus (2) of `x` [T, E]; experts
    are chosen by score + `bias`, from the `k_group` best of `group_count` groups, which are valued
    by their best expert (`group_select_mode` 0) or their two best (1). y is the score of the
    chosen, divided by (their sum + `eps`) unless it is a softmax, times `routed_scaling_factor`.
    `out` is the scores of all with `out_flag`, else zeros, which the plug-in leaves unwritten.
    `renorm` must be 0, as there; routing by hash (`input_ids`, `tid2eid`) is not here.
    Differentiable in `x`.
    """
    for name, value in (("input_ids", input_ids), ("tid2eid", tid2eid)):
        if value is not None:
            raise NotImplementedError(f"{name} is given, expected None: no routing by hash here")
    check_rank("x", x, 2)
    _choice("renorm", renorm, 0)
    norm_type = _choice("norm_type", norm_type, 2)
    best = 1 + _choice("group_select_mode", group_select_mode, 1)
    scale = real("routed_scaling_factor", routed_scaling_factor)
    config = Config(
        count("k", k),
        _NORMS[norm_type],
        norm_type != 0,
        False,
        count("group_count", group_count, least=1),
        count("k_group", k_group, least=1),
        best,
        real("eps", eps),
        scale or 1.0,
    )
    out_flag = flag("out_flag", out_flag)
    kinds = (x.dtype, torch.float32, torch.int32, False, out_flag)
    y, _, out, ids, _, _ = ops.router(x, bias_for(x, bias), None, *config, *kinds)
    if not out_flag:
        out = x.new_zeros(x.shape, dtype=torch.float32)
    return y if scale else torch.zeros_like(y), ids, out


def _likeliest(
    x: Tensor, finished: Optional[Tensor], config: Config, with_scores: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The weights and experts of the rows of `x` [..., T, E], and their scores in float32, if wanted;
    expert E, which is none, for rows that are finished."""
    check_tensor("x", x)
    if x.dim() < 2:
        raise ValueError(f"x has shape {list(x.shape)}, expected [..., T, E]")
    rows = x.reshape(-1, x.shape[-1])
    kinds = (x.dtype, torch.float32, torch.int32, False, with_scores)
    y, _, scores, ids, _, _ = ops.router(rows, None, None, *config, *kinds)
    if finished is not None:
        check_tensor("finished", finished)
        if finished.numel() != rows.shape[0]:
            raise ValueError(
                f"finished has shape {list(finished.shape)}, expected {list(x.shape[:-1])}"
            )
        ids = torch.where((finished != 0).reshape(-1, 1), rows.shape[1], ids)
    return y, ids, scores


@naming(logits="x", topk="k", token_mask="finished")
def npu_moe_gating_top_k_softmax(
    x: Tensor, finished: Optional[Tensor] = None, k: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """y [T, k] of the type of `x`, expert_idx and row_idx [T, k] (int32).

    y is the softmax over all experts of the k best. A token that is `finished` [T] has expert
    E, one past the last, in all its slots. row_idx[t, j] is j * T + t, the column order that
    `npu_moe_init_routing` takes. `x` may have leading dimensions. Differentiable in `x`.
    """
    k = count("k", k)
    y, ids, _ = _likeliest(x, finished, Config(k, group_score_count=1), False)
    tokens_num = y.shape[0]
    row_idx = torch.arange(k * tokens_num, dtype=torch.int32, device=x.device)
    shape = (*x.shape[:-1], k)
    return y.view(shape), ids.view(shape), row_idx.view(k, tokens_num).T.reshape(shape)


@naming(logits="x", topk="k", token_mask="finished")
def npu_moe_gating_top_k_softmax_v2(
    x: Tensor,
    *,
    k: int = 1,
    finished: Optional[Tensor] = None,
    renorm: int = 0,
    output_softmax: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """y [T, k] of the type of `x`, expert_idx [T, k] (int32), softmax (float32).

    y is the softmax over all experts of the k best (`renorm` 0), or the softmax over the k best
    themselves (1). A token that is `finished` [T] has expert E, one past the last, in all its
    slots. The third is the softmax of all, shaped as `x`, with `output_softmax` and `renorm` 0,
    else empty. `x` may have leading dimensions. Differentiable in `x`.
    """
    k, renorm = count("k", k), _choice("renorm", renorm, 1)
    wanted = flag("output_softmax", output_softmax) and renorm == 0
    score = SCORES.index("softmax_after" if renorm else "softmax")
    y, ids, scores = _likeliest(x, finished, Config(k, score, group_score_count=1), wanted)
    shape = (*x.shape[:-1], k)
    softmax = scores.view(x.shape) if wanted else x.new_empty(0, dtype=torch.float32)
    return y.view(shape), ids.view(shape), softmax


def npu_moe_compute_expert_tokens(sorted_expert_for_source_row: Tensor, num_expert: int) -> Tensor:
    """Where each expert's rows end [num_expert] (int32): how many rows have it or a lower one.

    `sorted_expert_for_source_row` is ascending, the expert of each row.
    """
    name = "sorted_expert_for_source_row"
    check_rank(name, sorted_expert_for_source_row, 1)
    if sorted_expert_for_source_row.dtype not in (torch.int32, torch.int64):
        raise TypeError(
            f"{name} is {sorted_expert_for_source_row.dtype}, expected torch.int32 or torch.int64"
        )
    experts = torch.arange(
        count("num_expert", num_expert),
        dtype=sorted_expert_for_source_row.dtype,
        device=sorted_expert_for_source_row.device,
    )
    found = torch.searchsorted(sorted_expert_for_source_row.contiguous(), experts, right=True)
    return found.to(torch.int32)
