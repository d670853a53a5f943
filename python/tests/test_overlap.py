"""Arrays that go through a copy are judged for shared memory like those that do not."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import moetoken
from moetoken._overlap import Span, check_overlap

G = np.array([[1.0, 2.0], [3.0, 4.0]])
INDEX = np.array([0, 1])
X = np.array([[5.0, 6.0], [7.0, 8.0]])


def grad(out, g=G, x=X, index=INDEX):
    return moetoken.unpermute_grad(
        g,
        index,
        routing_map=np.ones((2, 1), bool),
        permuted_tokens=x,
        probs=np.array([[0.5], [0.25]]),
        out=out,
    )


# by hand: rows 0.5 * g[0], 0.25 * g[1]; <x[0], g[0]> = 17, <x[1], g[1]> = 53
ROWS, PROBS = [[0.5, 1.0], [0.75, 1.0]], [[17.0], [53.0]]


def odd(shape):
    """A float64 array whose elements lie 12 bytes apart."""
    return np.zeros(shape, np.dtype([("value", np.float64), ("pad", np.int32)]))["value"]


@pytest.mark.parametrize("flip", [slice(None), slice(None, None, -1)], ids=["plain", "reversed"])
def test_two_outputs(flip):
    memory = np.arange(8.0)
    with pytest.raises(ValueError, match="permuted_tokens_grad.*probs_grad|probs_grad.*permuted"):
        grad((memory[:4].reshape(2, 2)[flip], memory[3:5].reshape(2, 1)))
    assert memory.tolist() == list(range(8))
    rows, probs = grad((memory[:4].reshape(2, 2)[flip], memory[4:6].reshape(2, 1)[::-1]))
    assert rows.tolist() == ROWS and probs.tolist() == PROBS


@pytest.mark.parametrize("name", ["unpermuted_tokens_grad", "permuted_tokens", "out_index"])
def test_an_output_over_an_input(name):
    memory = np.zeros(6)
    memory[:4] = G.reshape(-1)
    inputs = {"unpermuted_tokens_grad": "g", "permuted_tokens": "x", "out_index": "index"}
    under = memory[:2].view(np.int64) if name == "out_index" else memory[:4].reshape(2, 2)
    if name == "out_index":
        under[:] = INDEX
    before = memory.tobytes()
    with pytest.raises(ValueError, match=f"permuted_tokens_grad at .* shares memory with {name} "):
        grad((memory[:4].reshape(2, 2)[::-1], None), **{inputs[name]: under})
    with pytest.raises(ValueError, match=f"permuted_tokens_grad at .* shares memory with {name} "):
        grad((memory[1:5].reshape(2, 2)[:, ::-1], None), **{inputs[name]: under})
    assert memory.tobytes() == before


def test_an_input_that_needs_the_copy():
    memory = np.zeros(6)
    reverse = memory[:4].reshape(2, 2)[::-1]
    reverse[...] = G
    with pytest.raises(ValueError, match="permuted_tokens_grad at .* shares memory with unperm"):
        grad((memory[2:6].reshape(2, 2), None), g=reverse)
    assert reverse.tolist() == G.tolist() and memory[4:].tolist() == [0, 0]


def test_an_output_over_itself():
    for strides in ((16, 4), (8, -8), (12, 12), (-4, 8)):
        memory = np.zeros(16)
        out = np.ndarray((2, 2), np.float64, memory, 64, strides)
        with pytest.raises(ValueError, match="elements share memory.*strides"):
            grad((out, None))
        assert not memory.any()


def test_in_place_through_a_copy():
    """The one overlap that is allowed: the gradient takes the very place of the activations."""
    memory = odd((2, 2))[::-1]
    memory[...] = X
    rows, probs = grad((memory, None), x=memory)
    assert rows is memory and rows.tolist() == ROWS and probs.tolist() == PROBS
    memory = np.zeros((3, 2))
    memory[:2] = X
    with pytest.raises(ValueError, match="shares memory with permuted_tokens"):
        grad((memory[1:][::-1], None), x=memory[:2])


def test_read_only_outputs():
    out = np.zeros((2, 2))[::-1]
    out.setflags(write=False)
    with pytest.raises(ValueError, match="permuted_tokens_grad is read-only"):
        grad((out, None))
    with pytest.raises(ValueError, match="permuted_tokens_grad is read-only"):
        grad((out, None), g=G[::-1])


def test_arrays_of_other_kinds():
    memory = np.zeros(4)
    with pytest.raises(ValueError, match="shares memory"):
        grad((memoryview(memory.reshape(2, 2))[::-1], None), g=memory.reshape(2, 2))
    torch = pytest.importorskip("torch")
    tensor = torch.from_numpy(memory).view(2, 2)
    with pytest.raises(ValueError, match="permuted_tokens_grad at .* shares memory with unperm"):
        grad((memory.reshape(2, 2)[::-1], None), g=tensor)


def test_the_other_operators():
    memory = np.zeros((4, 2))
    tokens, routing_map = memory[:2], np.ones((2, 1), bool)
    with pytest.raises(ValueError, match="permuted_tokens at .* shares memory with tokens"):
        moetoken.permute(tokens, routing_map, out=(memory[1:3][::-1], None, None))
    with pytest.raises(ValueError, match="unpermuted_tokens at .* shares memory with permuted_to"):
        moetoken.unpermute(tokens, INDEX, out=(memory[:2][::-1], None, None, None))
    with pytest.raises(ValueError, match=r"\btokens_grad at .* shares memory with permuted_to"):
        moetoken.permute_grad(tokens, None, INDEX, tokens_num=2, out=(memory[:2][::-1], None))


def span(name, address, itemsize, shape, strides):
    return Span(name, address, itemsize, shape, strides)


def bytes_of(span):
    return [
        span.address + i * span.strides[0] + j * span.strides[1] + byte
        for i in range(span.shape[0])
        for j in range(span.shape[1])
        for byte in range(span.itemsize)
    ]


SPANS = st.builds(
    span,
    st.just("a"),
    st.integers(10_000, 10_040),
    st.sampled_from([1, 2, 4, 8]),
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.tuples(st.integers(-40, 40), st.integers(-40, 40)),
)


@given(SPANS, SPANS)
def test_every_answer_is_that_of_counting_bytes(first, second):
    own = bytes_of(first)
    both = set(own) & set(bytes_of(second))
    if len(set(own)) < len(own):
        with pytest.raises(ValueError, match="elements share memory"):
            check_overlap([], [first])
    elif both:
        with pytest.raises(ValueError, match="shares memory with"):
            check_overlap([second], [first])
    else:
        check_overlap([second], [first])
