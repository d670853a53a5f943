"""PyTorch, routing by expert ids: the bits of the NumPy functions, and every derivative."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from moetoken import ids as numpy_ids  # noqa: E402
from moetoken.torch import _by_ids as operators  # noqa: E402
from moetoken.torch import ids  # noqa: E402
from test_torch import randn, raw  # noqa: E402

T, K, E, H = 5, 3, 4, 2


def routing(seed=0, tokens_num=T, topk=K, experts_num=E):
    """Ids with unused slots, and an expert that a token names twice."""
    rng = np.random.default_rng(seed)
    expert_ids = rng.integers(-1, experts_num, (tokens_num, topk))
    expert_ids[0] = 1
    return torch.from_numpy(expert_ids)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("options", [{}, {"capacity": 2}, {"expert_begin": 1, "expert_end": 3}])
@pytest.mark.parametrize("rows_num", [None, 4])
def test_same_bits_as_numpy(dtype, options, rows_num):
    if "capacity" not in options:
        options = {**options, "rows_num": rows_num}
    for seed in range(5):
        expert_ids = routing(seed)
        tokens, weights, bias = (
            randn(*shape, seed=seed + i, requires_grad=False).to(dtype)
            for i, shape in enumerate([(T, H), (T, K), (E, H)])
        )
        found = ids.permute(tokens, expert_ids, weights, experts_num=E, **options)
        wanted = numpy_ids.permute(tokens, expert_ids, weights, experts_num=E, **options)
        assert [raw(a) for a in found] == [raw(a) for a in wanted]
        rows, row_weights, indices, *_ = found
        found = ids.permute_grad(rows, indices, topk=K, permuted_weights_grad=row_weights)
        wanted = numpy_ids.permute_grad(rows, indices, topk=K, permuted_weights_grad=row_weights)
        assert [raw(a) for a in found] == [raw(a) for a in wanted]
        more = dict(expert_bias=bias, expert_ids=expert_ids)
        both = dict(residual=tokens, residual2=tokens * 3)
        y = ids.unpermute(rows, indices, weights, **more, **both)
        assert raw(y) == raw(numpy_ids.unpermute(rows, indices, weights, **more, **both))
        found = ids.unpermute_grad(y, indices, permuted_tokens=rows, weights=weights, **more)
        wanted = numpy_ids.unpermute_grad(y, indices, permuted_tokens=rows, weights=weights, **more)
        assert [raw(a) for a in found] == [raw(a) for a in wanted]


def functions():
    """Each operator as a function of what it can be differentiated by, with such arguments."""
    expert_ids = routing()
    rows_num = T * K - 2
    indices = ids.permute(None, expert_ids, experts_num=E, rows_num=rows_num).sorted_indices
    slots = dict(expert_ids=expert_ids)
    tokens, weights, rows = randn(T, H), randn(T, K, seed=2), randn(rows_num, H, seed=3)
    return {
        "permute": (
            lambda t, w: ids.permute(t, expert_ids, w, experts_num=E, rows_num=rows_num)[:2],
            (tokens, weights),
        ),
        "permute_grad": (
            lambda r, w: tuple(ids.permute_grad(r, indices, topk=K, permuted_weights_grad=w)),
            (rows, randn(rows_num, seed=5)),
        ),
        "unpermute": (
            lambda x, w, r, s, b: ids.unpermute(
                x, indices, w, residual=r, residual2=s, expert_bias=b, **slots
            ),
            (rows, weights, tokens, randn(T, H, seed=6), randn(E, H, seed=7)),
        ),
        "unpermute without weights": (
            lambda x, b: ids.unpermute(x, indices, expert_bias=b, **slots),
            (rows, randn(E, H, seed=7)),
        ),
        "unpermute_grad": (
            lambda g, x, w, b: tuple(
                ids.unpermute_grad(g, indices, permuted_tokens=x, weights=w, expert_bias=b, **slots)
            ),
            (tokens, rows, weights, randn(E, H, seed=7)),
        ),
    }


@pytest.mark.parametrize("name", functions())
def test_derivatives_against_differences(name):
    function, arguments = functions()[name]
    assert torch.autograd.gradcheck(
        function,
        arguments,
        check_forward_ad=True,
        check_batched_grad=True,
        check_batched_forward_grad=True,
    )
    assert torch.autograd.gradgradcheck(function, arguments, check_fwd_over_rev=True)


@pytest.mark.parametrize("name", functions())
def test_functional_transforms_agree(name):
    function, arguments = functions()[name]
    arguments = tuple(argument.detach() for argument in arguments)

    def scalars(*values):
        found = function(*values)
        found = found if isinstance(found, tuple) else (found,)
        return torch.cat([part.flatten() for part in found])

    places = tuple(range(len(arguments)))
    forward = torch.func.jacfwd(scalars, places)(*arguments)
    backward = torch.func.jacrev(scalars, places)(*arguments)
    for a, b in zip(forward, backward):
        assert a.abs().max() > 0
        torch.testing.assert_close(a, b, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gradient_of_the_bias_is_rounded_once(dtype):
    """Thousands of tokens an expert: sums in the tokens' type, or in float32, would be seen."""
    tokens_num, experts_num = 5000, 3
    rng = np.random.default_rng(1)
    expert_ids = torch.from_numpy(rng.integers(-1, experts_num, (tokens_num, 2)))
    g, weights = (torch.from_numpy(rng.random((tokens_num, 2))).to(dtype) for _ in range(2))
    bias = torch.zeros(experts_num, 2, dtype=dtype, requires_grad=True)
    found = ids.permute(g, expert_ids, experts_num=experts_num)
    y = ids.unpermute(
        found.permuted_tokens, found.sorted_indices, weights,
        expert_bias=bias, expert_ids=expert_ids,
    )  # fmt: skip
    y.backward(g)
    sums = np.zeros((experts_num, 2), np.longdouble)
    for t in range(tokens_num):
        for k in range(2):
            if expert_ids[t, k] >= 0:
                sums[expert_ids[t, k]] += float(weights[t, k]) * g[t].double().numpy()
    assert torch.equal(bias.grad, torch.from_numpy(sums.astype(np.float64)).to(dtype))


