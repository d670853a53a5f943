"""vLLM's functions: against loops, with experts of other ranks, gradients, torch.compile."""

import inspect

import pytest

torch = pytest.importorskip("torch")

from moetoken.torch import vllm  # noqa: E402
from test_npu_by_ids import E, H, K, T, differentiable, ids_of  # noqa: E402
from test_torch import randn  # noqa: E402

MAPS = {
    "all here": None,
    "the middle": [-1, 0, 1, -1],
    "another order": [2, 0, -1, 1],
    "none": [-1, -1, -1, -1],
}


def test_signatures():
    """As vllm.model_executor.layers.fused_moe.moe_permute_unpermute has them."""
    assert list(inspect.signature(vllm.moe_permute).parameters) == [
        "hidden_states", "a1q_scale", "topk_ids", "n_expert", "n_local_expert", "expert_map",
        "permuted_hidden_states", "scratch",
    ]  # fmt: skip
    assert list(inspect.signature(vllm.moe_unpermute).parameters) == [
        "out", "permuted_hidden_states", "topk_weights", "inv_permuted_idx",
        "expert_first_token_offset",
    ]  # fmt: skip
    assert vllm.moe_permute_unpermute_supported() is True


def local_numbers(name):
    """(expert_map or None, the local number of each expert, how many are local)."""
    if MAPS[name] is None:
        return None, list(range(E)), E
    local = MAPS[name]
    return torch.tensor(local, dtype=torch.int32), local, sum(e >= 0 for e in local)


def sorted_slots(ids, local):
    """(key, slot) in the order of the rows: local experts, nobody's ids, other ranks' experts."""
    keys = []
    for slot, e in enumerate(ids.flatten().tolist()):
        if not 0 <= e < E:
            keys.append((E, slot))
        else:
            keys.append((local[e] if local[e] >= 0 else E + e, slot))
    return sorted(keys)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("name", MAPS)
