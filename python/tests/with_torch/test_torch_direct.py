"""Calls of plain tensors, which C does from the arguments to the results: the same as without."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis.strategies import floats, integers, lists

torch = pytest.importorskip("torch")

import moetoken  # noqa: E402
import moetoken.torch as mt  # noqa: E402
from moetoken import _library  # noqa: E402
from moetoken.torch import _by_ids, _direct, _indices, _operators, ids, megatron  # noqa: E402
from moetoken.torch._direct import is_plain  # noqa: E402

IN_C = pytest.mark.skipif(not _direct._IN_C, reason="this PyTorch has not what C needs")
HERE = Path(__file__).parent


# ---- with and without: every call below is made in two processes --------------------------------


def routings():
    """(routing_map, expert_ids, weights [T, E], whether padded, num_out_tokens, hidden size)."""
    generator = torch.Generator().manual_seed(5)
    for tokens_num, experts_num, topk, hidden in ((1, 8, 2, 16), (7, 5, 3, 3), (0, 4, 2, 8)):
        weights = torch.rand(tokens_num, experts_num, generator=generator)
        top = weights.topk(topk).indices
        routing_map = torch.zeros_like(weights, dtype=torch.bool).scatter_(1, top, True)
        yield routing_map, top, weights, False, tokens_num * topk, hidden
        yield routing_map, top.int(), weights, True, experts_num * min(tokens_num, 2), hidden
    weights = torch.rand(300, 4, generator=generator)
    top = weights.topk(2).indices
    routing_map = torch.zeros_like(weights, dtype=torch.uint8).scatter_(1, top, 1)
    yield routing_map, top, weights, False, 600, 600  # outputs of over a mebibyte


def good_calls():
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        for routing_map, top, weights, padded, slots_num, hidden in routings():
            generator = torch.Generator().manual_seed(6)
            tokens_num, experts_num = routing_map.shape
            x = torch.randn(tokens_num, hidden, generator=generator).to(dtype)
            for probs in (None, weights.to(dtype)):
                first = (x, routing_map, probs, slots_num, padded)
                yield mt.permute, first, {"index_dtype": torch.int64}
                rows, row_probs, indices = mt.permute(*first)
                last = dict(routing_map=routing_map, probs=probs, drop_and_pad=padded)
                sizes = dict(restore_shape=(tokens_num, hidden))
                yield mt.unpermute, (rows, indices), {**last, **sizes}
                found = mt.unpermute_with_indices(rows, indices, **last, **sizes)
                yield mt.unpermute_grad, (x, *found[1:3]), {**last, "permuted_tokens": rows}
                if probs is not None:
                    tolerant = dict(tolerate_routing_mismatch=True, output_mask=(True, False))
                    yield mt.unpermute_grad, (x, *found[1:3]), {**last, **tolerant}
                yield mt.permute_grad, (rows, row_probs, indices, routing_map), dict(
                    drop_and_pad=padded
                )
            yield from calls_by_ids(x, top, weights.to(dtype), experts_num)


def calls_by_ids(x, top, weights, experts_num):
    chosen = weights.gather(1, top.long())
    for options in ({}, {"capacity": 2}, {"expert_begin": 1, "expert_end": 3}, {"rows_num": 2}):
        yield ids.permute, (x, top, chosen), {"experts_num": experts_num, **options}
    yield ids.permute, (None, top), {"experts_num": experts_num, "expert_end": 0}
    sent = ids.permute(x, top, chosen, experts_num=experts_num)
    rows, indices = sent.permuted_tokens, sent.sorted_indices
    bias = torch.ones(experts_num, x.shape[1], dtype=x.dtype)
    more = dict(residual=x, residual2=x, expert_bias=bias, expert_ids=top)
    yield ids.unpermute, (rows, indices, chosen), more
    yield ids.unpermute, (rows, indices), {"topk": top.shape[1]}
    grad = dict(permuted_tokens=rows, weights=chosen, expert_bias=bias, expert_ids=top)
    yield ids.unpermute_grad, (x, indices), grad
    yield ids.unpermute_grad, (x, indices), {}
    if top.shape[0]:
        yield ids.permute_grad, (rows, indices), {
            "topk": top.shape[1],
            "permuted_weights_grad": sent.permuted_weights,
        }


def faulty_calls():
    x, p = torch.ones(3, 4), torch.ones(3, 2)
    m = torch.ones(3, 2, dtype=torch.bool)
    rows, i = torch.ones(6, 4), torch.arange(6)
    for tokens in (None, 3, x[0], x.int(), x.to("meta"), x.to_sparse(), torch.ones(2, 4)):
        yield mt.permute, (tokens, m, p, 6), {}
        yield mt.unpermute, (tokens, i), dict(routing_map=m, probs=p)
        yield mt.unpermute_grad, (tokens, i), dict(routing_map=m, permuted_tokens=rows, probs=p)
        yield ids.permute, (tokens, i.view(3, 2)), {"experts_num": 6}
    for number in (-1, 5, 2**62, 2**70, 1.5, None, "6"):
        yield mt.permute, (x, m, p, number), {}
        yield mt.permute, (x, m, p, 6), {"rows_num": number}
        yield mt.permute_grad, (rows, None, i), dict(tokens_num=number)
        yield ids.permute, (x, i.view(3, 2)), {"experts_num": number}
    for indices in (i + 1, i * 0, i - 2, i.float(), i.view(3, 2), None, i[:5]):
        for probs in (None, p, p.double(), p[:2], p.int()):
            options = dict(routing_map=m, probs=probs)
            yield mt.unpermute, (rows, indices), options
            yield mt.unpermute_grad, (x, indices), {**options, "permuted_tokens": rows}
            yield ids.unpermute, (rows, indices, probs), {}
            yield ids.unpermute_grad, (x, indices), dict(permuted_tokens=rows, weights=probs)
    for flag in (1, 0, "no", None, torch.tensor(True)):
        yield mt.permute, (x, m, p, 6, flag), {}
        yield mt.unpermute, (rows, i), dict(routing_map=m, probs=p, mask_fill_slots=flag)
        yield mt.unpermute_grad, (x, i), dict(routing_map=m, tolerate_routing_mismatch=flag)


def digest(values):
    """What a call returned, the bits included."""
    if isinstance(values, torch.Tensor):
        data = values.contiguous().flatten().view(torch.uint8).numpy().tobytes()
        shape = (tuple(values.shape), values.stride(), values.is_inference())
        return f"{values.dtype} {shape} {hashlib.sha256(data).hexdigest()}"
    return None if values is None else [digest(value) for value in values]


def outcome(function, arguments, options):
    try:
        return digest(function(*arguments, **options))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def run(program, **environment):
    environment = {**os.environ, **environment}
    folders = [str(Path(moetoken.__file__).parents[1]), *environment.get("PYTHONPATH", "").split(":")]
    environment["PYTHONPATH"] = ":".join(folders)
    return subprocess.run(
        [sys.executable, *program], env=environment, capture_output=True, text=True, timeout=600
    )


@IN_C
def test_results_and_errors_are_those_without():
    there = run([__file__], MOETOKEN_TORCH_DIRECT="0")
    assert there.returncode == 0, there.stderr
    here = [str(outcome(*call)) for calls in (good_calls, faulty_calls) for call in calls()]
    assert there.stdout.splitlines() == [line.replace("\n", " ") for line in here]
    assert len(here) > 300 and sum("Error" in line for line in here) > 50


def test_the_tests_pass_without():
    """Those that look at what a call goes through."""
    files = [str(HERE / f"test_torch{name}.py") for name in ("", "_ids", "_messages")]
    options = ["-q", "-p", "no:cacheprovider"]
    done = run(
        ["-m", "pytest", *options, *files], MOETOKEN_TORCH_DIRECT="0", MOETOKEN_EXAMPLES="3"
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout


def test_the_variable_is_checked():
    done = run(["-c", "import moetoken.torch"], MOETOKEN_TORCH_DIRECT="yes")
    assert "MOETOKEN_TORCH_DIRECT is 'yes', expected 0 or 1" in done.stderr


# ---- by itself ----------------------------------------------------------------------------------


@IN_C
def test_nothing_of_it_is_python(monkeypatch):
    """The operators' functions in Python are not called, for gradients neither."""
    calls = list(good_calls())
    names = ("permute", "permute_grad", "unpermute", "unpermute_grad")
    for name in (*names, *(f"{name}_by_ids" for name in names)):
        monkeypatch.delattr(_library, name)
    for function, arguments, options in calls:
        assert function(*arguments, **options) is not None
    x = torch.ones(2, 3, requires_grad=True)
    m = torch.ones(2, 2, dtype=torch.bool)
    rows, _, indices = mt.permute(x, m, None, 4)
    mt.unpermute(rows, indices, routing_map=m, probs=torch.ones(2, 2)).sum().backward()
    assert torch.equal(x.grad, torch.full((2, 3), 2.0))