@pytest.mark.parametrize("weighted", [True, False])
def test_unused_slots_take_nothing_from_infinite_gradients(weighted):
    """Token 0 uses expert 1 alone: an infinite gradient meets no factor 0 of its unused slot."""
    bias = torch.zeros(2, H, requires_grad=True)
    found = ids.unpermute(
        torch.zeros(1, H),
        torch.tensor([0, -1]),
        torch.tensor([[1.0, torch.nan]]) if weighted else None,
        expert_bias=bias,
        expert_ids=torch.tensor([[1, 0]]),
    )
    found.backward(torch.full((1, H), torch.inf))
    assert bias.grad.tolist() == [[0.0] * H, [torch.inf] * H]


def samples():
    expert_ids = routing()
    tokens, weights, rows = randn(T, H), randn(T, K, seed=2), randn(7, H, seed=3)
    yield operators.permute_op, (tokens, expert_ids, weights, E, 0, E, 0, 7)
    yield operators.permute_op, (None, expert_ids, None, E, 1, 3, 2, 4)
    indices = operators.permute(tokens, expert_ids, weights, E, 0, E, 0, 7)[2]
    yield operators.permute_grad_op, (rows, randn(7, seed=4), indices, T)
    bias = randn(E, H, seed=7)
    yield operators.unpermute_op, (rows, indices, weights, tokens, tokens, bias, expert_ids, T)
    yield operators.unpermute_op, (rows, indices, None, None, None, None, None, T)
    arguments = (tokens, indices, rows, weights, bias, expert_ids, 7, True, True)
    yield operators.unpermute_grad_op, arguments