def test_permute(name, dtype):
    expert_map, local, local_num = local_numbers(name)
    for seed in range(10):
        hidden, scale = randn(T, H, requires_grad=False), torch.rand(T, 3)
        ids = ids_of(seed, -1).to(dtype)
        ids[seed % T, 0] = E + seed  # nobody's
        into = torch.full((T * K, H), 7.0, dtype=hidden.dtype) if seed % 2 else None
        rows, scales, offsets, inverse, slots = vllm.moe_permute(
            hidden, scale, ids, E, local_num, expert_map, into
        )
        order = sorted_slots(ids, local)
        used = sum(key < local_num for key, _ in order)
        expected, places = torch.zeros(T * K, H, dtype=hidden.dtype), [0] * (T * K)
        for row, (_, slot) in enumerate(order):
            places[slot] = row
            if row < used:
                expected[row] = hidden[slot // K]
                assert torch.equal(scales[row], scale[slot // K])
        assert torch.equal(rows, expected) and (into is None or rows is into)
        assert inverse.dtype == torch.int32 and inverse.tolist() == places
        assert slots.dtype == torch.int32
        assert slots.tolist() == [s for _, s in order[:used]] + [T * K] * (T * K - used)
        firsts = [sum(key < e for key, _ in order) for e in range(local_num + 1)]
        assert offsets.dtype == torch.int64 and offsets.tolist() == firsts


def test_a_scale_of_the_whole_tensor_stays():
    scale = torch.tensor([0.5])
    assert vllm.moe_permute(torch.ones(T, H), scale, ids_of(0), E)[1] is scale
    assert vllm.moe_permute(torch.ones(T, H), None, ids_of(0), E)[1] is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", MAPS)
def test_unpermute(name, dtype):
    expert_map, local, local_num = local_numbers(name)
    hidden, ids = torch.arange(T * H).view(T, H).to(dtype), ids_of(5, -1)
    rows, _, offsets, inverse, _ = vllm.moe_permute(hidden, None, ids, E, local_num, expert_map)
    rows[offsets[-1] :] = float("nan")  # nobody reads them
    weights = torch.randint(-4, 5, (T, K)).float()  # small whole numbers: all sums are exact
    expected = torch.zeros(T, H)
    for t in range(T):
        for k in range(K):
            e = int(ids[t, k])
            if e >= 0 and local[e] >= 0:
                expected[t] += weights[t, k] * hidden[t].float()
    out = torch.full((T, H), 7.0, dtype=dtype)
    assert vllm.moe_unpermute(out, rows, weights, inverse, offsets) is None
    assert torch.equal(out.float(), expected.to(dtype).float())
    if local_num == E:
        rows.nan_to_num_(0.0)
        again = torch.empty_like(out)
        vllm.moe_unpermute(again, rows, weights, inverse)
        assert torch.equal(again, out)


def layer(hidden, scale, weights, ids, expert_map):
    rows, scales, offsets, inverse, _ = vllm.moe_permute(hidden, scale, ids, E, 2, expert_map)
    out = torch.empty_like(hidden)
    vllm.moe_unpermute(out, (rows * scales).sin(), weights, inverse, offsets)
    return out


def test_derivatives():
    ids, expert_map = ids_of(4, -1), torch.tensor(MAPS["the middle"])
    differentiable(
        lambda hidden, scale, weights: layer(hidden, scale, weights, ids, expert_map),
        randn(T, H),
        randn(T, 1, seed=2),
        randn(T, K, seed=3),
    )


def test_compile_fullgraph():
    ids, expert_map, gradients = ids_of(4, -1), torch.tensor(MAPS["the middle"]), []
    for function in (layer, torch.compile(layer, fullgraph=True, backend="aot_eager")):
        arguments = randn(T, H), randn(T, 1, seed=2), randn(T, K, seed=3)
        function(*arguments, ids, expert_map).sum().backward()
        gradients.append([a.grad for a in arguments])
    for eager, compiled in zip(*gradients):
        assert eager.abs().max() > 0
        torch.testing.assert_close(compiled, eager, rtol=1e-13, atol=1e-13)


def test_autograd_hears_of_what_is_written():
    """A tensor that a backward pass still needs is written: autograd refuses that pass."""
    buffer = torch.full((T * K, H), 5.0, dtype=torch.float64)
    w = torch.ones(T * K, H, dtype=torch.float64, requires_grad=True)
    loss = (w * buffer).sum()
    vllm.moe_permute(randn(T, H), None, ids_of(0), E, permuted_hidden_states=buffer)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_sums_that_are_made_in_place():
    """Into a tensor that autograd watches, over a view of it, and over the rows themselves."""
    rows, inverse = torch.arange(8.0).view(4, 2), torch.tensor([0, 2, 1, 3])
    weights, expected = torch.ones(2, 2), torch.tensor([[4.0, 6.0], [8.0, 10.0]])
    out, w = torch.full((2, 3), 5.0), torch.ones(2, 3, requires_grad=True)
    loss = (w * out).sum()
    vllm.moe_unpermute(out[:, :2], rows, weights, inverse)
    assert torch.equal(out, torch.cat([expected, torch.full((2, 1), 5.0)], 1))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    vllm.moe_unpermute(rows[1:3], rows, weights, inverse)
    assert torch.equal(rows, torch.cat([torch.tensor([[0.0, 1.0]]), expected, rows[3:]]))


@pytest.mark.parametrize("tokens_num, topk", [(0, 2), (2, 0)])
def test_nothing(tokens_num, topk):
    ids = torch.zeros(tokens_num, topk, dtype=torch.int32)
    hidden, scale = torch.ones(tokens_num, H), torch.ones(tokens_num, 1)
    rows, scales, offsets, inverse, slots = vllm.moe_permute(hidden, scale, ids, E)
    assert rows.shape == (0, H) and scales.shape == (0, 1) and offsets.tolist() == [0] * (E + 1)
    assert inverse.shape == slots.shape == (0,)
    out = torch.full((tokens_num, H), 7.0)
    vllm.moe_unpermute(out, rows, torch.ones(tokens_num, topk), inverse, offsets)
    assert torch.equal(out, torch.zeros(tokens_num, H))


ONE, IDS = torch.ones(2, 1), torch.zeros(2, 1, dtype=torch.int32)
WRONG = {
    "lengths": (
        lambda: vllm.moe_permute(torch.ones(3, 1), None, IDS, 1),
        r"hidden_states has shape \[3, 1\], topk_ids \[2, 1\]",
    ),
    "map": (
        lambda: vllm.moe_permute(ONE, None, IDS, 1, 1, torch.zeros(2).int()),
        r"expert_map has shape \[2\], expected \[1\], n_expert",
    ),
    "number of local experts": (
        lambda: vllm.moe_permute(ONE, None, IDS, 1, -2),
        "n_local_expert = -2",
    ),
    "number of experts": (lambda: vllm.moe_permute(ONE, None, IDS, -1), "n_expert = -1"),
    "rows of another shape": (
        lambda: vllm.moe_permute(ONE, None, IDS, 1, permuted_hidden_states=torch.ones(3, 1)),
        r"permuted_hidden_states is \[3, 1\]",
    ),
    "out of another type": (
        lambda: vllm.moe_unpermute(ONE.double(), ONE, ONE, torch.arange(2)),
        "out is .* of torch.float64, expected .* of torch.float32",
    ),
    "indices": (
        lambda: vllm.moe_unpermute(ONE, ONE, ONE, torch.arange(3)),
        r"inv_permuted_idx has 3 entries, expected T \* K = 2 \* 1",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_refused(name):
    call, match = WRONG[name]
    with pytest.raises(ValueError, match=match):
        call()
