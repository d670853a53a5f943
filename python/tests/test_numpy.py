"""The NumPy interface against the oracle: shapes, strides, types, holes, empty tensors."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import moetoken
import oracle
from cases import BFLOAT16, UNIT, bits, cases, make_case, numbers, spread


def weighted_rows(case, mask_fill):
    return oracle.slots(
        case.out_index,
        case.token_id,
        len(case.tokens),
        case.routing_map if case.probs is not None or mask_fill else None,
        case.probs,
        case.padded,
        mask_fill,
    )


def expected_rows(case, found):
    """permuted_tokens_grad to the bit: products in float32 (float64), one rounding."""
    wide = np.float64 if case.tokens.dtype == np.float64 else np.float32
    rows = np.zeros(case.rows.shape, case.tokens.dtype)
    for row, token, _, weight in found:
        if row >= 0 and case.probs is None:
            rows[row] = case.tokens[token]
        elif row >= 0:
            rows[row] = (wide(weight) * case.tokens[token].astype(wide)).astype(rows.dtype)
    return rows


def assert_close(actual, exact, bound, unit):
    error = np.abs(actual.astype(np.float64) - exact)
    tiny = np.finfo(np.float32).tiny if unit > 2.0**-53 else 0
    tiny = 2.0**-24 if actual.dtype == np.float16 else tiny
    assert np.all(error <= bound + unit * np.abs(exact) * 1.0001 + tiny), error.max()


@given(cases(), st.booleans())
def test_unpermute_grad(case, mask_fill):
    mask_fill = mask_fill and case.padded and case.probs is not None
    rng = np.random.default_rng(case.seed)
    found = weighted_rows(case, mask_fill)
    tokens_grad, probs_grad = moetoken.unpermute_grad(
        spread(rng, case.tokens),
        spread(rng, case.out_index),
        spread(rng, case.token_id),
        routing_map=spread(rng, case.routing_map) if case.probs is not None else None,
        permuted_tokens=spread(rng, case.rows),
        probs=spread(rng, case.probs),
        drop_and_pad=case.padded,
        mask_fill_slots=mask_fill,
        restore_shape=case.tokens.shape,
        threads=int(rng.integers(4)),
    )
    assert bits(tokens_grad) == bits(expected_rows(case, found))
    _, exact, bound = oracle.unpermute_grad(
        case.tokens, found, len(case.rows), case.rows.astype(np.float64), case.probs
    )
    if case.probs is None:
        assert probs_grad is None
    else:
        assert probs_grad.dtype == case.probs.dtype
        assert_close(probs_grad, exact, bound, UNIT[case.probs.dtype])


@given(cases(smallest=1))
def test_outputs_into_views_and_masks(case):
    rng = np.random.default_rng(case.seed)
    arguments = dict(
        routing_map=case.routing_map if case.probs is not None else None,
        permuted_tokens=case.rows,
        probs=case.probs,
        drop_and_pad=case.padded,
    )
    both = moetoken.unpermute_grad(case.tokens, case.out_index, case.token_id, **arguments)
    out = [None if a is None else spread(rng, numbers(rng, a.shape, a.dtype)) for a in both]
    again = moetoken.unpermute_grad(
        case.tokens, case.out_index, case.token_id, out=tuple(out), **arguments
    )
    for first, second, target in zip(both, again, out):
        assert second is target
        assert first is None or bits(first) == bits(second)
    one, none = moetoken.unpermute_grad(
        case.tokens, case.out_index, case.token_id, output_mask=(True, False), **arguments
    )
    assert none is None and bits(one) == bits(both[0])
    if case.probs is not None:
        none, one = moetoken.unpermute_grad(
            case.tokens, case.out_index, case.token_id, output_mask=(False, True), **arguments
        )
        assert none is None and bits(one) == bits(both[1])


def test_gradient_replaces_activations():
    case = make_case(5, False, 6, 19, 4, 2, BFLOAT16, True, False)
    arguments = dict(routing_map=case.routing_map, probs=case.probs)
    expected = moetoken.unpermute_grad(
        case.tokens, case.out_index, case.token_id, permuted_tokens=case.rows, **arguments
    )
    rows = case.rows.copy()
    found = moetoken.unpermute_grad(
        case.tokens,
        case.out_index,
        case.token_id,
        permuted_tokens=rows,
        out=(rows, None),
        **arguments,
    )
    assert found[0] is rows
    assert bits(rows) == bits(expected[0]) and bits(found[1]) == bits(expected[1])


def check_indices(case, sorted_indices, out_index, token_id):
    tokens_num, slots_num = case.sizes[0], case.sizes[3]
    order = np.argsort(sorted_indices, kind="stable")
    if case.padded:
        assert out_index.tolist() == order.tolist()
        assert token_id.tolist() == sorted_indices[order].tolist()
    else:
        assert out_index.tolist() == sorted_indices.tolist()
        assert token_id.tolist() == [i * tokens_num // slots_num for i in range(slots_num)]


@given(cases(), st.booleans())
def test_forward_and_back(case, wide_index):
    """permute, unpermute and permute_grad, each against the oracle."""
    tokens_num, hidden, experts_num, slots_num, _ = case.sizes
    rng = np.random.default_rng(case.seed)
    index = np.int64 if wide_index else np.int32
    token_of_row, expert_of_row, sorted_expected = oracle.permute(
        case.routing_map, slots_num if tokens_num else 0, case.padded
    )
    rows, row_probs, sorted_indices = moetoken.permute(
        spread(rng, case.tokens),
        spread(rng, case.routing_map),
        spread(rng, case.probs),
        slots_num,
        case.padded,
        index_dtype=index,
        rows_num=len(token_of_row),
    )
    assert sorted_indices.dtype == index and sorted_indices.tolist() == sorted_expected
    assert bits(rows) == bits(case.tokens[token_of_row])
    if case.probs is not None:
        assert bits(row_probs) == bits(case.probs[token_of_row, expert_of_row])

    rows = numbers(rng, rows.shape, rows.dtype)
    combined, out_index, token_id, slot_probs = moetoken.unpermute(
        spread(rng, rows),
        spread(rng, sorted_indices),
        routing_map=case.routing_map,
        probs=case.probs,
        restore_shape=(tokens_num, hidden),
        drop_and_pad=case.padded,
    )
    check_indices(case, sorted_indices, out_index, token_id)
    found = oracle.slots(
        out_index,
        token_id,
        tokens_num,
        case.routing_map if case.probs is not None else None,
        case.probs,
        case.padded,
    )
    exact, sizes = oracle.unpermute(rows, found, tokens_num)
    wide = 2.0**-53 if rows.dtype == np.float64 else 2.0**-24
    assert_close(combined, exact, 2 * (len(found) + 1) * wide * sizes, UNIT[rows.dtype])
    if slot_probs is not None and case.padded:
        assert bits(slot_probs) == bits(case.probs[sorted_indices, expert_of_row])

    tokens_grad, probs_grad = moetoken.permute_grad(
        rows, row_probs, sorted_indices, case.routing_map, drop_and_pad=case.padded
    )
    ones = [(row, token, expert, 1.0) for row, token, expert, _ in found]
    exact, sizes = oracle.unpermute(rows, ones, tokens_num)
    assert_close(tokens_grad, exact, 2 * (len(found) + 1) * wide * sizes, UNIT[rows.dtype])
    if row_probs is not None:
        exact = np.zeros(case.probs.shape)
        for row, token, expert, _ in found:
            exact[token, expert] += float(row_probs[row])
        assert_close(probs_grad, exact, 0, UNIT[probs_grad.dtype])


def test_default_number_of_slots():
    routing_map = np.array([[1, 0, 1], [0, 0, 0], [1, 1, 1]], np.int8)
    rows, none, indices = moetoken.permute(np.eye(3), routing_map)
    assert none is None and indices.tolist() == [0, 3, -1, -1, -1, -1, 1, 2, 4]
    assert rows.shape == (9, 3) and not rows[5:].any()
    with pytest.raises(ValueError, match="num_out_tokens is missing"):
        moetoken.permute(np.eye(3), routing_map, drop_and_pad=True)


def test_contract_example():
    """The worked example of the contract, p = 1, 2, ... so that every number is seen."""
    routing_map = np.array([[1, 0, 1], [0, 1, 0], [1, 1, 0]], bool)
    probs = np.arange(1, 10, dtype=np.float32).reshape(3, 3)
    g = np.array([[1, 10], [2, 20], [3, 30]], np.float32)
    x = np.array([[1, 0], [0, 1], [1, 1], [2, 0], [0, 2]], np.float32)
    arguments = dict(routing_map=routing_map, permuted_tokens=x, probs=probs)
    rows, probs_grad = moetoken.unpermute_grad(g, np.array([0, 4, 2, -1, 1, 3]), **arguments)
    assert rows.tolist() == [[1, 10], [21, 210], [10, 100], [24, 240], [3, 30]]
    assert probs_grad.tolist() == [[1, 0, 20], [0, 22, 0], [30, 6, 0]]
    x = np.vstack([x, [[5, 1]]]).astype(np.float32)
    arguments = dict(routing_map=routing_map, permuted_tokens=x, probs=probs)
    ids = np.array([0, 0, 1, 1, 2, 2])
    rows, probs_grad = moetoken.unpermute_grad(
        g, np.array([0, 4, 2, 5, 1, 3]), ids, drop_and_pad=True, **arguments
    )
    assert rows.tolist() == [[1, 10], [21, 210], [10, 100], [24, 240], [3, 30], [12, 120]]
    assert probs_grad.tolist() == [[1, 0, 20], [0, 22, 30], [30, 6, 0]]
