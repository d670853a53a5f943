"""TransformerEngine's functions for map_type "index": against loops, gradients, torch.compile."""

import inspect

import pytest

torch = pytest.importorskip("torch")

from moetoken.torch import transformer_engine as te  # noqa: E402
from test_npu_by_ids import H, K, T, differentiable, ids_of, in_order  # noqa: E402
from test_torch import randn  # noqa: E402


def test_signatures():
    """As transformer_engine.pytorch 2.x has them; num_out_tokens may be left out, as before."""
    assert list(inspect.signature(te.moe_permute).parameters) == [
        "inp", "routing_map", "num_out_tokens", "max_token_num", "map_type"
    ]  # fmt: skip
    assert list(inspect.signature(te.moe_unpermute).parameters) == [
        "inp", "row_id_map", "merging_probs", "restore_shape", "map_type", "probs", "pad_offsets"
    ]  # fmt: skip


@pytest.mark.parametrize("low", [0, -1])
@pytest.mark.parametrize("num_out_tokens", [-1, 0, 4, T * K, 20])
def test_permute(num_out_tokens, low):
    """Entry k * T + t of row_id_map is the row of choice k of token t; dropped ones are -1."""
    for seed in range(10):
        inp, ids = randn(T, H, requires_grad=False), ids_of(seed, low)
        rows, row_id_map = te.moe_permute(inp, ids, num_out_tokens, map_type="index")
        rows_num = num_out_tokens if num_out_tokens > 0 else T * K
        expected, places = torch.zeros(rows_num, H, dtype=inp.dtype), [-1] * (T * K)
        for row, (_, slot) in enumerate(in_order(ids)[:rows_num]):
            t, k = divmod(slot, K)
            expected[row], places[k * T + t] = inp[t], row
        assert torch.equal(rows, expected)
        assert row_id_map.dtype == torch.int32 and row_id_map.tolist() == places


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_unpermute(dtype):
    inp = torch.arange(T * H).view(T, H).to(dtype)
    ids = ids_of(3, -1)
    rows, row_id_map = te.moe_permute(inp, ids, 9, map_type="index")
    probs = torch.randint(-4, 5, (T, K)).float()  # small whole numbers: all sums are exact
    expected = torch.zeros(T, H)
    for _, slot in in_order(ids)[:9]:
        t, k = divmod(slot, K)
        expected[t] += probs[t, k] * inp[t].float()
    y = te.moe_unpermute(rows, row_id_map, probs, torch.Size([T, H]), map_type="index")
    assert y.dtype == dtype and torch.equal(y.float(), expected.to(dtype).float())
    assert torch.equal(te.moe_unpermute(rows, row_id_map, map_type="index", probs=probs), y)


def test_unpermute_without_probs_sums_nothing():
    """K is 1 then, as it is there: one result an entry, zero where that is -1."""
    rows = torch.tensor([[1.0], [2.0], [3.0]])
    y = te.moe_unpermute(rows, torch.tensor([2, -1, 0, 0]), map_type="index")
    assert y.flatten().tolist() == [3.0, 0.0, 1.0, 1.0]


def layer(inp, probs, ids):
    rows, row_id_map = te.moe_permute(inp, ids, 11, map_type="index")
    return te.moe_unpermute(rows * rows, row_id_map, probs, map_type="index")


def test_derivatives():
    ids = ids_of(4, -1)
    differentiable(lambda inp, probs: layer(inp, probs, ids), randn(T, H), randn(T, K, seed=2))


def test_compile_fullgraph():
    ids, gradients = ids_of(4, -1), []
    for function in (layer, torch.compile(layer, fullgraph=True, backend="aot_eager")):
        arguments = randn(T, H), randn(T, K, seed=2)
        function(*arguments, ids).sin().sum().backward()
        gradients.append([a.grad for a in arguments])
    for eager, compiled in zip(*gradients):
        assert eager.abs().max() > 0
        torch.testing.assert_close(compiled, eager, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("tokens_num, topk", [(0, 2), (2, 0)])
def test_nothing(tokens_num, topk):
    ids = torch.zeros(tokens_num, topk, dtype=torch.int32)
    rows, row_id_map = te.moe_permute(torch.ones(tokens_num, H), ids, map_type="index")
    assert rows.shape == (0, H) and row_id_map.shape == (0,)
    y = te.moe_unpermute(rows, row_id_map, torch.ones(tokens_num, topk), map_type="index")
    assert torch.equal(y, torch.zeros(tokens_num, H))


ONE, IDS = torch.ones(2, 1), torch.zeros(2, 1, dtype=torch.int32)
WRONG = {
    "map_type of permute": (lambda: te.moe_permute(ONE, IDS, map_type="rows"), "map_type = 'rows'"),
    "map_type of unpermute": (
        lambda: te.moe_unpermute(ONE, IDS[0], map_type="rows"),
        "map_type = 'rows'",
    ),
    "lengths": (
        lambda: te.moe_permute(torch.ones(3, 1), IDS, map_type="index"),
        r"inp has shape \[3, 1\], routing_map \[2, 1\]",
    ),
    "map": (
        lambda: te.moe_unpermute(ONE, torch.arange(3), torch.ones(2, 2), map_type="index"),
        r"row_id_map has shape \[3\], expected \[T \* K\], T = 2 and K = 2",
    ),
    "vector of probs": (
        lambda: te.moe_unpermute(ONE, torch.arange(4), torch.ones(2), map_type="index"),
        r"merging_probs has 1 dimension, expected 2",
    ),
    "both probs": (
        lambda: te.moe_unpermute(ONE, torch.arange(2), ONE, map_type="index", probs=ONE),
        "merging_probs and probs are given",
    ),
    "pad_offsets": (
        lambda: te.moe_unpermute(ONE, torch.arange(2), map_type="index", pad_offsets=ONE),
        "pad_offsets is given",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_refused(name):
    call, match = WRONG[name]
    with pytest.raises(ValueError, match=match):
        call()


def test_masks_are_referred_to_megatron():
    for call in (lambda: te.moe_permute(ONE, IDS, 2), lambda: te.moe_unpermute(ONE, IDS[0])):
        with pytest.raises(NotImplementedError, match='map_type = "mask".*megatron'):
            call()
