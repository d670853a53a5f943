"""Faults that have been reported of other routers, each with the right value.

The names in brackets are the reports: TransformerEngine's, Megatron-LM's and aiter's issues.
"""

import math

import pytest

torch = pytest.importorskip("torch")

import moetoken.torch as mt  # noqa: E402
from moetoken.torch import megatron  # noqa: E402
from moetoken.torch import transformer_engine as te  # noqa: E402


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def close(found, expected):
    """Within one rounding to float32."""
    assert math.isclose(found, expected, rel_tol=2.0**-23), (found, expected)


def test_a_large_bias_takes_nothing_from_the_weight():
    """(score + bias) - bias is not the score: with a bias of 2^30 nothing would be left of it."""
    logits, bias = torch.tensor([[0.5, -1.0, 2.0]]), torch.tensor([2.0**30, 2.0**30, 0])
    probs, routing_map = te.fused_topk_with_score_function(
        logits, 2, False, None, None, None, "sigmoid", bias
    )
    assert routing_map.tolist() == [[True, True, False]]
    total = sigmoid(0.5) + sigmoid(-1)
    close(probs[0, 0].item(), sigmoid(0.5) / total)
    close(probs[0, 1].item(), sigmoid(-1) / total)


def test_several_sequences_at_a_time():
    """[TE 1944] logits [sequence, batch, experts] are as many tokens as that makes."""
    logits = torch.randn(3, 2, 8, requires_grad=True)
    settings = (2, True, None, None, None, "softmax", None)
    deep = te.fused_topk_with_score_function(logits, *settings)
    flat = te.fused_topk_with_score_function(logits.view(6, 8), *settings)
    assert all(torch.equal(a, b.view(3, 2, 8)) for a, b in zip(deep, flat))
    deep[0].square().sum().backward()
    assert logits.grad.shape == (3, 2, 8) and logits.grad.any()
    routing_map, scores = te.fused_compute_score_for_moe_aux_loss(logits, 2, "sigmoid")
    assert routing_map.shape == scores.shape == (3, 2, 8)


@pytest.mark.parametrize("group_topk", [None, 2])
def test_nothing_but_negative_values(group_topk):
    """[TE 2009] a maximum that begins at 0, or groups put out of the way by a 0, beat them all."""
    logits = -torch.arange(1.0, 9.0).view(1, 8) * 100
    groups = 4 if group_topk else None
    _, routing_map = te.fused_topk_with_score_function(
        logits, 2, False, groups, group_topk, None, "softmax", None
    )
    assert routing_map.nonzero()[:, 1].tolist() == [0, 1]
    values, ids = megatron.group_limited_topk(logits, 4, 1, 8, 4, 2)
    assert ids.tolist() == [[0, 1, 2, 3]] and values.tolist() == [[-100, -200, -300, -400]]


@pytest.mark.parametrize("name", ["sigmoid", "sqrtsoftplus"])
def test_one_expert_is_not_normalized(name):
    """[TE 2720] divided by itself its weight would be 1, and have no gradient."""
    logits = torch.tensor([[0.0, 1.0]], requires_grad=True)
    expected = sigmoid(1) if name == "sigmoid" else math.sqrt(math.log1p(math.exp(1)))
    for probs, _ in (
        te.fused_topk_with_score_function(logits, 1, False, None, None, None, name, None),
        megatron.topk_routing_with_score_function(logits, 1, score_function=name),
    ):
        close(probs[0, 1].item(), expected)
        (grad,) = torch.autograd.grad(probs.sum(), logits)
        assert grad[0, 1] > 0 and grad[0, 0] == 0


@pytest.mark.parametrize("experts, topk", [(2048, 512), (1031, 1031), (4096, 1), (10240, 64)])
def test_many_experts(experts, topk):
    """[TE 2821] limits on the experts and on the chosen ones of a token."""
    logits = torch.randperm(experts).view(1, -1).double() / experts
    _, routing_map = te.fused_topk_with_score_function(
        logits, topk, True, None, None, None, "softmax", None
    )
    assert torch.equal(routing_map[0], logits[0] * experts >= experts - topk)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_in_narrow_types(dtype):
    """[TE 2758] 1's added up in bfloat16 stand still at 256, in float16 at 2048."""
    probs = torch.ones(4096, 2, dtype=dtype, requires_grad=True)
    loss = te.fused_moe_aux_loss(probs, torch.tensor([4096, 4096]), 4096, 2, 1, 1.0)
    # 2 / 4096^2 * 2 * 4096 * 4096
    assert loss.dtype == dtype and loss.item() == 4
    loss.backward()
    assert torch.all(probs.grad == 2.0**-11)


def test_a_loss_for_each_sequence():
    """[TE 3018, Megatron 5052] as many columns an expert as sequences: E stays the experts'."""
    scores = torch.tensor([[0.5, 0.5, 0.25, 0.75], [1.0, 0.0, 0.5, 0.5]])  # 2 tokens of 2 sequences
    counts = torch.tensor([2, 0, 1, 1])
    expected = 2 * 0.5 / (1 * 4) * (1.5 * 2 + 0.75 * 1 + 1.25 * 1)
    for loss in (
        te.fused_moe_aux_loss(scores, counts, 2, 2, 1, 0.5),
        megatron.switch_load_balancing_loss_func(scores, counts, 2, 1, 2, 0.5),
        megatron.switch_load_balancing_loss_func(scores, counts.float(), 2, 1, 2, 0.5),
    ):
        close(loss.item(), expected)


