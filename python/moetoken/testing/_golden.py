"""What the outputs of a case should hold: in higher precision, and rounded once.

Nothing of the library takes part. Products are exact and sums carry some hundred bits, so that
the one rounding at the end is the right one whatever the operator's own arithmetic is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable, Optional

import numpy as np

from ._exact import Pair, dots, product, round_once, sums
from ._slots import Slots

if TYPE_CHECKING:
    from ._case import Case

__all__ = ["Golden", "golden_outputs", "output_names"]

_BY_MAP = {
    "unpermute_grad": ("permuted_tokens_grad", "probs_grad"),
    "unpermute": ("unpermuted_tokens", "out_index", "permute_token_id", "permuted_probs"),
    "permute": ("permuted_tokens", "permuted_probs", "sorted_indices"),
    "permute_grad": ("tokens_grad", "probs_grad"),
}
_BY_IDS = {
    "unpermute_grad": ("permuted_tokens_grad", "weights_grad"),
    "unpermute": _BY_MAP["unpermute"],
    "permute": (*_BY_MAP["permute"], "source_slots", "rows_per_expert"),
    "permute_grad": ("tokens_grad", "weights_grad"),
}


def output_names(operator: str, mode: str) -> tuple[str, ...]:
    """In the operator's order; which of them a case has follows from its inputs."""
    return (_BY_IDS if mode == "ids" else _BY_MAP)[operator]


@dataclass
class Golden:
    """One output: as accurate as binary64 holds it, and rounded once to its type."""

    values: np.ndarray  # float64; int64 for indices
    rounded: np.ndarray  # of the output's type
    required: bool = True  # else judged where it is given


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64)


def _is_exact(array: np.ndarray) -> bool:
    """Whether binary64 holds the products of such numbers."""
    return array.dtype.itemsize < 8


def _to_type(pair: Pair, dtype: np.dtype) -> Golden:
    return Golden(pair[0], round_once(pair[0], dtype.name, pair[1]))


def _copies(source: np.ndarray, places: np.ndarray) -> Golden:
    """Elements or rows of `source`, zero where the place is -1; bits, NaN payloads included."""
    rounded = np.zeros((len(places), *source.shape[1:]), source.dtype)
    named = places >= 0
    rounded[named] = source[places[named]]
    return Golden(_wide(rounded), rounded)


def _at_rows(slots: Slots, values: np.ndarray) -> np.ndarray:
    """Of each row: the value of the slot that names it, -1 where none does."""
    found = np.full(slots.rows, -1, np.int64)
    named = slots.of_row >= 0
    found[named] = values[slots.of_row[named]]
    return found


def _indices(values: np.ndarray, dtype: np.dtype) -> Golden:
    return Golden(values.astype(np.int64), values.astype(dtype))


# ---- sums ----------------------------------------------------------------------------------------


def _rows_gradient(case: Case, slots: Slots) -> Golden:
    g = case.inputs["unpermuted_tokens_grad"]
    if "probs" not in case.inputs and "weights" not in case.inputs:
        return _copies(g, _at_rows(slots, slots.token))
    named = slots.of_row >= 0
    slot = slots.of_row[named]
    high, low = np.zeros((2, slots.rows, g.shape[1]))
    pair = product(slots.weight[slot][:, None], _wide(g)[slots.token[slot]], _is_exact(g))
    high[named], low[named] = pair
    return _to_type((high, low), g.dtype)


def _sums_of_rows(case: Case, slots: Slots, name: str) -> Golden:
    """Of each token: weight times row over its slots; a weight of 0 adds nothing."""
    x = case.inputs[name]
    used = np.flatnonzero((slots.row >= 0) & (slots.weight != 0))
    rows = _wide(x)[slots.row[used]]
    terms = product(slots.weight[used][:, None], rows, _is_exact(x))
    return _to_type(sums(terms, slots.token[used], case.tokens_num), x.dtype)


def _slot_gradients(case: Case, slots: Slots, used: np.ndarray) -> tuple[Pair, np.dtype]:
    """Of each used slot: what its weight is worth."""
    if case.operator == "permute_grad":
        given = case.inputs["permuted_probs_grad"]
        values = _wide(given)[slots.row[used]]
        return (values, np.zeros_like(values)), given.dtype
    x, g = case.inputs["permuted_tokens"], case.inputs["unpermuted_tokens_grad"]
    rows, grads = _wide(x)[slots.row[used]], _wide(g)[slots.token[used]]
    weights = case.inputs["weights" if "weights" in case.inputs else "probs"]
    return dots(rows, grads, _is_exact(x)), weights.dtype


