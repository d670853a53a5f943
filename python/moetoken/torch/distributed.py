"""Experts spread over the ranks of a process group: plan, dispatch and combine, with gradients.

Each rank has tokens of its own and an equal, consecutive range of the experts. Between a router and
experts one puts

>>> layer = ExpertParallel(group, experts_num=64)                                # doctest: +SKIP
>>> y = layer(x, expert_ids, weights, experts)                                   # doctest: +SKIP

where ``experts(rows, rows_per_expert)`` turns the rows of this rank's experts, in expert order, into
as many rows. The results, gradients included, are the bits that one process would get with all
ranks' tokens one after another, whatever the number of ranks: sums are formed at the token's rank,
in slot order. A token travels once to a rank, however many of its experts live there, forward and
backward.

Groups need `all_to_all_single` on CPU tensors: gloo, or MPI. Every function is collective, in the
backward pass too. A fault on one rank raises the same error on every rank before anything is sent;
a rank that dies is what the group's own timeout is for. Under torch.compile each call is a graph
break.
"""

from __future__ import annotations

import builtins
import math
from typing import Any, Callable, NamedTuple, Optional, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from . import ids as by_ids
from ._checks import check_rank, count

__all__ = ["Exchange", "ExpertParallel", "MoEAlltoAllTokenDispatcher", "combine", "dispatch", "plan"]

Group = Optional[Any]

_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
_INDICES = (torch.int32, torch.int64)


# ---- talking ------------------------------------------------------------------------------------


def _agree(group: Group, error: Optional[Exception], **values: int) -> None:
    """Raises on every rank what the first faulty rank has, or that values differ."""
    numbers = list(values.values())
    least = torch.tensor([0 if error else 1, *numbers, *(-n for n in numbers)])
    if error:
        least[1:] = torch.iinfo(torch.int64).max
    dist.all_reduce(least, dist.ReduceOp.MIN, group=group)
    found = least.tolist()
    low, high = found[1 : 1 + len(numbers)], found[1 + len(numbers) :]
    if found[0] and all(a == -b for a, b in zip(low, high)):
        return
    mine = (type(error).__name__, str(error)) if error else None
    everybody: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everybody, (mine, numbers), group=group)
    for rank, (fault, _) in enumerate(everybody):
        if fault:
            kind = getattr(builtins, fault[0], RuntimeError)
            raise kind(f"rank {rank}: {fault[1]}") from error
    for rank, (_, others) in enumerate(everybody):
        for name, number, first in zip(values, others, everybody[0][1]):
            if number != first:
                raise ValueError(f"rank {rank}: {name} {number} where rank 0 has {first}")


