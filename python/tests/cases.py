"""Random routings and tensors for the tests: a Hypothesis strategy that draws sizes and a seed."""

from dataclasses import dataclass
from typing import Any, Optional

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
TOKEN_TYPES = [np.dtype(t) for t in (np.float32, np.float16, np.float64)] + [BFLOAT16]
UNIT = {
    np.dtype(np.float64): 2.0**-53,
    np.dtype(np.float32): 2.0**-24,
    np.dtype(np.float16): 2.0**-11,
    BFLOAT16: 2.0**-8,
}


@dataclass
class Case:
    """One routing with all tensors that the four operators take."""

    seed: int
    padded: bool
    tokens: np.ndarray  # [T, H]; serves as unpermuted_tokens_grad too
    routing_map: np.ndarray  # [T, E]
    probs: Optional[np.ndarray]  # [T, E]
    rows: np.ndarray  # [R, H]
    out_index: np.ndarray  # [N]
    token_id: Optional[np.ndarray]  # [N]

    @property
    def sizes(self):
        return (*self.tokens.shape, self.routing_map.shape[1], len(self.out_index), len(self.rows))


def numbers(rng, shape, dtype):
    """Full-mantissa numbers of both signs."""
    return rng.standard_normal(shape).astype(dtype)


def spread(rng, array):
    """The same values as a view with gaps between the elements, sometimes transposed in memory."""
    how = rng.integers(4)
    if how == 0 or array is None:
        return array
    if how == 1:
        wide = np.zeros(tuple(2 * n + 1 for n in array.shape), array.dtype)
        view = wide[tuple(slice(1, None, 2) for _ in array.shape)]
    elif how == 2:
        view = np.zeros(array.shape[::-1], array.dtype).T
    else:
        view = np.zeros(array.size * array.itemsize + 1, np.uint8)[1:].view(array.dtype)
        view = view.reshape(array.shape)  # not aligned
    view[...] = array
    return view


def random_map(rng, tokens_num, experts_num, slots_a_token):
    """At most slots_a_token experts a token, now and then fewer."""
    routing_map = np.zeros((tokens_num, experts_num), bool)
    for token in range(tokens_num):
        count = slots_a_token - (rng.integers(3) == 0) * rng.integers(slots_a_token + 1)
        routing_map[token, rng.permutation(experts_num)[:count]] = True
    return routing_map


def dropless_indices(rng, routing_map, slots_a_token):
    """out_index and R: rows in random order, holes where a token has fewer experts than slots."""
    counts = routing_map.sum(1)
    rows_num = int(counts.sum()) + int(rng.integers(2))
    rows = iter(rng.permutation(rows_num))
    out_index = np.full((len(routing_map), slots_a_token), -1)
    for token, count in enumerate(counts):
        out_index[token, :count] = [next(rows) for _ in range(count)]
    rows_num = min(rows_num, out_index.size)
    out_index[out_index >= rows_num] = -1
    return out_index.reshape(-1), rows_num


def make_case(seed, padded, tokens_num, hidden, experts, per, dtype, with_probs, wide_probs):
    """`per` is K, or C with padded; both are cut to what is possible."""
    rng = np.random.default_rng(seed)
    token_id = None
    if padded:
        per = min(per, tokens_num)
        routing_map = rng.random((tokens_num, experts)) < 0.4
        out_index = rng.permutation(experts * per)
        token_id = rng.integers(tokens_num, size=experts * per) if tokens_num else out_index[:0]
        token_id = np.sort(token_id)
        rows_num = experts * per
    else:
        per = min(per, experts)
        routing_map = random_map(rng, tokens_num, experts, per)
        out_index, rows_num = dropless_indices(rng, routing_map, per)
        if rng.integers(2):  # slots in any order; those of a token keep theirs: it says the expert
            token_id = rng.permutation(np.repeat(np.arange(tokens_num), per))
            order = np.argsort(np.argsort(token_id, kind="stable"))
            out_index = out_index[order]
    index = np.int32 if rng.integers(2) else np.int64
    map_type = [bool, np.int8, np.uint8][rng.integers(3)]
    probs_type = np.float32 if wide_probs and dtype.itemsize == 2 else dtype
    return Case(
        seed=seed,
        padded=padded,
        tokens=numbers(rng, (tokens_num, hidden), dtype),
        routing_map=routing_map.astype(map_type),
        probs=numbers(rng, (tokens_num, experts), probs_type) if with_probs else None,
        rows=numbers(rng, (rows_num, hidden), dtype),
        out_index=out_index.astype(index),
        token_id=None if token_id is None else token_id.astype(index),
    )


@st.composite
def cases(draw, smallest=0, types=None, padded=None):
    return make_case(
        seed=draw(st.integers(0, 2**32 - 1)),
        padded=draw(st.booleans()) if padded is None else padded,
        tokens_num=draw(st.integers(smallest, 9)),
        hidden=draw(st.one_of(st.integers(smallest, 9), st.sampled_from([31, 64, 67]))),
        experts=draw(st.integers(max(smallest, 1), 7)),
        per=draw(st.integers(max(smallest, 1), 4)),
        dtype=draw(st.sampled_from(types or TOKEN_TYPES)),
        with_probs=draw(st.booleans()),
        wide_probs=draw(st.booleans()),
    )


def bits(array: Any) -> bytes:
    return np.ascontiguousarray(array).tobytes()