def test_opcheck():
    for operator, arguments in samples():
        torch.library.opcheck(operator, arguments)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile_fullgraph(backend):
    expert_ids = routing()

    def layer(tokens, weights, bias):
        found = ids.permute(tokens, expert_ids, weights, experts_num=E)
        rows = torch.sin(found.permuted_tokens) * found.permuted_weights.unsqueeze(1)
        return ids.unpermute(
            rows,
            found.sorted_indices,
            weights,
            residual=tokens,
            expert_bias=bias,
            expert_ids=expert_ids,
        )

    gradients = []
    for function in (layer, torch.compile(layer, fullgraph=True, backend=backend)):
        arguments = randn(T, H), randn(T, K, seed=2), randn(E, H, seed=3)
        y = function(*arguments)
        y.sum().backward()
        gradients.append((y.detach(), *(a.grad for a in arguments)))
    for eager, other in zip(*gradients):
        torch.testing.assert_close(other, eager, rtol=1e-14, atol=1e-14)


def test_vmap_is_a_loop():
    maps = torch.stack([routing(seed) for seed in range(3)])
    tokens, weights = randn(3, T, H, requires_grad=False), randn(T, K, requires_grad=False)

    def layer(tokens, expert_ids):
        found = ids.permute(tokens, expert_ids, weights, experts_num=E)
        return ids.unpermute(found.permuted_tokens, found.sorted_indices, weights)

    many = torch.vmap(layer)(tokens, maps)
    assert torch.equal(many, torch.stack([layer(t, m) for t, m in zip(tokens, maps)]))


def test_autocast():
    expert_ids = routing()
    tokens, rows = randn(T, H, requires_grad=False).float(), randn(T * K, H, requires_grad=False)
    weights = randn(T, K, requires_grad=False).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = ids.permute(tokens, expert_ids, weights, experts_num=E)
        y = ids.unpermute(rows.bfloat16(), found.sorted_indices, weights, residual=tokens)
    assert found.permuted_tokens.dtype == found.permuted_weights.dtype == torch.float32
    assert torch.equal(
        y,
        ids.unpermute(
            rows.bfloat16().float(), found.sorted_indices, weights.float(), residual=tokens
        ),
    )


def test_a_row_named_twice():
    """Forward the combine only reads; the gradient has no answer."""
    rows = randn(2, H)
    y = ids.unpermute(rows, torch.tensor([0, 0, 1, -1]), topk=2)
    assert torch.equal(y, torch.stack([rows[0] + rows[0], rows[1]]))
    with pytest.raises(ValueError, match="sorted_indices"):
        y.sum().backward()


def test_errors():
    tokens, expert_ids = torch.ones(2, 1), torch.tensor([[0], [5]])
    for call, error, match in (
        (lambda: ids.permute(tokens, expert_ids, experts_num=4), IndexError, "expert_ids"),
        (
            lambda: ids.permute(tokens, expert_ids, experts_num=6, expert_begin=3, expert_end=2),
            ValueError,
            "expert_begin = 3, expert_end = 2",
        ),
        (lambda: ids.permute(tokens, expert_ids[0], experts_num=6), ValueError, "expert_ids has 1"),
        (
            lambda: ids.permute(tokens, expert_ids, experts_num=6, capacity=0),
            ValueError,
            "capacity = 0",
        ),
        (
            lambda: ids.permute(tokens, expert_ids, experts_num=6, rows_num=-1),
            ValueError,
            "rows_num = -1",
        ),
        (
            lambda: ids.permute_grad(tokens, torch.arange(3), topk=2),
            ValueError,
            "sorted_indices has size 3, expected a multiple of topk = 2",
        ),
        (lambda: ids.unpermute(tokens, torch.arange(2)), ValueError, "topk is missing"),
        (
            lambda: ids.unpermute_grad(tokens, torch.tensor([0, 9])),
            IndexError,
            r"sorted_indices\[1\] = 9",
        ),
    ):
        with pytest.raises(error, match=match):
            call()