def _send(group: Group, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
    """Rows to and from every rank, as bytes, so that every type travels and no bit changes."""
    rows = rows.contiguous()
    if dist.get_world_size(group) == 1:
        return rows
    width = rows.element_size() * math.prod(rows.shape[1:])
    result = rows.new_empty((sum(received), *rows.shape[1:]))
    dist.all_to_all_single(
        result.view(-1).view(torch.uint8),
        rows.view(-1).view(torch.uint8),
        [n * width for n in received],
        [n * width for n in sent],
        group=group,
    )
    return result


# ---- plan ---------------------------------------------------------------------------------------


class Exchange(NamedTuple):
    """What :func:`plan` found out: who sends what where. Serves forward and backward."""

    group: Group
    tokens_num: int
    slots_per_token: int
    experts_num: int
    expert_begin: int  # this rank's experts
    expert_end: int
    rows_per_expert: Tensor  # [expert_end - expert_begin] int64
    rows_num: int
    sent_tokens: Tensor  # tokens in the order of sending
    tokens_out: list[int]  # to and from each rank
    tokens_in: list[int]
    sent_slots: Tensor  # slots in the order of sending
    slots_out: list[int]
    slots_in: list[int]
    sorted_indices: Tensor  # [T * K]: where the row of a slot comes back; -1: unused
    slot_token: Tensor  # of slots that arrived: the arrived token
    slot_row: Tensor  # and the row
    row_token: Tensor  # [R] the arrived token of a row
    slot_place: Tensor  # of slots that arrived: the ordinal among those of its token


def _check_ids(expert_ids: Tensor, experts_num: int, ranks: int) -> None:
    check_rank("expert_ids", expert_ids, 2)
    if expert_ids.dtype not in _INDICES:
        raise TypeError(f"expert_ids is {expert_ids.dtype}, expected torch.int32 or torch.int64")
    if experts_num < 1 or experts_num % ranks:
        raise ValueError(
            f"experts_num = {experts_num} is not a positive multiple of the {ranks} ranks"
        )
    wrong = (expert_ids < -1) | (expert_ids >= experts_num)
    if wrong.any():
        token, k = wrong.nonzero()[0].tolist()
        raise IndexError(
            f"expert_ids[{token}, {k}] = {expert_ids[token, k].item()} is outside "
            f"[-1, {experts_num})"
        )


def _ordinals(groups: Tensor) -> Tensor:
    """The ordinal of each element among its equals, which lie side by side."""
    if groups.numel() == 0:
        return groups
    place = torch.arange(groups.numel())
    first = torch.ones_like(groups, dtype=torch.bool)
    first[1:] = groups[1:] != groups[:-1]
    return place - torch.cummax(torch.where(first, place, 0), 0).values


@torch.compiler.disable
def plan(group: Group, expert_ids: Tensor, experts_num: int) -> Exchange:
    """An exchange for tokens whose experts are `expert_ids` [T, K]; -1 is an unused slot.

    Collective. T and K may differ from rank to rank; T may be 0.
    """
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    error: Optional[Exception] = None
    try:
        experts_num = count("experts_num", experts_num)
        _check_ids(expert_ids, experts_num, ranks)
    except (ValueError, TypeError, IndexError) as fault:
        error = fault
    _agree(group, error, experts_num=0 if error else experts_num)

    own = experts_num // ranks
    tokens_num, slots_per_token = expert_ids.shape
    flat = expert_ids.detach().reshape(-1).long()
    used = (flat >= 0).nonzero().view(-1)
    experts = flat[used]
    owner = torch.div(experts, own, rounding_mode="floor")
    # A token on its way to a rank, by rank, then by token.
    pairs, pair_of_slot = torch.unique(
        owner * max(tokens_num, 1) + torch.div(used, max(slots_per_token, 1), rounding_mode="floor"),
        return_inverse=True,
    )
    sent_tokens = pairs % max(tokens_num, 1)
    tokens_out = torch.bincount(torch.div(pairs, max(tokens_num, 1), rounding_mode="floor"),
                                minlength=ranks)
    order = torch.argsort(pair_of_slot, stable=True)
    sent_slots = used[order]
    slots_out = torch.bincount(owner, minlength=ranks)
    sorted_indices = torch.full_like(flat, -1)
    sorted_indices[sent_slots] = torch.arange(sent_slots.numel())

    ones = [1] * ranks
    counts = _send(group, torch.stack([tokens_out, slots_out], 1), ones, ones)
    tokens_in, slots_in = counts[:, 0], counts[:, 1]
    first_pair = torch.cumsum(tokens_out, 0) - tokens_out
    words = torch.stack(
        [experts[order] % own, pair_of_slot[order] - first_pair[owner[order]]], 1
    )
    words = _send(group, words, slots_out.tolist(), slots_in.tolist())
    first_token = torch.cumsum(tokens_in, 0) - tokens_in
    slot_token = words[:, 1] + torch.repeat_interleave(first_token, slots_in)
    by_row = torch.argsort(words[:, 0], stable=True)  # expert, rank, slot
    slot_row = torch.empty_like(by_row)
    slot_row[by_row] = torch.arange(by_row.numel())
    return Exchange(
        group, tokens_num, slots_per_token, experts_num, rank * own, (rank + 1) * own,
        torch.bincount(words[:, 0], minlength=own), by_row.numel(),
        sent_tokens, tokens_out.tolist(), tokens_in.tolist(),
        sent_slots, slots_out.tolist(), slots_in.tolist(),
        sorted_indices, slot_token, slot_row, slot_token[by_row], _ordinals(slot_token),
    )  # fmt: skip


# ---- the two ways -------------------------------------------------------------------------------


def _out(exchange: Exchange, tokens: Tensor) -> Tensor:
    """Tokens where their experts are, once a rank."""
    packed = tokens.index_select(0, exchange.sent_tokens)
    return _send(exchange.group, packed, exchange.tokens_out, exchange.tokens_in)


def _back(exchange: Exchange, rows: Tensor) -> Tensor:
    """Rows, or numbers of rows, back where their tokens are, in the order of sending."""
    packed = rows.index_select(0, exchange.slot_row)
    return _send(exchange.group, packed, exchange.slots_in, exchange.slots_out)


def _weights_out(exchange: Exchange, weights: Tensor) -> Tensor:
    """Weights [T, K] where their experts are, one for each slot that arrived."""
    packed = weights.reshape(-1).index_select(0, exchange.sent_slots)
    return _send(exchange.group, packed, exchange.slots_out, exchange.slots_in)


def _weights_back(exchange: Exchange, of_slots: Tensor) -> Tensor:
    """The other way; unused slots get 0."""
    returned = _send(exchange.group, of_slots, exchange.slots_in, exchange.slots_out)
    weights = returned.new_zeros(exchange.tokens_num * exchange.slots_per_token)
    weights[exchange.sent_slots] = returned
    return weights.view(exchange.tokens_num, exchange.slots_per_token)


class _Dispatch(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tokens: Tensor, weights: Optional[Tensor], exchange: Exchange) -> Any:
        ctx.exchange, ctx.weighted = exchange, weights is not None
        rows = _out(exchange, tokens).index_select(0, exchange.row_token)
        if weights is None:
            return rows, None
        row_weights = weights.new_empty(exchange.rows_num)
        row_weights[exchange.slot_row] = _weights_out(exchange, weights)
        return rows, row_weights

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, rows_grad: Tensor, row_weights_grad: Optional[Tensor]) -> Any:
        exchange = ctx.exchange
        returned = _back(exchange, rows_grad)
        if exchange.tokens_num * exchange.slots_per_token:
            tokens_grad = by_ids.permute_grad(
                returned, exchange.sorted_indices, topk=exchange.slots_per_token
            ).tokens_grad
        else:
            tokens_grad = rows_grad.new_zeros(exchange.tokens_num, rows_grad.shape[1])
        weights_grad = None
        if ctx.weighted:
            assert row_weights_grad is not None
            of_slots = row_weights_grad.index_select(0, exchange.slot_row)
            weights_grad = _weights_back(exchange, of_slots)
        return tokens_grad, weights_grad, None


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, weights: Optional[Tensor], exchange: Exchange) -> Tensor:
        ctx.exchange = exchange
        ctx.save_for_backward(rows, weights)
        returned = _back(exchange, rows)
        if exchange.tokens_num * exchange.slots_per_token == 0:
            return rows.new_zeros(exchange.tokens_num, rows.shape[1])
        return by_ids.unpermute(
            returned, exchange.sorted_indices, weights, topk=exchange.slots_per_token
        )

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, tokens_grad: Tensor) -> Any:
        exchange, (rows, weights) = ctx.exchange, ctx.saved_tensors
        arrived = _out(exchange, tokens_grad)
        if weights is None:
            return arrived.index_select(0, exchange.row_token), None, None
        # The slots of each arrived token side by side, as the operator takes them.
        widest = int(exchange.slot_place.max()) + 1 if exchange.rows_num else 1
        cell = exchange.slot_token * widest + exchange.slot_place
        sorted_indices = torch.full((arrived.shape[0] * widest,), -1)
        sorted_indices[cell] = exchange.slot_row
        spread = weights.new_zeros(arrived.shape[0] * widest)
        spread[cell] = _weights_out(exchange, weights)
        if exchange.rows_num:
            rows_grad, spread_grad = by_ids.unpermute_grad(
                arrived,
                sorted_indices,
                permuted_tokens=rows,
                weights=spread.view(-1, widest),
                rows_num=exchange.rows_num,
            )
            assert spread_grad is not None
            of_slots = spread_grad.reshape(-1).index_select(0, cell)
        else:
            rows_grad, of_slots = torch.zeros_like(rows), spread[cell]
        return rows_grad, _weights_back(exchange, of_slots), None


