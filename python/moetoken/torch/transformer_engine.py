"""TransformerEngine's `moe_permute` and `moe_unpermute` for map_type "index", and its fused router
functions, as drop-ins.

A ``row_id_map`` is in column order: entry k * T + t is the row of choice k of token t, -1 where it
has none. Sums are made in float32 (float64 for float64), whatever the type of the tokens, and
rounded once, where TransformerEngine multiplies and adds in that type. Its map_type "mask" has an
index format that belongs to its kernels: for routing maps there is ``moetoken.torch.megatron``.
"""

from __future__ import annotations

from typing import Optional, Sequence

from torch import Tensor

from . import _by_ids
from ._checks import check_rank, count, naming
from ._indices import columns_first, rows_of_slots, tokens_first, weights_for, within
from ._router.transformer_engine import (
    fused_compute_score_for_moe_aux_loss,
    fused_moe_aux_loss,
    fused_topk_with_score_function,
)

__all__ = [
    "fused_compute_score_for_moe_aux_loss",
    "fused_moe_aux_loss",
    "fused_topk_with_score_function",
    "moe_permute",
    "moe_unpermute",
]


def _check_map_type(map_type: str) -> None:
    if map_type == "mask":
        raise NotImplementedError(
            'map_type = "mask", expected "index": permute and unpermute of moetoken.torch.megatron '
            "take routing maps"
        )
    if map_type != "index":
        raise ValueError(f"map_type = {map_type!r}, expected 'index'")


@naming(unpermuted_tokens_grad="inp", expert_ids="routing_map")
def moe_permute(
    inp: Tensor,
    routing_map: Tensor,
    num_out_tokens: int = -1,
    max_token_num: int = -1,
    map_type: str = "mask",
) -> tuple[Tensor, Tensor]:
    """Rows in expert order [R, H] and row_id_map [T * K] (int32). Differentiable in `inp`.

    `routing_map` [T, K] holds expert ids; a negative one is a choice that is not made. R is
    `num_out_tokens`, or T * K where that is not positive: further rows are dropped, -1 in
    row_id_map; rows beyond the choices are zero. `max_token_num` sizes a buffer on CUDA devices and
    changes nothing here.

    Examples
    --------
    >>> import torch
    >>> from moetoken.torch import transformer_engine as te
    >>> inp = torch.tensor([[1., 2.], [3., 4.]])
    >>> rows, row_id_map = te.moe_permute(inp, torch.tensor([[1, 0], [0, 2]]), map_type="index")
    >>> rows[:, 0], row_id_map
    (tensor([1., 3., 1., 3.]), tensor([2, 1, 0, 3], dtype=torch.int32))
    >>> te.moe_unpermute(rows, row_id_map, torch.tensor([[1., 2.], [1., 0.]]), map_type="index")
    tensor([[3., 6.],
            [3., 4.]])
    """
    _check_map_type(map_type)
    check_rank("inp", inp, 2)
    check_rank("routing_map", routing_map, 2)
    if inp.shape[0] != routing_map.shape[0]:
        raise ValueError(
            f"inp has shape {list(inp.shape)}, routing_map {list(routing_map.shape)}: expected "
            "[T, H] and [T, K]"
        )
    num_out_tokens = count("num_out_tokens", num_out_tokens, least=-1)
    rows_num = num_out_tokens if num_out_tokens > 0 else routing_map.numel()
    indices = within(rows_of_slots(routing_map), rows_num)
    row_id_map = columns_first(indices, routing_map.shape[1])
    return _by_ids.spread(inp, indices, rows_num), row_id_map


@naming(permuted_tokens="inp", weights="merging_probs", sorted_indices="row_id_map")
def moe_unpermute(
    inp: Tensor,
    row_id_map: Tensor,
    merging_probs: Optional[Tensor] = None,
    restore_shape: Optional[Sequence[int]] = None,
    map_type: str = "mask",
    probs: Optional[Tensor] = None,
    pad_offsets: Optional[Tensor] = None,
) -> Tensor:
    """The rows added up again in token order, weighted by `merging_probs` [T, K]: [T, H].

    Without `merging_probs` K is 1: each entry of `row_id_map` is a result of its own. `probs` is
    the former name of `merging_probs`. `restore_shape` and `pad_offsets` belong to map_type "mask";
    the first is not looked at, the second must be None. Differentiable in `inp` and the weights.
    """
    _check_map_type(map_type)
    if pad_offsets is not None:
        raise ValueError('pad_offsets is given, expected None with map_type "index"')
    if probs is not None:
        if merging_probs is not None:
            raise ValueError("merging_probs and probs are given, expected merging_probs alone")
        merging_probs = probs
    check_rank("inp", inp, 2)
    check_rank("row_id_map", row_id_map, 1)
    check_rank("merging_probs", merging_probs, 2, optional=True)
    topk = 1 if merging_probs is None else merging_probs.shape[1]
    tokens_num = row_id_map.numel() if merging_probs is None else merging_probs.shape[0]
    if row_id_map.shape[0] != tokens_num * topk:
        raise ValueError(
            f"row_id_map has shape {list(row_id_map.shape)}, expected [T * K], T = {tokens_num} "
            f"and K = {topk}"
        )
    return _by_ids.unpermute(
        inp,
        within(tokens_first(row_id_map, tokens_num), inp.shape[0]),
        weights_for(inp, merging_probs),
        *(None, None, None, None),
        tokens_num,
    )
