"""moetoken.torch.hf in the ways that PyTorch and transformers use a layer."""

import copy

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import hf_families  # noqa: E402
import torch  # noqa: E402
from hf_families import EXPERTS, HIDDEN, TOPK, experts, results, routing  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import moetoken.torch.hf  # noqa: E402

# Gated; transposed with biases; a norm behind the experts; no gate.
KINDS = [
    ("olmoe", "OlmoeExperts"),
    ("gpt_oss", "GptOssExperts"),
    ("muse_spark", "MuseSparkExperts"),
    ("nemotron_h", "NemotronHExperts"),
]


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    moetoken.torch.hf.register()
    hf_families.keep_float64(monkeypatch)


def layer(kind=KINDS[0], dtype=torch.float64, **sizes):
    made = experts(*kind, dtype, **sizes)
    made.config._experts_implementation = "moetoken"
    return made


def close(found, expected, bound=1e-12):
    assert float((found - expected).detach().abs().max()) <= bound * max(1, float(expected.abs().max()))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind[0])
@pytest.mark.parametrize("spoiled", [EXPERTS, -1, EXPERTS + 7])
def test_slots_of_no_expert(kind, spoiled):
    """As if their weights were 0; never NaN, though their tokens hold nothing else."""
    module = layer(kind)
    x, ids, weights = routing()
    nobody = torch.zeros_like(ids, dtype=torch.bool)
    nobody[::3, 1] = nobody[4] = True
    expected = results(module, "eager", x, ids, weights.masked_fill(nobody, 0))
    expected["top_k_weights"][nobody] = 0
    x = x.clone()
    x[4] = float("nan")
    weights = weights.masked_fill(nobody, float("inf"))
    found = results(module, "moetoken", x, ids.masked_fill(nobody, spoiled), weights)
    for key, value in expected.items():
        close(found[key], value)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind[0])
@pytest.mark.parametrize("tokens", [0, 1, 400])
def test_sizes(kind, tokens):
    module = layer(kind)
    given = routing(tokens)
    found = results(module, "moetoken", *given)
    if not tokens:
        assert found["output"].shape == (0, HIDDEN)
        assert all(p.grad is not None and not p.grad.any() for p in module.parameters())
        return
    for key, value in results(module, "eager", *given).items():
        close(found[key], value)


def test_words():
    module = layer()
    x, ids, weights = routing()
    with pytest.raises(ValueError, match=r"hidden_states has shape \[22, 16\].*\[T, H\]"):
        module(x[:22], ids, weights)
    with pytest.raises(IndexError, match="top_k_index"):
        module(x, ids - 5, weights)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind[0])
def test_what_is_frozen_costs_nothing(kind):
    """The same gradients of the rest, and no GEMM for those that nobody asks for."""
    module = layer(kind)
    given = routing()
    expected = results(module, "eager", *given)
    names = [name for name, _ in module.named_parameters()]
    for name in names:
        module.requires_grad_(False)
        module.get_parameter(name).requires_grad_()
        found = results(module, "moetoken", *given)
        for key, value in found.items():
            if key in names:
                assert (value is not None) == (key == name)
            if value is not None:
                close(value, expected[key])