def _check(name: str, tensor: Optional[Tensor], shape: tuple[Optional[int], ...]) -> None:
    if tensor is None:
        return
    check_rank(name, tensor, len(shape))
    if tensor.device.type != "cpu":
        raise ValueError(f"{name} is on {tensor.device}, expected the CPU")
    if tensor.dtype not in _FLOATS:
        raise TypeError(f"{name} is {tensor.dtype}, expected a floating type")
    for size, expected in zip(tensor.shape, shape):
        if expected is not None and size != expected:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}, expected {shape}")


def _check_call(
    exchange: Exchange, name: str, tensor: Tensor, rows: int, weights: Optional[Tensor]
) -> None:
    """That all ranks can go on, and with the same: their arguments are alike."""
    error: Optional[Exception] = None
    try:
        _check(name, tensor, (rows, None))
        _check("weights", weights, (exchange.tokens_num, exchange.slots_per_token))
        if weights is not None and weights.dtype not in (tensor.dtype, torch.float32):
            raise TypeError(f"weights is {weights.dtype}, which does not go with {tensor.dtype}")
        if tensor.dtype == torch.float64 and weights is not None and weights.dtype != tensor.dtype:
            raise TypeError(f"weights is {weights.dtype}, which does not go with {tensor.dtype}")
    except (ValueError, TypeError, IndexError) as fault:
        error = fault
    if error:
        _agree(exchange.group, error, function=0, hidden=0, dtype=0, weights=0)
    _agree(
        exchange.group,
        None,
        function=name == "tokens",
        hidden=tensor.shape[1],
        dtype=_FLOATS.index(tensor.dtype),
        weights=-1 if weights is None else _FLOATS.index(weights.dtype),
    )


