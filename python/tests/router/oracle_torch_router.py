"""The routers of Megatron-Core and TransformerEngine in float64, for whole grids of settings.

Written from the contract's section 9; shares no code with what it checks. PyTorch differentiates
it.
"""

import torch


def scores_of(x, name):
    """[T, E], of float64 logits."""
    if name == "sigmoid":
        return 1 / (1 + torch.exp(-x))
    if name == "sqrtsoftplus":
        return torch.log1p(torch.exp(x)).sqrt()
    powers = torch.exp(x - x.max(1, keepdim=True).values)
    return powers / powers.sum(1, keepdim=True)


def order(values):
    """Places from the largest to the smallest value, ties in ascending order."""
    return torch.sort(values, dim=-1, descending=True, stable=True).indices


def choose(values, topk, num_groups=None, group_topk=None):
    """ids [T, K], best first."""
    if group_topk:
        groups = values.view(len(values), num_groups, -1)
        best = torch.sort(groups, dim=2, descending=True).values[:, :, : topk // group_topk]
        staying = order(best.sum(2))[:, :group_topk]
        there = torch.zeros(len(values), num_groups, dtype=torch.bool).scatter(1, staying, True)
        values = torch.where(there.unsqueeze(2), groups, -torch.inf).view(values.shape)
    return order(values)[:, :topk]


def route(logits, topk, pre=False, num_groups=None, group_topk=None, scale=None, name="softmax",
          bias=None):  # fmt: skip
    """probs [T, E] in float64, routing_map [T, E]."""
    x = logits.double()
    after = name == "softmax" and not pre
    scores = scores_of(x, name)
    values = x if after else scores
    if bias is not None and name != "softmax":
        values = values + bias.double()
    ids = choose(values.detach(), topk, num_groups, group_topk)
    weights = scores_of(x.gather(1, ids), "softmax") if after else scores.gather(1, ids)
    if name != "softmax" and topk > 1:
        weights = weights / (weights.sum(1, keepdim=True) + 1e-20)
    weights = weights * (scale or 1.0)
    zeros = torch.zeros_like(x)
    return zeros.scatter(1, ids, weights), zeros.bool().scatter(1, ids, True)


UNIT = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8}


def assert_near(actual, exact, slack=0.0):
    """Rounded once to its type; the oracle's own error is below 2^-40 of a number, or `slack`."""
    unit = UNIT[actual.dtype] * 1.001 + 2.0**-40
    assert torch.all((actual.double() - exact).abs() <= unit * exact.abs() + slack + 2.0**-149)
