"""PyTorch's Ascend plug-in's functions on a routing by expert ids: same names, same results.

The results that gradients flow through are made of the operators of _by_ids.py, so everything here
can be differentiated, where the plug-in has gradients for two of the six. What differs from the
plug-in: -1 is a slot that is skipped, in every index and in every id; rows that no slot fills are
zero, and entries of an index that belong to nothing are -1, where the NPU leaves memory unwritten.
"""

from __future__ import annotations

from typing import Any, Optional, Sequence

import torch
from torch import Tensor

from . import _by_ids
from ._checks import ANY, check_rank, check_tensor, count, naming
from ._indices import rows_of_slots, tokens_first, weights_for, within
from ._registration import Rules, register

__all__ = [
    "npu_moe_finalize_routing",
    "npu_moe_init_routing",
    "npu_moe_init_routing_v2",
    "npu_moe_re_routing",
    "npu_moe_token_permute",
    "npu_moe_token_unpermute",
]


def _refuse(name: str, value: object, expected: str) -> None:
    raise ValueError(f"{name} = {value}, expected {expected}")


# ---- token_permute, token_unpermute -------------------------------------------------------------


@naming(unpermuted_tokens_grad="tokens", expert_ids="indices")
def npu_moe_token_permute(
    tokens: Tensor,
    indices: Tensor,
    num_out_tokens: Optional[int] = None,
    padded_mode: bool = False,
) -> tuple[Tensor, Tensor]:
    """permuted_tokens [n, H], sorted_indices [T * K] (int32): the row of each slot.

    `indices` is [T, K] or [T]. n is `num_out_tokens`, at most T * K; 0 or less counts from T * K
    back. Slots of rows that are cut keep their number in `sorted_indices`. Differentiable in
    `tokens`.
    """
    if padded_mode:
        _refuse("padded_mode", padded_mode, "False: the plug-in refuses it too")
    check_rank("tokens", tokens, 2)
    check_tensor("indices", indices)
    if indices.dim() not in (1, 2) or indices.shape[0] != tokens.shape[0]:
        raise ValueError(
            f"indices has shape {list(indices.shape)}, expected [T, K] or [T], with tokens [T, H] "
            f"of shape {list(tokens.shape)}"
        )
    slots_num, wanted = indices.numel(), 0
    if num_out_tokens is not None:
        wanted = count("num_out_tokens", num_out_tokens, least=ANY)
    rows_num = min(wanted, slots_num) if wanted > 0 else max(slots_num + wanted, 0)
    sorted_indices = rows_of_slots(indices)
    return _by_ids.spread(tokens, within(sorted_indices, rows_num), rows_num), sorted_indices


@naming(weights="probs")
def npu_moe_token_unpermute(
    permuted_tokens: Tensor,
    sorted_indices: Tensor,
    probs: Optional[Tensor] = None,
    padded_mode: bool = False,
    restore_shape: Optional[Sequence[int]] = None,
) -> Tensor:
    """The rows added up again in token order, weighted by `probs` [T, K]; without, K is 1.

    Rows may be named twice; then there is no gradient. Differentiable in `permuted_tokens` and
    `probs`. `restore_shape` belongs to `padded_mode`, which the plug-in refuses.
    """
    if padded_mode:
        _refuse("padded_mode", padded_mode, "False: the plug-in refuses it too")
    check_rank("permuted_tokens", permuted_tokens, 2)
    check_rank("sorted_indices", sorted_indices, 1)
    check_rank("probs", probs, 2, optional=True)
    topk = 1 if probs is None else probs.shape[1]
    if topk < 1 or sorted_indices.shape[0] % topk:
        raise ValueError(
            f"sorted_indices has shape {list(sorted_indices.shape)}, expected [T * K], K = {topk}"
        )
    indices = within(sorted_indices, permuted_tokens.shape[0])
    weights = weights_for(permuted_tokens, probs)
    tokens_num = sorted_indices.shape[0] // topk
    return _by_ids.unpermute(
        permuted_tokens, indices, weights, None, None, None, None, tokens_num
    )  # fmt: skip


# ---- init_routing -------------------------------------------------------------------------------