@IN_C
def test_large_outputs_come_from_the_cache():
    x, m = torch.ones(1024, 512), torch.ones(1024, 2, dtype=torch.bool)
    moetoken.empty_cache()
    before = moetoken.memory_stats()["allocated_bytes.all.current"]
    rows, _, indices = mt.permute(x, m, None, 2048)
    held = moetoken.memory_stats()["allocated_bytes.all.current"] - before
    assert held == rows.numel() * rows.element_size() and indices.numel() == 2048
    del rows
    assert moetoken.memory_stats()["allocated_bytes.all.current"] == before


@IN_C
@pytest.mark.parametrize("fault", (False, True))
def test_no_references_are_kept(fault):
    x, m = torch.ones(3, 4), torch.ones(3, 2, dtype=torch.bool)
    before = sys.getrefcount(x), sys.getrefcount(m), sys.getrefcount(None)
    for _ in range(1000):
        if fault:
            with pytest.raises(ValueError, match="num_out_tokens"):
                mt.permute(x, m, None, 5)
        else:
            rows, _, indices = mt.permute(x, m, None, 6)
    after = sys.getrefcount(x), sys.getrefcount(m), sys.getrefcount(None)
    assert all(late - early < 100 for early, late in zip(before, after))
    if not fault:
        assert sys.getrefcount(rows) == 2 and sys.getrefcount(indices) == 2


