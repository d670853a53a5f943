"""Megatron-Core's and TransformerEngine's router functions, on the grids of their own tests.

Shapes and settings are theirs; values are compared with an oracle in float64. Their largest numbers
of tokens run with MOETOKEN_WHOLE_GRIDS set; without it each setting runs with the smallest.
"""

import inspect
import math
import os

import pytest

torch = pytest.importorskip("torch")

from moetoken.torch import megatron, router_update_bias  # noqa: E402
from moetoken.torch import transformer_engine as te  # noqa: E402
from oracle_torch_router import assert_near, choose, route, scores_of  # noqa: E402

WHOLE = "MOETOKEN_WHOLE_GRIDS" in os.environ
SIGMOID_TOKENS = [2048, 7168, 8992] if WHOLE else [2048]
SOFTMAX_TOKENS = [2048, 7168, 14234] if WHOLE else [2048]


def sigmoid_logits(tokens_num, experts_num):
    """As TransformerEngine's tests make them."""
    offset = torch.arange(-tokens_num // 2, tokens_num // 2, dtype=torch.float32) * 1e-4
    logits = torch.arange(-experts_num // 2, experts_num // 2, dtype=torch.float32) * 1e-2
    return logits.unsqueeze(0) + offset.unsqueeze(1)


def softmax_logits(tokens_num, experts_num):
    pairs = tokens_num * experts_num
    logits = torch.arange(-pairs // 2, pairs // 2, dtype=torch.float32) * 1e-4
    return logits.view(tokens_num, experts_num)


def random_weights(shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def compare(function, logits, topk, pre, num_groups, group_topk, scale, name, bias, slack=1e-12):
    """Map, probs and the gradient of the logits."""
    inputs = [logits.clone().requires_grad_() for _ in range(2)]
    settings = (topk, pre, num_groups, group_topk, scale, name, bias)
    probs, routing_map = function(inputs[0], *settings)
    exact, expected_map = route(inputs[1].double(), *settings)
    assert probs.dtype == logits.dtype and routing_map.dtype == torch.bool
    assert torch.equal(routing_map, expected_map)
    assert_near(probs.detach(), exact.detach())
    weights = random_weights(logits.shape).to(logits.dtype)
    (probs * weights).sum().backward()
    (expected,) = torch.autograd.grad((exact * weights.double()).sum(), inputs[1])
    # The other gradient has been rounded to the type of the logits too.
    assert_near(inputs[0].grad, expected.double(), slack + expected.double().abs() * 2.0**-24)


# ---- TransformerEngine: tests/pytorch/test_fused_router.py --------------------------------------


@pytest.mark.parametrize("tokens_num", SIGMOID_TOKENS)
@pytest.mark.parametrize("experts_num", [128, 32])
@pytest.mark.parametrize("topk", [4, 8])
@pytest.mark.parametrize("group_topk", [None, 4])
@pytest.mark.parametrize("scale", [None, 1.2])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("name", ["sigmoid", "sqrtsoftplus"])
def test_te_topk_sigmoid(tokens_num, experts_num, topk, group_topk, scale, with_bias, name):
    bias = torch.arange(experts_num).flip(0) * 0.1 if with_bias else None
    groups = 8 if group_topk else None
    logits = sigmoid_logits(tokens_num, experts_num)
    function = te.fused_topk_with_score_function
    compare(function, logits, topk, False, groups, group_topk, scale, name, bias)


@pytest.mark.parametrize("tokens_num", SOFTMAX_TOKENS)
@pytest.mark.parametrize("experts_num", [128, 32])
@pytest.mark.parametrize("topk", [4, 8])
@pytest.mark.parametrize("pre", [True, False])
@pytest.mark.parametrize("group_topk", [None, 4])
@pytest.mark.parametrize("scale", [None, 1.2])
def test_te_topk_softmax(tokens_num, experts_num, topk, pre, group_topk, scale):
    logits, groups = softmax_logits(tokens_num, experts_num), 8 if group_topk else None
    function = te.fused_topk_with_score_function
    compare(function, logits, topk, pre, groups, group_topk, scale, "softmax", None)


@pytest.mark.parametrize("tokens_num", SOFTMAX_TOKENS)
@pytest.mark.parametrize("experts_num", [256, 128, 32])
@pytest.mark.parametrize("topk", [1, 4, 8])
@pytest.mark.parametrize("name", ["softmax", "sigmoid", "sqrtsoftplus"])
def test_te_scores_for_aux_loss(tokens_num, experts_num, topk, name):
    make = softmax_logits if name == "softmax" else sigmoid_logits
    inputs = [make(tokens_num, experts_num).requires_grad_() for _ in range(2)]
    routing_map, scores = te.fused_compute_score_for_moe_aux_loss(inputs[0], topk, name)
    exact = scores_of(inputs[1].double(), name)
    if name != "softmax" and topk > 1:
        exact = exact / (exact.sum(1, keepdim=True) + 1e-20)
    assert scores.dtype == torch.float32
    assert_near(scores.detach(), exact.detach())
    expected = torch.zeros_like(exact).bool().scatter(1, choose(exact.detach(), topk), True)
    assert torch.equal(routing_map, expected)
    weights = random_weights(exact.shape).float()
    (scores * weights).sum().backward()
    (expected,) = torch.autograd.grad((exact * weights.double()).sum(), inputs[1])
    assert_near(inputs[0].grad, expected.double(), 1e-12 + expected.double().abs() * 2.0**-24)


@pytest.mark.parametrize("tokens_num", SOFTMAX_TOKENS)
@pytest.mark.parametrize("experts_num", [256, 128, 32])
def test_te_aux_loss(tokens_num, experts_num):
    probs = sigmoid_logits(tokens_num, experts_num).requires_grad_()
    counts = torch.randint(1, 1000, (experts_num,), dtype=torch.int32)
    loss = te.fused_moe_aux_loss(probs, counts, tokens_num, experts_num, 4, 0.01)
    factor = experts_num * 0.01 / (4 * tokens_num**2)
    terms = probs.detach().double().sum(0) * counts * factor
    assert loss.dtype == torch.float32 and loss.shape == ()
    assert_near(loss.detach(), terms.sum(), 1e-12 * terms.abs().sum())
    loss.backward()
    assert_near(probs.grad, (counts.double() * factor).expand(probs.shape))


def test_te_signatures():
    """As transformer_engine.pytorch.router has them; formats of the map are strings here."""
    parameters = {
        te.fused_topk_with_score_function: [
            "logits", "topk", "use_pre_softmax", "num_groups", "group_topk", "scaling_factor",
            "score_function", "expert_bias", "routing_map_format", "topk_indices", "qb_histogram",
            "qb_bin_bounds", "qb_histogram_mode",
        ],
        te.fused_compute_score_for_moe_aux_loss: [
            "logits", "topk", "score_function", "routing_map_format"
        ],
        te.fused_moe_aux_loss: [
            "probs", "tokens_per_expert", "total_num_tokens", "num_experts", "topk", "coeff"
        ],
    }  # fmt: skip
    for function, names in parameters.items():
        assert list(inspect.signature(function).parameters) == names


def test_te_forms_of_the_choice():
    """The map in bits, lowest first, for experts that do not fill the last byte; the indices."""
    logits = torch.tensor([[0.0] * 9 + [2.0], [3.0, 1.0] + [0.0] * 8])
    settings = (2, False, None, None, None, "softmax", None)
    probs, bits = te.fused_topk_with_score_function(logits, *settings, "bitmap_u8")
    assert bits.dtype == torch.uint8 and bits.tolist() == [[1, 2], [3, 0]]
    indices = torch.zeros(2, 2, dtype=torch.int32)
    again, found = te.fused_topk_with_score_function(logits, *settings, topk_indices=indices)
    assert found is indices and indices.tolist() == [[9, 0], [0, 1]]
    assert torch.equal(again, probs)
    bits, _ = te.fused_compute_score_for_moe_aux_loss(logits, 2, "softmax", 1)
    assert bits.tolist() == [[1, 2], [3, 0]]
    with pytest.raises(ValueError, match="routing_map_format is 'bits', expected 'bytemap'"):
        te.fused_topk_with_score_function(logits, *settings, "bits")
    with pytest.raises(ValueError, match=r"topk_indices is \[2, 2\] of torch.float32, expected"):
        te.fused_topk_with_score_function(logits, *settings, topk_indices=torch.zeros(2, 2))
    with pytest.raises(NotImplementedError, match="qb_histogram is given"):
        te.fused_topk_with_score_function(logits, *settings, qb_histogram=indices)


# ---- Megatron-Core: tests/unit_tests/transformer/moe/test_routers.py ----------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("pre", [True, False])
@pytest.mark.parametrize("name", ["sigmoid", "softmax"])
def test_megatron_top2(dtype, pre, name):
    """TestTop2Router: 64 tokens, 4 experts."""
    logits = random_weights((64, 4)).to(dtype)
    function = megatron.topk_routing_with_score_function
    slack = 2.0**-8 if dtype == torch.bfloat16 else 1e-12  # the oracle's gradient in bfloat16
    compare(function, logits, 2, pre, None, None, None, name, None, slack)


@pytest.mark.parametrize("group_topk, num_groups", [(3, 8), (2, 4)])
@pytest.mark.parametrize("pre", [True, False])
@pytest.mark.parametrize("name", ["sigmoid", "softmax"])
def test_megatron_group_limited(group_topk, num_groups, pre, name):
    """TestGroupLimitedRouter: 512 tokens, 16 experts, top 4, scaled by 16 with pre-softmax."""
    logits = random_weights((512, 16)).float()
    function, scale = megatron.topk_routing_with_score_function, 16.0 if pre else None
    compare(function, logits, 4, pre, num_groups, group_topk, scale, name, None, 1e-11)
    probs, ids = megatron.group_limited_topk(logits, 4, 512, 16, num_groups, group_topk)
    assert torch.equal(ids, choose(logits, 4, num_groups, group_topk))
    assert torch.equal(probs, logits.gather(1, ids))
    staying = torch.zeros(512, num_groups).scatter(1, ids // (16 // num_groups), 1)
    assert staying.sum(1).max() <= group_topk


@pytest.mark.parametrize("name, pre", [("softmax", True), ("softmax", False), ("sigmoid", False),
                                       ("sqrtsoftplus", False)])  # fmt: skip
@pytest.mark.parametrize("topk", [1, 3])
def test_megatron_chosen_before(name, pre, topk):
    """Dense results, and experts that the caller chose."""
    logits = (30 * random_weights((40, 8))).double().requires_grad_()
    settings = dict(use_pre_softmax=pre, scaling_factor=2.5, score_function=name)
    function = megatron.topk_routing_with_score_function
    probs, routing_map = function(logits, topk, **settings)
    dense, ids = function(logits, topk, dense_output=True, **settings)
    assert torch.equal(dense, probs.gather(1, ids)) and routing_map.gather(1, ids).all()
    chosen, chosen_map = function(logits, topk, precomputed_indices=ids, **settings)
    assert torch.equal(chosen_map, routing_map)
    assert torch.allclose(chosen, probs, rtol=1e-13, atol=0)
    grads = [torch.autograd.grad(y, logits, torch.cos(probs))[0] for y in (probs, chosen)]
    assert torch.allclose(*grads, rtol=1e-9, atol=1e-14)
    others = logits.detach().topk(topk, largest=False).indices
    weights, same = function(logits, topk, precomputed_indices=others, dense_output=True, **settings)
    _, other_map = function(logits, topk, precomputed_indices=others, **settings)
    assert torch.equal(same, others) and weights.shape == (40, topk)
    assert torch.equal(other_map, torch.zeros(40, 8).scatter(1, others, 1).bool())
    with pytest.raises(ValueError, match=r"^precomputed_indices has shape \[3, 2\]"):
        function(logits, 2, precomputed_indices=torch.zeros(3, 2, dtype=torch.int64))


def oracle_drop(probs, routing_map, capacity, policy, pad):
    """Expert by expert, in Python."""
    tokens_num, experts_num = probs.shape
    kept = torch.zeros_like(routing_map)
    for e in range(experts_num):
        tokens = [t for t in range(tokens_num) if routing_map[t, e]]
        if policy == "probs":
            tokens.sort(key=lambda t: (-probs[t, e].item(), t))
        tokens = tokens[:capacity]
        if pad:
            tokens += [t for t in range(tokens_num) if t not in tokens][: capacity - len(tokens)]
        kept[tokens, e] = True
    return kept


@pytest.mark.parametrize("capacity_factor", [0.5, 1.0, 2.0, 9.0])
@pytest.mark.parametrize("policy", ["probs", "position"])
@pytest.mark.parametrize("pad", [True, False])
def test_megatron_token_dropping(capacity_factor, policy, pad):
    """32 tokens, top 2 of 4, with ties."""
    logits = (random_weights((32, 4)) * 2).round() / 2
    probs, routing_map = megatron.topk_routing_with_score_function(logits, 2)
    probs = probs.detach().requires_grad_()
    final, final_map = megatron.apply_router_token_dropping(
        probs, routing_map, 2, capacity_factor, policy, pad
    )
    capacity = math.ceil(32 * 2 / 4 * capacity_factor)
    expected = oracle_drop(probs, routing_map, min(capacity, 32), policy, pad)
    assert torch.equal(final_map, expected)
    assert torch.equal(final, probs * expected)
    if pad and capacity <= 32:
        assert final_map.sum().item() == 32 * 2 * capacity_factor
    final.sum().backward()
    assert torch.equal(probs.grad, expected.double())


def test_megatron_signatures():
    theirs = pytest.importorskip("megatron.core.transformer.moe.moe_utils")
    for name in (
        "apply_router_token_dropping",
        "compute_routing_scores_for_aux_loss",
        "get_updated_expert_bias",
        "group_limited_topk",
        "switch_load_balancing_loss_func",
        "topk_routing_with_score_function",
        "z_loss_func",
    ):
        ours, other = (
            [(p.name, p.default) for p in inspect.signature(getattr(module, name)).parameters.values()]
            for module in (megatron, theirs)
        )
        assert ours[: len(other)] == other
        newer = {"dense_output", "precomputed_indices"}  # than what is installed
        assert {name for name, _ in ours[len(other) :]} <= newer


@pytest.mark.parametrize("name", ["sigmoid", "softmax"])
def test_beside_the_installed_megatron(name):
    """Within the errors of its float32, where no two scores are close."""
    theirs = pytest.importorskip("megatron.core.transformer.moe.moe_utils")
    logits = random_weights((64, 16)).float()
    close = dict(rtol=1e-5, atol=1e-6)
    for pre in (False, True):
        for groups, group_topk in ((None, None), (8, 2)):
            settings = (4, pre, groups, group_topk, 1.5, name, torch.linspace(-1, 1, 16))
            pairs = [
                module.topk_routing_with_score_function(logits, *settings)
                for module in (megatron, theirs)
            ]
            torch.testing.assert_close(*pairs, **close)
    mask = torch.arange(64) % 3 == 0
    for mask in (None, mask):
        pairs = [
            module.compute_routing_scores_for_aux_loss(logits, 4, name, padding_mask=mask)
            for module in (megatron, theirs)
        ]
        torch.testing.assert_close(*pairs, **close)
        pairs = [module.z_loss_func(logits, 0.1, mask) for module in (megatron, theirs)]
        torch.testing.assert_close(*pairs, **close)
        scores, counts = logits.sigmoid(), torch.arange(16)
        for tokens, total in ((counts, 64), (counts / 3, 64), (counts, torch.tensor(64.0))):
            pairs = [
                module.switch_load_balancing_loss_func(
                    scores, tokens, total, 4, 16, 0.1, padding_mask=mask
                )
                for module in (megatron, theirs)
            ]
            torch.testing.assert_close(*pairs, **close)


def test_megatron_expert_bias():
    """TestAuxLossFreeTop2Router: against the mean, which is 2.25 here; a row a layer; in place of
    none of its arguments."""
    counts, bias = torch.tensor([3.0, 2.0, 4.0, 0.0]), torch.tensor([0.5, -0.25, 0.0, 1.0])
    updated = megatron.get_updated_expert_bias(counts, bias, 0.125)
    assert updated.tolist() == [0.375, -0.125, -0.125, 1.125] and updated.dtype == torch.float32
    assert bias.tolist() == [0.5, -0.25, 0.0, 1.0]
    layers = torch.stack([counts, counts.flip(0), torch.full((4,), 2.0)])
    found = megatron.get_updated_expert_bias(layers, bias.expand(3, 4), 0.1)
    for row, expected in zip(layers, found):
        assert torch.equal(router_update_bias(bias, row.long(), 0.1), expected)
    with pytest.raises(ValueError, match=r"tokens_per_expert has shape \[3\], expert_bias \[4\]"):
        megatron.get_updated_expert_bias(counts[:3], bias, 0.1)


def test_losses_keep_the_type():
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        x = random_weights((8, 4)).to(dtype).requires_grad_()
        for loss in (
            megatron.z_loss_func(x, 0.1),
            megatron.z_loss_func(x.view(2, 4, 4), 0.1, torch.zeros(2, 4, dtype=torch.bool)),
            megatron.switch_load_balancing_loss_func(x, torch.arange(4), 8, 2, 4, 0.1),
        ):
            assert loss.dtype == dtype and loss.shape == ()
            (grad,) = torch.autograd.grad(loss, x)
            assert grad.dtype == dtype


@pytest.mark.parametrize(
    "error, message, call",
    [
        (ValueError, "^topk = 5, expected at most E = 4", dict(topk=5)),
        (ValueError, "^score_function is 'relu', expected 'softmax'", dict(score_function="relu")),
        (ValueError, "^num_groups is missing", dict(group_topk=1)),
        (ValueError, "^num_groups = 3 does not divide E = 4", dict(group_topk=1, num_groups=3)),
        (ValueError, "^group_topk = 3, expected at most topk = 2", dict(group_topk=3, num_groups=4)),
        (ValueError, "^topk // group_topk = 2, expected 1 to E / num_groups = 1",
         dict(group_topk=1, num_groups=4)),
        (ValueError, "^group_topk = 2, expected 1 to num_groups = 1",
         dict(topk=4, group_topk=2, num_groups=1)),
        (TypeError, "^expert_bias is torch.int64, expected a floating", dict(
            score_function="sigmoid", expert_bias=torch.zeros(4).long())),
        (NotImplementedError, "^router_replay is given", dict(router_replay=object())),
        (ValueError, "^scaling_factor = inf, expected a finite", dict(scaling_factor=math.inf)),
    ],
)  # fmt: skip
def test_megatron_errors(error, message, call):
    with pytest.raises(error, match=message):
        megatron.topk_routing_with_score_function(torch.zeros(2, 4), **{"topk": 2, **call})


def test_compiled():
    def both(x, counts):
        probs, routing_map = megatron.topk_routing_with_score_function(x, 2, True)
        final, final_map = megatron.apply_router_token_dropping(probs, routing_map, 2, 1.0)
        loss = megatron.switch_load_balancing_loss_func(probs, counts, 8, 2, 4, 0.1)
        again, _ = te.fused_topk_with_score_function(x, 2, False, None, None, None, "sigmoid", None)
        return final, final_map, loss + megatron.z_loss_func(x, 0.1), again

    found = []
    for function in (both, torch.compile(both, fullgraph=True, backend="aot_eager")):
        x = random_weights((8, 4)).requires_grad_()
        final, final_map, loss, again = function(x, torch.arange(4))
        (final.sin().sum() + loss + again.sin().sum()).backward()
        found.append((final.detach(), final_map, loss.detach(), again.detach(), x.grad))
    torch.testing.assert_close(found[0], found[1], rtol=1e-12, atol=1e-12)