@naming(unpermuted_tokens_grad="x", expert_ids="expert_idx")
def npu_moe_init_routing(
    x: Tensor, row_idx: Tensor, expert_idx: Tensor, active_num: int
) -> tuple[Tensor, Tensor, Tensor]:
    """expanded_x [min(T, active_num) * K, H], expanded_row_idx and expanded_expert_idx [T * K].

    `row_idx` [T, K] numbers the slots, as k * T + t: that is the order of `expanded_row_idx`, the
    row of each slot. `expanded_expert_idx` are the ids, sorted. Differentiable in `x`.
    """
    for name, tensor in (("x", x), ("row_idx", row_idx), ("expert_idx", expert_idx)):
        check_rank(name, tensor, 2)
    active_num = count("active_num", active_num)
    tokens_num, topk = expert_idx.shape
    if row_idx.shape != expert_idx.shape or x.shape[0] != tokens_num:
        raise ValueError(
            f"row_idx has shape {list(row_idx.shape)}, expert_idx {list(expert_idx.shape)}, x "
            f"{list(x.shape)}: expected [T, K] twice and [T, H]"
        )
    rows = rows_of_slots(expert_idx)
    expanded_row_idx = torch.zeros_like(rows).scatter(0, row_idx.reshape(-1).long(), rows)
    places = torch.where(rows < 0, rows.shape[0], rows).long()
    ids = expert_idx.reshape(-1).to(torch.int32)
    expanded_expert_idx = ids.new_full((rows.shape[0] + 1,), -1).scatter(0, places, ids)[:-1]
    rows_num = min(tokens_num, active_num) * topk
    indices = within(tokens_first(expanded_row_idx, tokens_num), rows_num)
    return _by_ids.spread(x, indices, rows_num), expanded_row_idx, expanded_expert_idx


def _counts(counts: Tensor, kind: int, expert_begin: int, experts_num: int) -> Tensor:
    """Rows of each expert: 0 running sums, 1 themselves, 2 [E, 2] pairs of expert and rows."""
    if kind == 0:
        return counts.cumsum(0)
    if kind == 1:
        return counts
    order = (counts == 0).to(torch.int8).argsort(stable=True)
    pairs = torch.stack([order + expert_begin, counts[order]], 1) * (counts[order] > 0).unsqueeze(1)
    return torch.nn.functional.pad(pairs, (0, 0, 0, experts_num - counts.shape[0]))


def _copied(x: Tensor, sources: Tensor, topk: int) -> Tensor:
    """The token of each row's slot, zeros for -1: for what the library does not move."""
    tokens = sources.long().clamp(min=0) // max(topk, 1)
    return torch.where((sources < 0).unsqueeze(1), 0, x[tokens])


def _range(active_expert_range: Sequence[int], expert_num: int) -> tuple[int, int]:
    """The first expert and the one behind the last; all where nothing is given."""
    given: tuple[Any, ...]
    try:
        given = tuple(active_expert_range)
    except TypeError:
        given = (active_expert_range,)
    if len(given) not in (0, 2):
        _refuse("active_expert_range", active_expert_range, "[start, end], or nothing")
    begin, end = given or (0, expert_num)
    names = ("active_expert_range[0]", "active_expert_range[1]")
    return count(names[0], begin, least=ANY), count(names[1], end, least=ANY)


def _check_init_routing(
    quant_mode: int, drop_pad_mode: int, num_type: int, row_idx_type: int, x_dtype: object
) -> None:
    if quant_mode != -1 or x_dtype is not None:
        raise NotImplementedError(
            f"quant_mode = {quant_mode}, x_dtype = {x_dtype}: quantised modes are not supported, "
            "expected -1 and None"
        )
    if drop_pad_mode not in (0, 1):
        _refuse("drop_pad_mode", drop_pad_mode, "0 or 1")
    if num_type not in (0, 1, 2):
        _refuse("expert_tokens_num_type", num_type, "0, 1 or 2")
    if row_idx_type not in (0, 1):
        _refuse("row_idx_type", row_idx_type, "0 or 1")


