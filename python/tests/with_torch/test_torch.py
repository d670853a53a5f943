"""PyTorch: the operators' registration, gradients, and a whole layer against PyTorch's own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

import moetoken
from cases import BFLOAT16, bits, cases

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import moetoken.torch as mt  # noqa: E402
from moetoken.torch import _operators as operators  # noqa: E402
from moetoken.torch._direct import is_plain  # noqa: E402

MODES = [
    pytest.param(padded, with_probs, id=f"{'padded' if padded else 'dropless'}-{name}")
    for padded in (False, True)
    for with_probs, name in ((False, "plain"), (True, "probs"))
]


def tensor(array):
    if array is None or array.dtype != BFLOAT16:
        return None if array is None else torch.from_numpy(np.array(array))
    return torch.from_numpy(array.view(np.uint16).astype(np.int16)).view(torch.bfloat16)


def raw(value):
    """The bytes of a tensor or an array."""
    if isinstance(value, torch.Tensor):
        value = value.detach().contiguous().flatten().view(torch.uint8).numpy()
    return bits(value)


def routing(padded, seed=0, tokens_num=5, experts_num=4, per=2):
    """A routing map, and num_out_tokens for it."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(tokens_num, experts_num, generator=generator)
    if padded:
        return scores > 0.55, experts_num * per
    routing_map = torch.zeros_like(scores, dtype=torch.bool)
    routing_map.scatter_(1, scores.topk(per).indices, True)
    routing_map[1, routing_map[1].nonzero()[0]] = False  # one slot stays unused
    return routing_map, tokens_num * per


def randn(*shape, seed=1, dtype=torch.float64, requires_grad=True):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=dtype).requires_grad_(requires_grad)


# ---- registration -------------------------------------------------------------------------------


def samples(padded, with_probs):
    """Every operator with arguments for it."""
    routing_map, slots_num = routing(padded)
    tokens, probs = randn(5, 3), randn(5, 4, seed=2) if with_probs else None
    yield (
        operators.permute_op,
        (tokens, routing_map, probs, slots_num, slots_num, padded, torch.int32),
    )
    rows, row_probs, indices = mt.permute(tokens, routing_map, probs, slots_num, padded)
    rows = rows.detach().requires_grad_()
    row_probs = None if row_probs is None else row_probs.detach()
    yield (
        operators.permute_grad_op,
        (
            rows.detach(),
            row_probs,
            indices,
            routing_map,
            5,
            4,
            padded,
            False,
        ),
    )
    used_map = routing_map if with_probs else None
    arguments = (rows, indices, used_map, probs, 5, 3, padded, False, False)
    yield operators.unpermute_op, arguments
    _, out_index, token_id = operators.unpermute(*arguments)
    yield (
        operators.unpermute_grad_op,
        (
            tokens.detach(),
            out_index if padded else indices,
            token_id if padded else None,
            used_map,
            rows.detach() if with_probs else None,
            None if probs is None else probs.detach(),
            slots_num,
            padded,
            True,
            with_probs,
            False,
            False,
        ),
    )


@pytest.mark.parametrize("padded, with_probs", MODES)
def test_opcheck(padded, with_probs):
    for operator, arguments in samples(padded, with_probs):
        torch.library.opcheck(operator, arguments)


# ---- without the dispatcher ---------------------------------------------------------------------


class Wrapped(torch.Tensor):
    """A subclass that sees every operator called on it."""

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), options=None):
        return function(*arguments, **(options or {}))