def _pairs_gradient(case: Case, slots: Slots) -> Golden:
    """probs_grad [T, E]: a sum over the slots of each pair of a token and an expert."""
    used = np.flatnonzero((slots.row >= 0) & (slots.expert >= 0))
    terms, dtype = _slot_gradients(case, slots, used)
    shape = (case.tokens_num, case.experts_num)
    pair = slots.token[used] * case.experts_num + slots.expert[used]
    high, low = sums(terms, pair, shape[0] * shape[1])
    return _to_type((high.reshape(shape), low.reshape(shape)), dtype)


def _weights_gradient(case: Case, slots: Slots) -> Golden:
    """weights_grad [T, K] by ids: one for each slot."""
    used = np.flatnonzero(slots.row >= 0)
    terms, dtype = _slot_gradients(case, slots, used)
    shape = (case.tokens_num, slots.topk)
    high, low = sums(terms, used, len(slots.row))
    return _to_type((high.reshape(shape), low.reshape(shape)), dtype)


# ---- the operators -------------------------------------------------------------------------------


def _unpermute_grad(case: Case, slots: Slots) -> dict[str, Golden]:
    found = {"permuted_tokens_grad": _rows_gradient(case, slots)}
    if "weights" in case.inputs:
        found["weights_grad"] = _weights_gradient(case, slots)
    elif "probs" in case.inputs:
        found["probs_grad"] = _pairs_gradient(case, slots)
    return found


def _permute_grad(case: Case, slots: Slots) -> dict[str, Golden]:
    found = {"tokens_grad": _sums_of_rows(case, slots, "permuted_tokens_grad")}
    if "permuted_probs_grad" in case.inputs and case.mode == "ids":
        found["weights_grad"] = _weights_gradient(case, slots)
    elif "permuted_probs_grad" in case.inputs:
        found["probs_grad"] = _pairs_gradient(case, slots)
    return found


def _unpermute(case: Case, slots: Slots) -> dict[str, Golden]:
    x, index_type = case.inputs["permuted_tokens"], case.inputs["sorted_indices"].dtype
    weights = case.inputs.get("weights", case.inputs.get("probs", x))
    order = np.arange(len(slots.row))
    if case.mode == "padded":
        order = np.argsort(slots.token, kind="stable")
    found = {
        "unpermuted_tokens": _sums_of_rows(case, slots, "permuted_tokens"),
        "out_index": _indices(slots.row[order], index_type),
        "permute_token_id": _indices(slots.token[order], index_type),
        "permuted_probs": Golden(slots.weight, round_once(slots.weight, weights.dtype.name)),
    }
    found["permuted_probs"].required = weights is not x
    if case.mode == "ids":  # the form by ids has the sums alone
        for name in ("out_index", "permute_token_id", "permuted_probs"):
            found[name].required = False
    return found


def _permute(case: Case, slots: Slots) -> dict[str, Golden]:
    tokens = case.inputs["tokens"]
    found = {"permuted_tokens": _copies(tokens, _at_rows(slots, slots.token))}
    weights: Optional[np.ndarray] = case.inputs.get("weights")
    if weights is not None:
        found["permuted_probs"] = _copies(weights.reshape(-1), slots.of_row)
    elif "probs" in case.inputs:
        pair = _at_rows(slots, slots.token * case.experts_num + slots.expert)
        found["permuted_probs"] = _copies(case.inputs["probs"].reshape(-1), pair)
    sorted_indices = slots.token if case.mode == "padded" else slots.row
    found["sorted_indices"] = _indices(sorted_indices, np.dtype(np.int32))
    if case.mode == "ids":
        kept = slots.expert[slots.row >= 0]
        found["source_slots"] = _indices(slots.of_row, np.dtype(np.int32))
        found["rows_per_expert"] = _indices(
            np.bincount(kept, minlength=case.experts_num), np.dtype(np.int64)
        )
    return found


_OF_OPERATOR: dict[str, Callable[..., dict[str, Golden]]] = {
    "unpermute_grad": _unpermute_grad,
    "unpermute": _unpermute,
    "permute": _permute,
    "permute_grad": _permute_grad,
}


def golden_outputs(case: Case, slots: Slots) -> dict[str, Golden]:
    """Every output that the operator writes in this case, in its order."""
    with np.errstate(all="ignore"):
        return _OF_OPERATOR[case.operator](case, slots)
