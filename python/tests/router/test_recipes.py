"""Each recipe against the router of the model itself, as Hugging Face transformers has it.

The model's own code runs twice: with all its casts to float32 made casts to float64 instead, where
ids and weights must be equal but for the last bits of float64, which vanish when the weights are
rounded to float32; and as it is, where it may be off by what its own float32 sums lose.
"""

import importlib

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch.overrides import TorchFunctionMode  # noqa: E402

import moetoken.torch as mt  # noqa: E402

T = 200


class InFloat64(TorchFunctionMode):
    """Casts to float32 become casts to float64."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.Tensor.float:
            return args[0].double()
        swap = lambda value: torch.float64 if value is torch.float32 else value
        kwargs = {name: swap(value) for name, value in (kwargs or {}).items()}
        return function(*map(swap, args), **kwargs)


# The recipe: whose code it is, the experts, and the numbers of the model's configuration.
MODELS = {
    "mixtral": ("mixtral", "MixtralTopKRouter", 8, dict(num_experts_per_tok=2)),
    "qwen3": (
        "qwen3_moe", "Qwen3MoeTopKRouter", 128, dict(num_experts_per_tok=8, norm_topk_prob=True)
    ),
    "olmoe": (
        "olmoe", "OlmoeTopKRouter", 64, dict(num_experts_per_tok=8, norm_topk_prob=False)
    ),
    "gpt-oss": ("gpt_oss", "GptOssTopKRouter", 128, dict(num_experts_per_tok=4)),
    "llama-4": ("llama4", "Llama4Router", 16, dict(num_experts_per_tok=1)),
    "deepseek-v3": (
        "deepseek_v3", "DeepseekV3TopkRouter", 256,
        dict(num_experts_per_tok=8, routed_scaling_factor=2.5, n_group=8, topk_group=4,
             norm_topk_prob=True),
    ),
    "kimi-k2": (
        "deepseek_v3", "DeepseekV3TopkRouter", 384,
        dict(num_experts_per_tok=8, routed_scaling_factor=2.827, n_group=1, topk_group=1,
             norm_topk_prob=True),
    ),
    "glm-4.5": (
        "glm4_moe", "Glm4MoeTopkRouter", 160,
        dict(num_experts_per_tok=8, routed_scaling_factor=2.5, n_group=1, topk_group=1,
             norm_topk_prob=True),
    ),
}  # fmt: skip
BIASED = ("deepseek-v3", "kimi-k2", "glm-4.5")


class Config:
    def __init__(self, experts, numbers):
        self.num_local_experts = self.num_experts = experts
        self.hidden_size = experts  # the linear layer is the identity: what goes in are the logits
        self.__dict__.update(numbers)


def model_router(name):
    """The module, with an identity for its linear layer, and its bias or None."""
    module, kind, experts, numbers = MODELS[name]
    module = importlib.import_module(f"transformers.models.{module}.modeling_{module}")
    router = getattr(module, kind)(Config(experts, numbers))
    bias = None
    with torch.no_grad():
        router.weight.copy_(torch.eye(experts))
        if getattr(router, "bias", None) is not None:
            router.bias.zero_()
        if name in BIASED:
            bias = torch.randn(experts, generator=torch.Generator().manual_seed(5)) / 8
            router.e_score_correction_bias.copy_(bias)
    return router, bias


def random_logits(name, seed, dtype):
    generator = torch.Generator().manual_seed(seed)
    return (2 * torch.randn(T, MODELS[name][2], generator=generator)).to(dtype)


def run(name, router, logits):
    """(ids, weights) in the order of the ids, which are sorted by themselves."""
    with torch.no_grad():
        found = router(logits)
    if name == "llama-4":  # scores of all experts, 0 where they are not chosen
        scores = found[0]
        ids = scores.topk(1, dim=1).indices
        weights = scores.gather(1, ids)
    else:
        _, weights, ids = found
    ids, order = ids.sort(1)
    return ids, weights.gather(1, order)


def ours(name, logits, bias, dtype):
    found = mt.router(logits, recipe=name, bias=bias, weights_dtype=dtype)
    ids, order = found.expert_ids.sort(1)
    return ids, found.weights.gather(1, order)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", MODELS)
def test_the_models_own_code_in_float64(name, seed):
    router, bias = model_router(name)
    router, logits = router.double(), random_logits(name, seed, torch.float64)
    with InFloat64():
        expected_ids, expected = run(name, router, logits)
    assert expected.dtype == torch.float64
    ids, weights = ours(name, logits, None if bias is None else bias.double(), torch.float64)
    assert torch.equal(ids, expected_ids)
    # Theirs: an exponential of 1 unit, a sum of E, a quotient, a sum of K, a quotient, a product.
    experts = MODELS[name][2]
    bound = (experts + 16) * 2.0**-53
    assert torch.all((weights - expected).abs() <= bound * expected)
    # In float32 no more than one unit of the last place is between the two.
    narrow = ours(name, logits, None if bias is None else bias.double(), torch.float32)[1]
    steps = narrow.view(torch.int32) - expected.float().view(torch.int32)
    assert steps.abs().max() <= 1 and (steps != 0).float().mean() <= 1e-3


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", MODELS)
def test_the_models_own_code_as_it_is(name, seed):
    """In float32: ids where no two choices are within its error, weights within it."""
    router, bias = model_router(name)
    logits = random_logits(name, seed, torch.float32)
    expected_ids, expected = run(name, router, logits)
    ids, weights = ours(name, logits, bias, torch.float32)
    experts, spread = MODELS[name][2], logits.abs().max().item() * 2
    bound = (experts + spread + 16) * 2.0**-24
    same = (ids == expected_ids).all(1)
    scores = mt.router(logits, recipe=name, weights_dtype=torch.float64).scores
    values = scores if bias is None else scores + bias.double()
    for token in torch.nonzero(~same).view(-1):
        gaps = values[token].sort().values.diff()
        assert gaps.min() <= 8 * bound * values[token].abs().max()
    assert same.float().mean() >= 0.98
    error = (weights.double() - expected.double()).abs()[same]
    assert torch.all(error <= bound * expected.double()[same])


def test_every_recipe_is_here():
    from moetoken._router_config import RECIPES

    assert set(RECIPES) == set(MODELS)