class Seeing(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        return function(*arguments, **(options or {}))


@pytest.mark.parametrize("padded, with_probs", MODES)
def test_with_and_without_the_dispatcher_are_the_same(padded, with_probs):
    names = {operators.permute_op: operators.permute, operators.unpermute_op: operators.unpermute}
    names[operators.permute_grad_op] = operators.permute_grad
    names[operators.unpermute_grad_op] = operators.unpermute_grad
    with torch.no_grad():
        for operator, arguments in samples(padded, with_probs):
            assert is_plain(arguments)
            by_itself, wanted = names[operator](*arguments), operator(*arguments)
            unwanted = [value is None for value in by_itself]  # is empty of the dispatcher
            assert [b"" if absent else raw(value) for absent, value in zip(unwanted, by_itself)] == [
                raw(value) for value in wanted
            ]


def test_what_needs_the_dispatcher():
    plain = torch.ones(2, 3)
    assert is_plain((plain, None, 3, torch.nn.Parameter(plain, requires_grad=False)))
    assert not is_plain((plain, plain.clone().requires_grad_()))
    with torch.no_grad():
        assert is_plain((plain.clone().requires_grad_(),))
    with torch.inference_mode():
        assert is_plain((plain, torch.ones(2)))
    assert not is_plain((torch.ones(2, device="meta"),))
    assert not is_plain((torch.ones(2, dtype=torch.complex64).conj().imag,))  # negated when read
    assert not is_plain((plain.to_sparse(),))
    assert not is_plain((plain.as_subclass(Wrapped),))
    with Seeing():
        assert not is_plain((plain,))
    with torch.profiler.profile():
        assert not is_plain((plain,))
    seen = []
    torch.vmap(lambda row: seen.append(is_plain((row, plain))) or row)(plain)
    torch.func.grad(lambda row: seen.append(is_plain((row,))) or row.sum())(plain)
    torch.jit.trace(
        lambda row: seen.append(is_plain((row,))) or row * 2, (plain,), check_trace=False
    )
    assert seen and not any(seen)


def test_a_backward_pass_needs_no_dispatcher(monkeypatch):
    called = []
    original = operators.unpermute_grad
    monkeypatch.setattr(
        operators, "unpermute_grad", lambda *a: called.append(is_plain(a)) or original(*a)
    )
    routing_map, slots_num = routing(False)
    tokens = randn(5, 3)
    rows, _, indices = mt.permute(tokens, routing_map, None, slots_num)
    mt.unpermute(rows, indices, restore_shape=(5, 3)).sum().backward()
    assert called == [True]


# ---- memory -------------------------------------------------------------------------------------


def flags_of(address):
    """What the system says of the memory at an address: VmFlags of /proc/self/smaps."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        bounds = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
        if bounds:
            inside = int(bounds[1], 16) <= address < int(bounds[2], 16)
        elif inside and line.startswith("VmFlags:"):
            return line.split()[1:]
    return []


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="the system has no such pages"
)
def test_large_outputs_are_in_huge_pages():
    tokens, routing_map = torch.ones(2048, 1024), torch.ones(2048, 1, dtype=torch.bool)
    rows, _, indices = mt.permute(tokens, routing_map, None, 2048)
    combined = mt.unpermute(rows, indices, restore_shape=(2048, 1024))
    rows_grad, _ = mt.unpermute_grad(combined, indices)
    tokens_grad, _ = mt.permute_grad(rows_grad, None, indices, tokens_num=2048, experts_num=1)
    for output in (rows, combined, rows_grad, tokens_grad):
        assert output.numel() * output.element_size() == 8 << 20
        assert "hg" in flags_of(output.data_ptr() + (4 << 20))
        assert torch.equal(output, tokens)


# ---- values -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask_fill", [False, True])
@pytest.mark.parametrize("padded, with_probs", MODES)
def test_gradcheck(padded, with_probs, mask_fill):
    routing_map, slots_num = routing(padded)
    tokens, probs = randn(5, 3), randn(5, 4, seed=2) if with_probs else None

    def permute(tokens, probs):
        rows, row_probs, _ = mt.permute(tokens, routing_map, probs, slots_num, padded)
        return (rows,) if probs is None else (rows, row_probs)

    assert torch.autograd.gradcheck(permute, (tokens, probs))
    rows, _, indices = mt.permute(tokens, routing_map, None, slots_num, padded)

    def unpermute(rows, probs):
        return mt.unpermute(
            rows,
            indices,
            routing_map=routing_map,
            probs=probs,
            restore_shape=(5, 3),
            drop_and_pad=padded,
            mask_fill_slots=mask_fill and padded,
        )

    rows = randn(*rows.shape, seed=3)
    assert torch.autograd.gradcheck(unpermute, (rows, probs))


# ---- the same bits as the NumPy interface -------------------------------------------------------


@given(cases())
def test_same_bits_as_numpy(case):
    given_map = case.routing_map if case.probs is not None else None
    arguments = dict(routing_map=given_map, permuted_tokens=case.rows, probs=case.probs)
    expected = moetoken.unpermute_grad(
        case.tokens, case.out_index, case.token_id, drop_and_pad=case.padded, **arguments
    )
    found = mt.unpermute_grad(
        tensor(case.tokens),
        tensor(case.out_index),
        tensor(case.token_id),
        drop_and_pad=case.padded,
        **{name: tensor(value) for name, value in arguments.items()},
    )
    for a, b in zip(found, expected):
        assert (a is None) == (b is None) and (a is None or raw(a) == raw(b))
    if len(case.tokens):
        slots_num = case.sizes[3]
        expected = moetoken.permute(
            case.tokens, case.routing_map, case.probs, slots_num, case.padded
        )
        found = mt.permute(
            tensor(case.tokens),
            tensor(case.routing_map),
            tensor(case.probs),
            slots_num,
            case.padded,
        )
        for a, b in zip(found, expected):
            assert (a is None) == (b is None) and (a is None or raw(a) == raw(b))


def test_numpy_functions_take_tensors():
    g = torch.randn(2, 3, dtype=torch.bfloat16, requires_grad=True)
    rows, none = moetoken.unpermute_grad(g, torch.tensor([1, 0]))
    assert none is None and rows.dtype == BFLOAT16 and raw(rows) == raw(g.detach().flip(0))


# ---- gradients of a whole layer -----------------------------------------------------------------


def layer(x, router, experts, per, padded, permute_and_combine):
    """Router, experts, combine. The middle is what differs."""
    weights = torch.softmax(x @ router, 1)
    top = weights.topk(per)
    routing_map = torch.zeros_like(weights, dtype=torch.bool).scatter(1, top.indices, True)
    probs = weights * routing_map
    return permute_and_combine(x, routing_map, probs, experts, per, padded)


def run_experts(rows, bounds, experts):
    parts = [rows[a:b] @ w for a, b, w in zip(bounds[:-1], bounds[1:], experts)]
    return torch.tanh(torch.cat([*parts, rows[bounds[-1] :]]))


def with_moetoken(x, routing_map, probs, experts, per, padded):
    tokens_num, experts_num = routing_map.shape
    capacity = 2 * tokens_num * per // experts_num // 2 + 1
    slots_num = experts_num * capacity if padded else tokens_num * per
    rows, _, indices = mt.permute(x, routing_map, None, slots_num, padded)
    counts = routing_map.sum(0) if not padded else torch.full((experts_num,), capacity)
    bounds = [0, *counts.cumsum(0).tolist()]
    rows = run_experts(rows, bounds, experts)
    return mt.unpermute(rows, indices, routing_map=routing_map, probs=probs, drop_and_pad=padded)


def with_plain_pytorch(x, routing_map, probs, experts, per, padded):
    """The same with index_select and index_add, which autograd differentiates by itself."""
    tokens_num, experts_num = routing_map.shape
    capacity = 2 * tokens_num * per // experts_num // 2 + 1
    combined = torch.zeros_like(x)
    for expert in range(experts_num):
        chosen = routing_map[:, expert].nonzero()[:, 0]
        if padded:
            others = (~routing_map[:, expert]).nonzero()[:, 0]
            chosen = torch.cat([chosen, others])[:capacity]
        rows = torch.tanh(x.index_select(0, chosen) @ experts[expert])
        weighted = rows * probs[chosen, expert].unsqueeze(1)
        combined = combined.index_add(0, chosen, weighted)
    return combined


def layer_gradients(middle, padded, dtype, expand):
    x = randn(33, 19, dtype=torch.float64).detach().to(dtype).requires_grad_()
    router = randn(19, 6, seed=4).detach().to(dtype).requires_grad_()
    experts = (randn(6, 19, 19, seed=5).detach() / 4).to(dtype).requires_grad_()
    y = layer(x, router, experts, 2, padded, middle)
    direction = randn(33, 19, seed=6, requires_grad=False).to(dtype)
    loss = y.sum() if expand else (y * direction).sum()
    loss.backward()
    return y.detach(), x.grad, router.grad, experts.grad


@pytest.mark.parametrize("expand", [False, True], ids=["direction", "sum"])
@pytest.mark.parametrize("padded", [False, True], ids=["dropless", "padded"])
def test_layer_in_float64(padded, expand):
    ours = layer_gradients(with_moetoken, padded, torch.float64, expand)
    theirs = layer_gradients(with_plain_pytorch, padded, torch.float64, expand)
    for mine, other in zip(ours, theirs):
        assert (mine - other).abs().max() <= 1e-12 * other.abs().max()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("padded", [False, True], ids=["dropless", "padded"])
def test_unpermute_in_half_precision(padded, dtype):
    """At least as close to the float64 truth as PyTorch's own gradients of the combine."""
    tokens_num, experts_num, per, hidden = 64, 8, 4, 67
    routing_map, slots_num = routing(padded, 3, tokens_num, experts_num, per)
    token, expert = oracle_rows(routing_map, slots_num, padded)
    rows = randn(len(token), hidden, seed=7, requires_grad=False).to(dtype)
    probs = torch.rand(tokens_num, experts_num, generator=torch.Generator().manual_seed(8))
    probs = probs.to(dtype)
    g = randn(tokens_num, hidden, seed=9, requires_grad=False).to(dtype)
    indices = mt.permute(g, routing_map, None, slots_num, padded)[2]

    def ours(rows, probs):
        return mt.unpermute(
            rows, indices, routing_map=routing_map, probs=probs, drop_and_pad=padded
        )

    def theirs(rows, probs):
        weighted = rows * probs[token, expert].unsqueeze(1)
        return torch.zeros(tokens_num, hidden, dtype=rows.dtype).index_add(0, token, weighted)

    def results(combine, dtype):
        inputs = [a.to(dtype).clone().requires_grad_() for a in (rows, probs)]
        y = combine(*inputs)
        y.backward(g.to(dtype))
        return [y.detach(), *(a.grad for a in inputs)]

    truth = results(theirs, torch.float64)
    for true, mine, other in zip(truth, results(ours, dtype), results(theirs, dtype)):
        error, other_error = ((a.double() - true).norm() for a in (mine, other))
        assert error <= other_error * (1 + 1e-12)


def oracle_rows(routing_map, slots_num, padded):
    import oracle

    token, expert, _ = oracle.permute(routing_map.numpy(), slots_num, padded)
    return torch.tensor(token), torch.tensor(expert)


@pytest.mark.parametrize("padded, with_probs", MODES)
def test_only_what_needs_a_gradient(padded, with_probs, monkeypatch):
    routing_map, slots_num = routing(padded)
    calls = []

    def spy(*values):
        results = real(*values)
        calls.append(tuple(value is not None and value.numel() > 0 for value in results))
        return results

    real = operators.unpermute_grad
    monkeypatch.setattr(operators, "unpermute_grad", spy)
    indices = mt.permute(randn(5, 3), routing_map, None, slots_num, padded)[2]
    for wants in ((True, False), (False, True), (True, True)) if with_probs else ((True, False),):
        rows = randn(slots_num, 3, requires_grad=wants[0])
        probs = randn(5, 4, requires_grad=wants[1]) if with_probs else None
        y = mt.unpermute(
            rows,
            indices,
            routing_map=routing_map,
            probs=probs,
            drop_and_pad=padded,
        )
        y.sum().backward()
        assert calls.pop() == wants and not calls
        assert (rows.grad is not None) == wants[0]


# ---- torch.compile and torch.export -------------------------------------------------------------


class Combine(torch.nn.Module):
    def __init__(self, padded, slots_num):
        super().__init__()
        self.padded, self.slots_num = padded, slots_num

    def forward(self, tokens, routing_map, probs):
        rows, row_probs, indices = mt.permute(
            tokens, routing_map, probs, self.slots_num, self.padded
        )
        rows = torch.sin(rows) * row_probs.unsqueeze(1)
        return mt.unpermute(
            rows, indices, routing_map=routing_map, probs=probs, drop_and_pad=self.padded
        )


@pytest.mark.parametrize(
    "padded, backend",
    [(False, "aot_eager"), (True, "aot_eager"), (False, "inductor")],
    ids=["dropless", "padded", "inductor"],
)
def test_compile_fullgraph(padded, backend):
    routing_map, slots_num = routing(padded)
    module = Combine(padded, slots_num)
    compiled = torch.compile(module, fullgraph=True, backend=backend)
    gradients = []
    for function in (module, compiled):
        tokens, probs = randn(5, 3), randn(5, 4, seed=2)
        y = function(tokens, routing_map, probs)
        y.sum().backward()
        gradients.append((y.detach(), tokens.grad, probs.grad))
    for eager, other in zip(*gradients):
        torch.testing.assert_close(other, eager, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("padded", [False, True], ids=["dropless", "padded"])
def test_export(padded):
    routing_map, slots_num = routing(padded)
    module = Combine(padded, slots_num)
    arguments = (randn(5, 3).detach(), routing_map, randn(5, 4, seed=2).detach())
    program = torch.export.export(module, arguments)
    names = {str(node.target) for node in program.graph.nodes}
    assert {"moetoken.permute.default", "moetoken.unpermute.default"} <= names
    assert torch.equal(program.module()(*arguments), module(*arguments))


# ---- what is refused ----------------------------------------------------------------------------


def test_errors_are_the_librarys():
    with pytest.raises(IndexError, match=r"out_index\[1\] = 7 is outside"):
        mt.unpermute_grad(torch.ones(2, 3), torch.tensor([0, 7]))
    with pytest.raises(TypeError, match="sorted_indices"):
        mt.unpermute(torch.ones(2, 3), torch.tensor([0.0, 1.0]), restore_shape=(2, 3))
    with pytest.raises(ValueError, match="restore_shape is missing"):
        mt.unpermute(torch.ones(2, 3), torch.tensor([0, 1]))


def test_without_the_exchange_table(monkeypatch):
    """PyTorch before 2.10 lends its tensors as DLPack capsules only."""
    monkeypatch.setattr(operators, "_EXCHANGES_IN_C", False)
    x = randn(3, 2)
    y = mt.unpermute(x, torch.tensor([2, 0, 1, -1]), restore_shape=(2, 2))
    y.sum().backward()
    assert torch.equal(y.detach(), torch.stack([x[2] + x[0], x[1]]).detach())
    assert torch.equal(x.grad, torch.ones(3, 2, dtype=torch.float64))


@settings(max_examples=20)
@given(cases(smallest=1, padded=False))
def test_expanded_gradient(case):
    """loss.sum() sends back one number, expanded with strides of 0."""
    rows = tensor(case.rows).requires_grad_()
    slots_num = case.sizes[3]
    order = np.argsort(case.token_id, kind="stable") if case.token_id is not None else slice(None)
    indices = tensor(case.out_index[order])
    y = mt.unpermute(
        rows,
        indices,
        routing_map=tensor(case.routing_map),
        probs=tensor(case.probs),
        restore_shape=case.tokens.shape,
    )
    y.sum().backward()
    ones = np.ones_like(case.tokens)
    expected, _ = moetoken.unpermute_grad(
        ones,
        case.out_index[order],
        routing_map=case.routing_map if case.probs is not None else None,
        permuted_tokens=case.rows,
        probs=case.probs,
    )
    assert slots_num >= len(rows) and raw(rows.grad) == raw(expected)


def test_as_many_threads_as_pytorch():
    """torch.set_num_threads holds here too, seen by the threads that a new process has."""
    code = """
import os, torch, moetoken.torch.ids
def threads():
    return len(os.listdir("/proc/self/task"))
torch.set_num_threads(int(os.environ["WANTED"]))
tokens, ids = torch.ones(512, 1024), torch.arange(512).reshape(512, 1) % 4
before = threads()
moetoken.torch.ids.permute(tokens, ids, experts_num=4)
print(threads() - before)
"""
    for wanted, workers in (("1", "0"), ("3", "2")):
        found = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "WANTED": wanted, "OMP_NUM_THREADS": "2"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert found.stdout.split() == [workers], found.stderr
