"""All operators that the package registers, found in PyTorch's own list: what public calls give them
is recorded and goes through torch.library.opcheck. One that nothing here reaches fails."""

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import moetoken.torch as mt  # noqa: E402
from moetoken.torch import ids, megatron, npu, transformer_engine  # noqa: E402

T, E, K, H = 6, 4, 2, 5
OPERATORS = sorted(
    name for name in torch._C._dispatch_get_all_op_names() if name.startswith("moetoken::")
)


def randn(*shape, dtype=torch.float32):
    generator = torch.Generator().manual_seed(sum(shape) + len(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


class Recorder(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "moetoken":
            given = [a.detach().clone() if isinstance(a, torch.Tensor) else a for a in args]
            self.calls.setdefault(function.name(), []).append((function, tuple(given), kwargs or {}))
        return function(*args, **(kwargs or {}))


def by_map(x, weights, expert_ids):
    routing_map = torch.zeros(T, E, dtype=torch.bool).scatter(1, expert_ids, True)
    probs = torch.zeros(T, E).scatter(1, expert_ids, weights).requires_grad_()
    for padded in (False, True):
        slots = E if padded else T * K
        sent = mt.permute(x, routing_map, probs=probs, num_out_tokens=slots, drop_and_pad=padded)
        y = mt.unpermute(sent[0], sent[2], probs=probs, routing_map=routing_map,
                         restore_shape=(T, H), drop_and_pad=padded)  # fmt: skip
        y[0].sum().backward()
    npu._npu_moe_token_unpermute_with_routing_map(
        sent[0], sent[2], (T, H), probs=probs, routing_map=routing_map, drop_and_pad=True
    )
    rows, found, order = megatron.permute(x, routing_map)[:3]
    megatron.permute(x, routing_map, probs, num_out_tokens=T * K,
                     return_batch_invariant_inverse_map=True)  # fmt: skip
    megatron.unpermute(rows, order, (T, H), probs=probs, routing_map=routing_map).sum().backward()


def by_ids(x, weights, expert_ids):
    sent = ids.permute(x, expert_ids, weights, experts_num=E)
    bias = randn(E, H)
    ids.unpermute(sent.permuted_tokens, sent.sorted_indices, weights, residual=x, expert_bias=bias,
                  expert_ids=expert_ids).sum().backward()  # fmt: skip
    rows, order = transformer_engine.moe_permute(x, expert_ids.int(), map_type="index")
    transformer_engine.moe_unpermute(rows, order, weights, map_type="index")
    counts = torch.bincount(expert_ids.flatten(), minlength=E).unsqueeze(0)
    npu.npu_moe_re_routing(rows, counts)
    permuted, order = npu.npu_moe_token_permute(x, expert_ids)
    npu.npu_moe_token_unpermute(permuted, order, weights)


def router(logits):
    found = mt.router(logits, topk=K, normalize=True)
    loss = mt.router_balance_loss(found.scores, found.rows_per_expert, topk=K)
    (found.weights.sum() + loss + mt.router_z_loss(logits)).backward()
    mt.router_drop(found.expert_ids, found.weights.detach(), experts_num=E, capacity=2)
    mt.router_update_bias(torch.zeros(E), found.rows_per_expert, rate=0.1)


@pytest.fixture(scope="module")
def recorded():
    x, logits = randn(T, H).requires_grad_(), randn(T, E).requires_grad_()
    expert_ids = torch.tensor([[0, 1], [3, 2], [1, 3], [0, 2], [2, 1], [3, 0]])
    weights = randn(T, K).abs().requires_grad_()
    with Recorder() as recorder:
        by_map(x, weights.detach(), expert_ids)
        by_ids(x, weights, expert_ids)
        router(logits)
    return recorder.calls


@pytest.mark.parametrize("name", OPERATORS)
def test_opcheck(recorded, name):
    assert name in recorded, f"nothing here calls {name}"
    for function, args, kwargs in recorded[name][:2]:
        torch.library.opcheck(function, args, kwargs)
