"""moetoken.torch.distributed over processes of this machine, against the layer in one process."""

import datetime
import inspect
import multiprocessing
import os
import socket
import types

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402

from moetoken.torch import distributed, ids  # noqa: E402

if not (dist.is_available() and dist.is_gloo_available()):
    pytest.skip("PyTorch without gloo", allow_module_level=True)

SECONDS = 240  # for all processes of a test to end; a loaded machine takes its time to start them
OWN_EXPERTS, TOPK, HIDDEN = 3, 3, 8


def _free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _start(rank, ranks, port, function, arguments):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    limit = datetime.timedelta(seconds=SECONDS / 2)
    dist.init_process_group("gloo", rank=rank, world_size=ranks, timeout=limit)
    function(rank, ranks, *arguments)
    dist.destroy_process_group()  # not after a failure: it would wait for the others


def run_ranks(ranks, function, *arguments):
    """The function on every rank, each a process; fails with the first that fails, or in time."""
    # Forked from a server that has PyTorch and no threads: this process may have JAX's.
    multiprocessing.set_forkserver_preload(["torch", "moetoken.torch.distributed"])
    context = mp.start_processes(
        _start, (ranks, _free_port(), function, arguments), ranks, join=False,
        start_method="forkserver",
    )  # fmt: skip
    waited = datetime.datetime.now() + datetime.timedelta(seconds=SECONDS)
    try:
        while not context.join(timeout=1):
            assert datetime.datetime.now() < waited, "the ranks did not end"
    finally:
        for process in context.processes:
            if process.is_alive():
                process.kill()


def whole_layer(ranks, dtype, weights_dtype, seed, skewed=False):
    """All ranks' tokens; how many each has: rank 1 none."""
    generator = torch.Generator().manual_seed(seed)
    tokens = [5 + 4 * rank if rank != 1 else 0 for rank in range(ranks)]
    total, experts_num = sum(tokens), ranks * OWN_EXPERTS
    expert_ids = torch.rand(total, experts_num, generator=generator).argsort(1)[:, :TOPK]
    expert_ids[torch.rand(total, TOPK, generator=generator) < 0.2] = -1
    if skewed:
        expert_ids[expert_ids >= 0] = experts_num - 1
    x, g = (torch.randn(total, HIDDEN, generator=generator).to(dtype) for _ in range(2))
    weights = torch.rand(total, TOPK, generator=generator).to(weights_dtype)
    # An expert multiplies by a number of its own, row for row: the bits do not depend on the others.
    scales = (0.5 + torch.rand(experts_num, generator=generator)).to(dtype)
    return tokens, expert_ids, x, weights, g, scales


def by_scales(scales):
    def experts(rows, rows_per_expert):
        return rows * torch.repeat_interleave(scales, rows_per_expert).unsqueeze(1)

    return experts


def single_process(expert_ids, x, weights, g, scales):
    x, weights = x.clone().requires_grad_(), weights.clone().requires_grad_()
    used = int((expert_ids >= 0).sum())
    rows = ids.permute(x, expert_ids, experts_num=len(scales), rows_num=used)
    answers = by_scales(scales)(rows.permuted_tokens, rows.rows_per_expert)
    y = ids.unpermute(answers, rows.sorted_indices, weights)
    y.backward(g)
    return y.detach(), x.grad, weights.grad


def same_bits(a, b):
    return a.dtype == b.dtype and torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def check_layer(rank, ranks):
    cases = [
        (torch.float32, torch.float32, False),
        (torch.bfloat16, torch.float32, False),
        (torch.float16, torch.float16, True),
        (torch.float64, torch.float64, False),
    ]
    for seed, (dtype, weights_dtype, skewed) in enumerate(cases):
        tokens, expert_ids, x, weights, g, scales = whole_layer(
            ranks, dtype, weights_dtype, seed, skewed
        )
        expected = single_process(expert_ids, x, weights, g, scales)
        mine = slice(sum(tokens[:rank]), sum(tokens[: rank + 1]))
        layer = distributed.ExpertParallel(None, ranks * OWN_EXPERTS)
        my_x, my_weights = x[mine].clone().requires_grad_(), weights[mine].clone().requires_grad_()
        own = scales[rank * OWN_EXPERTS : (rank + 1) * OWN_EXPERTS]
        y = layer(my_x, expert_ids[mine], my_weights, by_scales(own))
        y.backward(g[mine])
        for name, got, all_of_it in zip(
            ("y", "x.grad", "weights.grad"), (y.detach(), my_x.grad, my_weights.grad), expected
        ):
            assert same_bits(got, all_of_it[mine]), (rank, dtype, name)


