"""moetoken.torch.hf under DDP and FSDP2, over two processes, against one process with all tokens."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import hf_families  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import moetoken.torch.hf  # noqa: E402

if not (dist.is_available() and dist.is_gloo_available()):
    pytest.skip("PyTorch without gloo", allow_module_level=True)

from test_distributed import run_ranks  # noqa: E402

TOKENS = 10  # of a rank


def layer():
    moetoken.torch.hf.register()
    made = hf_families.experts("olmoe", "OlmoeExperts")
    made.config._experts_implementation = "moetoken"
    return made


def gradients_of_one_process(ranks):
    """Of the mean over all tokens, as data parallelism takes it."""
    module, given = layer(), hf_families.routing(TOKENS * ranks)
    module(*given).square().mean().backward()
    return {name: p.grad for name, p in module.named_parameters()}


def wrapped(kind, ranks):
    module = layer()
    if kind == "ddp":
        # The last expert has no tokens: its gradients are zeros, so that no parameter is missing.
        return torch.nn.parallel.DistributedDataParallel(module), module
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    fully_shard(module, mesh=init_device_mesh("cpu", (ranks,)))
    return module, module


def step(rank, ranks, kind):
    """One rank's part; run in a process of its own."""
    expected = gradients_of_one_process(ranks)
    outer, module = wrapped(kind, ranks)
    mine = slice(rank * TOKENS, (rank + 1) * TOKENS)
    outer(*(t[mine] for t in hf_families.routing(TOKENS * ranks))).square().mean().backward()
    for name, parameter in module.named_parameters():
        grad = parameter.grad
        grad = grad.full_tensor() if hasattr(grad, "full_tensor") else grad
        assert float((grad - expected[name]).abs().max()) <= 1e-12, name


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_data_parallel(kind):
    run_ranks(2, step, kind)
