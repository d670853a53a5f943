"""The operators by expert ids, slot by slot, in Python numbers and long double.

Written from the contract's section 8 alone; shares no code with what it checks.
"""

import numpy as np

WIDE = np.longdouble


def permute(ids, begin, end, rows_num, capacity):
    """(row of each slot, slot of each row, rows of each expert)."""
    row_of_slot = [-1] * ids.size
    kept = []
    next_row = 0
    for expert in range(begin, end):
        slots = [slot for slot, found in enumerate(ids.reshape(-1).tolist()) if found == expert]
        first = (expert - begin) * capacity if capacity else next_row
        rows = range(first, min(first + (capacity or len(slots)), rows_num))
        next_row += len(slots)
        kept.append(min(len(slots), len(rows)))
        for slot, row in zip(slots, rows):
            row_of_slot[slot] = row
    slot_of_row = [-1] * rows_num
    for slot, row in enumerate(row_of_slot):
        if row >= 0:
            slot_of_row[row] = slot
    return row_of_slot, slot_of_row, kept


def unpermute(x, row_of_slot, weights, residuals, bias, ids, tokens_num):
    """(sums [T, H], sums of magnitudes), both in long double."""
    topk = len(row_of_slot) // tokens_num if tokens_num else 1
    sums = np.zeros((tokens_num, x.shape[1]), WIDE)
    sizes = np.zeros_like(sums)
    for residual in residuals:
        sums += residual.astype(WIDE)
        sizes += abs(residual.astype(WIDE))
    for slot, row in enumerate(row_of_slot):
        token, k = divmod(slot, topk)
        weight = WIDE(1) if weights is None else WIDE(weights[token, k])
        if row < 0 or weight == 0:
            continue
        terms = [x[row]] if bias is None else [x[row], bias[ids[token, k]]]
        for term in terms:
            sums[token] += weight * term.astype(WIDE)
            sizes[token] += abs(weight * term.astype(WIDE))
    return sums, sizes


def unpermute_grad(g, row_of_slot, rows_num, x, weights, bias, ids):
    """(rows [R, H] before rounding, weights_grad [T, K], sums of its terms' magnitudes)."""
    topk = len(row_of_slot) // len(g) if len(g) else 1
    rows = np.zeros((rows_num, g.shape[1]), WIDE)
    grads = np.zeros((len(g), topk), WIDE)
    sizes = np.zeros_like(grads)
    for slot, row in enumerate(row_of_slot):
        if row < 0:
            continue
        token, k = divmod(slot, topk)
        wide = g[token].astype(WIDE)
        rows[row] = wide * (1 if weights is None else WIDE(weights[token, k]))
        terms = [x[row]] if bias is None else [x[row], bias[ids[token, k]]]
        for term in terms if x is not None else ():
            grads[token, k] += (term.astype(WIDE) * wide).sum()
            sizes[token, k] += abs(term.astype(WIDE) * wide).sum()
    return rows, grads, sizes