def test_tensors_that_only_look_plain():
    """torch.Tensor by type, but nothing that C could read: the dispatcher has to see them."""
    plain, escaped = torch.ones(3, 4), []
    torch.vmap(lambda row: escaped.append(row) or row)(plain)
    torch.func.grad(lambda x: escaped.append(x) or x.sum())(plain)
    escaped += [torch._efficientzerotensor((3, 4)), torch._to_functional_tensor(plain)]
    escaped += [plain.to_mkldnn(), torch.quantize_per_tensor(plain, 0.1, 0, torch.qint8)]
    escaped += [torch.nested.nested_tensor([plain, plain]), torch._neg_view(plain)]
    for tensor in escaped:
        assert type(tensor) is torch.Tensor and not is_plain((tensor,))
    m = torch.ones(3, 2, dtype=torch.bool)
    rows, _, _ = mt.permute(torch._neg_view(plain), m, None, 6)
    assert torch.equal(rows, -torch.ones(6, 4))


@IN_C
def test_what_c_does_not_know_is_left_to_python():
    plain, m = torch.ones(3, 4), torch.ones(3, 2, dtype=torch.bool)
    permute, by_ids = _direct.direct("permute"), _direct.direct("permute_by_ids")
    settings = (None, 6, 6, False, torch.int32)
    assert permute(plain, m, *settings)[0].shape == (6, 4)
    for wrong in ((), (plain,), (plain, m, *settings, 0), (plain, m, None, 6, 6, 0, torch.int32)):
        assert permute(*wrong) is NotImplemented
    for tensor in (None, 1, plain.numpy(), plain.to("meta"), plain.to_sparse(), plain[0]):
        assert permute(tensor, m, *settings) is NotImplemented
    assert permute(plain, m, None, 6, 6, False, torch.int16) is NotImplemented
    assert permute(plain, m, None, 6, 2**62, False, torch.int32) is NotImplemented
    assert by_ids(plain, m, None, 2, 0, 2, 0, 6) is NotImplemented  # ids of a wrong type
    assert _operators.permute_op(plain, m, *settings)[0].shape == (6, 4)
    assert _by_ids.permute(plain, m.int(), None, 2, 0, 2, 0, 6)[0].shape == (6, 4)


