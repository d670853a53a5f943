"""Megatron-Core's permute and unpermute, against the functions of the installed megatron-core."""

import inspect
import sys
import types

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


def test_opcheck():
    routing_map, rows_num = routing_with_full_experts(False)
    torch.library.opcheck(megatron._rows_op, (routing_map, rows_num))
    torch.library.opcheck(megatron._rows_op, (routing_map, None))
    tokens, experts = megatron._rows_op(routing_map, rows_num)
    torch.library.opcheck(megatron._slots_op, (routing_map, tokens))
    torch.library.opcheck(megatron._inverse_op, (routing_map, tokens, experts, 3))


def test_compile(tmp_path, monkeypatch):
    """With num_out_tokens shapes are known, where the release's form has them so. The form is
    looked up while PyTorch traces: megatron is a namespace package, which it cannot trace."""
    monkeypatch.delitem(sys.modules, "megatron.core", raising=False)
    monkeypatch.delitem(sys.modules, "megatron", raising=False)
    monkeypatch.syspath_prepend(checkout(tmp_path, NEW))
    routing_map, rows_num = routing_with_full_experts(False)

    def combine(tokens, probs):
        rows, _, indices = megatron.permute(tokens, routing_map, None, rows_num)[:3]
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


@pytest.mark.parametrize("padded, with_probs", MODES)
def test_second_derivatives(padded, with_probs):
    routing_map, rows_num = routing_with_full_experts(padded, tokens_num=13)
    tokens, probs = randn(13, 2), randn(13, 5, seed=2) if with_probs else None

    def both(tokens, probs=None):
        rows, row_probs, indices = megatron.permute(
            tokens, routing_map, probs, rows_num, drop_and_pad=padded
        )[:3]
        y = megatron.unpermute(
            rows * rows, indices, tokens.shape, probs, routing_map, drop_and_pad=padded
        )
        return y if row_probs is None else (y, row_probs)

    arguments = (tokens,) if probs is None else (tokens, probs)
    assert torch.autograd.gradcheck(both, arguments, check_forward_ad=True, fast_mode=True)
    assert torch.autograd.gradgradcheck(both, arguments, fast_mode=True)


# ---- which release's form -----------------------------------------------------------------------

OLD = """
def permute(tokens, routing_map, probs=None, num_out_tokens=None):
    sorted_indices = token_indices.masked_select(routing_map)
    return permuted_input, permuted_probs, sorted_indices
"""
FIVE = OLD.replace(
    "permuted_probs, sorted_indices", "permuted_probs, sorted_indices, None, tokens_per_expert"
)
NEW = """
def permute(tokens, routing_map, probs=None, num_out_tokens=None, align_size=0):
    flat_sorted = routing_map.reshape(-1).argsort(descending=True, stable=True)[:num_out_tokens]
    return permuted_input, permuted_probs, sorted_indices, None, tokens_per_expert
"""


def checkout(folder, source):
    """A source tree of Megatron, as far as the form of the result goes."""
    file = folder / "megatron" / "core" / "transformer" / "moe" / "moe_utils.py"
    file.parent.mkdir(parents=True)
    file.write_text(source)
    return str(folder)


@pytest.mark.parametrize(
    "source, form", [(OLD, (False, False)), (FIVE, (True, False)), (NEW, (True, True))]
)
def test_the_form_follows_the_imported_megatron(tmp_path, monkeypatch, source, form):
    """A checkout before the installed release on sys.path, imported or not yet."""
    path = checkout(tmp_path, source)
    monkeypatch.setitem(
        sys.modules, "megatron.core", types.SimpleNamespace(__path__=[path + "/megatron/core"])
    )
    assert tuple(megatron._form()) == form
    monkeypatch.delitem(sys.modules, "megatron.core")
    monkeypatch.delitem(sys.modules, "megatron")
    monkeypatch.syspath_prepend(path)
    assert tuple(megatron._form()) == form


def test_without_megatron_the_form_is_the_newest(monkeypatch):
    monkeypatch.delitem(sys.modules, "megatron.core", raising=False)
    monkeypatch.delitem(sys.modules, "megatron", raising=False)
    monkeypatch.setattr(sys, "path", [])
    assert megatron._form() == megatron._NEWEST


def test_the_installed_form():
    assert len(moe_utils.permute(torch.ones(2, 1), torch.eye(2, dtype=torch.bool), None, 2)) == (
        5 if megatron._form().returns_five_values else 3
    )


def test_both_forms_of_the_result(monkeypatch):
    routing_map, rows_num = routing_with_full_experts(False)
    tokens, counts = randn(37, 3), routing_map.sum(0)
    monkeypatch.setattr(megatron, "_form", lambda: megatron._NEWEST)
    new = megatron.permute(tokens, routing_map, None, rows_num, tokens_per_expert=counts)
    assert len(new) == 5 and new[1] is None and new[3] is None and new[4] is counts
    monkeypatch.setattr(megatron, "_form", lambda: megatron._Form(False, False))
    old = megatron.permute(tokens, routing_map, None, 1)
    assert len(old) == 3 and torch.equal(old[0], new[0]) and torch.equal(old[2], new[2])


