"""`moe_permute` and `moe_unpermute` of vLLM's ``moe_permute_unpermute``, on the CPU, as drop-ins.

Ids outside [0, n_expert), -1 among them, and those that ``expert_map`` gives to other ranks are
nobody's: their slots get rows behind those of the local experts, which are zero here, and add
nothing. Sums are made in float32 and rounded once, as in vLLM.
"""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from .. import _library
from .._foreign import announce_write
from . import _by_ids, _operators
from ._checks import check_rank, check_tensor, count, naming
from ._direct import is_plain
from ._indices import rows_of_slots, weights_for, within
from ._registration import is_forward_mode

__all__ = ["moe_permute", "moe_permute_unpermute_supported", "moe_unpermute"]


def moe_permute_unpermute_supported() -> bool:
    """Always true here: whether the functions below can be called."""
    return True


def _local_ids(topk_ids: Tensor, n_expert: int, expert_map: Optional[Tensor]) -> Tensor:
    """What slots are sorted by: local experts first, then those of others, as vLLM orders them."""
    ids = topk_ids.long()
    known = (ids >= 0) & (ids < n_expert)
    local = ids
    if expert_map is not None and n_expert > 0:
        mapped = expert_map.long()[ids.clamp(0, n_expert - 1)]
        local = torch.where(mapped < 0, ids + n_expert, mapped)
    return torch.where(known, local, n_expert)


def _check(hidden_states: Tensor, topk_ids: Tensor, n_expert: int, expert_map: Any) -> None:
    check_rank("hidden_states", hidden_states, 2)
    check_rank("topk_ids", topk_ids, 2)
    check_rank("expert_map", expert_map, 1, optional=True)
    if hidden_states.shape[0] != topk_ids.shape[0]:
        raise ValueError(
            f"hidden_states has shape {list(hidden_states.shape)}, topk_ids "
            f"{list(topk_ids.shape)}: expected [T, H] and [T, K]"
        )
    if expert_map is not None and tuple(expert_map.shape) != (n_expert,):
        raise ValueError(
            f"expert_map has shape {list(expert_map.shape)}, expected [{n_expert}], n_expert"
        )


def _write(name: str, out: Tensor, value: Tensor) -> Tensor:
    """Into a tensor of the caller's, which PyTorch is told of."""
    check_tensor(name, out)
    if out.shape != value.shape or out.dtype != value.dtype:
        raise ValueError(
            f"{name} is {list(out.shape)} of {out.dtype}, expected {list(value.shape)} of "
            f"{value.dtype}"
        )
    return out.copy_(value)