def test_what_is_counted_is_what_is_routed():
    """[TE 2912] counts for the loss come from the choice with groups and bias, not from another."""
    logits = torch.tensor([[3.0, -3.0, 1.0, 1.0]]).repeat(4, 1)
    found = mt.router(
        logits, topk=2, score="sigmoid", groups_num=2, groups_top=1, group_score_count=2
    )
    # sums of groups: 0.95 + 0.05 and 0.73 + 0.73
    assert found.expert_ids.tolist() == [[2, 3]] * 4
    assert found.rows_per_expert.tolist() == [0, 0, 4, 4]
    loss = mt.router_balance_loss(found.scores, found.rows_per_expert, topk=2, coeff=1)
    close(loss.item(), 4 / (2 * 16) * 2 * 4 * 4 * sigmoid(1))


def test_padding_counts_nowhere():
    """[Megatron 1984, 2121, 2142, 5542] tokens that only fill up: no expert, no loss, no gradient."""
    logits = torch.randn(6, 4, dtype=torch.float64)
    mask = torch.tensor([1, 1, 0, 1, 0, 0], dtype=torch.bool)
    whole, real = logits.clone().requires_grad_(), logits[mask].clone().requires_grad_()
    losses = []
    for x, given in ((whole, mask), (real, None)):
        found = mt.router(x, topk=2, token_mask=given)
        total = int(mask.sum())
        loss = mt.router_balance_loss(
            found.scores, found.rows_per_expert, topk=2, total_tokens=total
        )
        loss = loss + mt.router_z_loss(x, token_mask=given) + found.weights.square().sum()
        loss.backward()
        losses.append((loss, found.rows_per_expert))
    assert torch.equal(losses[0][1], losses[1][1])
    torch.testing.assert_close(losses[0][0], losses[1][0], rtol=1e-14, atol=0)
    torch.testing.assert_close(whole.grad[mask], real.grad, rtol=1e-13, atol=1e-16)
    assert not whole.grad[~mask].any()
    # Megatron's two masks: true is a token for one of its functions, padding for the other.
    scores, counts = torch.rand(6, 4), torch.arange(4)
    masked = megatron.switch_load_balancing_loss_func(
        scores, counts, 3, 2, 4, 0.1, padding_mask=mask
    )
    close(masked.item(), megatron.switch_load_balancing_loss_func(
        scores[mask], counts, 3, 2, 4, 0.1).item())  # fmt: skip
    z = megatron.z_loss_func(logits, 0.1, ~mask)
    torch.testing.assert_close(z, megatron.z_loss_func(logits[mask], 0.1), rtol=1e-14, atol=0)


def test_filling_up_to_capacity():
    """[Megatron 1617, 1513] exactly C tokens an expert, the filled ones of weight 0."""
    probs = torch.tensor([[0.9, 0.0], [0.8, 0.0], [0.7, 0.0], [0.0, 0.6]])
    final, final_map = megatron.apply_router_token_dropping(
        probs, probs > 0, 1, 1.0, pad_to_capacity=True
    )
    assert final_map.tolist() == [[True, True], [True, False], [False, False], [False, True]]
    assert torch.equal(final, torch.where(torch.tensor(final_map.tolist()), probs, 0))
    assert final_map.sum(0).tolist() == [2, 2]


def test_dropping_by_position_keeps_the_first():
    """topk of a map of ones and zeros, which Megatron takes, leaves open which ones."""
    routing_map = torch.ones(1000, 2, dtype=torch.bool)
    _, kept = megatron.apply_router_token_dropping(
        torch.rand(1000, 2), routing_map, 1, 0.2, "position"
    )
    assert kept[:100].all() and not kept[100:].any()


def test_bias_with_softmax():
    """[aiter 4247] the choice by softmax + bias, the weight without; no NaN or infinity of one
    token in another."""
    logits = torch.tensor([[0.0, 0.0], [math.nan, 0.0], [math.inf, 0.0], [-math.inf, 0.0]])
    found = mt.router(logits, topk=1, bias=torch.tensor([0.0, 1.0]))
    assert found.expert_ids.tolist() == [[1], [0], [0], [1]]
    assert found.weights[0] == 0.5 and found.weights[3] == 1
    assert found.weights[1:3].isnan().all()
    large = mt.router(torch.tensor([[1e30, -1e30]]), topk=2, bias=torch.tensor([0.0, 2.0]))
    assert large.expert_ids.tolist() == [[1, 0]] and large.weights.tolist() == [[0, 1]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ties_go_to_the_lower_index(dtype):
    """[torchtitan 3336, pytorch 186653, vLLM 55514] whatever the order of the partial sort."""
    logits = torch.zeros(64, 256, dtype=dtype)
    for found in (
        mt.router(logits, topk=8),
        mt.router(logits, topk=8, score="softmax_after"),
        mt.router(logits, recipe="deepseek-v3", bias=torch.zeros(256)),
    ):
        assert found.expert_ids.tolist() == [list(range(8))] * 64
    logits[:, 100:200] = 1
    assert mt.router(logits, topk=8).expert_ids.tolist() == [list(range(100, 108))] * 64
