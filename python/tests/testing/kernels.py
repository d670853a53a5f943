"""Kernels for the tests of moetoken.testing: the library's own operators, and slow plain ones.

The plain ones are right; what is wrong with their variants says each variant.
"""

import numpy as np

import moetoken
from moetoken import ids

BY_IDS = {
    "permute": lambda case, given: ids.permute(
        given["tokens"], given["expert_ids"], given["weights"], experts_num=case.experts_num,
        capacity=case.attributes.get("capacity"),
        rows_num=None if "capacity" in case.attributes else case.rows_num,
    ),
    "permute_grad": lambda case, given: ids.permute_grad(
        given["permuted_tokens_grad"], given["sorted_indices"], topk=case.topk,
        permuted_weights_grad=given["permuted_probs_grad"],
    ),
    "unpermute": lambda case, given: ids.unpermute(
        given["permuted_tokens"], given["sorted_indices"], given["weights"]
    ),
    "unpermute_grad": lambda case, given: ids.unpermute_grad(
        given["unpermuted_tokens_grad"], given["out_index"],
        permuted_tokens=given["permuted_tokens"], weights=given["weights"],
    ),
}  # fmt: skip
BY_MAP = {
    "permute": lambda case, given: moetoken.permute(
        given["tokens"], given["routing_map"], given.get("probs"), case.slots_num,
        case.attributes["drop_and_pad"], rows_num=case.rows_num,
    ),
    "permute_grad": lambda case, given: moetoken.permute_grad(
        given["permuted_tokens_grad"], given.get("permuted_probs_grad"), given["sorted_indices"],
        given.get("routing_map"), tokens_num=case.tokens_num, experts_num=case.experts_num,
        drop_and_pad=case.attributes["drop_and_pad"],
    ),
    "unpermute": lambda case, given: moetoken.unpermute(
        given["permuted_tokens"], given["sorted_indices"], routing_map=given.get("routing_map"),
        probs=given.get("probs"), restore_shape=case.attributes["restore_shape"],
        drop_and_pad=case.attributes["drop_and_pad"],
    ),
    "unpermute_grad": lambda case, given: moetoken.unpermute_grad(
        given["unpermuted_tokens_grad"], given["out_index"], given["permute_token_id"],
        routing_map=given.get("routing_map"), permuted_tokens=given.get("permuted_tokens"),
        probs=given.get("probs"), drop_and_pad=case.attributes["drop_and_pad"],
    ),
}  # fmt: skip


def library(case):
    """The library's operator."""
    form = BY_IDS if case.mode == "ids" else BY_MAP
    return form[case.operator](case, case.inputs)


@np.errstate(all="ignore")
def plain_gradient(case, fault=None):
    """unpermute_grad by map with probs, slot by slot, written into blank memory."""
    given, out = case.inputs, case.blank()
    g, x, probs = (
        given[name].astype(np.float64)
        for name in ("unpermuted_tokens_grad", "permuted_tokens", "probs")
    )
    rows, probs_grad = out["permuted_tokens_grad"], out["probs_grad"]
    if fault != "unwritten rows":
        rows[...] = 0
    sums = np.zeros(probs_grad.shape)
    seen = np.zeros(case.tokens_num, int)
    capacity = case.slots_num // case.experts_num
    for row, token in zip(given["out_index"], given["permute_token_id"]):
        set_experts = np.flatnonzero(given["routing_map"][token])
        rank = seen[token]
        if fault != "holes not counted" or row >= 0:
            seen[token] += 1
        if row < 0 and (fault != "no check for -1" or len(rows) == 0 or len(set_experts) == 0):
            continue
        padded = case.mode == "padded"
        expert = row // capacity if padded else set_experts[min(rank, len(set_experts) - 1)]
        rows[row] = (probs[token, expert] * g[token]).astype(rows.dtype)
        dot = float(x[row] @ g[token])
        if fault == "bfloat16 sums":
            dot = narrow_dot(x[row], g[token])
        sums[token, expert] = dot if fault == "pairs overwritten" else sums[token, expert] + dot
    probs_grad[...] = sums.astype(probs_grad.dtype)
    return out


def narrow_dot(a, b):
    """A dot product whose partial sums are bfloat16."""
    import ml_dtypes

    total = ml_dtypes.bfloat16(0)
    for x, y in zip(a, b):
        total = ml_dtypes.bfloat16(float(total) + x * y)
    return float(total)


@np.errstate(all="ignore")
def plain_combine(case, fault=None):
    """unpermute by ids, slot by slot."""
    given = case.inputs
    x, weights = given["permuted_tokens"].astype(np.float64), given["weights"].astype(np.float64)
    sums = np.zeros((case.tokens_num, x.shape[1]))
    for slot, row in enumerate(given["sorted_indices"]):
        weight = weights.reshape(-1)[slot]
        if row >= 0 and (weight != 0 or fault == "a weight of 0 multiplies"):
            sums[slot // case.topk] += weight * x[row]
    return sums.astype(given["permuted_tokens"].dtype)
