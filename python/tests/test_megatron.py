"""Megatron-Core's permute and unpermute, against the functions of the installed megatron-core."""

import inspect

import pytest

torch = pytest.importorskip("torch")
moe_utils = pytest.importorskip("megatron.core.transformer.moe.moe_utils")

from moetoken.torch import megatron  # noqa: E402
from test_torch import randn, routing  # noqa: E402

MODES = [
    pytest.param(padded, with_probs, id=f"{'padded' if padded else 'dropless'}-{name}")
    for padded in (False, True)
    for with_probs, name in ((False, "plain"), (True, "probs"))
]


def routing_with_full_experts(padded, tokens_num=37, experts_num=5, per=3):
    """Padded, Megatron expects exactly C set tokens an expert."""
    if not padded:
        routing_map, _ = routing(False, 2, tokens_num, experts_num, per)
        return routing_map, int(routing_map.sum())
    capacity = 11
    scores = torch.rand(tokens_num, experts_num, generator=torch.Generator().manual_seed(1))
    routing_map = torch.zeros_like(scores, dtype=torch.bool)
    routing_map.scatter_(0, scores.topk(capacity, dim=0).indices, True)
    return routing_map, capacity * experts_num


@pytest.mark.parametrize("name", ["permute", "unpermute"])
def test_signatures(name):
    """The installed release's parameters come first, with its names, order and defaults."""
    theirs = list(inspect.signature(getattr(moe_utils, name)).parameters.values())
    ours = list(inspect.signature(getattr(megatron, name)).parameters.values())
    for mine, other in zip(ours, theirs):
        assert (mine.name, mine.kind) == (other.name, other.kind)
        assert mine.default == other.default or mine.name == "align_size"
    assert len(ours) >= len(theirs)


def run(functions, dtype, probs_dtype, padded, with_probs, expand, rounded_to=None):
    """Rows, indices and gradients; inputs may first be rounded to a narrower type."""
    routing_map, rows_num = routing_with_full_experts(padded)

    def inputs(seed, width, dtype):
        return randn(37, width, seed=seed, requires_grad=False).to(rounded_to or dtype).to(dtype)

    tokens = inputs(1, 19, dtype).requires_grad_()
    probs = inputs(2, 5, probs_dtype).requires_grad_() if with_probs else None
    results = functions.permute(
        tokens, routing_map, probs=probs, num_out_tokens=rows_num, drop_and_pad=padded
    )
    rows, row_probs, indices = results[:3]
    y = functions.unpermute(
        rows * 1.5,
        indices,
        tokens.shape,
        probs=probs,
        routing_map=routing_map,
        drop_and_pad=padded,
    )
    loss = y.sum() if expand else (y * inputs(3, 19, dtype)).sum()
    if row_probs is not None:
        loss = loss + (row_probs * row_probs).sum()
    loss.backward()
    gradients = [tokens.grad] + ([probs.grad, row_probs.detach()] if with_probs else [])
    return len(results), indices, rows.detach(), [y.detach(), *gradients]


@pytest.mark.parametrize("expand", [False, True], ids=["direction", "sum"])
@pytest.mark.parametrize("padded, with_probs", MODES)
def test_in_float64(padded, with_probs, expand):
    arguments = (torch.float64, torch.float64, padded, with_probs, expand)
    count, indices, rows, ours = run(megatron, *arguments)
    their_count, their_indices, their_rows, theirs = run(moe_utils, *arguments)
    assert count == their_count
    assert indices.dtype == their_indices.dtype and torch.equal(indices, their_indices)
    assert torch.equal(rows, their_rows)
    for mine, other in zip(ours, theirs):
        assert mine.dtype == other.dtype
        assert (mine - other).abs().max() <= 1e-12 * other.abs().max()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("padded, with_probs", MODES)