@torch.compiler.disable
def dispatch(exchange: Exchange, tokens: Tensor, weights: Optional[Tensor] = None) -> Any:
    """The rows of this rank's experts [R, H], bit copies, and, given weights [T, K], theirs [R].

    In expert order, inside an expert by the rank of the token, then in slot order. Differentiable in
    both. Collective.
    """
    _check_call(exchange, "tokens", tokens, exchange.tokens_num, weights)
    rows, row_weights = _Dispatch.apply(tokens, weights, exchange)
    return rows if weights is None else (rows, row_weights)


@torch.compiler.disable
def combine(exchange: Exchange, rows: Tensor, weights: Optional[Tensor] = None) -> Tensor:
    """Weighted sums of the experts' rows at the tokens' ranks [T, H]. Differentiable. Collective."""
    _check_call(exchange, "rows", rows, exchange.rows_num, weights)
    return _Combine.apply(rows, weights, exchange)


class ExpertParallel:
    """What stands between a router and experts spread over the ranks of `group`.

    `group` None is the default group.
    """

    def __init__(self, group: Group, experts_num: int) -> None:
        self.group = group
        self.experts_num = experts_num

    def __call__(
        self,
        x: Tensor,
        expert_ids: Tensor,
        weights: Tensor,
        experts: Callable[[Tensor, Tensor], Tensor],
    ) -> Tensor:
        """The layer's tokens [T, H]; ``experts(rows, rows_per_expert)`` is this rank's part."""
        exchange = plan(self.group, expert_ids, self.experts_num)
        rows = experts(dispatch(exchange, x), exchange.rows_per_expert)
        return combine(exchange, rows, weights)


# ---- Megatron -----------------------------------------------------------------------------------


class MoEAlltoAllTokenDispatcher:
    """Megatron-Core's dispatcher of this name, on the CPU and without padding, as a drop-in.

    The steps, arguments and results of each pair of calls are Megatron's; what passes from one step
    to the next is not. `pg_collection` needs `ep`; expert tensor parallelism, capacities with
    padding and overlapped shared experts are refused.
    """

    def __init__(
        self,
        num_local_experts: int,
        local_expert_indices: Sequence[int],
        config: Any,
        pg_collection: Any = None,
    ) -> None:
        self.config = config
        self.num_local_experts = num_local_experts
        self.num_experts = config.num_moe_experts
        self.local_expert_indices = list(local_expert_indices)
        self.ep_group = pg_collection.ep if pg_collection is not None else None
        self.ep_size = dist.get_world_size(self.ep_group)
        self.shared_experts = None
        expert_tp = getattr(pg_collection, "expt_tp", None)
        if expert_tp is not None and dist.get_world_size(expert_tp) > 1:
            raise ValueError("expert tensor parallelism is not supported: expt_tp has several ranks")
        if config.moe_pad_expert_input_to_capacity:
            raise ValueError("moe_pad_expert_input_to_capacity is not supported")
        begin = dist.get_rank(self.ep_group) * num_local_experts
        if self.local_expert_indices != list(range(begin, begin + num_local_experts)):
            raise ValueError(
                f"local_expert_indices = {self.local_expert_indices}, expected "
                f"[{begin}, ..., {begin + num_local_experts - 1}] on this rank"
            )

    def set_shared_experts(self, shared_experts: Any) -> None:
        raise ValueError("moe_shared_expert_overlap is not supported")

    def preprocess(self, routing_map: Tensor) -> Tensor:
        """The rows of each local expert; plans the exchange."""
        slots = int(routing_map.sum(1).max()) if routing_map.numel() else 1
        tokens, experts = routing_map.nonzero(as_tuple=True)
        self._experts = torch.full((routing_map.shape[0], max(slots, 1)), -1)
        self._experts[tokens, _ordinals(tokens)] = experts
        self._exchange = plan(self.ep_group, self._experts, self.num_experts)
        return self._exchange.rows_per_expert

    def dispatch_preprocess(
        self, hidden_states: Tensor, routing_map: Tensor, probs: Tensor
    ) -> tuple[Tensor, Tensor]:
        self.hidden_shape = hidden_states.shape
        self.routing_map, self.probs = routing_map, probs
        self.tokens_per_expert = self.preprocess(routing_map)
        weights = probs.gather(1, self._experts.clamp(min=0))
        return hidden_states.reshape(-1, self.hidden_shape[-1]), weights

    def token_dispatch(self, hidden_states: Tensor, probs: Tensor) -> tuple[Tensor, Tensor]:
        return dispatch(self._exchange, hidden_states, probs)

    def dispatch_postprocess(
        self, hidden_states: Tensor, probs: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        return hidden_states, self.tokens_per_expert, probs

    def combine_preprocess(self, hidden_states: Tensor) -> Tensor:
        return hidden_states

    def token_combine(self, hidden_states: Tensor, *_: Any, **__: Any) -> Tensor:
        return combine(self._exchange, hidden_states)

    def combine_postprocess(self, hidden_states: Tensor) -> Tensor:
        return hidden_states.view(self.hidden_shape)
