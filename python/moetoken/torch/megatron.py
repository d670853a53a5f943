"""Functions of Megatron-Core's ``moe_utils``, on the CPU, as drop-ins: `permute`, `unpermute`, and
those of the router.

The calling convention is Megatron's: ``sorted_indices`` holds the token of each row, in expert
order. Sums are made in float32 (float64 for float64), whatever the type of the tokens, and rounded
once, so results in bfloat16 and float16 are closer to the truth than Megatron's.

Since release 0.17 Megatron's `permute` takes more arguments and returns two more values. Which form
this module has follows the Megatron that is imported, else the one that an import would find, a
checkout of its sources included; the newer form where there is none.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import sys
from pathlib import Path
from typing import Any, NamedTuple, Optional, Sequence

import torch
from torch import Tensor

from .. import _library
from .._arrays import flag
from . import _operators
from ._checks import ANY, check_float, check_rank, count, naming, to_restore
from ._direct import direct
from ._operators import call, unread_rows
from ._registration import Rules, register
from ._router.megatron import (
    apply_router_token_dropping,
    compute_routing_scores_for_aux_loss,
    get_updated_expert_bias,
    group_limited_topk,
    switch_load_balancing_loss_func,
    topk_routing_with_score_function,
    z_loss_func,
)

__all__ = [
    "apply_router_token_dropping",
    "compute_routing_scores_for_aux_loss",
    "get_updated_expert_bias",
    "group_limited_topk",
    "permute",
    "switch_load_balancing_loss_func",
    "topk_routing_with_score_function",
    "unpermute",
    "z_loss_func",
]


# ---- which Megatron -----------------------------------------------------------------------------


class _Form(NamedTuple):
    """What a release of Megatron does differently."""

    returns_five_values: bool
    cuts_to_num_out_tokens: bool  # and fills up; before, rows were as many as set pairs


_NEWEST = _Form(True, True)


@functools.lru_cache(maxsize=8)
def _form_of(file: Path) -> _Form:
    """Read from the sources: `permute` as it stands there, whatever has been put in its place."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError):
        return _NEWEST
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "permute":
            values = [
                len(step.value.elts)
                for step in ast.walk(node)
                if isinstance(step, ast.Return) and isinstance(step.value, ast.Tuple)
            ]
            named = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
            selects = any(
                isinstance(n, ast.Attribute) and n.attr == "masked_select" for n in ast.walk(node)
            )
            return _Form(max(values, default=5) == 5, "num_out_tokens" in named and not selects)
    return _NEWEST


@functools.lru_cache(maxsize=8)
def _form_in(folder: Optional[str]) -> _Form:
    """That of the megatron.core in this folder."""
    if folder is None:
        return _NEWEST
    return _form_of(Path(folder) / "transformer" / "moe" / "moe_utils.py")


@functools.lru_cache(maxsize=8)
def _found_on(path: tuple[str, ...]) -> Optional[str]:
    """The folder of megatron.core that an import would find, without importing anything of it."""
    spec = importlib.util.find_spec("megatron")
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    found = (Path(folder) / "core" for folder in folders)
    return next((str(folder) for folder in found if folder.is_dir()), None)


@torch.compiler.assume_constant_result
def _form() -> _Form:
    core = sys.modules.get("megatron.core")
    folders = list(getattr(core, "__path__", ()))
    return _form_in(folders[0] if folders else _found_on(tuple(sys.path)))


# ---- operators without drop_and_pad: rows in expert order ---------------------------------------


def _rows_outputs(routing_map: Tensor, rows_num: Optional[int]) -> tuple[Tensor, Tensor]:
    rows: Any = torch.library.get_ctx().new_dynamic_size() if rows_num is None else rows_num
    return (
        routing_map.new_empty(rows, dtype=torch.int64),
        routing_map.new_empty(rows, dtype=torch.int64),
    )


def _rows(routing_map: Tensor, rows_num: Optional[int]) -> tuple[Tensor, Tensor]:
    """Token and expert of each row: the set pairs in expert order, as many as rows_num says.

    Where it says more, pairs that are not set follow, in the same order.
    """
    by_expert = routing_map.T
    set_pairs = by_expert if by_expert.dtype is torch.bool else by_expert != 0
    experts, tokens = set_pairs.nonzero().unbind(1)
    if rows_num is None:
        return tokens.clone(), experts.clone()
    if not 0 <= rows_num <= routing_map.numel():
        raise ValueError(
            f"num_out_tokens is {rows_num}, expected 0 to {routing_map.numel()}, "
            "the number of pairs that routing_map has"
        )
    if rows_num > len(tokens):
        more = (by_expert == 0).nonzero()[: rows_num - len(tokens)]
        experts, tokens = torch.cat([experts, more[:, 0]]), torch.cat([tokens, more[:, 1]])
    return tokens[:rows_num].clone(), experts[:rows_num].clone()


_rows_op, _rows_call = register(
    "megatron_rows", _rows, Rules(_rows_outputs, direct=direct("map_rows"))
)


def _slots_outputs(routing_map: Tensor, sorted_indices: Tensor) -> Tensor:
    slots: Any = torch.library.get_ctx().new_dynamic_size()
    return sorted_indices.new_empty(routing_map.shape[0] * slots)


