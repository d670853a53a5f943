"""moetoken.ids against an oracle in long double, and against the same routing as a map."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import moetoken
import oracle_ids
from cases import TOKEN_TYPES, UNIT, bits, numbers, spread
from moetoken import ids


class Routing:
    """Random ids of T tokens, K slots each, with unused slots and now and then a repetition."""

    def __init__(self, seed, tokens, topk, experts, hidden, dtype, wide_weights, with_weights):
        rng = self.rng = np.random.default_rng(seed)
        self.experts = experts
        index = np.int32 if rng.integers(2) else np.int64
        self.ids = rng.integers(-1, experts, size=(tokens, topk)).astype(index)
        self.tokens = numbers(rng, (tokens, hidden), dtype)
        kind = np.float32 if wide_weights and dtype.itemsize == 2 else dtype
        self.weights = numbers(rng, (tokens, topk), kind) if with_weights else None
        if with_weights:
            self.weights[rng.random(self.weights.shape) < 0.1] = 0


ROUTINGS = st.builds(
    Routing,
    seed=st.integers(0, 2**32 - 1),
    tokens=st.integers(0, 9),
    topk=st.integers(1, 5),
    experts=st.integers(1, 7),
    hidden=st.one_of(st.integers(0, 9), st.sampled_from([31, 64, 67])),
    dtype=st.sampled_from(TOKEN_TYPES),
    wide_weights=st.booleans(),
    with_weights=st.booleans(),
)


def assert_rounded(actual, exact, bound):
    """At most `bound` from the exact value before the one rounding to the result's type."""
    unit = UNIT[actual.dtype]
    tiny = {2: 2.0**-24, 4: 2.0**-126, 8: 0}[actual.dtype.itemsize]
    error = abs(actual.astype(np.longdouble) - exact)
    assert np.all(error <= bound + unit * (abs(exact) + bound) * 1.0001 + tiny)