# ---- index tensors of the drop-ins: each against PyTorch's operations for the same ---------------


def same(found, wanted):
    return found.dtype == wanted.dtype and torch.equal(found, wanted)


@IN_C
@given(tokens_num=integers(0, 9), experts_num=integers(0, 37), share=floats(0, 1), seed=integers(0))
def test_rows_and_slots_of_a_map(tokens_num, experts_num, share, seed):
    generator = torch.Generator().manual_seed(seed % 2**63)
    routing_map = torch.rand(tokens_num, experts_num, generator=generator) < share
    set_pairs, pairs = int(routing_map.sum()), routing_map.numel()
    for given_map in (routing_map, routing_map.to(torch.uint8) * 6):
        for rows_num in {None, 0, set_pairs // 2, set_pairs, (set_pairs + pairs) // 2, pairs}:
            found = _library.direct_map_rows(given_map, rows_num)
            wanted = megatron._rows(given_map, rows_num)
            assert all(map(same, found, wanted))
        for wrong in (-1, pairs + 1):
            assert _library.direct_map_rows(given_map, wrong) is NotImplemented
        tokens = megatron._rows(given_map, None)[0]
        for indices in (tokens, tokens.int()):
            found = _library.direct_map_slots(given_map, indices)
            assert same(found, megatron._slots(given_map, indices))
            if set_pairs:
                indices[seed % set_pairs] += 1
                assert _library.direct_map_slots(given_map, indices) is NotImplemented
                assert _library.direct_map_slots(given_map, indices[1:]) is NotImplemented


@IN_C
@given(ids_=lists(integers(-2, 6), max_size=20), rows_num=integers(-1, 8))
def test_rows_of_slots_and_within(ids_, rows_num):
    for dtype in (torch.int32, torch.int64):
        slots = torch.tensor(ids_, dtype=dtype)
        assert same(_library.direct_rows_of_slots(slots), _indices._rows(slots))
        wanted = torch.where((slots >= 0) & (slots < rows_num), slots, -1)
        assert same(_library.direct_within(slots, rows_num), wanted)
        assert same(_library.direct_within(slots[:, None], rows_num), wanted[:, None])


@IN_C
def test_index_tensors_that_are_left_to_python():
    slots = torch.arange(6)
    for wrong in (slots.float(), slots.short(), slots[::2], slots.view(1, 2, 3), torch.tensor(1)):
        assert _library.direct_within(wrong, 3) is NotImplemented
        assert _library.direct_rows_of_slots(wrong) is NotImplemented
    for far in (10**6, 2**63 - 1):
        assert _library.direct_rows_of_slots(torch.tensor([0, far])) is NotImplemented
        assert _indices.rows_of_slots(torch.tensor([far, 0])).tolist() == [1, 0]
    routing_map = torch.ones(4, 2, dtype=torch.bool)
    for wrong in (routing_map.T, routing_map.int(), routing_map[0], None):
        assert _library.direct_map_rows(wrong, None) is NotImplemented


if __name__ == "__main__":
    for kind in (good_calls, faulty_calls):
        for one in kind():
            print(str(outcome(*one)).replace("\n", " "))