def _slots(routing_map: Tensor, sorted_indices: Tensor) -> Tensor:
    """The row of each slot, K slots a token, -1 where one is unused.

    K is the most set pairs that a token has.
    """
    set_pairs = (routing_map != 0).sum(1)
    slots_a_token = int(set_pairs.max()) if len(set_pairs) else 0
    slots_num = slots_a_token * len(set_pairs)
    row_of_slot = sorted_indices.new_empty(slots_num)
    tokens = unread_rows(len(set_pairs), torch.empty(0, 0))
    call(
        _library.permute, tokens, routing_map, None, None, None, row_of_slot, False, slots_num, 0, 0
    )
    used = row_of_slot >= 0
    slots = used.nonzero().view(-1)
    tokens_of_rows = torch.empty_like(slots)
    tokens_of_rows[row_of_slot[used].long()] = slots // max(slots_a_token, 1)
    if not torch.equal(tokens_of_rows, sorted_indices.long()):
        raise ValueError(
            "sorted_indices and routing_map do not belong together: expected the tokens of "
            f"routing_map's {len(slots)} set pairs in expert order"
        )
    return row_of_slot


_slots_op, _slots_call = register(
    "megatron_slots", _slots, Rules(_slots_outputs, direct=direct("map_slots"))
)


def _inverse_outputs(
    routing_map: Tensor, tokens: Tensor, experts: Tensor, slots_a_token: int
) -> Tensor:
    return tokens.new_empty(2, routing_map.shape[0], slots_a_token)


def _inverse(routing_map: Tensor, tokens: Tensor, experts: Tensor, slots_a_token: int) -> Tensor:
    """Row and expert of each slot, [2, T, K], experts ascending; -1 where a slot is unused."""
    found = tokens.new_full((2, routing_map.shape[0], slots_a_token), -1)
    ordinals = (routing_map != 0).cumsum(1)[tokens, experts] - 1
    if bool(((ordinals < 0) | (ordinals >= slots_a_token)).any()):
        raise ValueError(
            f"num_out_tokens leaves {slots_a_token} slots a token, expected as many as the "
            "tokens of routing_map have set pairs"
        )
    found[0, tokens, ordinals] = torch.arange(len(tokens))
    found[1, tokens, ordinals] = experts
    return found


_inverse_op, _inverse_call = register("megatron_inverse", _inverse, Rules(_inverse_outputs))


# ---- Megatron's functions -----------------------------------------------------------------------


def _as_map(routing_map: Tensor) -> Tensor:
    """The library's maps are of one byte; Megatron takes any type."""
    return routing_map if routing_map.element_size() == 1 else routing_map != 0


def _go_together(tokens: Tensor, probs: Tensor) -> bool:
    """Whether the library takes these two types in one call."""
    narrow = tokens.dtype in (torch.bfloat16, torch.float16)
    return tokens.dtype == probs.dtype or (narrow and probs.dtype == torch.float32)


def _permute_padded(
    tokens: Tensor, routing_map: Tensor, probs: Optional[Tensor], num_out_tokens: int
) -> tuple[Tensor, Optional[Tensor], Tensor]:
    experts_num = routing_map.shape[1]
    rows_num = num_out_tokens // experts_num * experts_num if experts_num else 0
    settings = (rows_num, rows_num, True, torch.int64)
    if probs is None or _go_together(tokens, probs):
        rows, row_probs, indices = _operators.permute(tokens, routing_map, probs, *settings)
    else:  # a copy of each by itself: any two types will do
        rows, _, indices = _operators.permute(tokens, routing_map, None, *settings)
        no_tokens = probs.detach()[:, :0]
        _, row_probs, _ = _operators.permute(no_tokens, routing_map, probs, *settings)
    return rows, None if probs is None else row_probs, indices