def check_pieces(rank, ranks):
    """Dispatch with weights and combine without, and that a token travels once to a rank."""
    tokens, expert_ids, x, weights, g, scales = whole_layer(ranks, torch.float32, torch.float32, 9)
    mine = slice(sum(tokens[:rank]), sum(tokens[: rank + 1]))
    used = int((expert_ids >= 0).sum())
    all_x, all_weights = x.clone().requires_grad_(), weights.clone().requires_grad_()
    rows = ids.permute(all_x, expert_ids, all_weights, experts_num=len(scales), rows_num=used)
    weighed = rows.permuted_tokens * rows.permuted_weights.unsqueeze(1)
    all_y = ids.unpermute(weighed, rows.sorted_indices, topk=TOPK)
    all_y.backward(g)

    exchange = distributed.plan(None, expert_ids[mine], len(scales))
    owners = torch.div(expert_ids[mine], OWN_EXPERTS, rounding_mode="floor")
    pairs = {(t, p) for t, row in enumerate(owners.tolist()) for p in row if p >= 0}
    assert sum(exchange.tokens_out) == len(pairs)
    assert exchange.rows_per_expert.tolist() == rows.rows_per_expert.tolist()[
        exchange.expert_begin : exchange.expert_end
    ]
    my_x, my_weights = x[mine].clone().requires_grad_(), weights[mine].clone().requires_grad_()
    my_rows, row_weights = distributed.dispatch(exchange, my_x, my_weights)
    begin = int(rows.rows_per_expert[: exchange.expert_begin].sum())
    end = begin + exchange.rows_num
    assert same_bits(my_rows.detach(), rows.permuted_tokens.detach()[begin:end])
    y = distributed.combine(exchange, my_rows * row_weights.unsqueeze(1))
    y.backward(g[mine])
    assert same_bits(y.detach(), all_y.detach()[mine])
    assert same_bits(my_x.grad, all_x.grad[mine])
    assert same_bits(my_weights.grad, all_weights.grad[mine])


def check_faults(rank, ranks):
    expert_ids = torch.zeros(4, 2, dtype=torch.int64)
    wrong = expert_ids.clone()
    if rank == 1:
        wrong[2, 1] = 77
    with pytest.raises(IndexError, match=r"rank 1: expert_ids\[2, 1\] = 77 is outside"):
        distributed.plan(None, wrong, ranks)
    with pytest.raises(ValueError, match=r"not a positive multiple"):
        distributed.plan(None, expert_ids, ranks + 1)
    with pytest.raises(ValueError, match=r"rank 1: experts_num \d where rank 0 has"):
        distributed.plan(None, expert_ids, 2 * ranks if rank == 1 else ranks)
    exchange = distributed.plan(None, expert_ids, ranks)
    with pytest.raises(ValueError, match=r"rank 1: hidden 3 where rank 0 has 5"):
        distributed.dispatch(exchange, torch.zeros(4, 3 if rank == 1 else 5))
    with pytest.raises(ValueError, match=r"rank 1: dtype"):
        distributed.dispatch(exchange, torch.zeros(4, 5).to(torch.float16 if rank == 1 else None))
    with pytest.raises(ValueError, match=r"rank 1: tokens has shape \(3, 5\)"):
        distributed.dispatch(exchange, torch.zeros(3 if rank == 1 else 4, 5))
    distributed.dispatch(exchange, torch.zeros(4, 5))  # and the next call goes on


def check_compiled(rank, ranks):
    tokens, expert_ids, x, weights, g, scales = whole_layer(ranks, torch.float32, torch.float32, 4)
    mine = slice(sum(tokens[:rank]), sum(tokens[: rank + 1]))
    own = by_scales(scales[rank * OWN_EXPERTS : (rank + 1) * OWN_EXPERTS])
    layer = distributed.ExpertParallel(None, len(scales))

    def step(x, weights):
        return layer(x * 2, expert_ids[mine], weights, own) + 1

    eager = step(x[mine], weights[mine])
    compiled = torch.compile(step, backend="eager")(x[mine], weights[mine])
    assert same_bits(eager, compiled)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_layer(ranks):
    run_ranks(ranks, check_layer)