def test_in_half_precision(padded, with_probs, dtype):
    """At least as close to the float64 truth as Megatron's own results."""
    wide = (torch.float64, torch.float64)
    truth = run(moe_utils, *wide, padded, with_probs, False, rounded_to=dtype)[3]
    ours = run(megatron, dtype, dtype, padded, with_probs, False)[3]
    theirs = run(moe_utils, dtype, dtype, padded, with_probs, False)[3]
    for true, mine, other in zip(truth, ours, theirs):
        error, other_error = ((a.double() - true).norm() for a in (mine, other))
        assert error <= other_error * (1 + 1e-12)


@pytest.mark.parametrize(
    "dtype, probs_dtype",
    [
        (torch.bfloat16, torch.float32),
        (torch.bfloat16, torch.float64),
        (torch.float32, torch.float64),
        (torch.float32, torch.bfloat16),
    ],
)
@pytest.mark.parametrize("padded", [False, True], ids=["dropless", "padded"])
def test_mixed_types(padded, dtype, probs_dtype):
    """Probs of a wider type (moe_router_dtype) or a narrower one: types come out as Megatron's."""
    arguments = (dtype, probs_dtype, padded, True, False)
    for mine, other in zip(run(megatron, *arguments)[3], run(moe_utils, *arguments)[3]):
        assert mine.dtype == other.dtype
        scale = other.double().abs().max()
        assert (mine.double() - other.double()).abs().max() <= 0.02 * scale


@pytest.mark.parametrize("with_probs", [False, True], ids=["plain", "probs"])
def test_opcheck(with_probs):
    routing_map, rows_num = routing_with_full_experts(False)
    tokens, probs = randn(37, 3), randn(37, 5, seed=2)
    arguments = (tokens, routing_map, probs if with_probs else None, rows_num)
    torch.library.opcheck(megatron._permute_op, arguments)
    if with_probs:
        rows, _, indices = megatron._permute_op(*arguments)
        rows = rows.detach().requires_grad_()
        torch.library.opcheck(megatron._unpermute_op, (rows, indices, routing_map, probs, 3))


def test_compile():
    """With num_out_tokens shapes are known, where the installed release's form has them so."""
    routing_map, rows_num = routing_with_full_experts(False)

    def combine(tokens, probs):
        rows, _, indices = megatron._permute_op(tokens, routing_map, None, rows_num)
        return megatron.unpermute(
            torch.sin(rows), indices, tokens.shape, probs=probs, routing_map=routing_map
        )

    gradients = []
    for function in (combine, torch.compile(combine, fullgraph=True, backend="aot_eager")):
        tokens, probs = randn(37, 3), randn(37, 5, seed=2)
        function(tokens, probs).sum().backward()
        gradients.append((tokens.grad, probs.grad))
    for eager, other in zip(*gradients):
        torch.testing.assert_close(other, eager, rtol=1e-14, atol=1e-14)


def test_both_forms_of_the_result(monkeypatch):
    routing_map, rows_num = routing_with_full_experts(False)
    tokens, counts = randn(37, 3), routing_map.sum(0)
    monkeypatch.setattr(megatron, "RETURNS_FIVE_VALUES", True)
    new = megatron.permute(tokens, routing_map, None, rows_num, tokens_per_expert=counts)
    assert len(new) == 5 and new[1] is None and new[3] is None and new[4] is counts
    with pytest.raises(ValueError, match=f"num_out_tokens is 1, but routing_map has {rows_num}"):
        megatron.permute(tokens, routing_map, None, 1)
    monkeypatch.setattr(megatron, "RETURNS_FIVE_VALUES", False)
    old = megatron.permute(tokens, routing_map, None, 1)
    assert len(old) == 3 and torch.equal(old[0], new[0]) and torch.equal(old[2], new[2])


def test_indices_of_another_map_are_refused():
    routing_map, _ = routing_with_full_experts(False)
    rows, _, indices = megatron.permute(randn(37, 3), routing_map)[:3]
    with pytest.raises(ValueError, match="do not belong together"):
        megatron.unpermute(
            rows, indices.flip(0), (37, 3), probs=randn(37, 5), routing_map=routing_map
        )
