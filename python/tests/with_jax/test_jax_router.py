"""The router for JAX: the bits of the NumPy functions, every derivative, early errors."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_platforms", "cpu")

import jax.numpy as jnp  # noqa: E402
from jax.test_util import check_grads  # noqa: E402

import moetoken  # noqa: E402
import moetoken.jax as mj  # noqa: E402
from cases import bits  # noqa: E402

SCORES = ["softmax", "sigmoid", "sqrtsoftplus", "softmax_after"]
T, E, K = 5, 8, 3
MASK = jnp.array([1, 1, 0, 1, 1], bool)
COUNTS = jnp.arange(1, E + 1)


def normal(*sizes, seed=0, dtype="float64"):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(sizes), dtype)


def same(found, wanted):
    assert [bits(a) for a in found] == [bits(a) for a in wanted]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize("score", SCORES)
def test_same_bits_as_numpy(dtype, score):
    logits, bias = normal(T, E, dtype=dtype), jnp.linspace(-0.1, 0.1, E)
    options = dict(topk=K, score=score, normalize=True, groups_num=4, groups_top=2, scale=1.5)
    arrays = dict(bias=np.asarray(bias), token_mask=np.asarray(MASK))
    plain = moetoken.router(np.asarray(logits), index_dtype=np.int32, **arrays, **options)

    @jax.jit
    def route(logits):
        return mj.router(logits, bias=bias, token_mask=MASK, **options)

    same(route(logits), plain)
    same(mj.router(logits, bias=bias, token_mask=MASK, **options), plain)
    grads = (plain.expert_ids, plain.weights, plain.scores)
    by_numpy = moetoken.router_grad(np.asarray(logits), *grads, **arrays, **options)
    found = mj.router_grad(logits, *map(jnp.asarray, grads), token_mask=MASK, **options)
    same([found], [by_numpy])
    back = jax.vjp(lambda x: route(x)[1:3], logits)[1]
    same(back((jnp.asarray(plain.weights), jnp.asarray(plain.scores))), [by_numpy])


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_others_have_the_bits_of_numpy(dtype, wide):
    """In JAX's 32-bit mode too, where the counts are int32."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", wide)
    try:
        x, counts = normal(T, E, dtype=dtype), jnp.arange(1, E + 1)
        assert counts.dtype == (np.int64 if wide else np.int32)
        plain = moetoken.router_balance_loss(np.asarray(x), np.arange(1, E + 1), topk=2, coeff=0.3)
        loss, grad = jax.value_and_grad(
            lambda s: mj.router_balance_loss(s, counts, topk=2, coeff=0.3)
        )(x)
        same((loss, grad), plain)
        plain = moetoken.router_z_loss(np.asarray(x), coeff=0.3, token_mask=np.asarray(MASK))
        loss, grad = jax.value_and_grad(lambda s: mj.router_z_loss(s, coeff=0.3, token_mask=MASK))(
            x
        )
        same((loss, grad), plain)
        ids = mj.router(x, topk=K).expert_ids
        found = mj.router_drop(ids, x[:, :K], experts_num=E, capacity=2)
        plain = moetoken.router_drop(
            np.asarray(ids), np.asarray(x[:, :K]), experts_num=E, capacity=2
        )
        same(found[:2], plain[:2])
        assert found.rows_per_expert.tolist() == plain.rows_per_expert.tolist()
    finally:
        jax.config.update("jax_enable_x64", before)


@pytest.mark.parametrize("counts", [[9, 1, 1, 1], [3, 2, 4, 0], [2, 2, 2, 2], [1, 1, 0, 0]])
def test_update_bias(counts):
    bias = jnp.array([0.5, -0.25, 0.0, 1.0])
    found = mj.router_update_bias(bias, jnp.array(counts), 0.125)
    same([found], [moetoken.router_update_bias(np.asarray(bias), np.array(counts), 0.125)])