@naming(
    unpermuted_tokens_grad="x",
    expert_ids="expert_idx",
    experts_num="expert_num",
    capacity="expert_capacity",
)
def npu_moe_init_routing_v2(
    x: Tensor,
    expert_idx: Tensor,
    *,
    scale: Optional[Tensor] = None,
    offset: Optional[Tensor] = None,
    active_num: int = -1,
    expert_capacity: int = -1,
    expert_num: int = -1,
    drop_pad_mode: int = 0,
    expert_tokens_num_type: int = 0,
    expert_tokens_num_flag: bool = False,
    quant_mode: int = -1,
    active_expert_range: Sequence[int] = (),
    row_idx_type: int = 0,
    x_dtype: Optional[int] = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """expanded_x, expanded_row_idx (int32), expert_tokens_count_or_cumsum (int64), expanded_scale.

    * `drop_pad_mode` 0: expanded_x [n, H], n = min(active_num, T * K), T * K where that is not
      positive. 1: [expert_num, expert_capacity, H]; an expert's further slots are dropped.
    * `row_idx_type` 0: expanded_row_idx [T * K] is the row of each slot, -1 for a slot of an expert
      outside `active_expert_range` or one that is dropped, rows from n on included. 1: the slot
      of each row, -1 for a row that no slot fills.
    * counts are those before `expert_capacity` drops slots, and are made whatever
      `expert_tokens_num_flag` says. Type 0: running sums, 1: counts, 2: [expert_num, 2] pairs of
      expert and count, experts without slots left out.
    * expanded_scale: `scale` [T] of the token of each row, empty without.

    Differentiable in `x` and `scale`. Quantised modes are refused.
    """
    kind, padded = expert_tokens_num_type, drop_pad_mode == 1
    _check_init_routing(quant_mode, drop_pad_mode, kind, row_idx_type, x_dtype)
    check_rank("x", x, 2)
    check_rank("expert_idx", expert_idx, 2)
    if scale is not None:
        check_tensor("scale", scale)
    active_num = count("active_num", active_num, least=ANY)
    expert_num = count("expert_num", expert_num, least=ANY)
    expert_capacity = count("expert_capacity", expert_capacity, least=1 if padded else ANY)
    if x.shape[0] != expert_idx.shape[0]:
        raise ValueError(
            f"x has shape {list(x.shape)}, expert_idx {list(expert_idx.shape)}: expected [T, H] "
            "and [T, K]"
        )
    begin, end = _range(active_expert_range, expert_num)
    experts_num = expert_num if expert_num > 0 else end
    if not 0 <= begin < end <= experts_num or (padded and end - begin != experts_num):
        raise ValueError(
            f"active_expert_range = {list(active_expert_range)}, expert_num = {expert_num}: "
            "expected 0 <= start < end <= expert_num, and all experts with drop_pad_mode 1"
        )
    slots_num = expert_idx.numel()
    rows_num = min(active_num, slots_num) if active_num > 0 else slots_num
    experts = (experts_num, begin, end)
    _, _, indices, sources, counts = _by_ids.permute(None, expert_idx, None, *experts, 0, slots_num)
    if padded:
        rows_num = experts_num * expert_capacity
        _, _, indices, sources, _ = _by_ids.permute(
            None, expert_idx, None, *experts, expert_capacity, rows_num
        )
    if x.is_floating_point():
        rows = _by_ids.spread(x, within(indices, rows_num), rows_num)
    else:
        rows = _copied(x, sources[:rows_num], expert_idx.shape[1])
    expanded_scale = torch.empty(0, device=x.device)
    if scale is not None:
        scales = scale.reshape(-1, 1)
        expanded_scale = _copied(scales, sources[:rows_num], expert_idx.shape[1]).view(-1)
    return (
        rows.view(experts_num, expert_capacity, -1) if padded else rows,
        (indices if row_idx_type == 0 else sources).to(torch.int32),
        _counts(counts, kind, begin, experts_num),
        expanded_scale,
    )


# ---- finalize_routing ---------------------------------------------------------------------------


@naming(
    permuted_tokens="expanded_permuted_rows",
    weights="scales",
    residual="skip1",
    residual2="skip2",
    expert_bias="bias",
    expert_ids="export_for_source_row",
    sorted_indices="expanded_src_to_dst_row",
)
def npu_moe_finalize_routing(
    expanded_permuted_rows: Tensor,
    skip1: Optional[Tensor],
    skip2: Optional[Tensor],
    bias: Optional[Tensor],
    scales: Optional[Tensor],
    expanded_src_to_dst_row: Tensor,
    export_for_source_row: Optional[Tensor],
    drop_pad_mode: int = 0,
    k: int = 1,
) -> Tensor:
    """skip1 + skip2 + the sum over the slots of scales * (row + bias of its expert): [T, H].

    `expanded_src_to_dst_row` [T * K] is in column order, slot k * T + t, with `drop_pad_mode` 0 and
    1, in row order, t * K + k, with 2 and 3. K is that of `scales` [T, K], without them `k`. A slot
    of -1, or of a row that is not there, adds nothing, its bias included. Differentiable in
    `expanded_permuted_rows`, `skip1`, `skip2`, `bias` and `scales`.
    """
    if drop_pad_mode not in (0, 1, 2, 3):
        _refuse("drop_pad_mode", drop_pad_mode, "0, 1, 2 or 3")
    check_tensor("expanded_permuted_rows", expanded_permuted_rows)
    check_rank("scales", scales, 2, optional=True)
    check_rank("expanded_src_to_dst_row", expanded_src_to_dst_row, 1)
    topk = count("k", k, least=1) if scales is None else scales.shape[1]
    indices = expanded_src_to_dst_row
    if topk < 1 or indices.shape[0] % topk:
        raise ValueError(
            f"expanded_src_to_dst_row has shape {list(indices.shape)}, expected [T * K], K = {topk}"
        )
    if bias is not None and export_for_source_row is None:
        raise ValueError("export_for_source_row is None, expected a tensor as bias is given")
    tokens_num = indices.shape[0] // topk
    if drop_pad_mode < 2:
        indices = tokens_first(indices, tokens_num)
    rows = expanded_permuted_rows.reshape(-1, expanded_permuted_rows.shape[-1])
    return _by_ids.unpermute(
        rows,
        within(indices, rows.shape[0]),
        weights_for(rows, scales),
        skip1,
        skip2,
        bias,
        None if bias is None else export_for_source_row,
        tokens_num,
    )


# ---- re_routing ---------------------------------------------------------------------------------


def _experts_of_ranks_outputs(counts: Tensor, tokens_num: int) -> Tensor:
    return counts.new_empty(tokens_num)


def _experts_of_ranks(counts: Tensor, tokens_num: int) -> Tensor:
    """The expert of each token that came from the ranks, one rank after another."""
    flat = counts.reshape(-1)
    if int(flat.sum()) != tokens_num or bool((flat < 0).any()):
        raise ValueError(
            f"expert_token_num_per_rank adds up to {int(flat.sum())}, expected no negative number "
            f"and the {tokens_num} rows of tokens"
        )
    ranks_num, experts_num = counts.shape
    experts = torch.arange(experts_num, dtype=counts.dtype).repeat(ranks_num)
    return experts.repeat_interleave(flat)


_experts_op, _experts_call = register(
    "npu_experts_of_ranks", _experts_of_ranks, Rules(_experts_of_ranks_outputs)
)


@naming(unpermuted_tokens_grad="tokens")
def npu_moe_re_routing(
    tokens: Tensor,
    expert_token_num_per_rank: Tensor,
    *,
    per_token_scales: Optional[Tensor] = None,
    expert_token_num_type: int = 1,
    idx_type: int = 0,
    tokens_dtype: Optional[int] = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """permute_tokens, permute_per_token_scales, permute_token_idx (int32), expert_token_num.

    `tokens` [A, H] came from the ranks, of each its tokens by expert, as many as
    `expert_token_num_per_rank` [ranks, E] says; they go into expert order, inside an expert by
    rank. `idx_type` 0: the index is the old place of each row, 1: the new one.
    `expert_token_num_type` 0: running sums of the experts' tokens, 1: their numbers.
    Differentiable in `tokens` and `per_token_scales`. Scales are empty without `per_token_scales`.
    `tokens_dtype` names a type that PyTorch lacks, such as hifloat8 or 4 bits: refused.
    """
    if tokens_dtype is not None:
        raise NotImplementedError(
            f"tokens_dtype = {tokens_dtype}: types that PyTorch lacks are not supported, "
            "expected None"
        )
    if expert_token_num_type not in (0, 1):
        _refuse("expert_token_num_type", expert_token_num_type, "0 or 1")
    if idx_type not in (0, 1):
        _refuse("idx_type", idx_type, "0 or 1")
    check_rank("tokens", tokens, 2)
    check_rank("expert_token_num_per_rank", expert_token_num_per_rank, 2)
    if per_token_scales is not None:
        check_tensor("per_token_scales", per_token_scales)
    counts = expert_token_num_per_rank
    rows_num, experts_num = tokens.shape[0], counts.shape[1]
    experts = _experts_call(counts, rows_num).to(torch.int32).unsqueeze(1)
    _, _, targets, sources, _ = _by_ids.permute(
        None, experts, None, experts_num, 0, experts_num, 0, rows_num
    )
    if tokens.is_floating_point() and tokens.element_size() > 1:
        moved = _by_ids.spread(tokens, targets, rows_num)
    else:
        moved = tokens[sources.long()]
    scales = torch.empty(0, device=tokens.device)
    if per_token_scales is not None:
        scales = per_token_scales[sources.long()]
    totals = counts.sum(0, dtype=counts.dtype)
    if expert_token_num_type == 0:
        totals = totals.cumsum(0, dtype=counts.dtype)
    return moved, scales, sources if idx_type == 0 else targets, totals
