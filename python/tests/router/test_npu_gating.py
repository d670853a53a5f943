"""The Ascend plug-in's gating functions: against loops in float64, gradients, what they refuse."""

import pytest

torch = pytest.importorskip("torch")

from torch.autograd import gradcheck  # noqa: E402

import moetoken.torch as mt  # noqa: E402
from moetoken.torch import npu  # noqa: E402
from oracle_torch_router import assert_near, order, scores_of  # noqa: E402

T, E, K = 7, 16, 4
NORMS = ["softmax", "sigmoid", "sqrtsoftplus"]


def normal(dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(T, E, generator=generator, dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("norm_type", range(3))
@pytest.mark.parametrize("mode", range(2))
@pytest.mark.parametrize("groups, k_group", [(1, 1), (4, 2), (8, 3)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_gating_top_k(dtype, norm_type, mode, groups, k_group, with_bias):
    x = normal(dtype)
    bias = torch.linspace(-0.5, 0.5, E).to(torch.float16) if with_bias else None
    y, ids, out = npu.npu_moe_gating_top_k(
        x, K, bias=bias, k_group=k_group, group_count=groups, group_select_mode=mode,
        norm_type=norm_type, out_flag=True, routed_scaling_factor=2.5, eps=1e-3,
    )  # fmt: skip
    scores = scores_of(x.double(), NORMS[norm_type])
    values = scores if bias is None else scores + bias.double()
    grouped = values.view(T, groups, -1)
    best = grouped.sort(2, descending=True).values[:, :, : 1 + mode].sum(2)
    staying = torch.zeros(T, groups).scatter(1, order(best)[:, :k_group], 1).bool()
    values = torch.where(staying.unsqueeze(2), grouped, -torch.inf).view(T, E)
    expected = order(values)[:, :K]
    weights = scores.gather(1, expected)
    if norm_type:
        weights = weights / (weights.sum(1, keepdim=True) + 1e-3)
    assert ids.dtype == torch.int32 and torch.equal(ids.long(), expected)
    assert y.dtype == dtype and out.dtype == torch.float32
    assert_near(y, weights * 2.5)
    assert_near(out, scores)


def test_gating_top_k_without_out():
    x = normal(torch.bfloat16)
    y, ids, out = npu.npu_moe_gating_top_k(x, K)
    with_out = npu.npu_moe_gating_top_k(x, K, out_flag=True)
    assert torch.equal(y, with_out[0]) and torch.equal(ids, with_out[1])
    assert out.shape == (T, E) and out.dtype == torch.float32 and not out.any()
    assert not npu.npu_moe_gating_top_k(x, K, routed_scaling_factor=0)[0].any()


@pytest.mark.parametrize("norm_type", range(3))
def test_gradient(norm_type):
    call = lambda x: npu.npu_moe_gating_top_k(x, K, norm_type=norm_type, routed_scaling_factor=2.5)[
        0
    ]
    assert gradcheck(call, normal(torch.float64).requires_grad_())
    soft = lambda x: npu.npu_moe_gating_top_k_softmax(x, None, K)[0]
    assert gradcheck(soft, normal(torch.float64).requires_grad_())


def test_backward_by_cann_s_formula():
    """MoeGatingTopKBackward: gs = factor * gy, D = sum + eps, (gs - <w, gs>) / D, x (1 - x)."""
    x, gy = normal(torch.float64).requires_grad_(), normal(torch.float64, seed=1)[:, :K]
    y, ids, _ = npu.npu_moe_gating_top_k(x, K, norm_type=1, routed_scaling_factor=2.5, eps=0.5)
    y.backward(gy)
    norm = scores_of(x.detach(), "sigmoid")
    picked = norm.gather(1, ids.long())
    divisor, gs = picked.sum(1, keepdim=True) + 0.5, 2.5 * gy
    weights = picked / divisor
    grads = (gs - (weights * gs).sum(1, keepdim=True)) / divisor
    expected = norm * (1 - norm) * torch.zeros(T, E).double().scatter(1, ids.long(), grads)
    assert_near(x.grad, expected, 1e-14)


def test_gating_top_k_softmax():
    x = normal()
    finished = torch.tensor([0, 1, 0, 0, 1, 0, 0], dtype=torch.bool)
    y, ids, rows = npu.npu_moe_gating_top_k_softmax(x, finished, K)
    scores = scores_of(x.double(), "softmax")
    expected = order(scores)[:, :K]
    assert torch.equal(ids.long(), torch.where(finished.unsqueeze(1), E, expected))
    assert_near(y, scores.gather(1, expected))
    assert rows.dtype == ids.dtype == torch.int32
    assert rows.tolist() == [[k * T + t for k in range(K)] for t in range(T)]
    deep = npu.npu_moe_gating_top_k_softmax(x.view(1, T, E), finished.view(1, T), K)
    assert all(torch.equal(a.view(T, K), b) for a, b in zip(deep, (y, ids, rows)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_gating_top_k_softmax_v2(dtype):
    x = normal(dtype)
    finished = torch.tensor([0, 1, 0, 0, 1, 0, 0], dtype=torch.bool)
    scores = scores_of(x.double(), "softmax")
    expected = order(scores)[:, :K]
    marked = torch.where(finished.unsqueeze(1), E, expected)
    call = npu.npu_moe_gating_top_k_softmax_v2
    y, ids, softmax = call(x, k=K, finished=finished, output_softmax=True)
    assert ids.dtype == torch.int32 and torch.equal(ids.long(), marked)
    assert y.dtype == dtype and softmax.dtype == torch.float32
    assert_near(y, scores.gather(1, expected))
    assert_near(softmax, scores)
    assert call(x, k=K)[2].shape == (0,) and torch.equal(call(x, k=K)[0], y)
    y, ids, softmax = call(x, k=K, finished=finished, renorm=1, output_softmax=True)
    assert torch.equal(ids.long(), marked) and softmax.shape == (0,)
    assert_near(y, x.double().gather(1, expected).softmax(1))
    deep = call(x.view(1, T, E), k=K, output_softmax=True)
    assert deep[0].shape == (1, T, K) and deep[2].shape == (1, T, E)
    with pytest.raises(ValueError, match="^renorm = 2, expected 0 to 1"):
        call(x, k=K, renorm=2)


def test_into_init_routing():
    """The three results are what the plug-in's next function takes."""
    x = normal()
    y, ids, rows = npu.npu_moe_gating_top_k_softmax(x, None, K)
    sent, _, experts = npu.npu_moe_init_routing(x, rows, ids, T)
    ends = npu.npu_moe_compute_expert_tokens(experts, E)
    counts = mt.router(x, topk=K).rows_per_expert
    assert ends.dtype == torch.int32 and torch.equal(ends.long(), counts.cumsum(0))
    assert sent.shape == (T * K, E) and y.shape == (T, K)


def test_compute_expert_tokens():
    ends = npu.npu_moe_compute_expert_tokens(torch.tensor([0, 0, 2, 2, 2, 5], dtype=torch.int32), 5)
    assert ends.tolist() == [2, 2, 5, 5, 5]
    assert npu.npu_moe_compute_expert_tokens(torch.empty(0, dtype=torch.int64), 2).tolist() == [
        0,
        0,
    ]


@pytest.mark.parametrize(
    "error, message, call",
    [
        (ValueError, "^k = 17, expected at most E = 16", dict(k=17)),
        (ValueError, "^renorm = 1, expected 0 to 0", dict(renorm=1)),
        (ValueError, "^norm_type = 3, expected 0 to 2", dict(norm_type=3)),
        (ValueError, "^group_select_mode = 2", dict(group_select_mode=2)),
        (ValueError, "^group_count = 3 does not divide E = 16", dict(group_count=3)),
        (ValueError, "^k_group = 5, expected 1 to group_count = 4", dict(group_count=4, k_group=5)),
        (ValueError, "^bias has", dict(bias=torch.zeros(3))),
        (ValueError, "^x has 1 dimension", dict(x=torch.zeros(3))),
        (TypeError, "^x is int64", dict(x=torch.zeros(T, E).long())),
        (NotImplementedError, "^tid2eid is given", dict(tid2eid=torch.zeros(3))),
        (TypeError, "^out_flag is 'no'", dict(out_flag="no")),
        (ValueError, "^routed_scaling_factor = nan", dict(routed_scaling_factor=float("nan"))),
        (ValueError, "^eps = -1, expected at least 0", dict(eps=-1.0)),
    ],
)
def test_errors(error, message, call):
    with pytest.raises(error, match=message):
        npu.npu_moe_gating_top_k(**{"x": normal(), "k": K, **call})


def test_errors_of_the_others():
    with pytest.raises(ValueError, match="^finished has shape"):
        npu.npu_moe_gating_top_k_softmax(normal(), torch.zeros(3))
    with pytest.raises(ValueError, match="^k = 17, expected at most E = 16"):
        npu.npu_moe_gating_top_k_softmax(normal(), None, 17)
    with pytest.raises(TypeError, match="^sorted_expert_for_source_row is torch.float32"):
        npu.npu_moe_compute_expert_tokens(torch.zeros(3), 2)


def test_compiled():
    def both(x):
        y, ids, _ = npu.npu_moe_gating_top_k(x, K, norm_type=1)
        return y, ids, *npu.npu_moe_gating_top_k_softmax(x, None, K)

    compiled = torch.compile(both, fullgraph=True, backend="aot_eager")
    x = normal()
    assert all(torch.equal(a, b) for a, b in zip(both(x), compiled(x)))