def outputs(score, normalize, mask):
    def call(x):
        found = mj.router(
            x, topk=K, score=score, normalize=normalize, normalize_scores=normalize, scale=1.5,
            token_mask=mask,
        )  # fmt: skip
        return found.weights, found.scores

    return call


@pytest.mark.parametrize(
    "score, normalize, mask, order",
    [
        ("softmax", False, None, 1),
        ("sigmoid", True, MASK, 2),
        ("sqrtsoftplus", True, None, 1),
        ("softmax_after", True, MASK, 2),
    ],
)
def test_derivatives_of_the_router(score, normalize, mask, order):
    check_grads(jax.jit(outputs(score, normalize, mask)), (normal(T, E),), order=order)


@pytest.mark.parametrize("score", ["sigmoid", "softmax_after"])
def test_derivatives_of_router_grad(score):
    """By the logits and both gradients, with a slot that never was."""
    ids = mj.router(normal(T, E), topk=K, score=score).expert_ids.at[0, 1].set(-1)

    def call(x, weights, scores):
        return mj.router_grad(x, ids, weights, scores, score=score, normalize=True)

    arguments = (normal(T, E), normal(T, K, seed=1), normal(T, E, seed=2))
    check_grads(jax.jit(call), arguments, order=2 if score == "softmax_after" else 1)

    @jax.jit
    def scores_alone(x, scores):
        return mj.router_grad(x, None, None, scores, score=score, normalize_scores=True)

    check_grads(scores_alone, (arguments[0], arguments[2]), order=1)


def test_derivatives_of_the_others():
    x = normal(T, E)
    both = lambda x: (mj.router_balance_loss(x, COUNTS, topk=2), mj.router_z_loss(x, coeff=0.3))
    check_grads(jax.jit(lambda x: jnp.sin(both(x)[0]) * both(x)[1]), (x,), order=2)
    check_grads(jax.jit(lambda x: both(x)[1]), (x,), order=3, modes=("rev",))
    check_grads(jax.jit(lambda x: mj.router_z_loss(x, token_mask=MASK)), (x,), order=2)
    ids = jnp.array([[0, 1], [0, -1], [0, 1]])
    drop = lambda w: mj.router_drop(ids, w, experts_num=2, capacity=1).kept_weights
    check_grads(drop, (normal(3, 2),), order=2)
    assert jax.grad(lambda w: drop(w).sum())(normal(3, 2))[1, 1] == 1  # an unused slot's is kept


def test_vmap():
    """A batch of logits, of biases, of counts, and of all with what is the same for all."""
    x, bias, mask = normal(4, T, E), normal(4, E, seed=1), jnp.arange(4 * T).reshape(4, T) % 3 > 0

    @jax.jit
    def call(x, bias, mask):
        found = mj.router(x, topk=K, score="sigmoid", normalize=True, bias=bias, token_mask=mask)
        kept = mj.router_drop(found.expert_ids, found.weights, experts_num=E, capacity=2)
        losses = (
            mj.router_balance_loss(found.scores, found.rows_per_expert, topk=K),
            (mj.router_z_loss(x, token_mask=mask)),
        )
        return (*found, *kept, *losses)

    for axes in ((0, 0, 0), (0, None, None), (None, 0, None), (None, None, 0)):
        given = [a if axis == 0 else a[0] for a, axis in zip((x, bias, mask), axes)]
        found = jax.jit(jax.vmap(call, axes))(*given)
        for i in range(4):
            one = call(*(a[i] if axis == 0 else a for a, axis in zip(given, axes)))
            same([a[i] for a in found], one)
    total = lambda x, b, m: sum(out.sum() for out in (call(x, b, m)[1], *call(x, b, m)[-2:]))
    steepness = lambda *given: (jax.grad(total)(*given) ** 2).sum()
    for slope in (jax.jit(jax.grad(total)), jax.jit(jax.grad(steepness))):
        found = jax.vmap(slope, (0, None, 0))(x[:2], bias[0], mask[:2])
        each = [slope(x[i], bias[0], mask[i]) for i in range(2)]
        np.testing.assert_allclose(found, jnp.stack(each), rtol=1e-12, atol=1e-12)


