"""The experts classes of transformers that take another implementation, found in its own sources."""

import importlib
import re
from pathlib import Path
from types import SimpleNamespace

import torch
import transformers

EXPERTS, HIDDEN, INNER, TOPK = 5, 16, 8, 3
_MODELS = Path(transformers.__file__).parent / "models"
_DECORATED = re.compile(r"^@use_experts_implementation.*\n(?:@.*\n)*class (\w+)\(", re.M)

# Every name that one of the classes reads. Limits are low, so that clamps have something to do.
_SIZES = {
    **dict.fromkeys(
        ["num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"], EXPERTS
    ),
    **dict.fromkeys(["hidden_size", "moe_hidden_size", "moe_latent_size"], HIDDEN),
    **dict.fromkeys(["intermediate_size", "moe_intermediate_size"], INNER),
    **dict.fromkeys(["hidden_act", "hidden_activation"], "silu"),
    "mlp_hidden_act": "relu2",
    "mlp_bias": False,
    "swiglu_limit": 0.7,
    "swiglu_alpha": 1.702,
    **dict.fromkeys(["mlp_gate_softcap", "mlp_up_softcap"], 0.7),
    "post_norm_eps": 1e-6,
    "rms_norm_eps": 1e-6,
}


def keep_float64(monkeypatch):
    """Some layers call float() on their way: a float64 one shall stay what it is."""
    narrow = torch.Tensor.float
    stay = lambda self: self if self.dtype == torch.float64 else narrow(self)
    monkeypatch.setattr(torch.Tensor, "float", stay)


def decorated():
    """[(family, name of the experts class)]"""
    return [
        (file.parent.name, name)
        for file in sorted(_MODELS.glob("*/modeling_*.py"))
        for name in _DECORATED.findall(file.read_text())
    ]


def experts(family, name, dtype=torch.float64, **sizes):
    """A small module of the class, with random tensors."""
    module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    config = SimpleNamespace(_experts_implementation="eager", **{**_SIZES, **sizes})
    made = getattr(module, name)(config)
    generator = torch.Generator().manual_seed(7)
    for parameter in made.parameters():
        scale = parameter.shape[-1] ** -0.5
        with torch.no_grad():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 2 * scale)
    return made.to(dtype)


def routing(tokens=23, dtype=torch.float64, experts=EXPERTS, hidden=HIDDEN, topk=TOPK):
    """(x, ids, weights); the last expert has no rows."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(tokens, hidden, generator=generator, dtype=torch.float64)
    scores = torch.rand(tokens, experts, generator=generator, dtype=torch.float64)
    scores[:, -1] = 0
    weights, ids = scores.topk(topk, dim=1, sorted=False)
    return x.to(dtype), ids, (weights / weights.sum(1, keepdim=True)).to(dtype)


def results(module, implementation, x, ids, weights):
    """The output and all gradients, by name, for a gradient that every type has exactly."""
    module.config._experts_implementation = implementation
    module.zero_grad()
    x, weights = x.detach().requires_grad_(), weights.detach().requires_grad_()
    y = module(x, ids, weights)
    generator = torch.Generator().manual_seed(11)
    y.backward(torch.randn(y.shape, generator=generator).bfloat16().to(y.dtype))
    found = {"output": y.detach(), "hidden_states": x.grad, "top_k_weights": weights.grad}
    found.update((name, p.grad) for name, p in module.named_parameters())
    return found
