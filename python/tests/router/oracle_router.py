"""The router, token by token, in Python and long double.

Written from the contract's section 9 alone; shares no code with what it checks.
"""

from dataclasses import dataclass

import numpy as np

WIDE = np.longdouble
NEAR = WIDE(2) ** -50  # what the library promises of a score, before its one rounding
EDGE = {"float64": 2.0**-1022, "float32": 2.0**-126, "float16": 2.0**-14, "bfloat16": 2.0**-126}


@dataclass
class Options:
    topk: int
    score: str = "softmax"
    normalize: bool = False
    normalize_scores: bool = False
    groups_num: int = 1
    groups_top: int = 1
    group_score_count: int = 1
    eps: float = 1e-20
    scale: float = 1.0


def softmax(x):
    powers = np.exp(x - x.max())
    return powers / powers.sum()


def score(x, name):
    """Of one token's logits, in long double."""
    if name == "sigmoid":
        return 1 / (1 + np.exp(-x))
    if name == "sqrtsoftplus":
        return np.sqrt(np.maximum(x, 0) + np.log1p(np.exp(-abs(x))))
    return softmax(x)


def best(values, count):
    """The places of the largest, best first; ties to the lower, NaN last."""
    keys = [(bool(np.isnan(v)), -v, i) for i, v in enumerate(values)]
    return sorted(range(len(keys)), key=lambda i: keys[i] if not keys[i][0] else (True, 0, i))[
        :count
    ]


def choose(values, options):
    """The experts of one token."""
    if options.groups_num > 1:
        groups = values.reshape(options.groups_num, -1)
        sums = [
            sum((group[i] for i in best(group, options.group_score_count)), WIDE(0))
            for group in groups
        ]
        staying = sorted(best(sums, options.groups_top))
        size = groups.shape[1]
        places = [g * size + i for g in staying for i in range(size)]
    else:
        places = list(range(len(values)))
    return [places[i] for i in best(values[places], options.topk)]


def weigh(x, ids, options):
    """(weights of the chosen, scores of all) of one token, in long double."""
    scores = score(x, options.score)
    after = options.score == "softmax_after"
    weights = softmax(x[ids]) if after and ids else scores[ids]
    if options.normalize and ids:
        weights = weights / (weights.sum() + WIDE(options.eps))
    if options.normalize_scores:
        scores = scores / (scores.sum() + WIDE(options.eps))
    return weights * WIDE(options.scale), scores


def route(logits, options, bias=None, mask=None):
    """ids [T][K], weights [T, K], scores [T, E], counts [E]."""
    tokens_num, experts_num = logits.shape
    ids = np.full((tokens_num, options.topk), -1)
    weights = np.zeros((tokens_num, options.topk), WIDE)
    scores = np.zeros((tokens_num, experts_num), WIDE)
    counts = np.zeros(experts_num, np.int64)
    for t, row in enumerate(logits.astype(WIDE)):
        if mask is not None and not mask[t]:
            continue
        values = row if options.score == "softmax_after" else score(row, options.score)
        values = values if bias is None else values + bias.astype(WIDE)
        chosen = choose(values, options)
        ids[t] = chosen
        weights[t], scores[t] = weigh(row, chosen, options)
        counts[chosen] += 1
    return ids, weights, scores, counts


def logits_grad(logits, ids, weights_grad, scores_grad, options, mask=None):
    """Central differences of fourth order, in long double: wrong by about 1e-15 of their size."""
    step = WIDE(2) ** -12

    def value(row, t):
        used = [k for k, i in enumerate(ids[t]) if i >= 0]
        weights, scores = weigh(row, [int(ids[t][k]) for k in used], options)
        total = WIDE(0)
        if weights_grad is not None:
            total += (weights * weights_grad[t].astype(WIDE)[used]).sum()
        if scores_grad is not None:
            total += (scores * scores_grad[t].astype(WIDE)).sum()
        return total

    found = np.zeros(logits.shape, WIDE)
    for t, row in enumerate(logits.astype(WIDE)):
        if mask is not None and not mask[t]:
            continue
        for e in range(len(row)):
            moved = []
            for steps in (-2, -1, 1, 2):
                other = row.copy()
                other[e] += steps * step
                moved.append(value(other, t))
            found[t, e] = (moved[0] - 8 * moved[1] + 8 * moved[2] - moved[3]) / (12 * step)
    return found


def assert_near(actual, exact, bound):
    """At most `bound` from the exact value before the one rounding to the result's type."""
    unit = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
    kind = str(actual.dtype)
    tiny = EDGE[kind] * unit[kind]  # half a step of the subnormal numbers, and one for the bound
    error = abs(actual.astype(WIDE) - exact)
    assert np.all(error <= bound + unit[kind] * (abs(exact) + bound) * 1.0001 + 2 * tiny)