def test_jit_of_a_whole_layer():
    from moetoken.jax import ids

    def loss(x, w):
        found = mj.router(x @ w, recipe="mixtral")
        sent = ids.permute(x, found.expert_ids, found.weights, experts_num=E)
        y = ids.unpermute(jnp.sin(sent.permuted_tokens), sent.sorted_indices, found.weights)
        aux = mj.router_balance_loss(found.scores, found.rows_per_expert, topk=2, coeff=0.1)
        return y.sum() + aux

    x, w = normal(T, 4), normal(4, E, seed=1)
    plain, compiled = jax.grad(loss, (0, 1))(x, w), jax.jit(jax.grad(loss, (0, 1)))(x, w)
    for one, other in zip(plain, compiled):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)
    check_grads(loss, (x, w), order=1)


@pytest.mark.parametrize(
    "error, message, call",
    [
        (ValueError, "^topk = 9, expected at most E = 8", dict(topk=9)),
        (ValueError, "^topk is missing", dict(topk=None)),
        (ValueError, "^recipe is 'x', expected mixtral", dict(recipe="x")),
        (ValueError, "^score is 'x', expected softmax", dict(score="x")),
        (ValueError, "^groups_num = 3 does not divide E = 8", dict(groups_num=3)),
        (ValueError, "^groups_top = 5, expected 1 to groups_num = 4",
         dict(groups_num=4, groups_top=5)),
        (ValueError, "^group_score_count = 3, expected 1 to E / groups_num = 2",
         dict(groups_num=4, group_score_count=3)),
        (ValueError, "^topk = 3, expected at most the 2 experts of groups_top = 1",
         dict(topk=3, groups_num=4)),
        (ValueError, r"^bias has shape \[3\], but E = 8", dict(bias=jnp.zeros(3))),
        (TypeError, "^bias is float16, expected float32, float64 or float32 as logits",
         dict(bias=jnp.zeros(E, "float16"))),
        (ValueError, r"^token_mask has shape \[3\], but T = 5", dict(token_mask=jnp.zeros(3, bool))),
        (TypeError, "^token_mask is float64", dict(token_mask=jnp.zeros(T))),
        (TypeError, "^weights_dtype is float16", dict(weights_dtype="float16")),
        (TypeError, "^index_dtype is int8", dict(index_dtype="int8")),
    ],
)  # fmt: skip
def test_errors_while_tracing(error, message, call):
    with pytest.raises(error, match=message):
        jax.jit(lambda x: mj.router(x, **{"topk": 1, **call}))(jnp.zeros((T, E), "float32"))


def test_errors_of_the_others():
    x, ids = jnp.zeros((T, E)), jnp.zeros((T, K), int)
    with pytest.raises(ValueError, match="^topk = 2, but expert_ids has K = 3"):
        mj.router_grad(x, ids, jnp.zeros((T, K)), topk=2)
    with pytest.raises(ValueError, match="^expert_ids is missing"):
        mj.router_grad(x, None, jnp.zeros((T, K)))
    with pytest.raises(ValueError, match="^weights_grad has shape"):
        mj.router_grad(x, ids, jnp.zeros((T, 2)))
    with pytest.raises(ValueError, match="^scores_grad has shape"):
        mj.router_grad(x, ids, None, jnp.zeros((T, 2)))
    with pytest.raises(ValueError, match="^rows_per_expert has shape"):
        mj.router_balance_loss(x, jnp.zeros(3, int), topk=1)
    with pytest.raises(TypeError, match="^topk is"):
        jax.jit(lambda k: mj.router(x, topk=k))(2)
    with pytest.raises(Exception, match=r"expert_ids\[0,0\] = 9 is outside \[-1, 8\)"):
        mj.router_grad(x, ids.at[0, 0].set(9), jnp.zeros((T, K))).block_until_ready()