def test_pieces():
    run_ranks(3, check_pieces)


def test_faults():
    run_ranks(3, check_faults)


def test_compiled():
    run_ranks(2, check_compiled)


def check_megatron(rank, ranks):
    config = types.SimpleNamespace(
        num_moe_experts=ranks * OWN_EXPERTS, moe_pad_expert_input_to_capacity=False
    )
    groups = types.SimpleNamespace(ep=dist.group.WORLD, expt_tp=None)
    local = list(range(rank * OWN_EXPERTS, (rank + 1) * OWN_EXPERTS))
    dispatcher = distributed.MoEAlltoAllTokenDispatcher(OWN_EXPERTS, local, config, groups)
    tokens, expert_ids, x, weights, g, scales = whole_layer(ranks, torch.float32, torch.float32, 2)
    total, experts_num = len(x), len(scales)
    # As a map, with probabilities: the same slots, ascending in each token.
    used = expert_ids >= 0
    routing_map = torch.zeros(total, experts_num + 1, dtype=torch.bool)
    routing_map.scatter_(1, expert_ids.masked_fill(~used, experts_num), True)
    routing_map = routing_map[:, :experts_num]
    probs = torch.rand(total, experts_num, generator=torch.Generator().manual_seed(3))
    all_x, all_probs = x.clone().requires_grad_(), probs.clone().requires_grad_()
    # In one process, written out: each token's experts ascending, multiply, then add.
    expected = torch.zeros_like(x)
    for e in range(experts_num):
        term = all_x * scales[e] * all_probs[:, e : e + 1]
        expected = expected + torch.where(routing_map[:, e : e + 1], term, 0)
    expected.backward(g)

    mine = slice(sum(tokens[:rank]), sum(tokens[: rank + 1]))
    my_x, my_probs = x[mine].clone().requires_grad_(), probs[mine].clone().requires_grad_()
    states, my_weights = dispatcher.dispatch_preprocess(
        my_x.view(-1, 1, HIDDEN), routing_map[mine], my_probs
    )
    states, my_weights = dispatcher.token_dispatch(states, my_weights)
    states, per_expert, my_weights = dispatcher.dispatch_postprocess(states, my_weights)
    own = scales[local[0] : local[-1] + 1]
    states = by_scales(own)(states, per_expert) * my_weights.unsqueeze(1)
    states = dispatcher.combine_preprocess(states)
    states = dispatcher.token_combine(states)
    y = dispatcher.combine_postprocess(states)
    assert y.shape == (tokens[rank], 1, HIDDEN)
    y.backward(g[mine].view(-1, 1, HIDDEN))
    assert per_expert.tolist() == routing_map.sum(0).tolist()[local[0] : local[-1] + 1]
    assert torch.equal(y.detach().view(-1, HIDDEN), expected.detach()[mine])
    # Gradients add up in another order where autograd wrote the sum: K products, each of two
    # roundings, and K - 1 additions, of HIDDEN elements for probs.
    close = dict(rtol=0, atol=2.0**-24 * 64 * HIDDEN)
    torch.testing.assert_close(my_x.grad, all_x.grad[mine], **close)
    torch.testing.assert_close(my_probs.grad, all_probs.grad[mine], **close)


def test_megatron():
    run_ranks(3, check_megatron)


def test_megatron_signatures():
    """The installed release's methods come with its names and leading parameters."""
    source = pytest.importorskip("megatron.core.transformer.moe.token_dispatcher")
    theirs, ours = source.MoEAlltoAllTokenDispatcher, distributed.MoEAlltoAllTokenDispatcher
    for name in (
        "__init__", "preprocess", "dispatch_preprocess", "token_dispatch", "dispatch_postprocess",
        "combine_preprocess", "token_combine", "combine_postprocess", "set_shared_experts",
    ):  # fmt: skip
        expected = [p for p in inspect.signature(getattr(theirs, name)).parameters.values()
                    if p.default is p.empty]  # fmt: skip
        mine = list(inspect.signature(getattr(ours, name)).parameters.values())
        assert len(mine) >= len(expected), name