@naming(unpermuted_tokens_grad="tokens")
def permute(
    tokens: Tensor,
    routing_map: Tensor,
    probs: Optional[Tensor] = None,
    num_out_tokens: Optional[int] = None,
    fused: bool = False,
    drop_and_pad: bool = False,
    tokens_per_expert: Optional[Tensor] = None,
    align_size: int = 0,
    return_batch_invariant_inverse_map: bool = False,
) -> tuple[Any, ...]:
    """Rows in expert order: permuted_tokens [R, H], permuted_probs [R] or None, sorted_indices [R].

    Since Megatron-Core 0.17 two more values: None (no offsets of padding) and `tokens_per_expert`.
    `sorted_indices` (int64) is the token of each row. With `drop_and_pad` every expert has
    num_out_tokens // E rows. Without, R is `num_out_tokens` where it is given: further rows are
    dropped, and where `routing_map` has fewer set pairs, pairs that are not set fill up; releases
    whose `permute` counts the set pairs itself make R their number whatever is given.
    `return_batch_invariant_inverse_map`: the fourth of five values is row and expert of each slot
    [2, T, K], K = num_out_tokens / T, which :func:`unpermute` takes.
    `fused` and `align_size` are for CUDA kernels and change nothing here.
    """
    check_rank("tokens", tokens, 2)
    check_rank("routing_map", routing_map, 2)
    check_rank("probs", probs, 2, optional=True)
    drop_and_pad = flag("drop_and_pad", drop_and_pad)
    if num_out_tokens is not None:
        num_out_tokens = count("num_out_tokens", num_out_tokens, least=ANY)
    if tokens.shape[0] != routing_map.shape[0]:
        raise ValueError(
            f"tokens has {tokens.shape[0]} rows, but routing_map has {routing_map.shape[0]}"
        )
    form = _form()
    padded = drop_and_pad and num_out_tokens is not None
    routing_map = _as_map(routing_map)
    inverse_map = None
    if return_batch_invariant_inverse_map and (
        padded or num_out_tokens is None or num_out_tokens % max(tokens.shape[0], 1)
    ):
        raise ValueError(
            f"return_batch_invariant_inverse_map is set with drop_and_pad = {drop_and_pad} and "
            f"num_out_tokens = {num_out_tokens}, expected no drop_and_pad and a multiple of the "
            f"{tokens.shape[0]} tokens"
        )
    if padded and num_out_tokens is not None:
        rows, row_probs, indices = _permute_padded(tokens, routing_map, probs, num_out_tokens)
    else:
        exact = form.cuts_to_num_out_tokens or return_batch_invariant_inverse_map
        indices, experts = _rows_call(routing_map, num_out_tokens if exact else None)
        rows = _operators.spread(tokens, indices, indices.shape[0], True)
        row_probs = None if probs is None else probs[indices, experts]
        if return_batch_invariant_inverse_map and num_out_tokens is not None:
            slots_a_token = num_out_tokens // max(tokens.shape[0], 1)
            inverse_map = _inverse_call(routing_map, indices, experts, slots_a_token)
    values = (rows, row_probs, indices)
    if form.returns_five_values or return_batch_invariant_inverse_map:
        return (*values, inverse_map, tokens_per_expert)
    return values


def _common_types(tokens: Tensor, probs: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens and probs in types that the library takes together, widened as PyTorch would."""
    if _go_together(tokens, probs):
        return tokens, probs
    wide = torch.promote_types(tokens.dtype, probs.dtype)
    return tokens.to(wide), probs.to(wide)


def _map_of(inverse_map: Tensor, probs: Tensor) -> Tensor:
    """The routing map that an inverse map was made of."""
    experts_num = probs.shape[1]
    experts = inverse_map[1]
    places = torch.where(experts < 0, experts_num, experts)  # unused slots mark one column more
    marked = experts.new_zeros(experts.shape[0], experts_num + 1, dtype=torch.bool)
    return marked.scatter(1, places, True)[:, :experts_num]


def unpermute(
    permuted_tokens: Tensor,
    sorted_indices: Tensor,
    restore_shape: Sequence[int],
    probs: Optional[Tensor] = None,
    routing_map: Optional[Tensor] = None,
    fused: bool = False,
    drop_and_pad: bool = False,
    pad_offsets: Optional[Tensor] = None,
    batch_invariant_inverse_map: Optional[Tensor] = None,
) -> Tensor:
    """The rows added up again in token order, weighted by `probs`: [T, H], the type of the rows.

    `sorted_indices` is what :func:`permute` returned for the same `routing_map`. `fused` changes
    nothing here; `pad_offsets` must be None, as `permute` returns it. The sums are made in one
    order whatever the batch holds, with `batch_invariant_inverse_map` and without; given, it names
    the rows, and `sorted_indices` is not read. Megatron adds partial sums of each rank of experts,
    which may differ in the last bit.
    """
    if pad_offsets is not None:
        raise ValueError("pad_offsets is given, expected None: permute here never pads rows")
    check_rank("permuted_tokens", permuted_tokens, 2)
    check_rank("sorted_indices", sorted_indices, 1)
    check_rank("probs", probs, 2, optional=True)
    check_float("probs", probs)
    check_rank("routing_map", routing_map, 2, optional=True)
    drop_and_pad = flag("drop_and_pad", drop_and_pad)
    tokens_num, hidden_size = to_restore(restore_shape)
    settings = (tokens_num, hidden_size, drop_and_pad, False, False)
    indices, rows, weights = sorted_indices, permuted_tokens, probs
    if probs is not None:
        rows, weights = _common_types(permuted_tokens, probs)
    if batch_invariant_inverse_map is not None:
        indices = batch_invariant_inverse_map[0].reshape(-1)
        routing_map = None if probs is None else _map_of(batch_invariant_inverse_map, probs)
        settings = (tokens_num, hidden_size, False, False, False)
    elif probs is None:
        # Without weights only the token of each row counts, which is the padded form of indices.
        routing_map, settings = None, (tokens_num, hidden_size, True, False, False)
    elif routing_map is None:
        raise ValueError("routing_map is None, expected a tensor as probs is given")
    else:
        routing_map = _as_map(routing_map)
        indices = indices if drop_and_pad else _slots_call(routing_map, indices)
    combined = _operators.unpermute(rows, indices, routing_map, weights, *settings)[0]
    return combined.to(permuted_tokens.dtype)