@given(ROUTINGS, st.data())
def test_permute(routing, data):
    begin = data.draw(st.integers(0, routing.experts))
    end = data.draw(st.integers(begin, routing.experts))
    capacity = data.draw(st.none() | st.integers(1, 4))
    rows_num = None if capacity else data.draw(st.none() | st.integers(0, routing.ids.size + 2))
    found = ids.permute(
        spread(routing.rng, routing.tokens),
        spread(routing.rng, routing.ids),
        spread(routing.rng, routing.weights),
        experts_num=routing.experts,
        expert_begin=begin,
        expert_end=end,
        capacity=capacity,
        rows_num=rows_num,
    )
    if capacity:
        rows_num = capacity * (end - begin)
    elif rows_num is None:
        rows_num = routing.ids.size
    rows, slots, counts = oracle_ids.permute(routing.ids, begin, end, rows_num, capacity)
    assert found.sorted_indices.tolist() == rows and found.source_slots.tolist() == slots
    assert found.rows_per_expert.tolist() == counts and found.rows_per_expert.dtype == np.int64
    assert found.sorted_indices.dtype == found.source_slots.dtype == routing.ids.dtype
    topk = routing.ids.shape[1]
    expected = np.zeros((rows_num, routing.tokens.shape[1]), routing.tokens.dtype)
    for row, slot in enumerate(slots):
        if slot >= 0:
            expected[row] = routing.tokens[slot // topk]
    assert bits(found.permuted_tokens) == bits(expected)
    if routing.weights is None:
        assert found.permuted_weights is None
    else:
        flat = routing.weights.reshape(-1)
        expected = [flat[slot] if slot >= 0 else flat.dtype.type(0) for slot in slots]
        assert bits(found.permuted_weights) == bits(np.array(expected, flat.dtype))


@given(ROUTINGS, st.integers(0, 2), st.booleans())
def test_unpermute(routing, residuals_num, with_bias):
    rng, dtype = routing.rng, routing.tokens.dtype
    sent = ids.permute(routing.tokens, routing.ids, experts_num=routing.experts)
    x = numbers(rng, sent.permuted_tokens.shape, dtype)
    residuals = [numbers(rng, routing.tokens.shape, dtype) for _ in range(residuals_num)]
    bias = numbers(rng, (routing.experts, x.shape[1]), dtype) if with_bias else None
    extra = dict(zip(("residual", "residual2"), (spread(rng, a) for a in residuals)))
    if with_bias:
        extra.update(expert_bias=spread(rng, bias), expert_ids=spread(rng, routing.ids))
    found = ids.unpermute(
        spread(rng, x),
        spread(rng, sent.sorted_indices),
        spread(rng, routing.weights),
        topk=routing.ids.shape[1],
        **extra,
    )
    exact, sizes = oracle_ids.unpermute(
        x, sent.sorted_indices, routing.weights, residuals, bias, routing.ids, len(routing.ids)
    )
    assert found.dtype == dtype
    wide = 2.0**-53 if dtype == np.float64 else 2.0**-24
    assert_rounded(found, exact, 4 * (routing.ids.shape[1] + 2) * wide * sizes)


@given(ROUTINGS, st.booleans())
def test_gradients(routing, with_bias):
    rng, dtype = routing.rng, routing.tokens.dtype
    topk = routing.ids.shape[1]
    sent = ids.permute(routing.tokens, routing.ids, experts_num=routing.experts)
    x = numbers(rng, sent.permuted_tokens.shape, dtype)
    g = numbers(rng, routing.tokens.shape, dtype)
    bias = numbers(rng, (routing.experts, x.shape[1]), dtype) if with_bias else None
    extra = dict(expert_bias=bias, expert_ids=routing.ids) if with_bias else {}
    found = ids.unpermute_grad(
        spread(rng, g),
        spread(rng, sent.sorted_indices),
        permuted_tokens=spread(rng, x),
        weights=spread(rng, routing.weights),
        **extra,
    )
    rows, grads, sizes = oracle_ids.unpermute_grad(
        g, sent.sorted_indices, len(x), x, routing.weights, bias, routing.ids
    )
    wide = 2.0**-53 if dtype == np.float64 else 2.0**-24
    assert_rounded(found.permuted_tokens_grad, rows, wide * abs(rows))
    if routing.weights is None:
        assert found.weights_grad is None
    else:
        assert found.weights_grad.dtype == routing.weights.dtype
        bound = (2 * g.shape[1] + 2) * 2.0**-53 * sizes
        assert_rounded(found.weights_grad, grads, bound)
    alone = ids.unpermute_grad(g, sent.sorted_indices, weights=routing.weights, rows_num=len(x))
    assert alone.weights_grad is None
    assert bits(alone.permuted_tokens_grad) == bits(found.permuted_tokens_grad)

    row_weights = numbers(rng, (len(x),), dtype)
    back = ids.permute_grad(x, sent.sorted_indices, topk=topk, permuted_weights_grad=row_weights)
    exact, sizes = oracle_ids.unpermute(
        x, sent.sorted_indices, None, [], None, None, len(routing.ids)
    )
    assert_rounded(back.tokens_grad, exact, 4 * topk * wide * sizes)
    padded = np.append(row_weights, np.zeros(1, dtype))  # a slot of -1 takes the last, 0
    assert bits(back.weights_grad) == bits(padded[sent.sorted_indices].reshape(-1, topk))


@given(ROUTINGS)
def test_the_same_routing_as_a_map(routing):
    """Ascending ids, each once: by map and by ids the results are equal to the bit."""
    tokens_num, topk = routing.ids.shape
    topk = min(topk, routing.experts)
    chosen = [sorted(routing.rng.permutation(routing.experts)[:topk]) for _ in range(tokens_num)]
    listed = np.array(chosen, np.int64).reshape(tokens_num, topk)
    routing_map = np.zeros((tokens_num, routing.experts), bool)
    np.put_along_axis(routing_map, listed, True, 1)
    probs = numbers(routing.rng, routing_map.shape, routing.tokens.dtype)
    weights = np.take_along_axis(probs, listed, 1)
    rows, row_probs, indices = moetoken.permute(
        routing.tokens, routing_map, probs, tokens_num * topk, index_dtype=np.int64
    )
    sent = ids.permute(routing.tokens, listed, weights, experts_num=routing.experts)
    assert bits(sent.permuted_tokens) == bits(rows)
    assert bits(sent.permuted_weights) == bits(row_probs)
    assert bits(sent.sorted_indices) == bits(indices)
    assert sent.rows_per_expert.tolist() == routing_map.sum(0).tolist()
    by_map = moetoken.unpermute(rows, indices, routing_map=routing_map, probs=probs)[0]
    assert bits(ids.unpermute(rows, indices, weights)) == bits(by_map)
    rows_grad, probs_grad = moetoken.unpermute_grad(
        by_map, indices, routing_map=routing_map, permuted_tokens=rows, probs=probs
    )
    found = ids.unpermute_grad(by_map, indices, permuted_tokens=rows, weights=weights)
    assert bits(found.permuted_tokens_grad) == bits(rows_grad)
    assert bits(found.weights_grad) == bits(np.take_along_axis(probs_grad, listed, 1))


X = np.array([[1.0, 2.0], [3.0, 4.0]])
IDS = np.array([[0, 1], [1, -1]])


def test_worked_by_hand():
    """Token 0 goes to experts 0 and 1, token 1 to expert 1; its second slot is unused."""
    weights = np.array([[0.5, 2.0], [4.0, 9.0]])
    sent = ids.permute(X, IDS, weights, experts_num=2, rows_num=3)
    assert sent.permuted_tokens.tolist() == [[1, 2], [1, 2], [3, 4]]
    assert sent.permuted_weights.tolist() == [0.5, 2, 4]
    assert sent.sorted_indices.tolist() == [0, 1, 2, -1]
    assert sent.source_slots.tolist() == [0, 1, 2] and sent.rows_per_expert.tolist() == [1, 2]
    rows = np.array([[1.0, 0.0], [0.0, 1.0], [10.0, 20.0]])
    bias = np.array([[100.0, 0.0], [0.0, 1000.0]])
    found = ids.unpermute(
        rows, sent.sorted_indices, weights, residual=X, expert_bias=bias, expert_ids=IDS
    )
    # 1 + 0.5 * 1 + 0.5 * 100, 2 + 2 * 1 + 2 * 1000; 3 + 4 * 10, 4 + 4 * 20 + 4 * 1000
    assert found.tolist() == [[51.5, 2004], [43, 4084]]
    grads = ids.unpermute_grad(
        X,
        sent.sorted_indices,
        permuted_tokens=rows,
        weights=weights,
        expert_bias=bias,
        expert_ids=IDS,
    )
    assert grads.permuted_tokens_grad.tolist() == [[0.5, 1], [2, 4], [12, 16]]
    # <x, g> + <bias, g>: 1 + 100, 2 + 2000; 30 + 80 + 4000; unused
    assert grads.weights_grad.tolist() == [[101, 2002], [4110, 0]]


def test_a_row_named_twice():
    """The combine only reads and takes it, with weights or without; the gradients refuse it."""
    rows, twice = X, np.array([1, 1])
    assert ids.unpermute(rows, twice, topk=2).tolist() == [[6, 8]]
    assert ids.unpermute(rows, twice, np.array([[1.0, 2.0]])).tolist() == [[9, 12]]
    with pytest.raises(ValueError, match=r"sorted_indices\[1\]"):
        ids.unpermute_grad(X[:1], twice, rows_num=2)
    with pytest.raises(ValueError, match=r"sorted_indices\[1\]"):
        ids.permute_grad(rows, twice, topk=2)


def test_ranges_and_nothing():
    nothing = ids.permute(X, IDS, experts_num=2, expert_begin=0, expert_end=0)
    assert nothing.sorted_indices.tolist() == [-1] * 4 and nothing.rows_per_expert.shape == (0,)
    assert not nothing.permuted_tokens.any() and nothing.source_slots.tolist() == [-1] * 4
    sent = ids.permute(None, IDS, experts_num=2)
    assert sent.permuted_tokens is None and sent.permuted_weights is None
    assert sent.sorted_indices.tolist() == [0, 1, 2, -1]
    empty = ids.permute(X[:0], IDS[:0], experts_num=2)
    assert empty.permuted_tokens.shape == (0, 2) and empty.rows_per_expert.tolist() == [0, 0]
    no_slots = ids.permute(X, IDS[:, :0], experts_num=2)
    assert no_slots.permuted_tokens.shape == (0, 2) and no_slots.rows_per_expert.tolist() == [0, 0]


@pytest.mark.parametrize(
    "error, message, call",
    [
        (IndexError, r"expert_ids\[1, 0\] = 2|expert_ids\[2\] = 2", lambda: send([[0, 1], [2, 0]])),
        (IndexError, "expert_ids.* = -2", lambda: send([[0, -2]], X[:1])),
        (ValueError, "expert_begin = 2, expert_end = 1", lambda: send(expert_begin=2, expert_end=1)),
        (ValueError, "expert_end = 3", lambda: send(expert_end=3)),
        (ValueError, "experts_num = -1", lambda: send(experts_num=-1)),
        (ValueError, "capacity = 0", lambda: send(capacity=0)),
        (TypeError, "capacity is 1.5", lambda: send(capacity=1.5)),
        (ValueError, "permuted_tokens", lambda: send(capacity=2, rows_num=3)),
        (ValueError, "rows_num = -1", lambda: send(rows_num=-1)),
        (ValueError, "weights", lambda: ids.permute(X, IDS, X[:1], experts_num=2)),
        (TypeError, "expert_ids is float64", lambda: ids.permute(X, X, experts_num=2)),
        (ValueError, "expert_ids is missing", lambda: ids.permute(X, None, experts_num=2)),
        (ValueError, "expert_ids has 1 dim", lambda: ids.permute(X, IDS[0], experts_num=2)),
        (TypeError, "tokens is no array", lambda: ids.permute(3, IDS, experts_num=2)),
        (ValueError, "topk is missing", lambda: ids.unpermute(X, np.array([0, 1]))),
        (ValueError, "multiple of topk = 3", lambda: ids.unpermute(X, np.array([0, 1]), topk=3)),
        (ValueError, "topk = 0", lambda: ids.permute_grad(X, np.array([0, 1]), topk=0)),
        (ValueError, "residual", lambda: ids.unpermute(X, np.array([0, 1]), topk=1, residual2=X)),
        (ValueError, "expert_ids", lambda: ids.unpermute(X, np.array([0, 1]), X, expert_bias=X)),
        (
            IndexError,
            r"sorted_indices\[1\] = 7 is outside \[0, 2\)",
            lambda: ids.unpermute_grad(X, np.array([0, 7])),
        ),
        (
            TypeError,
            "permuted_weights_grad is int64",
            lambda: ids.permute_grad(
                X, np.array([0, 1]), topk=1, permuted_weights_grad=np.array([1, 2])
            ),
        ),
    ],
)
def test_errors(error, message, call):
    with pytest.raises(error, match=message):
        call()


def send(listed=IDS, tokens=X, **keywords):
    return ids.permute(tokens, np.array(listed), **{"experts_num": 2, **keywords})


def test_arrays_that_need_a_copy():
    sent = ids.permute(X[::-1], IDS[::-1, ::-1], experts_num=2)
    plain = ids.permute(X[::-1].copy(), IDS[::-1, ::-1].copy(), experts_num=2)
    assert [bits(a) for a in sent if a is not None] == [bits(a) for a in plain if a is not None]


def test_any_number_of_threads_gives_the_same_bits():
    routing = Routing(5, 700, 3, 11, 67, np.dtype(np.float32), False, True)
    forward = {
        count: ids.permute(
            routing.tokens, routing.ids, routing.weights, experts_num=11, threads=count
        )
        for count in (1, 2, 3)
    }
    sums = {}
    for count, (rows, weights, index, *_) in forward.items():
        gradient = ids.unpermute_grad(
            routing.tokens, index, permuted_tokens=rows, weights=routing.weights, threads=count
        )
        back = ids.permute_grad(
            rows, index, topk=3, permuted_weights_grad=weights, threads=count
        )
        sums[count] = (
            ids.unpermute(rows, index, routing.weights, threads=count), *gradient, *back
        )  # fmt: skip
    for count in (2, 3):
        for one, other in zip((*forward[1], *sums[1]), (*forward[count], *sums[count])):
            np.testing.assert_array_equal(bits(one), bits(other))


def test_threads_below_zero_are_refused():
    with pytest.raises(ValueError, match="threads"):
        ids.permute(None, np.zeros((1, 1), np.int64), experts_num=1, threads=-1)
