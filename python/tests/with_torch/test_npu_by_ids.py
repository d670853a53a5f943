"""The plug-in's functions by expert ids: against loops over their formulas, and gradients."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from moetoken.torch import npu  # noqa: E402
from test_torch import randn  # noqa: E402

T, K, E, H = 5, 3, 4, 2


def ids_of(seed, low=0, tokens_num=T, topk=K, experts_num=E):
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.integers(low, experts_num, (tokens_num, topk)).astype(np.int32))


def in_order(expert_idx, begin=0, end=10**9):
    """The used slots by expert, inside an expert in slot order: (expert, slot)."""
    pairs = [(e, i) for i, e in enumerate(expert_idx.flatten().tolist()) if begin <= e < end]
    return sorted(pairs)


def differentiable(function, *arguments):
    """The first results of a function that are floats, for gradcheck."""
    assert torch.autograd.gradcheck(function, arguments, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(function, arguments)


# ---- token_permute, token_unpermute -------------------------------------------------------------


@pytest.mark.parametrize("low", [0, -1])
@pytest.mark.parametrize("num_out_tokens", [None, 0, 4, 100, -3])
def test_token_permute(num_out_tokens, low):
    for seed in range(10):
        tokens, indices = randn(T, H, requires_grad=False), ids_of(seed, low)
        rows, sorted_indices = npu.npu_moe_token_permute(tokens, indices, num_out_tokens)
        wanted = num_out_tokens or 0
        rows_num = min(wanted, T * K) if wanted > 0 else T * K + wanted
        expected = torch.zeros(rows_num, H, dtype=tokens.dtype)
        places = [-1] * (T * K)
        for row, (_, slot) in enumerate(in_order(indices)):
            places[slot] = row  # rows that are cut keep their number
            if row < rows_num:
                expected[row] = tokens[slot // K]
        assert sorted_indices.dtype == torch.int32 and sorted_indices.tolist() == places
        assert torch.equal(rows, expected)


def test_token_permute_takes_any_ids():
    """One expert a token, ids far apart; the plug-in asks for no number of experts."""
    rows, indices = npu.npu_moe_token_permute(
        torch.tensor([[1.0], [2.0], [3.0], [4.0]]), torch.tensor([10**12, 7, -1, 10**9])
    )
    assert indices.tolist() == [2, 0, -1, 1] and rows.flatten().tolist() == [2, 4, 1, 0]


@pytest.mark.parametrize("probs_dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_token_unpermute_takes_all_types(dtype, probs_dtype):
    indices = npu.npu_moe_token_permute(torch.zeros(T, H), ids_of(0))[1]
    rows = torch.arange(T * K * H).reshape(-1, H).to(dtype)
    probs = torch.full((T, K), 0.5, dtype=probs_dtype, requires_grad=True)
    y = npu.npu_moe_token_unpermute(rows, indices, probs)
    expected = rows[indices.long()].double().view(T, K, H).sum(1) / 2
    assert y.dtype == dtype and torch.equal(y.double(), expected.to(dtype).double())
    y.sum().backward()
    assert probs.grad.dtype == probs_dtype


def test_token_unpermute_skips_rows_that_are_cut():
    """sorted_indices of a call with num_out_tokens still name the rows that are not there."""
    indices = torch.tensor([[0, 1], [1, 0], [2, 1]])
    tokens = torch.tensor([[1.0], [2.0], [4.0]], dtype=torch.float64, requires_grad=True)
    rows, sorted_indices = npu.npu_moe_token_permute(tokens, indices, 4)
    assert sorted_indices.tolist() == [0, 2, 3, 1, 5, 4]
    y = npu.npu_moe_token_unpermute(rows, sorted_indices, torch.ones(3, 2, dtype=torch.float64))
    assert y.flatten().tolist() == [2.0, 4.0, 0.0]
    y.sum().backward()
    assert tokens.grad.flatten().tolist() == [2.0, 2.0, 0.0]


def test_a_row_that_abs_made_of_a_hole():
    """User code takes abs() of -1 and gives such slots weight 0: row 1 twice, once for nothing."""
    rows = torch.tensor([[1.0], [float("nan")], [4.0]])
    indices = torch.tensor([0, -1, 2, -1]).abs()
    y = npu.npu_moe_token_unpermute(rows, indices, torch.tensor([[1.0, 0.0], [2.0, 0.0]]))
    assert y.flatten().tolist() == [1.0, 8.0]


def test_token_permute_and_unpermute_are_differentiable():
    indices = ids_of(3)

    def both(tokens, probs):
        rows, sorted_indices = npu.npu_moe_token_permute(tokens, indices, 11)
        return npu.npu_moe_token_unpermute(rows * rows, sorted_indices, probs)

    differentiable(both, randn(T, H), randn(T, K, seed=2))


# ---- init_routing -------------------------------------------------------------------------------


@pytest.mark.parametrize("active_num", [0, 2, T, 100])
def test_init_routing(active_num):
    """Slots are numbered k * T + t."""
    x, expert_idx = randn(T, H, requires_grad=False), ids_of(1)
    row_idx = torch.arange(T * K, dtype=torch.int32).view(K, T).T
    expanded, row_of_slot, sorted_ids = npu.npu_moe_init_routing(x, row_idx, expert_idx, active_num)
    rows_num = min(T, active_num) * K
    order = in_order(expert_idx)
    assert sorted_ids.tolist() == [e for e, _ in order] and sorted_ids.dtype == torch.int32
    for row, (_, slot) in enumerate(order):
        t, k = divmod(slot, K)
        assert row_of_slot[k * T + t] == row
        assert row >= rows_num or torch.equal(expanded[row], x[t])
    assert expanded.shape == (rows_num, H) and row_of_slot.dtype == torch.int32
    differentiable(
        lambda x: npu.npu_moe_init_routing(x, row_idx, expert_idx, active_num)[0].sin(),
        x.requires_grad_(),
    )


@pytest.mark.parametrize("expert_range", [(), (1, 3)])
@pytest.mark.parametrize("active_num", [-1, 0, 4, 100])
@pytest.mark.parametrize("row_idx_type", [0, 1])
@pytest.mark.parametrize("num_type", [0, 1, 2])
def test_init_routing_v2(expert_range, active_num, row_idx_type, num_type):
    x, scale = randn(T, H, requires_grad=False), randn(T, requires_grad=False).float()
    begin, end = expert_range or (0, E)
    for seed in range(3):
        expert_idx = ids_of(seed, -1)
        rows, index, counts, scales = npu.npu_moe_init_routing_v2(
            x,
            expert_idx,
            scale=scale,
            active_num=active_num,
            expert_num=E,
            expert_tokens_num_type=num_type,
            expert_tokens_num_flag=True,
            active_expert_range=list(expert_range),
            row_idx_type=row_idx_type,
        )
        order = in_order(expert_idx, begin, end)
        rows_num = min(active_num, T * K) if active_num > 0 else T * K
        assert rows.shape == (rows_num, H) and index.dtype == torch.int32
        for row in range(rows_num):
            t = order[row][1] // K if row < len(order) else None
            assert torch.equal(rows[row], torch.zeros(H) if t is None else x[t])
            assert scales[row] == (0 if t is None else scale[t])
        expected = [-1] * (T * K)
        for row, (_, slot) in enumerate(order):
            expected[slot if row_idx_type == 0 else row] = row if row_idx_type == 0 else slot
        assert index.tolist() == expected
        found = [sum(e == expert for e, _ in order) for expert in range(begin, end)]
        pairs = [[begin + i, n] for i, n in enumerate(found) if n]
        wanted = {
            0: np.cumsum(found).tolist(),
            1: found,
            2: pairs + [[0, 0]] * (E - len(pairs)),
        }
        assert counts.dtype == torch.int64 and counts.tolist() == wanted[num_type]


@pytest.mark.parametrize("row_idx_type", [0, 1])
def test_init_routing_v2_with_capacity(row_idx_type):
    capacity = 2
    x = randn(T, H, requires_grad=False)
    for seed in range(5):
        expert_idx = ids_of(seed, -1)
        rows, index, counts, scales = npu.npu_moe_init_routing_v2(
            x,
            expert_idx,
            expert_capacity=capacity,
            expert_num=E,
            drop_pad_mode=1,
            expert_tokens_num_type=1,
            expert_tokens_num_flag=True,
            row_idx_type=row_idx_type,
        )
        of_slot, of_row = [-1] * (T * K), [-1] * (E * capacity)
        expected = torch.zeros(E, capacity, H, dtype=x.dtype)
        for e in range(E):
            for c, (_, slot) in enumerate(in_order(expert_idx, e, e + 1)[:capacity]):
                expected[e, c] = x[slot // K]
                of_slot[slot], of_row[e * capacity + c] = e * capacity + c, slot
        assert torch.equal(rows, expected) and scales.numel() == 0
        assert index.tolist() == (of_slot if row_idx_type == 0 else of_row)
        assert counts.tolist() == [len(in_order(expert_idx, e, e + 1)) for e in range(E)]
    differentiable(
        lambda x: npu.npu_moe_init_routing_v2(
            x, expert_idx, expert_capacity=capacity, expert_num=E, drop_pad_mode=1
        )[0].sin(),
        x.requires_grad_(),
    )


@pytest.mark.parametrize("dtype", [torch.int8, torch.bfloat16])
def test_init_routing_v2_takes_whole_numbers(dtype):
    """Tokens that were quantised before are moved like others; rows of nobody are zero."""
    x, expert_idx = (
        torch.tensor([[1], [2], [3]], dtype=dtype),
        torch.tensor([[1, 0], [0, -1], [1, 3]]),
    )
    rows = npu.npu_moe_init_routing_v2(x, expert_idx, expert_num=4, active_expert_range=[0, 2])[0]
    assert rows.dtype == dtype and rows.flatten().tolist() == [1, 2, 1, 3, 0, 0]
    padded = npu.npu_moe_init_routing_v2(
        x, expert_idx, expert_num=4, expert_capacity=1, drop_pad_mode=1
    )[0]
    assert padded.dtype == dtype and padded.flatten().tolist() == [1, 1, 0, 3]


# ---- finalize_routing ---------------------------------------------------------------------------


@pytest.mark.parametrize("drop_pad_mode", [0, 1, 2, 3])
@pytest.mark.parametrize("given", ["all", "scales", "nothing"])
def test_finalize_routing(drop_pad_mode, given):
    """out[t] = skip1 + skip2 + sum over k of scales * (row + bias); slots of -1 add nothing."""
    expert_idx = ids_of(2)
    topk = K if given != "nothing" else 1
    rng = np.random.default_rng(3)
    order = rng.permutation(T * topk)
    order[rng.integers(T * topk)] = -1
    rows = randn(T * topk, H, requires_grad=False)
    everything = given == "all"
    skip1, skip2 = (
        randn(T, H, seed=s, requires_grad=False) if everything else None for s in (4, 5)
    )
    bias = randn(E, H, seed=6, requires_grad=False) if everything else None
    scales = randn(T, K, seed=7, requires_grad=False) if given != "nothing" else None
    columns = drop_pad_mode < 2
    index = torch.from_numpy(order.reshape(T, topk).T if columns else order).reshape(-1)
    arguments = rows.view(topk, T, H) if drop_pad_mode % 2 else rows
    found = npu.npu_moe_finalize_routing(
        arguments, skip1, skip2, bias, scales, index.int(), expert_idx, drop_pad_mode
    )
    expected = np.zeros((T, H))
    for t in range(T):
        if everything:
            expected[t] = skip1[t] + skip2[t]
        for k in range(topk):
            row = order[t * topk + k]
            if row >= 0:
                term = rows[row] + (bias[expert_idx[t, k]] if everything else 0)
                expected[t] += np.asarray(term * (1 if scales is None else scales[t, k]))
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    if everything:
        values = [a.requires_grad_() for a in (rows, skip1, skip2, bias, scales)]
        differentiable(
            lambda *v: (
                npu.npu_moe_finalize_routing(*v, index, expert_idx, drop_pad_mode)
                if drop_pad_mode % 2 == 0
                else npu.npu_moe_finalize_routing(
                    v[0].view(topk, T, H), *v[1:], index, expert_idx, drop_pad_mode
                )
            ),
            *values,
        )


# ---- re_routing ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("idx_type", [0, 1])
@pytest.mark.parametrize("num_type", [0, 1])
def test_re_routing(dtype, idx_type, num_type):
    """Two ranks, three experts: rank 0 sent 1, 0, 2 tokens, rank 1 sent 2, 1, 0."""
    counts = torch.tensor([[1, 0, 2], [2, 1, 0]])
    tokens = torch.arange(6).unsqueeze(1).to(dtype)
    scales = torch.arange(6).float() * 10
    moved, moved_scales, index, totals = npu.npu_moe_re_routing(
        tokens, counts, per_token_scales=scales, expert_token_num_type=num_type, idx_type=idx_type
    )
    assert moved.flatten().tolist() == [0, 3, 4, 5, 1, 2] and moved.dtype == dtype
    assert moved_scales.tolist() == [0.0, 30.0, 40.0, 50.0, 10.0, 20.0]
    assert index.tolist() == ([0, 3, 4, 5, 1, 2] if idx_type == 0 else [0, 4, 5, 1, 2, 3])
    assert index.dtype == torch.int32 and totals.dtype == counts.dtype
    assert totals.tolist() == ([3, 4, 6] if num_type == 0 else [3, 1, 2])


def test_re_routing_is_differentiable():
    counts = torch.tensor([[1, 0, 2], [2, 1, 0]], dtype=torch.int32)
    differentiable(
        lambda t, s: tuple(
            r.sin() for r in npu.npu_moe_re_routing(t, counts, per_token_scales=s)[:2]
        ),
        randn(6, H),
        randn(6, seed=2),
    )


# ---- all of them --------------------------------------------------------------------------------


def test_opcheck():
    torch.library.opcheck(torch.ops.moetoken.ids_rows, (ids_of(1, -1),))
    torch.library.opcheck(torch.ops.moetoken.ids_rows, (torch.tensor([10**12, -5, 7]),))
    counts = torch.tensor([[1, 0, 2], [2, 1, 0]])
    torch.library.opcheck(torch.ops.moetoken.npu_experts_of_ranks, (counts, 6))


def test_ids_beyond_32_bits_are_refused():
    """They would name experts that are there if they were cut."""
    ids = torch.tensor([[2**32], [1]])
    with pytest.raises(IndexError, match=rf"expert_idx\[0, 0\] = {2**32}"):
        npu.npu_moe_init_routing_v2(torch.ones(2, 1), ids, expert_num=4)


def test_compile_fullgraph():
    expert_idx = ids_of(1)
    row_idx = torch.arange(T * K, dtype=torch.int32).view(K, T).T.contiguous()
    counts = torch.tensor([[1, 2], [2, 0]])

    def layer(x, scales):
        first, index, _ = npu.npu_moe_init_routing(x, row_idx, expert_idx, T)
        y = npu.npu_moe_finalize_routing(first.sin(), x, None, None, scales, index, expert_idx)
        rows, index, _, _ = npu.npu_moe_init_routing_v2(y, expert_idx, expert_num=E)
        y = npu.npu_moe_finalize_routing(rows.cos(), None, None, None, scales, index, None, 2)
        rows, index = npu.npu_moe_token_permute(y, expert_idx)
        y = npu.npu_moe_token_unpermute(rows.exp(), index, scales)
        return npu.npu_moe_re_routing(y, counts)[0]

    gradients = []
    for function in (layer, torch.compile(layer, fullgraph=True, backend="aot_eager")):
        arguments = randn(T, H), randn(T, K, seed=2)
        y = function(*arguments)
        (y * torch.arange(T).unsqueeze(1)).sum().backward()
        gradients.append((y.detach(), *(a.grad for a in arguments)))
    for eager, other in zip(*gradients):
        assert eager.abs().max() > 0
        torch.testing.assert_close(other, eager, rtol=1e-13, atol=1e-13)


WRONG = {
    "padded permute": (
        lambda: npu.npu_moe_token_permute(torch.ones(2, 1), torch.ones(2, 1).int(), None, True),
        "padded_mode = True",
    ),
    "padded unpermute": (
        lambda: npu.npu_moe_token_unpermute(torch.ones(2, 1), torch.arange(2), None, True),
        "padded_mode = True",
    ),
    "lengths": (
        lambda: npu.npu_moe_token_permute(torch.ones(3, 1), torch.ones(2, 1).int()),
        r"indices has shape \[2, 1\]",
    ),
    "topk": (
        lambda: npu.npu_moe_token_unpermute(torch.ones(3, 1), torch.arange(3), torch.ones(2, 2)),
        r"sorted_indices has shape \[3\], expected \[T \* K\], K = 2",
    ),
    "active_num": (
        lambda: npu.npu_moe_init_routing(
            torch.ones(1, 1), torch.zeros(1, 1).int(), torch.zeros(1, 1).int(), -1
        ),
        "active_num = -1",
    ),
    "expert_num": (
        lambda: npu.npu_moe_init_routing_v2(torch.ones(1, 1), torch.zeros(1, 1).int()),
        "expert_num = -1",
    ),
    "range": (
        lambda: npu.npu_moe_init_routing_v2(
            torch.ones(1, 1), torch.zeros(1, 1).int(), expert_num=4, active_expert_range=[3, 1]
        ),
        r"active_expert_range = \[3, 1\]",
    ),
    "capacity": (
        lambda: npu.npu_moe_init_routing_v2(
            torch.ones(1, 1), torch.zeros(1, 1).int(), expert_num=4, drop_pad_mode=1
        ),
        "expert_capacity = -1",
    ),
    "bias without ids": (
        lambda: npu.npu_moe_finalize_routing(
            torch.ones(1, 1), None, None, torch.ones(1, 1), None, torch.zeros(1).int(), None
        ),
        "export_for_source_row is None",
    ),
    "skip2 alone": (
        lambda: npu.npu_moe_finalize_routing(
            torch.ones(1, 1), None, torch.ones(1, 1), None, None, torch.zeros(1).int(), None
        ),
        "skip1 is NULL, expected a tensor as skip2 is given",
    ),
    "counts": (
        lambda: npu.npu_moe_re_routing(torch.ones(3, 1), torch.tensor([[1, 1]])),
        "expert_token_num_per_rank adds up to 2",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_refused(name):
    call, match = WRONG[name]
    with pytest.raises(ValueError, match=match):
        call()


def test_quantised_modes_are_refused():
    with pytest.raises(NotImplementedError, match="^tokens_dtype = 291"):
        npu.npu_moe_re_routing(torch.zeros(2, 4), torch.ones(1, 2).long(), tokens_dtype=291)
    with pytest.raises(NotImplementedError, match="quant_mode = 1"):
        npu.npu_moe_init_routing_v2(torch.ones(1, 1), torch.zeros(1, 1).int(), quant_mode=1)
