"""The operators by the letter of the contract, slot by slot, in binary64 and Python numbers.

Shares no code with what it checks. `slots` turns index tensors into (row, token, expert, weight);
the rest are sums over those.
"""

import math

import numpy as np


def slots(row_of_slot, token_of_slot, tokens_num, routing_map, probs, padded, mask_fill=False):
    """[(row, token, expert, weight)] in slot order, unused slots left out."""
    slots_num = len(row_of_slot)
    if token_of_slot is None:
        token_of_slot = [i // (slots_num // tokens_num) for i in range(slots_num)]
    seen = [0] * tokens_num
    found = []
    for row, token in zip(map(int, row_of_slot), map(int, token_of_slot)):
        ordinal, seen[token] = seen[token], seen[token] + 1
        expert = None
        if routing_map is not None and padded:
            expert = row // (slots_num // routing_map.shape[1])
        elif routing_map is not None:
            experts = [e for e in range(routing_map.shape[1]) if routing_map[token, e]]
            expert = experts[ordinal] if ordinal < len(experts) else None
        if row < 0:
            continue
        weight = 1.0 if probs is None else float(probs[token, expert])
        if mask_fill and not routing_map[token, expert]:
            weight, row = 0.0, -2 - row
        found.append((row, token, expert, weight))
    return found


def unpermute_grad(g, found, rows_num, x, probs):
    """(permuted_tokens_grad, probs_grad, bound of probs_grad's error before rounding)."""
    g = g.astype(np.float64)
    rows = np.zeros((rows_num, g.shape[1]))
    products = {}
    for row, token, expert, weight in found:
        if row < 0:
            continue  # a masked fill slot
        rows[row] = weight * g[token]
        if probs is not None:
            products.setdefault((token, expert), []).extend(
                float(a) * float(b) for a, b in zip(x[row], g[token])
            )
    if probs is None:
        return rows, None, None
    probs_grad, bound = np.zeros(probs.shape), np.zeros(probs.shape)
    for pair, terms in products.items():
        probs_grad[pair] = math.fsum(terms)
        bound[pair] = (len(terms) + 1) * 2.0**-52 * math.fsum(map(abs, terms))
    return rows, probs_grad, bound


def unpermute(x, found, tokens_num):
    """(unpermuted_tokens, sum of the magnitudes)."""
    tokens = np.zeros((tokens_num, x.shape[1]))
    sizes = np.zeros_like(tokens)
    for row, token, _, weight in found:
        if row >= 0 and weight != 0:
            tokens[token] += weight * x[row].astype(np.float64)
            sizes[token] += np.abs(weight * x[row].astype(np.float64))
    return tokens, sizes


def permute(routing_map, slots_num, padded):
    """(the token of each row, the expert of each row, sorted_indices)."""
    tokens_num, experts_num = routing_map.shape
    is_set = routing_map.astype(bool)
    if padded:
        capacity = slots_num // experts_num
        tokens = []
        for expert in range(experts_num):
            routed = [t for t in range(tokens_num) if is_set[t, expert]]
            others = [t for t in range(tokens_num) if not is_set[t, expert]]
            tokens += (routed + others)[:capacity]
        return tokens, [r // capacity for r in range(slots_num)] if capacity else [], tokens
    pairs = [(t, e) for e in range(experts_num) for t in range(tokens_num) if is_set[t, e]]
    slots_a_token = slots_num // max(tokens_num, 1)
    sorted_indices = []
    for token in range(tokens_num):
        rows = [row for row, pair in enumerate(pairs) if pair[0] == token]
        sorted_indices += rows + [-1] * (slots_a_token - len(rows))
    return [t for t, _ in pairs], [e for _, e in pairs], sorted_indices