@naming(unpermuted_tokens_grad="hidden_states", expert_ids="topk_ids")
def moe_permute(
    hidden_states: Tensor,
    a1q_scale: Optional[Tensor],
    topk_ids: Tensor,
    n_expert: int,
    n_local_expert: int = -1,
    expert_map: Optional[Tensor] = None,
    permuted_hidden_states: Optional[Tensor] = None,
    scratch: Any = None,
) -> tuple[Tensor, Optional[Tensor], Tensor, Tensor, Tensor]:
    """Rows in expert order. Differentiable in `hidden_states` and `a1q_scale`.

    Parameters
    ----------
    hidden_states : [T, H]
    a1q_scale : scales of `hidden_states`: [T, S], which go along, or of fewer dimensions, which are
        returned as they are
    topk_ids : [T, K] expert ids
    n_expert, n_local_expert : the number of all experts, and of those here; -1 for all
    expert_map : [n_expert], the local number of each expert, -1 for one that is not here
    permuted_hidden_states : [T * K, H] to write the rows into
    scratch : buffers for CUDA graphs; changes nothing here

    Returns
    -------
    permuted_hidden_states [T * K, H], a1q_scale, expert_first_token_offset [n_local_expert + 1]
    (int64), inv_permuted_idx [T * K] (the row of each slot), permuted_idx [T * K] (the slot of each
    row, T * K for a row that no local expert has)

    Examples
    --------
    >>> import torch
    >>> from moetoken.torch import vllm
    >>> hidden_states = torch.tensor([[1., 2.], [3., 4.]])
    >>> topk_ids = torch.tensor([[2, 0], [0, 1]])
    >>> rows, _, offsets, inverse, slots = vllm.moe_permute(hidden_states, None, topk_ids, 3)
    >>> rows[:, 0], offsets
    (tensor([1., 3., 3., 1.]), tensor([0, 2, 3, 4]))
    >>> inverse, slots
    (tensor([3, 0, 1, 2], dtype=torch.int32), tensor([1, 2, 3, 0], dtype=torch.int32))
    >>> out = torch.empty(2, 2)
    >>> vllm.moe_unpermute(out, rows, torch.tensor([[1., 0.5], [1., 1.]]), inverse, offsets)
    >>> out
    tensor([[1.5000, 3.0000],
            [6.0000, 8.0000]])
    """
    n_expert = count("n_expert", n_expert)
    local_num = count("n_local_expert", n_local_expert, least=-1)
    local_num = n_expert if local_num == -1 else local_num
    _check(hidden_states, topk_ids, n_expert, expert_map)
    if a1q_scale is not None:
        check_tensor("a1q_scale", a1q_scale)
    slots_num, topk = topk_ids.numel(), max(topk_ids.shape[1], 1)
    sorted_by = _local_ids(topk_ids, n_expert, expert_map)
    inverse = rows_of_slots(sorted_by)
    local_ids = within(sorted_by, local_num)
    _, _, indices, sources, counts = _by_ids.permute(
        None, local_ids.int(), None, local_num, 0, local_num, 0, slots_num
    )
    rows = _by_ids.spread(hidden_states, indices, slots_num)
    if permuted_hidden_states is not None:
        rows = _write("permuted_hidden_states", permuted_hidden_states, rows)
    if a1q_scale is not None and a1q_scale.dim() > 1:
        tokens = torch.where(sources < 0, max(slots_num - 1, 0), sources) // topk
        a1q_scale = a1q_scale[tokens.long()]
    offsets = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    return rows, a1q_scale, offsets, inverse, torch.where(sources < 0, slots_num, sources)


def _written_at_once(out: Tensor, rows: Tensor, indices: Tensor, weights: Any) -> bool:
    """Whether the sums are in `out` now, made there: where no gradient is recorded, and no other
    tensor shares its memory."""
    if is_forward_mode() or not is_plain((out, rows, indices, weights)):
        return False
    if not isinstance(out, Tensor) or out.requires_grad or out.dtype != rows.dtype:
        return False
    inputs = (rows, indices, weights, None, None, None, None)
    try:
        _operators.call(_library.unpermute_by_ids, *inputs, out, 0, 0)
    except (ValueError, TypeError, IndexError):
        return False  # and nothing has been written: what is wrong is said on the other way
    announce_write("out", out)
    return True


@naming(
    permuted_tokens="permuted_hidden_states",
    weights="topk_weights",
    sorted_indices="inv_permuted_idx",
)
def moe_unpermute(
    out: Tensor,
    permuted_hidden_states: Tensor,
    topk_weights: Tensor,
    inv_permuted_idx: Tensor,
    expert_first_token_offset: Optional[Tensor] = None,
) -> None:
    """Adds the rows up again in token order, weighted by `topk_weights` [T, K], into `out` [T, H].

    Rows from the last of `expert_first_token_offset` on belong to no local expert and add nothing;
    they are not read. Gradients flow from `out` to `permuted_hidden_states` and `topk_weights`.
    """
    check_rank("permuted_hidden_states", permuted_hidden_states, 2)
    check_rank("topk_weights", topk_weights, 2)
    check_tensor("inv_permuted_idx", inv_permuted_idx)
    tokens_num, topk = topk_weights.shape
    if inv_permuted_idx.numel() != tokens_num * topk:
        raise ValueError(
            f"inv_permuted_idx has {inv_permuted_idx.numel()} entries, expected T * K = "
            f"{tokens_num} * {topk}, as topk_weights has"
        )
    indices = within(inv_permuted_idx.reshape(-1), permuted_hidden_states.shape[0])
    if expert_first_token_offset is not None:
        indices = torch.where(indices < expert_first_token_offset[-1], indices, -1)
    weights = weights_for(permuted_hidden_states, topk_weights)
    given = (permuted_hidden_states, indices, weights)
    if not _written_at_once(out, *given):
        combined = _by_ids.unpermute(*given, *(None, None, None, None), tokens_num)
        _write("out", out, combined)