def newest_permute(tokens, routing_map, probs, rows_num):
    """What the newest release documents: all pairs, set ones first, each in expert order; the
    first rows_num of them."""
    pairs = [(e, t) for e in range(routing_map.shape[1]) for t in range(len(tokens))]
    pairs = sorted(pairs, key=lambda pair: not routing_map[pair[1], pair[0]])[:rows_num]
    rows = torch.stack([tokens[t] for _, t in pairs])
    return rows, torch.stack([probs[t, e] for e, t in pairs]), torch.tensor([t for _, t in pairs])


@pytest.mark.parametrize("rows_num", [1, 4, 5, 7, 9])
def test_other_numbers_of_rows(monkeypatch, rows_num):
    """5 pairs of 9 are set: rows are cut, or filled up with pairs that are not set."""
    monkeypatch.setattr(megatron, "_form", lambda: megatron._NEWEST)
    routing_map = torch.tensor([[1, 0, 1], [0, 1, 0], [1, 1, 0]], dtype=torch.uint8) * 7
    results = []
    for permute in (megatron.permute, newest_permute):
        tokens, probs = randn(3, 2), randn(3, 3, seed=2)
        rows, row_probs, indices = permute(tokens, routing_map, probs, rows_num)[:3]
        weights = torch.arange(1, rows_num + 1)
        (rows * weights.unsqueeze(1)).sum().backward(retain_graph=True)
        (row_probs * weights).sum().backward()
        results.append((rows.detach(), row_probs.detach(), indices, tokens.grad, probs.grad))
    for mine, other in zip(*results):
        torch.testing.assert_close(mine, other, rtol=1e-14, atol=0)
    for wrong in (-1, 10):
        with pytest.raises(ValueError, match=f"num_out_tokens is {wrong}, expected 0 to 9"):
            megatron.permute(randn(3, 2), routing_map, None, wrong)


@pytest.mark.parametrize("with_probs", [False, True], ids=["plain", "probs"])
def test_batch_invariant_map(with_probs):
    """t0 -> {e0, e2}, t1 -> {e1, e2}, t2 -> {e0, e1}: the rows are t0 t2 | t1 t2 | t0 t1."""
    routing_map = torch.tensor([[1, 0, 1], [0, 1, 1], [1, 1, 0]], dtype=torch.bool)
    tokens, probs = randn(3, 2), randn(3, 3, seed=2)
    rows, _, indices, inverse_map, _ = megatron.permute(
        tokens, routing_map, probs, 6, return_batch_invariant_inverse_map=True
    )
    assert indices.tolist() == [0, 2, 1, 2, 0, 1]
    assert inverse_map.tolist() == [[[0, 4], [2, 5], [1, 3]], [[0, 2], [1, 2], [0, 1]]]
    for given in (routing_map, None) if with_probs else (None,):
        y = megatron.unpermute(
            rows,
            indices,
            tokens.shape,
            probs=probs if with_probs else None,
            routing_map=given,
            batch_invariant_inverse_map=inverse_map,
        )
        weights = (probs * routing_map).sum(1, keepdim=True) if with_probs else 2
        torch.testing.assert_close(y, tokens * weights, rtol=1e-14, atol=0)
    with pytest.raises(ValueError, match="expected no drop_and_pad and a multiple of the 3 tokens"):
        megatron.permute(tokens, routing_map, None, 5, return_batch_invariant_inverse_map=True)
    with pytest.raises(ValueError, match="1 slots a token"):
        uneven = torch.tensor([[1, 1, 1], [0, 0, 0], [0, 0, 0]])
        megatron.permute(tokens, uneven, None, 3, return_batch_invariant_inverse_map=True)


@pytest.mark.parametrize("value", [1, 2, 127, -1, 255])
def test_any_set_byte_is_one_pair(value):
    tokens = torch.arange(6.0).view(3, 2)
    routing_map = torch.tensor([[1, 0], [1, 1], [0, 1]])
    routing_map = (routing_map * value).to(torch.uint8 if value > 127 else torch.int8)
    rows, row_probs, indices = megatron.permute(tokens, routing_map, probs=torch.ones(3, 2))[:3]
    assert indices.tolist() == [0, 1, 1, 2] and torch.equal(rows, tokens[indices])
    y = megatron.unpermute(rows, indices, (3, 2), torch.full((3, 2), 3.0), routing_map)
    assert torch.equal(y, tokens * torch.tensor([[3.0], [6.0], [3.0]]))


def test_maps_of_another_length_are_refused():
    with pytest.raises(ValueError, match="tokens has 3 rows, but routing_map has 2"):
        megatron.permute(torch.ones(3, 1), torch.ones(2, 2, dtype=torch.bool))


def test_indices_of_another_map_are_refused():
    routing_map, _ = routing_with_full_experts(False)
    rows, _, indices = megatron.permute(randn(37, 3), routing_map)[:3]
    with pytest.raises(ValueError, match="do not belong together"):
        megatron.unpermute(
            rows, indices.flip(0), (37, 3), probs=randn(37, 5), routing_map=routing_map
        )
