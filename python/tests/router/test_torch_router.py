"""The router for PyTorch: the bits of the NumPy functions, every derivative, what traces."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.autograd import gradcheck, gradgradcheck  # noqa: E402

import moetoken  # noqa: E402
import moetoken.torch as mt  # noqa: E402
from cases import bits  # noqa: E402

SCORES = ["softmax", "sigmoid", "sqrtsoftplus", "softmax_after"]
T, E, K = 5, 8, 3
MASK = torch.tensor([1, 1, 0, 1, 1], dtype=torch.bool)
COUNTS = torch.arange(1, E + 1)


def normal(*sizes, seed=0, dtype=torch.float64, **keywords):
    values = torch.randn(sizes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return values.to(dtype).requires_grad_(keywords.get("requires_grad", True))


def to_numpy(tensor):
    if tensor.dtype == torch.bfloat16:
        import ml_dtypes

        return tensor.detach().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.detach().numpy()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("score", SCORES)
def test_same_bits_as_numpy(dtype, score):
    logits, bias = normal(T, E, dtype=dtype), torch.linspace(-0.1, 0.1, E)
    options = dict(
        topk=K, score=score, normalize=True, groups_num=4, groups_top=2, scale=1.5,
    )  # fmt: skip
    found = mt.router(logits, bias=bias, token_mask=MASK, **options)
    arrays = dict(bias=bias.numpy(), token_mask=MASK.numpy())
    plain = moetoken.router(to_numpy(logits), **arrays, **options)
    assert [bits(to_numpy(a)) for a in found] == [bits(a) for a in plain]
    weights_grad, scores_grad = torch.ones_like(found.weights) / 3, found.scores.detach()
    both = found.weights.double() @ torch.full((K,), 1 / 3).double()
    (both.sum() + (found.scores * scores_grad).sum()).backward()
    grads = (found.expert_ids.numpy(), weights_grad.detach().numpy(), scores_grad.numpy())
    by_numpy = moetoken.router_grad(to_numpy(logits), *grads, **arrays, **options)
    assert bits(to_numpy(logits.grad)) == bits(by_numpy)
    ours = mt.router_grad(
        logits.detach(), found.expert_ids, weights_grad.detach(), scores_grad, token_mask=MASK,
        **options,
    )  # fmt: skip
    assert bits(to_numpy(ours)) == bits(by_numpy)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_losses_have_the_bits_of_numpy(dtype):
    x, counts = normal(T, E, dtype=dtype), COUNTS
    plain = moetoken.router_balance_loss(to_numpy(x), counts.numpy(), topk=2, coeff=0.3)
    loss = mt.router_balance_loss(x, counts, topk=2, coeff=0.3)
    loss.backward()
    assert bits(to_numpy(loss)) == bits(plain.loss)
    assert bits(to_numpy(x.grad)) == bits(plain.scores_grad)
    x.grad = None
    plain = moetoken.router_z_loss(to_numpy(x), coeff=0.3, token_mask=MASK.numpy())
    loss = mt.router_z_loss(x, coeff=0.3, token_mask=MASK)
    loss.backward()
    assert bits(to_numpy(loss)) == bits(plain.loss)
    assert bits(to_numpy(x.grad)) == bits(plain.logits_grad)
    bias = x.detach()[0]
    updated = mt.router_update_bias(bias, counts, 0.01)
    assert bits(to_numpy(updated)) == bits(
        moetoken.router_update_bias(to_numpy(bias), counts.numpy(), 0.01)
    )


def test_drop():
    chosen = torch.tensor([[0, 1], [0, -1], [0, 1]])
    weights = torch.tensor([[1.0, 2.0], [3.0, 7.0], [2.0, 2.0]], requires_grad=True)
    found = mt.router_drop(chosen, weights, experts_num=2, capacity=1)
    assert found.kept_ids.tolist() == [[-1, 1], [0, -1], [-1, -1]]
    assert found.kept_weights.tolist() == [[0, 2], [3, 7], [0, 0]]
    assert found.rows_per_expert.tolist() == [1, 1]
    found.kept_weights.backward(torch.arange(6.0).view(3, 2))
    assert weights.grad.tolist() == [[0, 1], [2, 3], [0, 0]]


def outputs(score, normalize, mask):
    def call(x):
        found = mt.router(
            x, topk=K, score=score, normalize=normalize, normalize_scores=normalize, scale=1.5,
            token_mask=mask,
        )  # fmt: skip
        return found.weights, found.scores

    return call


@pytest.mark.parametrize("normalize, mask", [(False, None), (True, MASK)], ids=["plain", "all"])
@pytest.mark.parametrize("score", SCORES)
def test_derivatives_of_the_router(score, normalize, mask):
    mask = mask if mask is None else mask[1:4]
    x, call = normal(3, 6), outputs(score, normalize, mask)
    assert gradcheck(call, x, check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(call, x, check_fwd_over_rev=True, check_rev_over_rev=True)


@pytest.mark.parametrize("score", SCORES)
def test_derivatives_of_router_grad(score):
    """By the logits and both gradients, with a slot that never was."""
    ids = mt.router(normal(2, 5), topk=2, score=score).expert_ids
    ids[0, 1] = -1

    def call(x, weights, scores):
        return mt.router_grad(x, ids, weights, scores, score=score, normalize=True)

    arguments = (normal(2, 5), normal(2, 2, seed=1), normal(2, 5, seed=2))
    assert gradcheck(call, arguments, check_forward_ad=True)
    if score == "softmax_after":
        assert gradgradcheck(call, arguments, check_fwd_over_rev=True)

    def scores_alone(x, scores):
        return mt.router_grad(x, None, None, scores, score=score, normalize_scores=True)

    assert gradcheck(scores_alone, (arguments[0], arguments[2]), check_forward_ad=True)


@pytest.mark.parametrize("mask", [None, MASK], ids=["all", "masked"])
def test_derivatives_of_the_losses(mask):
    mask = mask if mask is None else mask[1:4]
    x = normal(3, 4)
    for call in (
        lambda x: mt.router_balance_loss(x, COUNTS[:4], topk=2, coeff=0.3).sin(),
        lambda x: mt.router_z_loss(x, coeff=0.3, token_mask=mask).sin(),
    ):
        assert gradcheck(call, x, check_forward_ad=True)
        assert gradgradcheck(call, x, check_fwd_over_rev=True)
    ids = torch.tensor([[0, 1], [0, -1], [0, 1]])
    drop = lambda w: mt.router_drop(ids, w, experts_num=2, capacity=1).kept_weights
    assert gradcheck(drop, normal(3, 2), check_forward_ad=True)


def test_function_transforms():
    x = normal(3, T, E, requires_grad=False)

    def loss(x):
        found = mt.router(x, topk=K, normalize=True)
        return (found.weights * torch.arange(K)).sum() + mt.router_z_loss(x)

    each = torch.vmap(torch.func.grad(loss))(x)
    assert torch.equal(each, torch.stack([torch.func.grad(loss)(one) for one in x]))
    hessian = torch.func.hessian(loss)(x[0]).reshape(T * E, T * E)
    torch.testing.assert_close(hessian, hessian.T)
    jacobian = torch.func.jacfwd(loss)(x[0])
    torch.testing.assert_close(jacobian, each[0])


def layer(x, w):
    found = mt.router(x @ w, recipe="mixtral", normalize=True)
    sent = mt.ids.permute(x, found.expert_ids, found.weights, experts_num=E)
    y = mt.ids.unpermute(sent.permuted_tokens.sin(), sent.sorted_indices, found.weights)
    loss = mt.router_balance_loss(found.scores, found.rows_per_expert, topk=2, coeff=0.1)
    return y.sum() + loss + mt.router_z_loss(x @ w, coeff=0.01)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_compile_fullgraph(backend):
    import moetoken.torch.ids  # noqa: F401

    found = []
    for function in (layer, torch.compile(layer, fullgraph=True, backend=backend)):
        x, w = normal(T, 4), normal(4, E, seed=1)
        loss = function(x, w)
        loss.backward()
        found.append((loss.detach(), x.grad, w.grad))
    torch.testing.assert_close(found[0], found[1], rtol=1e-12, atol=1e-12)


def test_compile_says_what_is_wrong():
    compiled = torch.compile(lambda x: mt.router(x, topk=9), backend="eager")
    with pytest.raises(Exception, match="topk = 9, expected at most E = 8"):
        compiled(normal(T, E))


@pytest.mark.parametrize("strict", [False, True])
def test_export_leaves_the_number_of_tokens_open(strict):
    class Module(torch.nn.Module):
        def forward(self, x, bias, mask):
            found = mt.router(x, topk=K, score="sigmoid", bias=bias, token_mask=mask)
            updated = mt.router_update_bias(bias, found.rows_per_expert, 0.1)
            kept = mt.router_drop(found.expert_ids, found.weights, experts_num=E, capacity=2)
            return found.weights, found.expert_ids, found.scores, updated, kept.kept_weights

    tokens = {0: torch.export.Dim("T", min=2, max=1000)}
    arguments = lambda n: (
        normal(n, E, requires_grad=False), torch.zeros(E), torch.ones(n, dtype=torch.bool)
    )  # fmt: skip
    program = torch.export.export(
        Module(), arguments(5), dynamic_shapes=(tokens, None, tokens), strict=strict
    )
    for tokens_num in (2, 17):
        given = arguments(tokens_num)
        for one, other in zip(program.module()(*given), Module()(*given)):
            assert torch.equal(one, other)


def test_without_memory():
    """On the meta device and in fake mode: shapes and types alone."""
    from torch._subclasses import FakeTensorMode

    for mode in (torch.device("meta"), FakeTensorMode()):
        with mode:
            x = torch.zeros(T, E, dtype=torch.bfloat16)
            found = mt.router(x, topk=K, index_dtype=torch.int32)
            assert [(tuple(a.shape), a.dtype) for a in found] == [
                ((T, K), torch.int32),
                ((T, K), torch.float32),
                ((T, E), torch.float32),
                ((E,), torch.int64),
            ]
            assert mt.router_grad(x, found.expert_ids, found.weights).dtype == torch.bfloat16
            loss = mt.router_balance_loss(found.scores, found.rows_per_expert, topk=K)
            assert loss.shape == () and mt.router_z_loss(x).dtype == torch.float32
            kept = mt.router_drop(found.expert_ids, found.weights, experts_num=E, capacity=1)
            assert kept.kept_weights.shape == (T, K) and kept.rows_per_expert.shape == (E,)
    with pytest.raises(ValueError, match="tensors are on cpu and meta"):
        mt.router(torch.zeros(T, E, device="meta"), topk=1, bias=torch.zeros(E))


def test_autocast_changes_nothing():
    """Whatever the type of the logits, all is computed in binary64: nothing is cast."""
    for dtype in (torch.float32, torch.bfloat16):
        found = []
        for enabled in (False, True):
            x = normal(T, E, dtype=dtype)
            with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                result = mt.router(x, topk=K, bias=torch.zeros(E), normalize=True)
                loss = mt.router_z_loss(x) + mt.router_balance_loss(
                    result.scores, result.rows_per_expert, topk=K
                )
            (result.weights[:, 0].sum() + loss).backward()
            found.append([result.weights, result.scores, loss, x.grad])
        assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(*found))


F64, I64, F32 = torch.float64, torch.int64, torch.float32
OPERATORS = {
    "router": lambda: (
        normal(T, E), None, MASK, K, 1, True, False, 1, 1, 1, 1e-20, 1.0, F64, F64, I64, False, True
    ),
    "router by map": lambda: (
        normal(T, E, dtype=F32), torch.zeros(E), MASK, K, 0, True, True, 2, 1, 1, 1e-20, 1.0, F32,
        F64, torch.int32, True, True,
    ),
    "router_grad": lambda: (
        normal(T, E), None, mt.router(normal(T, E), topk=K).expert_ids, normal(T, K), None,
        normal(T, E), K, 3, True, False, 1, 1, 1, 1e-20, 1.0,
    ),
    "router_grad by map": lambda: (
        normal(T, E), MASK, mt.router(normal(T, E), topk=K).expert_ids, None, normal(T, E), None,
        K, 2, True, False, 1, 1, 1, 1e-20, 1.0,
    ),
    "router_balance_loss": lambda: (normal(T, E), COUNTS, 2, 0, 0.5),
    "router_balance_loss_grad": lambda: (COUNTS, normal(), T, F32, 2, 0, 0.5),
    "router_z_loss": lambda: (normal(T, E), MASK, 0.5),
    "router_z_loss_grad": lambda: (normal(T, E), MASK, normal(), 0.5),
    "router_update_bias": lambda: (torch.zeros(E), COUNTS, 0.1),
    "router_drop": lambda: (torch.zeros(T, 1, dtype=I64), normal(T, 1), E, 2),
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATORS)
def test_opcheck(name):
    operator = getattr(torch.ops.moetoken, name.split()[0]).default
    torch.library.opcheck(operator, OPERATORS[name]())


def test_by_map_says_the_same():
    """probs and the map of the operator beneath are the weights and ids of the function."""
    x = normal(T, E)
    config = (K, 1, True, False, 1, 1, 1, 1e-20, 2.0)
    _, probs, _, ids, routing_map, _ = torch.ops.moetoken.router(
        x, None, MASK, *config, F64, F64, I64, True, False
    )
    found = mt.router(x, topk=K, score="sigmoid", normalize=True, scale=2.0, token_mask=MASK)
    assert torch.equal(ids, found.expert_ids)
    used = ids >= 0
    expected = torch.zeros(T, E, dtype=F64)
    for t in range(T):
        for k in range(K):
            if used[t, k]:
                expected[t, ids[t, k]] = found.weights[t, k]
    assert torch.equal(probs, expected) and torch.equal(routing_map, expected != 0)
    weights = normal(T, E, seed=3, requires_grad=False)
    (by_map,) = torch.autograd.grad((probs * weights).sum(), x)
    picked = torch.where(used, weights.gather(1, ids.clamp(min=0)), 0)
    (by_ids,) = torch.autograd.grad((found.weights * picked).sum(), x)
    assert torch.equal(by_map, by_ids)


def test_bias_gets_no_gradient():
    bias = normal(E)
    found = mt.router(normal(T, E), topk=K, score="sigmoid", bias=bias)
    found.weights.sum().backward()
    assert bias.grad is None or not bias.grad.any()
    assert not mt.router_update_bias(bias, COUNTS, 0.1).requires_grad


def test_threads_are_pytorch_s():
    before = torch.get_num_threads()
    found = []
    try:
        for number in (1, 3):
            torch.set_num_threads(number)
            found.append(mt.router(normal(400, 256), recipe="kimi-k2"))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(*found))


@pytest.mark.parametrize(
    "error, message, call",
    [
        (ValueError, "^topk = 9, expected at most E = 8", dict(topk=9)),
        (ValueError, "^bias has shape", dict(bias=torch.zeros(3))),
        (TypeError, "^bias is int64, expected float32", dict(bias=torch.zeros(E).long())),
        (TypeError, "^token_mask is list", dict(token_mask=[True])),
        (TypeError, "^weights_dtype is torch.float16", dict(weights_dtype=torch.float16)),
        (TypeError, "^index_dtype is torch.int8", dict(index_dtype=torch.int8)),
        (ValueError, "^groups_num = 3 does not divide E = 8", dict(groups_num=3)),
        (TypeError, "^with_scores is 'no', expected True", dict(with_scores="no")),
    ],
)
def test_errors(error, message, call):
    with pytest.raises(error, match=message):
        mt.router(torch.zeros(T, E), **{"topk": 1, **call})
    with pytest.raises(TypeError, match="^logits is ndarray, expected a torch.Tensor"):
        mt.router(np.zeros((2, 2)), topk=1)
