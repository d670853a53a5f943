"""Every parameter of every public function, given what does not fit: the error names it."""

import inspect
import re

import numpy as np
import pytest

import moetoken
from moetoken import ids

G = np.array([[1.0, 2.0], [3.0, 4.0]])
MAP = np.eye(2, dtype=bool)
INDEX = np.array([0, 1])
IDS = np.array([[0], [1]])

# A call of each function that is right, with every array it takes.
CALLS = {
    moetoken.permute: dict(tokens=G, routing_map=MAP, probs=G, num_out_tokens=2),
    moetoken.permute_grad: dict(
        permuted_tokens_grad=G,
        permuted_probs_grad=G[0],
        sorted_indices=INDEX,
        routing_map=MAP,
        tokens_num=2,
        experts_num=2,
    ),
    moetoken.unpermute: dict(
        permuted_tokens=G, sorted_indices=INDEX, routing_map=MAP, probs=G, restore_shape=(2, 2)
    ),
    moetoken.unpermute_grad: dict(
        unpermuted_tokens_grad=G,
        out_index=INDEX,
        permute_token_id=INDEX,
        routing_map=MAP,
        permuted_tokens=G,
        probs=G,
    ),
    ids.permute: dict(tokens=G, expert_ids=IDS, weights=G[:, :1], experts_num=2),
    ids.permute_grad: dict(
        permuted_tokens_grad=G, sorted_indices=INDEX, topk=1, permuted_weights_grad=G[0]
    ),
    ids.unpermute: dict(
        permuted_tokens=G,
        sorted_indices=INDEX,
        weights=G[:, :1],
        topk=1,
        residual=G,
        residual2=G,
        expert_bias=G,
        expert_ids=IDS,
    ),
    ids.unpermute_grad: dict(
        unpermuted_tokens_grad=G,
        sorted_indices=INDEX,
        permuted_tokens=G,
        weights=G[:, :1],
        expert_bias=G,
        expert_ids=IDS,
    ),
    moetoken.router: dict(logits=G, topk=1, bias=G[0], token_mask=MAP[0]),
    moetoken.router_grad: dict(
        logits=G, expert_ids=IDS, weights_grad=G[:, :1], scores_grad=G, token_mask=MAP[0]
    ),
    moetoken.router_balance_loss: dict(scores=G, rows_per_expert=INDEX, topk=1),
    moetoken.router_z_loss: dict(logits=G, token_mask=MAP[0]),
    moetoken.router_update_bias: dict(bias=G[0], rows_per_expert=INDEX, rate=0.5),
    moetoken.router_drop: dict(expert_ids=IDS, weights=G[:, :1], experts_num=2, capacity=1),
}
UNUSED = {  # taken so that a gradient has its forward call's arguments; outputs by another name
    (moetoken.router_grad, "bias"),
    *((function, "out") for function in CALLS if "router_" in function.__name__),
}

FLAGS = {"drop_and_pad", "mask_fill_slots", "tolerate_routing_mismatch", "with_scores"}
OPTIONAL_FLAGS = {"normalize", "normalize_scores"}
NUMBERS = {
    "num_out_tokens", "rows_num", "tokens_num", "experts_num", "threads", "topk",
    "expert_begin", "expert_end", "capacity", "groups_num", "groups_top", "group_score_count",
    "total_tokens",
}  # fmt: skip
OTHERS = {
    "restore_shape": [3, (2,), (2, 2, 2), ("2", 2), (-1, 2), (2, 2**70)],
    "output_mask": [3, (), (True,), "ab", "abcd", (None,) * 4, ("false",) * 4],
    "index_dtype": [np.float32, "int9", np.int8, 3],
    "out": [3, G, (None,), [None] * 9],
    "score": ["Softmax", "", 0, G],
    "recipe": ["Mixtral", "", 0],
    "weights_dtype": ["float16", np.int32, 3, "number"],
    "scale": [0, "1", float("inf"), float("nan"), G, [1.0]],
    "eps": [-1e-9, "1", float("inf"), float("nan"), G],
    **dict.fromkeys(("coeff", "rate", "loss_grad"), ["1", float("inf"), float("nan"), G, [1.0]]),
}
RECORD = np.dtype([("a", np.float32)])


class Unreadable:
    """An array that says why its memory cannot be had."""

    shape, dtype = (2, 2), np.dtype(np.float64)

    def __dlpack__(self, **keywords):
        raise RuntimeError("nothing here")


