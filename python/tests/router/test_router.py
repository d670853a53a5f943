"""moetoken.router and its family against an oracle in long double."""

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

import moetoken
import oracle_router
from cases import TOKEN_TYPES, bits, spread
from moetoken import ids
from oracle_router import NEAR, WIDE, Options, assert_near

SCORES = ["softmax", "sigmoid", "sqrtsoftplus", "softmax_after"]


class Routing:
    """Random logits on a coarse grid, so that ties are frequent and near ties are not."""

    def __init__(self, seed, tokens, groups, group_size, dtype, with_bias, with_mask):
        rng = self.rng = np.random.default_rng(seed)
        self.experts = groups * group_size
        shape = (tokens, self.experts)
        self.logits = (rng.integers(-32, 33, shape) / 8).astype(dtype)
        self.bias = None
        if with_bias:
            kind = [np.float32, np.float64, dtype][rng.integers(3)]
            self.bias = (rng.integers(-64, 65, self.experts) / 64).astype(kind)
        self.mask = None
        if with_mask:
            kind = [bool, np.int8, np.uint8][rng.integers(3)]
            self.mask = rng.integers(0, 3, tokens).astype(kind)
        self.groups = groups

    def options(self, score, normalize, normalize_scores):
        rng, size = self.rng, max(self.experts // self.groups, 1)
        top = int(rng.integers(1, self.groups + 1))
        most = top * size if self.groups > 1 else self.experts
        return Options(
            int(rng.integers(0, most + 1)),
            score,
            normalize,
            normalize_scores,
            self.groups,
            top,
            int(rng.integers(1, size + 1)),
            float(rng.choice([0, 1e-20, 0.25])),
            float(rng.choice([1, 2.5, -0.75])),
        )


ROUTINGS = st.builds(
    Routing,
    seed=st.integers(0, 2**32 - 1),
    tokens=st.integers(0, 6),
    groups=st.sampled_from([1, 1, 2, 4]),
    group_size=st.integers(1, 9),
    dtype=st.sampled_from(TOKEN_TYPES),
    with_bias=st.booleans(),
    with_mask=st.booleans(),
)


@pytest.mark.parametrize("score", SCORES)
@given(ROUTINGS, st.booleans(), st.booleans(), st.booleans())
def test_router(score, routing, normalize, normalize_scores, as_logits):
    options = routing.options(score, normalize, normalize_scores)
    kind = routing.logits.dtype if as_logits else None
    found = moetoken.router(
        spread(routing.rng, routing.logits),
        bias=spread(routing.rng, routing.bias),
        token_mask=spread(routing.rng, routing.mask),
        weights_dtype=kind,
        index_dtype=[np.int32, np.int64][routing.rng.integers(2)],
        **vars(options),
    )
    chosen, weights, scores, counts = oracle_router.route(
        routing.logits, options, routing.bias, routing.mask
    )
    assert found.expert_ids.tolist() == chosen.tolist()
    assert found.rows_per_expert.tolist() == counts.tolist()
    assert found.rows_per_expert.dtype == np.int64
    wide = np.float64 if routing.logits.dtype == np.float64 else np.float32
    assert found.weights.dtype == found.scores.dtype == (kind or wide)
    assert_near(found.weights, weights, 2 * NEAR * abs(weights))
    assert_near(found.scores, scores, 2 * NEAR * abs(scores))


@pytest.mark.parametrize("score", SCORES)
@given(ROUTINGS, st.booleans(), st.booleans())
def test_gradient(score, routing, normalize, normalize_scores):
    options = routing.options(score, normalize, normalize_scores)
    rng, logits = routing.rng, routing.logits
    chosen = oracle_router.route(logits, options, routing.bias, routing.mask)[0]
    if options.topk > 1:  # a slot that never was
        chosen[rng.random(chosen.shape) < 0.1] = -1
    kinds = [np.float32, np.float64, logits.dtype]
    weights_grad = rng.standard_normal(chosen.shape).astype(kinds[rng.integers(3)])
    scores_grad = rng.standard_normal(logits.shape).astype(kinds[rng.integers(3)])
    wants = rng.integers(3)
    by_weights = weights_grad if wants != 1 else None
    by_scores = scores_grad if wants != 0 else None
    found = moetoken.router_grad(
        spread(rng, logits),
        spread(rng, chosen),
        spread(rng, by_weights),
        spread(rng, by_scores),
        bias=routing.bias,
        token_mask=routing.mask,
        **vars(options),
    )
    exact = oracle_router.logits_grad(logits, chosen, by_weights, by_scores, options, routing.mask)
    assert found.dtype == logits.dtype
    # Derivatives are at most about 60 times the gradients that come in: 1 / sigmoid(-4).
    assert_near(found, exact, 1e-11)


@given(ROUTINGS, st.integers(0, 20))
def test_balance_loss(routing, total):
    scores, rng = routing.logits, routing.rng
    tokens, experts = scores.shape
    counts = rng.integers(0, 100, experts)
    topk, coeff, upstream = int(rng.integers(1, 4)), 0.37, -1.5
    found = moetoken.router_balance_loss(
        spread(rng, scores), spread(rng, counts), topk=topk, coeff=coeff,
        total_tokens=total or None, loss_grad=upstream,
    )  # fmt: skip
    number = total or tokens
    factor = WIDE(experts) * WIDE(coeff) / (topk * WIDE(number) ** 2) if number else WIDE(0)
    terms = scores.astype(WIDE) * counts * factor
    kind = np.float64 if scores.dtype == np.float64 else np.float32
    assert found.loss.dtype == kind and found.scores_grad.dtype == scores.dtype
    bound = (tokens + 8) * WIDE(2) ** -53 * abs(terms).sum() * experts
    assert_near(np.array(found.loss), terms.sum(), bound)
    exact = np.broadcast_to(factor * counts * WIDE(upstream), scores.shape)
    assert_near(found.scores_grad, exact, NEAR * abs(exact))


@given(ROUTINGS)
def test_z_loss(routing):
    logits, rng, coeff, upstream = routing.logits, routing.rng, 0.37, -1.5
    found = moetoken.router_z_loss(
        spread(rng, logits), coeff=coeff, token_mask=spread(rng, routing.mask), loss_grad=upstream
    )
    rows, exact = logits.astype(WIDE), np.zeros(logits.shape, WIDE)
    used = [t for t in range(len(rows)) if routing.mask is None or routing.mask[t]]
    total = WIDE(0)
    for t in used:
        lse = np.log(np.exp(rows[t]).sum())
        total += WIDE(coeff) * lse**2 / len(used)
        exact[t] = WIDE(coeff) * 2 * lse / len(used) * oracle_router.softmax(rows[t])
    assert found.loss.dtype == (np.float64 if logits.dtype == np.float64 else np.float32)
    assert found.logits_grad.dtype == logits.dtype
    # lse may cancel: its error is one of numbers below 8
    assert_near(np.array(found.loss), total, 64 * NEAR * (1 + total))
    assert_near(found.logits_grad, exact * WIDE(upstream), 16 * NEAR)


@given(ROUTINGS)
def test_update_bias(routing):
    bias = routing.bias if routing.bias is not None else routing.logits[:1].reshape(-1)
    counts = routing.rng.integers(0, 5, bias.size)
    found = moetoken.router_update_bias(spread(routing.rng, bias), counts, 0.01)
    sign = [np.sign(int(counts.sum()) - len(counts) * int(c)) for c in counts]
    exact = bias.astype(WIDE) + WIDE(0.01) * np.array(sign, WIDE)
    assert_near(found, exact, WIDE(2) ** -53 * abs(exact))
    assert found.dtype == bias.dtype


@given(ROUTINGS, st.integers(0, 4))
def test_drop(routing, capacity):
    rng = routing.rng
    topk = min(3, routing.experts)
    chosen = rng.integers(-1, routing.experts, (len(routing.logits), topk))
    weights = routing.logits[:, :topk].copy()
    weights[rng.random(weights.shape) < 0.1] = np.nan
    found = moetoken.router_drop(
        spread(rng, chosen), spread(rng, weights), experts_num=routing.experts, capacity=capacity
    )
    flat, heavy = chosen.reshape(-1), weights.reshape(-1)
    kept = np.full(flat.shape, -1)
    for expert in range(routing.experts):
        slots = np.flatnonzero(flat == expert)
        for i in oracle_router.best(heavy[slots].astype(WIDE), capacity):
            kept[slots[i]] = expert
    assert found.kept_ids.reshape(-1).tolist() == kept.tolist()
    expected = np.where(kept.reshape(chosen.shape) == chosen, weights, weights.dtype.type(0))
    assert bits(found.kept_weights) == bits(expected)
    assert found.rows_per_expert.tolist() == [
        int((kept == e).sum()) for e in range(routing.experts)
    ]


# ---- by hand ------------------------------------------------------------------------------------


def test_worked_by_hand():
    """Sigmoids of 0 and +-ln 3 are 1/2, 3/4, 1/4; the bias decides, unseen by the weights."""
    logits = np.log(np.array([[1, 3, 1 / 3, 1], [3, 3, 1, 1 / 3]]))
    bias = np.array([0.0, -0.5, 0.0, 0.125])
    found = moetoken.router(
        logits, topk=2, score="sigmoid", bias=bias, normalize=True, eps=0, scale=3
    )
    # choice values: 1/2, 1/4, 1/4, 5/8 and 3/4, 1/4, 1/2, 3/8
    assert found.expert_ids.tolist() == [[3, 0], [0, 2]]
    assert np.allclose(found.weights, [[1.5, 1.5], [1.8, 1.2]], rtol=1e-15, atol=0)
    assert np.allclose(found.scores, [[0.5, 0.75, 0.25, 0.5], [0.75, 0.75, 0.5, 0.25]], rtol=1e-15)
    assert found.rows_per_expert.tolist() == [2, 0, 1, 1]


def test_ties_and_nan():
    nan, inf = np.nan, np.inf
    logits = np.array([[1, 2, 2, 1], [nan, 1, -inf, 1], [0, -0.0, 0, 0], [nan] * 4])
    found = moetoken.router(logits, topk=3, score="sigmoid")
    assert found.expert_ids.tolist() == [[1, 2, 0], [1, 3, 2], [0, 1, 2], [0, 1, 2]]
    grouped = moetoken.router(
        np.zeros((1, 8)), topk=2, groups_num=4, groups_top=2, group_score_count=2
    )
    assert grouped.expert_ids.tolist() == [[0, 1]]


def test_nothing():
    for shape, topk in (((0, 4), 2), ((3, 4), 0), ((3, 0), 0)):
        found = moetoken.router(np.zeros(shape, np.float32), topk=topk)
        assert found.expert_ids.shape == found.weights.shape == (shape[0], topk)
        assert found.scores.shape == shape and not found.rows_per_expert.any()
    assert moetoken.router_balance_loss(np.zeros((0, 2)), np.zeros(2, int), topk=1).loss == 0
    assert moetoken.router_z_loss(np.zeros((0, 2))).loss == 0
    masked = moetoken.router_z_loss(np.ones((2, 2)), token_mask=np.zeros(2, bool))
    assert masked.loss == 0 and not masked.logits_grad.any()


def test_recipe_and_what_overrides_it():
    logits = np.random.default_rng(0).standard_normal((5, 64))
    bias = np.linspace(-0.1, 0.1, 64)
    found = moetoken.router(logits, recipe="deepseek-v3", bias=bias)
    spelled = moetoken.router(
        logits, topk=8, score="sigmoid", bias=bias, groups_num=8, groups_top=4,
        group_score_count=2, normalize=True, eps=1e-20, scale=2.5,
    )  # fmt: skip
    assert [bits(a) for a in found] == [bits(a) for a in spelled]
    other = moetoken.router(
        logits, recipe="deepseek-v3", bias=bias, normalize=False, scale=1, topk=2
    )
    chosen = np.take_along_axis(found.scores, other.expert_ids, 1)
    assert other.expert_ids.shape == (5, 2) and bits(other.weights) == bits(chosen)
    grad = moetoken.router_grad(logits, found.expert_ids, found.weights, recipe="deepseek-v3")
    spelled = moetoken.router_grad(
        logits, found.expert_ids, found.weights, score="sigmoid", normalize=True, scale=2.5
    )
    assert bits(grad) == bits(spelled)


def test_to_permute():
    """What the router returns is what the operators by expert ids take."""
    logits = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
    found = moetoken.router(
        logits, topk=2, normalize=True, token_mask=np.array([1, 1, 0, 1, 1], bool)
    )
    sent = ids.permute(logits, found.expert_ids, found.weights, experts_num=4, rows_num=8)
    assert sent.rows_per_expert.tolist() == found.rows_per_expert.tolist()
    back = ids.unpermute(sent.permuted_tokens, sent.sorted_indices, found.weights)
    assert np.allclose(back[[0, 1, 3, 4]], logits[[0, 1, 3, 4]], atol=1e-6) and not back[2].any()


def test_scores_are_not_computed_unless_wanted():
    logits = np.zeros((2, 4))
    assert moetoken.router(logits, topk=1, with_scores=False).scores is None
    assert moetoken.router(logits, topk=1).scores.tolist() == [[0.25] * 4] * 2


# ---- memory -------------------------------------------------------------------------------------


def test_out():
    logits = np.random.default_rng(0).standard_normal((3, 4))
    expected = moetoken.router(logits, topk=2)
    out = (
        np.zeros((3, 2), np.int32),
        np.zeros((3, 2), np.float32),
        None,
        np.zeros(4, np.int64)[::-1],
    )
    found = moetoken.router(logits, topk=2, out=out)
    assert all(a is b for a, b in zip(found, out) if b is not None)
    assert found.expert_ids.tolist() == expected.expert_ids.tolist()
    assert bits(found.weights) == bits(expected.weights.astype(np.float32))
    assert found.rows_per_expert.tolist() == expected.rows_per_expert.tolist()
    grad = np.zeros_like(logits)
    assert moetoken.router_grad(logits, found.expert_ids, found.weights, out=grad) is grad
    assert moetoken.router_balance_loss(logits, np.ones(4, int), topk=1, out=grad)[1] is grad
    assert moetoken.router_z_loss(logits, out=grad)[1] is grad


def test_in_place():
    bias, counts = np.zeros(4), np.array([9, 1, 1, 1])
    assert moetoken.router_update_bias(bias, counts, 0.5, out=bias) is bias
    assert bias.tolist() == [-0.5, 0.5, 0.5, 0.5]
    backwards = np.zeros(4)[::-1]
    moetoken.router_update_bias(backwards, counts, 0.5, out=backwards)
    assert backwards.tolist() == bias.tolist()
    chosen, weights = np.array([[0], [0]]), np.array([[1.0], [2.0]])
    moetoken.router_drop(chosen, weights, experts_num=1, capacity=1, out=(chosen, weights, None))
    assert chosen.tolist() == [[-1], [0]] and weights.tolist() == [[0], [2]]


@pytest.mark.parametrize("flip", [slice(None), slice(None, None, -1)], ids=["plain", "reversed"])
def test_shared_memory_is_refused(flip):
    memory = np.arange(8.0)
    before = memory.tobytes()
    shared = memory[2:6].reshape(2, 2)[flip]
    ids_out = memory[4:6].view(np.int64).reshape(2, 1)
    with pytest.raises(ValueError, match="shares memory with logits"):
        moetoken.router(memory[:4].reshape(2, 2)[flip], topk=1, out=(None, None, shared, None))
    with pytest.raises(ValueError, match="shares memory with"):
        moetoken.router(np.zeros((2, 2)), topk=1, out=(ids_out, None, shared, None))
    with pytest.raises(ValueError, match="shares memory with logits"):
        moetoken.router_grad(
            memory[:4].reshape(2, 2)[flip], np.zeros((2, 1), int), np.zeros((2, 1)), out=shared
        )
    with pytest.raises(ValueError, match="elements share memory|addresses|shares? memory"):
        moetoken.router_z_loss(np.zeros((2, 2)), out=as_strided(memory, (2, 2), (0, 8))[flip])
    assert memory.tobytes() == before


def test_arrays_that_need_a_copy():
    logits = np.random.default_rng(0).standard_normal((4, 6))
    backwards = moetoken.router(logits[::-1, ::-1], topk=2, bias=np.arange(6.0)[::-1])
    plain = moetoken.router(logits[::-1, ::-1].copy(), topk=2, bias=np.arange(6.0)[::-1].copy())
    assert [bits(a) for a in backwards] == [bits(a) for a in plain]
    with pytest.raises(ValueError, match="topk = 7, expected at most E = 6"):
        moetoken.router(logits[::-1], topk=7)


def test_arrays_of_others():
    torch, jnp = pytest.importorskip("torch"), pytest.importorskip("jax.numpy")
    logits = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    plain = moetoken.router(logits, topk=2, weights_dtype=np.float32)
    for array, kind in ((torch.tensor(logits), torch.float32), (jnp.asarray(logits), jnp.float32)):
        found = moetoken.router(array, topk=2, weights_dtype=kind)
        assert [bits(a) for a in found] == [bits(a) for a in plain]
    narrow = torch.tensor(logits).bfloat16()
    assert (
        moetoken.router(narrow, topk=2, weights_dtype="bfloat16").weights.dtype.name == "bfloat16"
    )
    assert moetoken.router_grad(narrow, plain.expert_ids, plain.weights).dtype.name == "bfloat16"
    leaf = torch.zeros(4, 6, requires_grad=True)
    with pytest.raises(ValueError, match=r"out\[0\] is a tensor that requires gradients"):
        moetoken.router_z_loss(logits, out=leaf)


@pytest.mark.parametrize(
    "error, message, call",
    [
        (ValueError, "^topk = 5, expected at most E = 4", dict(topk=5)),
        (ValueError, "^topk is missing: without recipe", dict(topk=None)),
        (ValueError, "^recipe is 'qwen', expected mixtral, .* or glm-4.5", dict(recipe="qwen")),
        (ValueError, "^score is 'relu', expected softmax, .* or softmax_after", dict(score="relu")),
        (ValueError, "^groups_num = 3 does not divide E = 4", dict(groups_num=3)),
        (ValueError, "^groups_top = 3, expected 1 to groups_num = 2", dict(groups_num=2, groups_top=3)),
        (ValueError, "^group_score_count = 3, expected 1 to E / groups_num = 2",
         dict(groups_num=2, group_score_count=3)),
        (ValueError, "^topk = 3, expected at most the 2 experts of groups_top = 1 groups",
         dict(topk=3, groups_num=2)),
        (ValueError, "^scale = 0, expected another", dict(scale=0)),
        (ValueError, "^eps = -1.0, expected at least 0", dict(eps=-1)),
        (ValueError, "^bias has", dict(bias=np.zeros(3))),
        (TypeError, "^bias is float16, expected float32, float64", dict(bias=np.zeros(4, "f2"))),
        (ValueError, "^token_mask has", dict(token_mask=np.zeros(3, bool))),
        (TypeError, "^weights_dtype is 'float16', expected float32 or float64$",
         dict(weights_dtype="float16")),
    ],
)  # fmt: skip
def test_errors(error, message, call):
    with pytest.raises(error, match=message):
        moetoken.router(np.zeros((2, 4), np.float32), **{"topk": 1, **call})


def test_errors_of_the_others():
    logits = np.zeros((2, 4))
    with pytest.raises(ValueError, match="topk = 2, but expert_ids has K = 1"):
        moetoken.router_grad(logits, np.zeros((2, 1), int), np.zeros((2, 1)), topk=2)
    with pytest.raises(ValueError, match="weights_grad and scores_grad are None"):
        moetoken.router_grad(logits, np.zeros((2, 1), int), None)
    with pytest.raises(IndexError, match=r"expert_ids\[1,0\] = 4 is outside \[-1, 4\)"):
        moetoken.router_grad(logits, np.array([[0], [4]]), np.zeros((2, 1)))
    with pytest.raises(TypeError, match="rows_per_expert is int32, expected int64"):
        moetoken.router_balance_loss(logits, np.zeros(4, np.int32), topk=1)
    with pytest.raises(IndexError, match=r"expert_ids\[0,0\] = 2 is outside \[-1, 2\)"):
        moetoken.router_drop(np.array([[2]]), np.ones((1, 1)), experts_num=2, capacity=1)


def test_threads_do_not_change_bits():
    logits = np.random.default_rng(0).standard_normal((300, 256)).astype(np.float32)
    found = [moetoken.router(logits, recipe="deepseek-v3", threads=n) for n in (1, 2, 5)]
    assert len({b"".join(bits(a) for a in one) for one in found}) == 1
    with pytest.raises(ValueError, match="threads"):
        moetoken.router(logits, topk=1, threads=sys.maxsize)