def test_tokens_that_need_no_gradient():
    module, (x, ids, weights) = layer(), routing()
    expected = results(module, "eager", x, ids, weights)
    y = results(module, "moetoken", x, ids, weights)["output"]
    module.zero_grad()
    generator = torch.Generator().manual_seed(11)
    grad = torch.randn(y.shape, generator=generator).bfloat16().double()
    module(x, ids, weights).backward(grad)
    for name, parameter in module.named_parameters():
        close(parameter.grad, expected[name])


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind[0])
def test_derivatives_of_all_kinds(kind):
    module = layer(kind, hidden_size=4, moe_hidden_size=4, moe_latent_size=4, swiglu_limit=50.0)
    x, ids, weights = routing(3, hidden=4, topk=2)
    call = lambda x, w: module(x, ids, w)
    given = (x.requires_grad_(), weights.requires_grad_())
    assert torch.autograd.gradcheck(call, given, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(call, given)
    backward = torch.autograd.functional.jacobian(call, given)
    forward = torch.func.jacfwd(call, argnums=(0, 1))(*given)
    for one, other in zip(backward, forward):
        close(other, one)
    by_func = torch.func.grad(lambda x: call(x, weights).square().sum())(x.detach())
    by_hand = torch.autograd.grad(call(*given).square().sum(), x)[0]
    close(by_func, by_hand)


def test_second_derivative_where_weights_come_of_the_tokens():
    """A router inside: the gradient of x must not go through the weights twice."""
    module, (x, ids, _) = layer(), routing(4)
    generator = torch.Generator().manual_seed(5)
    matrix = torch.randn(HIDDEN, TOPK, dtype=torch.float64, generator=generator)
    call = lambda x: module(x, ids, torch.softmax(x @ matrix, 1))
    assert torch.autograd.gradgradcheck(call, x.requires_grad_())


def test_nothing_of_the_size_of_the_rows_is_kept():
    module, (x, ids, weights) = layer(intermediate_size=2), routing(50)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        module(x.requires_grad_(), ids, weights)
    others = [t for t in kept if t.shape[0] != EXPERTS]
    assert max(t.numel() for t in others) == x.numel() == 50 * HIDDEN
    assert sum(t.shape == (50 * TOPK, 4) for t in others) == 1  # what the first GEMM gave


def test_saved_tensors_may_be_packed():
    module, given = layer(), routing()
    expected = results(module, "moetoken", *given)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.numpy(force=True), torch.from_numpy):
        found = results(module, "moetoken", *given)
    for key, value in expected.items():
        assert torch.equal(found[key], value)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing(reentrant):
    module, (x, ids, weights) = layer(), routing()
    x.requires_grad_()
    expected = torch.autograd.grad(module(x, ids, weights).square().sum(), x)[0]
    checkpoint(module, x, ids, weights, use_reentrant=reentrant).square().sum().backward()
    assert torch.equal(x.grad, expected)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind[0])
def test_autocast(kind):
    """float32 tokens, GEMMs in bfloat16, as in eager; no further from the truth than that."""
    module, given = layer(kind, torch.float32), routing(64, torch.float32)
    wide = (t.double() if t.is_floating_point() else t for t in given)
    exact = results(experts(*kind), "eager", *wide)
    with torch.autocast("cpu", torch.bfloat16):
        eager = results(module, "eager", *given)
        found = results(module, "moetoken", *given)
    for key, value in exact.items():
        assert found[key].dtype == torch.float32
        off = [float((r[key].double() - value).norm()) for r in (found, eager)]
        assert off[0] <= max(1.5 * off[1], 2**-9 * float(value.norm())), key


def test_modes_without_gradient():
    module, given = layer(), routing()
    expected = module(*given).detach()
    with torch.no_grad():
        assert torch.equal(module(*given), expected)
    with torch.inference_mode():
        assert torch.equal(module(*given), expected)


def test_compile_breaks_the_graph_and_goes_on():
    module, (x, ids, weights) = layer(), routing()
    call = lambda x: module(x * 2, ids, weights).square().sum()
    compiled = torch.compile(call, backend="eager")
    x.requires_grad_()
    by_hand = torch.autograd.grad(call(x), x)[0]
    assert torch.equal(torch.autograd.grad(compiled(x), x)[0], by_hand)
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(call, backend="eager", fullgraph=True)(x)


def test_export_takes_transformers_own():
    module, given = layer(dtype=torch.float32), routing(dtype=torch.float32)
    program = torch.export.export(module, given)
    close(program.module()(*given), module(*given).detach(), 1e-5)


def test_tensors_without_memory():
    module = layer(dtype=torch.float32).to("meta")
    x, ids, weights = (t.to("meta") for t in routing(dtype=torch.float32))
    y = module(x.requires_grad_(), ids, weights)
    y.sum().backward()
    assert y.shape == x.shape and x.grad.is_meta and module.down_proj.grad.shape[0] == EXPERTS
    mode = torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True)
    y = layer(dtype=torch.float32)(*(mode.from_tensor(t) for t in routing(dtype=torch.float32)))
    assert y.shape == x.shape and isinstance(y, torch._subclasses.FakeTensor)


def test_deepcopy():
    module, given = layer(), routing()
    copied = copy.deepcopy(module)
    for key, value in results(module, "moetoken", *given).items():
        assert torch.equal(results(copied, "moetoken", *given)[key], value)


def test_registering_again_and_under_another_name():
    moetoken.torch.hf.register()
    moetoken.torch.hf.register("mine")
    module, given = layer(), routing()
    expected = results(module, "moetoken", *given)["output"]
    assert torch.equal(results(module, "mine", *given)["output"], expected)


def test_without_transformers(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "transformers.integrations.moe", None)
    with pytest.raises(ImportError, match="transformers 5.7 or newer"):
        moetoken.torch.hf.register()
