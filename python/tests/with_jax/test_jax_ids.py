"""JAX, routing by expert ids: the bits of the NumPy functions, every derivative, early errors."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_platforms", "cpu")

import jax.numpy as jnp  # noqa: E402
from jax.test_util import check_grads  # noqa: E402

from cases import bits  # noqa: E402
from moetoken import ids as numpy_ids  # noqa: E402
from moetoken.jax import ids  # noqa: E402

T, K, E, H = 5, 3, 4, 2


def routing(seed=0):
    """Ids with unused slots, and an expert that a token names twice."""
    expert_ids = np.random.default_rng(seed).integers(-1, E, (T, K))
    expert_ids[0] = 1
    return jnp.asarray(expert_ids)


def normal(*sizes, seed=1, dtype="float64"):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(sizes), dtype)


def same(found, wanted):
    assert [bits(a) for a in found] == [bits(a) for a in wanted]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize("options", [{}, {"capacity": 2}, {"expert_begin": 1, "expert_end": 3}])
@pytest.mark.parametrize("rows_num", [None, 4])
def test_same_bits_as_numpy(dtype, options, rows_num):
    if "capacity" not in options:
        options = {**options, "rows_num": rows_num}
    expert_ids = routing()
    tokens, weights, bias = (
        normal(*sizes, seed=i, dtype=dtype) for i, sizes in enumerate([(T, H), (T, K), (E, H)])
    )
    arrays = (np.asarray(tokens), np.asarray(expert_ids), np.asarray(weights))
    found = ids.permute(tokens, expert_ids, weights, experts_num=E, **options)
    same(found, numpy_ids.permute(*arrays, experts_num=E, **options))
    rows, row_weights, indices, *_ = found
    found = ids.permute_grad(rows, indices, topk=K, permuted_weights_grad=row_weights)
    same(found, numpy_ids.permute_grad(rows, indices, topk=K, permuted_weights_grad=row_weights))
    more = dict(expert_bias=bias, expert_ids=expert_ids)
    both = dict(residual=tokens, residual2=tokens * 3)
    y = ids.unpermute(rows, indices, weights, **more, **both)
    same([y], [numpy_ids.unpermute(rows, indices, weights, **more, **both)])
    found = ids.unpermute_grad(y, indices, permuted_tokens=rows, weights=weights, **more)
    same(
        found, numpy_ids.unpermute_grad(y, indices, permuted_tokens=rows, weights=weights, **more)
    )


def functions():
    """Each operator as a function of what it can be differentiated by, with such arguments."""
    expert_ids, rows_num = routing(), T * K - 2
    indices = ids.permute(None, expert_ids, experts_num=E, rows_num=rows_num).sorted_indices
    slots = dict(expert_ids=expert_ids)
    tokens, weights, rows = normal(T, H), normal(T, K, seed=2), normal(rows_num, H, seed=3)
    bias = normal(E, H, seed=7)
    return {
        "permute": (
            lambda t, w: ids.permute(t, expert_ids, w, experts_num=E, rows_num=rows_num)[:2],
            (tokens, weights),
        ),
        "permute_grad": (
            lambda r, w: tuple(ids.permute_grad(r, indices, topk=K, permuted_weights_grad=w)),
            (rows, normal(rows_num, seed=5)),
        ),
        "unpermute": (
            lambda x, w, r, s, b: ids.unpermute(
                x, indices, w, residual=r, residual2=s, expert_bias=b, **slots
            ),
            (rows, weights, tokens, normal(T, H, seed=6), bias),
        ),
        "unpermute without weights": (
            lambda x, b: ids.unpermute(x, indices, expert_bias=b, **slots),
            (rows, bias),
        ),
        "unpermute_grad": (
            lambda g, x, w, b: tuple(
                ids.unpermute_grad(
                    g, indices, permuted_tokens=x, weights=w, expert_bias=b, **slots
                )
            ),
            (tokens, rows, weights, bias),
        ),
    }


@pytest.mark.parametrize("name", functions())
def test_derivatives_against_differences(name):
    function, arguments = functions()[name]
    check_grads(function, arguments, order=2, modes=("fwd", "rev"), rtol=1e-5, atol=1e-5, eps=1e-4)


@pytest.mark.parametrize("name", functions())
def test_jacobians_agree(name):
    """jacfwd and jacrev batch the rules, hessian both."""
    function, arguments = functions()[name]
    places = tuple(range(len(arguments)))
    flat = lambda *v: jnp.concatenate(  # noqa: E731
        [a.ravel() for a in jax.tree_util.tree_leaves(function(*v))]
    )
    forward, backward = (jac(flat, places)(*arguments) for jac in (jax.jacfwd, jax.jacrev))
    for a, b in zip(forward, backward):
        assert jnp.abs(a).max() > 0
        np.testing.assert_allclose(a, b, rtol=1e-13, atol=1e-13)
    square = lambda *v: jnp.sum(flat(*v) ** 3)  # noqa: E731
    hessian = jax.jit(jax.hessian(square, places))(*arguments)
    twice = jax.jit(jax.jacrev(jax.jacrev(square, places), places))(*arguments)
    for a, b in zip(jax.tree_util.tree_leaves(hessian), jax.tree_util.tree_leaves(twice)):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-11)


def test_vmap_is_a_loop():
    maps = jnp.stack([routing(seed) for seed in range(3)])
    tokens, weights, bias = normal(3, T, H), normal(T, K), normal(E, H, seed=3)

    def layer(tokens, expert_ids, weights, bias):
        found = ids.permute(tokens, expert_ids, weights, experts_num=E)
        y = ids.unpermute(
            found.permuted_tokens * found.permuted_weights[:, None],
            found.sorted_indices,
            weights,
            residual=tokens,
            expert_bias=bias,
            expert_ids=expert_ids,
        )
        return jnp.sum(jnp.sin(y)), found.rows_per_expert

    gradient = jax.grad(layer, (0, 2, 3), has_aux=True)
    many, counts = jax.vmap(gradient, (0, 0, None, None))(tokens, maps, weights, bias)
    for i in range(3):
        one, count = gradient(tokens[i], maps[i], weights, bias)
        np.testing.assert_array_equal(counts[i], count)
        for a, b in zip(many, one):
            np.testing.assert_allclose(a[i], b, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("weighted", [False, True])
def test_bias_gradient_of_many_tokens(dtype, weighted):
    """16384 gradients of 1 (times 2 by weight); a bfloat16 sum of such ones stays at 256."""
    many = 16384
    rows, bias = jnp.ones((many, H), dtype), jnp.zeros((E, H), dtype)
    weights = jnp.full((many, 1), 2, dtype) if weighted else None
    slots = dict(expert_ids=jnp.full((many, 1), 3), topk=1)

    def total(bias):
        y = ids.unpermute(rows, jnp.arange(many), weights, expert_bias=bias, **slots)
        return y.astype("float32").sum()

    wanted = np.zeros((E, H))
    wanted[3] = many * (2 if weighted else 1)
    found = jax.grad(total)(bias)
    assert found.dtype == bias.dtype
    np.testing.assert_array_equal(np.asarray(found, "float64"), wanted)


def test_unused_slots_take_nothing_from_infinite_numbers():
    """Token 0 uses expert 1 alone: what is infinite meets no factor 0 of its unused slot."""
    rows, indices, inf = jnp.zeros((1, H)), jnp.array([0, -1]), jnp.inf
    weights, bias, slots = jnp.ones((1, 2)), jnp.zeros((2, H)), jnp.array([[1, 0]])

    def layer(weights, bias):
        return ids.unpermute(rows, indices, weights, expert_bias=bias, expert_ids=slots)

    _, backward = jax.vjp(layer, weights, bias)
    np.testing.assert_array_equal(backward(jnp.full((1, H), inf))[1], [[0] * H, [inf] * H])
    change = jnp.array([[inf] * H, [1.0] * H])  # of expert 0, which no used slot names
    tangent = jax.jvp(lambda b: layer(weights, b), (bias,), (change,))[1]
    np.testing.assert_array_equal(tangent, jnp.ones((1, H)))

    def weights_grad(bias, g):
        more = dict(permuted_tokens=rows, weights=weights, expert_bias=bias, expert_ids=slots)
        return ids.unpermute_grad(g, indices, **more).weights_grad

    g = jnp.ones((1, H))
    found = jax.jvp(lambda b: weights_grad(b, g), (bias,), (change,))[1]
    np.testing.assert_array_equal(found, [[H, 0]])
    _, backward = jax.vjp(lambda g: weights_grad(change, g), g)
    np.testing.assert_array_equal(backward(jnp.ones((1, 2)))[0], jnp.ones((1, H)))


def test_a_row_named_twice():
    """Forward the combine only reads; the gradient has no answer."""
    rows, indices = normal(2, H), jnp.array([0, 0, 1, -1])
    y = ids.unpermute(rows, indices, topk=2)
    np.testing.assert_array_equal(y, jnp.stack([rows[0] * 2, rows[1]]))
    with pytest.raises(Exception, match="out_index|sorted_indices"):
        jax.grad(lambda x: ids.unpermute(x, indices, topk=2).sum())(rows).block_until_ready()


x, n, i, w = jnp.ones((4, 2)), jnp.arange(4), jnp.zeros((2, 2), int), jnp.ones((2, 2))
WRONG = {
    "rank": (lambda: ids.permute(w, n, experts_num=2), ValueError, "expert_ids has 1 dimension"),
    "type": (lambda: ids.permute(w, w, experts_num=2), TypeError, "expert_ids is float64"),
    "weights": (
        lambda: ids.permute(w, i, x, experts_num=2),
        ValueError,
        r"weights has shape \[4, 2\], but T = 2 as tokens has it",
    ),
    "range": (
        lambda: ids.permute(w, i, experts_num=4, expert_begin=3, expert_end=1),
        ValueError,
        "expert_begin = 3, expert_end = 1",
    ),
    "capacity": (lambda: ids.permute(w, i, experts_num=4, capacity=0), ValueError, "capacity = 0"),
    "topk": (lambda: ids.unpermute(x, n), ValueError, "topk is missing"),
    "multiple": (lambda: ids.unpermute(x, n, topk=3), ValueError, "a multiple of topk = 3"),
    "bias": (
        lambda: ids.unpermute(x, n, w, expert_bias=x),
        ValueError,
        "expert_ids is missing",
    ),
    "residual2": (
        lambda: ids.unpermute(x, n, w, residual2=w),
        ValueError,
        "residual is missing",
    ),
    "rows": (
        lambda: ids.unpermute_grad(w, n, permuted_tokens=x, rows_num=3),
        ValueError,
        r"permuted_tokens has shape \[4, 2\], but R = 3",
    ),
    "no ids": (
        lambda: ids.unpermute_grad(w, n, weights=w, permuted_tokens=x, expert_bias=x),
        ValueError,
        "expert_ids is missing",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_told_when_traced(name):
    call, error, match = WRONG[name]
    with pytest.raises(error, match=match):
        jax.eval_shape(call)


def test_told_when_run():
    with pytest.raises(Exception, match=r"expert_ids\[1, 0\] = 5"):
        ids.permute(w, jnp.array([[0, 1], [5, 0]]), experts_num=4)[0].block_until_ready()
