"""JAX: derivatives in both directions and twice, batched and sharded, and early errors."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cases import make_case

jax = pytest.importorskip("jax")
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_platforms", "cpu")

import jax.numpy as jnp  # noqa: E402
from jax.test_util import check_grads  # noqa: E402

import moetoken.jax as mj  # noqa: E402

MODES = [
    pytest.param(padded, with_probs, id=f"{'padded' if padded else 'dropless'}-{name}")
    for padded in (False, True)
    for with_probs, name in ((False, "plain"), (True, "probs"))
]
NAMES = ["permute", "permute_grad", "unpermute", "unpermute_grad"]
T, H, E = 6, 3, 4


def functions(padded, with_probs, mask_fill=False, seed=0):
    """Each operator as a function of what it is linear in, with such arguments."""
    case = make_case(11 + seed, padded, T, H, E, 2, np.dtype(np.float64), True, False)
    while not padded and case.token_id is None:  # slots in any order
        seed += 1
        case = make_case(11 + seed, padded, T, H, E, 2, np.dtype(np.float64), True, False)
    routing_map, slots_num, rows_num = jnp.asarray(case.routing_map), *case.sizes[3:]
    tokens, probs, rows = (jnp.asarray(a) for a in (case.tokens, case.probs, case.rows))
    indices = mj.permute(tokens, routing_map, None, slots_num, padded)[2]
    more_rows = jnp.asarray(np.random.default_rng(seed).standard_normal((slots_num, H)))
    given = (probs,) if with_probs else ()

    def permute(tokens, probs=None):
        return mj.permute(tokens, routing_map, probs, slots_num, padded)[: 2 if with_probs else 1]

    def permute_grad(rows, row_probs=None):
        found = mj.permute_grad(rows, row_probs, indices, routing_map, drop_and_pad=padded)
        return found[: 2 if with_probs else 1]

    def unpermute(rows, probs=None):
        return mj.unpermute(
            rows,
            indices,
            routing_map=routing_map,
            probs=probs,
            drop_and_pad=padded,
            mask_fill_slots=mask_fill,
        )

    def unpermute_grad(g, x=None, probs=None):
        found = mj.unpermute_grad(
            g,
            jnp.asarray(case.out_index),
            jnp.asarray(case.token_id),
            routing_map=routing_map,
            permuted_tokens=x,
            probs=probs,
            rows_num=rows_num,
            drop_and_pad=padded,
            mask_fill_slots=mask_fill,
        )
        return found[: 2 if with_probs else 1]

    return {
        "permute": (permute, (tokens, *given)),
        "permute_grad": (permute_grad, (more_rows, more_rows[:, 0])[: 1 + with_probs]),
        "unpermute": (unpermute, (more_rows, *given)),
        "unpermute_grad": (unpermute_grad, (tokens, rows, probs) if with_probs else (tokens,)),
    }


CASES = [(name, *mode.values, False) for name in NAMES for mode in MODES]
CASES += [(name, True, with_probs, True) for name in NAMES[2:] for with_probs in (False, True)]


@pytest.mark.parametrize("name, padded, with_probs, mask_fill", CASES)
def test_derivatives_against_differences(name, padded, with_probs, mask_fill):
    """Forward and backward, and each of both."""
    function, arguments = functions(padded, with_probs, mask_fill)[name]
    check_grads(function, arguments, order=2, modes=("fwd", "rev"), rtol=1e-5, atol=1e-5, eps=1e-4)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("padded, with_probs", MODES)
def test_jacobians_agree(name, padded, with_probs):
    """jacfwd and jacrev, which batch the rules, within jit and without; and not all zero."""
    function, arguments = functions(padded, with_probs)[name]
    places = tuple(range(len(arguments)))
    flat = lambda *v: jnp.concatenate(  # noqa: E731
        [a.ravel() for a in jax.tree_util.tree_leaves(function(*v))]
    )
    forward, backward = (jac(flat, places)(*arguments) for jac in (jax.jacfwd, jax.jacrev))
    compiled = jax.jit(jax.jacfwd(flat, places))(*arguments)
    for a, b, c in zip(forward, backward, compiled):
        assert jnp.abs(a).max() > 0
        np.testing.assert_allclose(a, b, rtol=1e-13, atol=1e-13)
        np.testing.assert_array_equal(a, c)
    square = lambda *v: jnp.sum(flat(*v) ** 3)  # noqa: E731
    hessian = jax.hessian(square, places)(*arguments)
    twice = jax.jacrev(jax.jacrev(square, places), places)(*arguments)
    for a, b in zip(jax.tree_util.tree_leaves(hessian), jax.tree_util.tree_leaves(twice)):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-11)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("padded, with_probs", MODES)
def test_gradients_of_a_batch_are_sums(name, padded, with_probs):
    """Arguments that are the same for the whole batch get the sum of their gradients."""
    function, arguments = functions(padded, with_probs)[name]
    scales = jnp.array([1.0, 2.0, -0.5])
    for mapped in range(len(arguments)):

        def total(*values, mapped=mapped):
            batch = scales.reshape(-1, *(1,) * values[mapped].ndim) * values[mapped]
            in_axes = [0 if i == mapped else None for i in range(len(values))]
            results = jax.vmap(function, in_axes)(
                *values[:mapped], batch, *values[mapped + 1 :]
            )
            return sum(jnp.sum(jnp.sin(r)) for r in jax.tree_util.tree_leaves(results))

        def expected(*values, mapped=mapped):
            loss = 0
            for scale in (1.0, 2.0, -0.5):
                item = [v * scale if i == mapped else v for i, v in enumerate(values)]
                loss += sum(
                    jnp.sum(jnp.sin(r)) for r in jax.tree_util.tree_leaves(function(*item))
                )
            return loss

        places = tuple(range(len(arguments)))
        for a, b in zip(
            jax.grad(total, places)(*arguments), jax.grad(expected, places)(*arguments)
        ):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


SHARDED = '''
import jax, jax.numpy as jnp, numpy as np, moetoken.jax as mj
from jax.sharding import Mesh, PartitionSpec
tokens = jnp.arange(12.0).reshape(4, 3)
routing_map = jnp.array([[1, 0], [0, 1], [1, 0], [0, 1]], bool)
probs = jnp.array([[0.5, 0], [0, 2], [3, 0], [0, 0.25]])

def layer(tokens, probs, routing_map):
    rows, _, indices = mj.permute(tokens, routing_map, num_out_tokens=len(tokens))
    return mj.unpermute(jnp.sin(rows), indices, routing_map=routing_map, probs=probs)

def loss(layer):
    return lambda t, p: jnp.sum(layer(t, p, routing_map) ** 2)

mesh, split = Mesh(jax.devices(), ("d",)), PartitionSpec("d", None)
assert len(jax.devices()) == 2
want = layer(tokens, probs, routing_map)
gradients = jax.grad(loss(layer), (0, 1))(tokens, probs)
curvature = jax.hessian(loss(layer), 1)(tokens, probs)
for check in (True, False):
    sharded = jax.shard_map(
        layer, mesh=mesh, in_specs=(split,) * 3, out_specs=split, check_vma=check
    )
    for wrap in (lambda f: f, jax.jit):
        np.testing.assert_array_equal(wrap(sharded)(tokens, probs, routing_map), want)
        found = wrap(jax.grad(loss(sharded), (0, 1)))(tokens, probs)
        for a, b in zip(found, gradients):
            np.testing.assert_array_equal(a, b)
    np.testing.assert_allclose(
        jax.jit(jax.hessian(loss(sharded), 1))(tokens, probs), curvature, rtol=1e-6
    )
    whole = lambda t, p, m: layer(t, p[:2], m)  # probs are the same on both devices
    shared = jax.shard_map(
        whole, mesh=mesh, in_specs=(split, PartitionSpec(), split), out_specs=split, check_vma=check
    )
    got = jax.jit(jax.grad(lambda p: jnp.sum(shared(tokens, p, routing_map) ** 2)))(probs)
    halves = lambda p: sum(
        jnp.sum(whole(tokens[i : i + 2], p, routing_map[i : i + 2]) ** 2) for i in (0, 2)
    )
    np.testing.assert_allclose(got, jax.grad(halves)(probs), rtol=1e-6)
'''


@pytest.mark.skipif(not hasattr(jax, "shard_map"), reason="JAX before 0.6")
def test_shard_map():
    """Two devices, for which JAX has to be asked before it starts."""
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(Path(mj.__file__).parents[2]), environment.get("PYTHONPATH", "")]
    )
    subprocess.run([sys.executable, "-c", SHARDED], check=True, env=environment)


def test_without_jit():
    with jax.disable_jit():
        y = mj.unpermute(jnp.ones((2, 2)), jnp.array([1, 0]), restore_shape=(2, 2))
    assert y.tolist() == [[1, 1], [1, 1]]


# ---- told when traced ---------------------------------------------------------------------------

x, g, n = jnp.ones((4, 2)), jnp.ones((2, 2)), jnp.arange(4)
m, p = jnp.ones((2, 2), bool), jnp.ones((2, 2))
WRONG = {
    "rank too few": (
        lambda: mj.unpermute(jnp.ones(3), n, restore_shape=(2, 2)),
        ValueError,
        "permuted_tokens has 1 dimension, expected 2",
    ),
    "rank too many": (
        lambda: mj.unpermute(x[None], n[None], restore_shape=(2, 2)),
        ValueError,
        "permuted_tokens has 3 dimensions, expected 2",
    ),
    "index rank": (
        lambda: mj.unpermute(x, n[None], restore_shape=(2, 2)),
        ValueError,
        "sorted_indices has 2 dimensions, expected 1",
    ),
    "hidden size": (
        lambda: mj.unpermute(x, n, restore_shape=(2, 3)),
        ValueError,
        r"permuted_tokens has shape \[4, 2\], but H = 3 as the call has it",
    ),
    "probs shape": (
        lambda: mj.unpermute(x, n, routing_map=m, probs=jnp.ones((2, 3))),
        ValueError,
        r"probs has shape \[2, 3\], but E = 2 as routing_map has it",
    ),
    "probs without map": (
        lambda: mj.unpermute(x, n, probs=p, restore_shape=(2, 2)),
        ValueError,
        "routing_map is missing",
    ),
    "probs type": (
        lambda: mj.unpermute(x, n, routing_map=m, probs=p.astype("float16")),
        TypeError,
        "probs is float16, expected float64 as permuted_tokens is",
    ),
    "index type": (
        lambda: mj.unpermute(x, x[:, 0], restore_shape=(2, 2)),
        TypeError,
        "sorted_indices is float64, expected int32 or int64",
    ),
    "token type": (
        lambda: mj.permute(n.reshape(2, 2), m, num_out_tokens=4),
        TypeError,
        "tokens is int64, expected float32",
    ),
    "map type": (
        lambda: mj.permute(g, p, num_out_tokens=4),
        TypeError,
        "routing_map is float64, expected bool or int8 or uint8",
    ),
    "map length": (
        lambda: mj.permute(x, m, num_out_tokens=4),
        ValueError,
        r"routing_map has shape \[2, 2\], but T = 4 as tokens has it",
    ),
    "negative number": (
        lambda: mj.permute(g, m, num_out_tokens=-1),
        ValueError,
        "num_out_tokens = -1, expected at least 0",
    ),
    "no number": (
        lambda: mj.permute(g, m, num_out_tokens=4.0),
        TypeError,
        "num_out_tokens is 4.0, expected a whole number",
    ),
    "row probs": (
        lambda: mj.permute_grad(x, jnp.ones(3), n, m),
        ValueError,
        r"permuted_probs_grad has shape \[3\], but R = 4 as permuted_tokens_grad has it",
    ),
    "no map": (
        lambda: mj.permute_grad(None, x[:, 0], n, tokens_num=2, experts_num=2),
        ValueError,
        "routing_map is missing",
    ),
    "rows": (
        lambda: mj.unpermute_grad(g, n, permuted_tokens=x, rows_num=3),
        ValueError,
        r"permuted_tokens has shape \[4, 2\], but R = 3 as the call has it",
    ),
    "token ids": (
        lambda: mj.unpermute_grad(g, n, n[:3]),
        ValueError,
        r"permute_token_id has shape \[3\], but N = 4 as out_index has it",
    ),
    "no rows": (
        lambda: mj.unpermute_grad(g, n, routing_map=m, probs=p),
        ValueError,
        "permuted_tokens is missing",
    ),
    "no token ids": (
        lambda: mj.unpermute_grad(g, n, drop_and_pad=True),
        ValueError,
        "permute_token_id is missing",
    ),
    "no array": (
        lambda: mj.unpermute([[1.0]], n, restore_shape=(2, 2)),
        TypeError,
        "permuted_tokens is a list, expected an array",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_told_when_traced(name):
    call, error, match = WRONG[name]
    with pytest.raises(error, match=match):
        jax.eval_shape(call)  # nothing runs


def test_numbers_must_be_known():
    with pytest.raises(TypeError, match="num_out_tokens is traced by JAX"):
        jax.jit(lambda n: mj.permute(g, m, num_out_tokens=n))(4)


def test_the_handler_itself_refuses_a_rank_too_few():
    """Below the checks: what another program that calls the handler would get."""
    from moetoken.jax._primitives import call, shape

    run = jax.jit(
        lambda x: call(
            "unpermute",
            (),
            [x, n, None, None],
            [shape((2, 2), x), None, None, None],
            drop_and_pad=0,
        )[0]
    )
    with pytest.raises(Exception, match="a tensor has fewer dimensions than the operator's"):
        run(jnp.ones(3)).block_until_ready()


def test_an_unused_slot_takes_nothing_from_an_infinite_row():
    """Slot 1 (token 1) names no row; the row that is infinite belongs to nobody."""
    slots = (jnp.array([1, -1]), jnp.array([0, 1]))
    rows_grad = lambda g: mj.unpermute_grad(g, *slots, rows_num=2)[0]  # noqa: E731
    _, backward = jax.vjp(rows_grad, jnp.ones((2, 2)))
    found = backward(jnp.array([[jnp.inf, jnp.inf], [3.0, 4.0]]))[0]
    np.testing.assert_array_equal(found, [[3.0, 4.0], [0.0, 0.0]])