def wrong_arrays(good):
    """[(what is wrong, value, what the message says beside the name)]"""
    deep = np.zeros((1, 1, 1), good.dtype)
    return [
        ("rank", deep, "3 dimensions"),
        ("rank 0", good.reshape(-1)[0:1].reshape(()), "0 dimensions"),
        ("a number", 3, "no array"),
        ("a list", [[1.0]], "no array"),
        ("a text", "text", "no array"),
        ("complex", good.astype(complex), "complex128"),
        ("big-endian", good.astype(">i4"), ">i4"),
        ("uint32", good.astype(np.uint32), "uint32"),
        ("records", np.zeros(good.shape, RECORD), "'a'"),
        ("unreadable", Unreadable(), ""),
    ]


def wrong_values(name, good):
    if name in FLAGS | OPTIONAL_FLAGS:
        wrong = ["false", "", 2, 1.0, [True, 0], *[None][: name in FLAGS]]
        return [("flag", v, "expected True or False") for v in wrong]
    if name in NUMBERS:
        return [("number", v, "") for v in (-1, 2.0, "2", 2**63, 2**70, [2, 2], G)]
    if name in OTHERS:
        return [("value", v, "") for v in OTHERS[name]]
    return wrong_arrays(good)


PLACES = [
    pytest.param(function, name, value, words, id=f"{function.__module__}.{function.__name__}-"
                 f"{name}-{what}-{i}")
    for function in CALLS
    for name in inspect.signature(function).parameters
    if (function, name) not in UNUSED
    for i, (what, value, words) in enumerate(wrong_values(name, CALLS[function].get(name)))
]  # fmt: skip


@pytest.mark.parametrize("function, name, value, words", PLACES)
def test_the_argument_is_named(function, name, value, words):
    function(**CALLS[function])
    with pytest.raises((ValueError, TypeError)) as caught:
        function(**{**CALLS[function], name: value})
    text = str(caught.value)
    assert re.search(rf"\b{name}\b", text) and words in text
    assert "DLPack type (" not in text


@pytest.mark.parametrize("function", CALLS)
def test_required_arrays_that_are_none(function):
    for name, parameter in inspect.signature(function).parameters.items():
        array = isinstance(CALLS[function].get(name), np.ndarray)
        if parameter.default is inspect.Parameter.empty and array:
            if name in ("permuted_tokens_grad", "permuted_probs_grad", "tokens", "weights_grad") and (
                function is not moetoken.permute
            ):
                continue  # None: that result is not wanted
            with pytest.raises(ValueError, match=rf"\b{name} is missing|\b{name} is NULL"):
                function(**{**CALLS[function], name: None})


def test_sizes_beyond_all_memory():
    with pytest.raises((ValueError, MemoryError), match="shape|allocate"):
        moetoken.unpermute_grad(G, INDEX, rows_num=2**62)
    with pytest.raises((ValueError, MemoryError), match="shape|allocate"):
        ids.permute(G, IDS, experts_num=2, rows_num=2**62)


def test_num_out_tokens_that_does_not_divide():
    with pytest.raises(ValueError, match="num_out_tokens = 3, expected a multiple of T = 2"):
        moetoken.permute(G, MAP, num_out_tokens=3)
    with pytest.raises(ValueError, match="num_out_tokens = 3, expected a multiple of E = 2"):
        moetoken.permute(G, MAP, num_out_tokens=3, drop_and_pad=True)


def test_numbers_and_flags_of_numpy():
    expected = moetoken.permute(G, MAP, num_out_tokens=2, drop_and_pad=True)
    for number, flag in ((np.int32(2), np.True_), (np.array(2), np.array(1)), (np.array([2]), 1)):
        found = moetoken.permute(G, MAP, num_out_tokens=number, drop_and_pad=flag)
        assert [None if a is None else a.tolist() for a in found] == [
            None if a is None else a.tolist() for a in expected
        ]


def test_tensors_without_memory():
    torch = pytest.importorskip("torch")
    for tensor in (torch.ones(2, 2, device="meta"), torch.eye(2).to_sparse()):
        with pytest.raises(TypeError, match="unpermuted_tokens_grad does not lend its memory: "):
            moetoken.unpermute_grad(tensor, INDEX)
