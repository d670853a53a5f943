"""torch.export with a number of tokens that the program leaves open, for all functions."""

import pytest

torch = pytest.importorskip("torch")

import moetoken.torch  # noqa: E402
from moetoken.torch import ids, megatron, npu, transformer_engine, vllm  # noqa: E402

E, K, H = 4, 2, 3


def by_map(x, expert_ids, weights):
    routing_map, probs = as_map(expert_ids, weights)
    rows, _, indices = moetoken.torch.permute(x, routing_map, probs, K * x.shape[0])
    found = moetoken.torch.unpermute_with_indices(
        rows.sin(), indices, routing_map=routing_map, probs=probs
    )
    return found.unpermuted_tokens + found.permute_token_id.view(-1, K)[:, :1]


def by_ids(x, expert_ids, weights):
    found = ids.permute(x, expert_ids, weights, experts_num=E)
    return ids.unpermute(
        found.permuted_tokens.sin(), found.sorted_indices, weights, residual=x,
        expert_bias=torch.ones(E, H), expert_ids=expert_ids,
    )  # fmt: skip


def by_megatron(x, expert_ids, weights):
    routing_map, probs = as_map(expert_ids, weights)
    rows, _, indices = megatron.permute(x, routing_map, None, K * x.shape[0])[:3]
    return megatron.unpermute(rows.sin(), indices, x.shape, probs, routing_map)


def by_npu(x, expert_ids, weights):
    rows, indices = npu.npu_moe_token_permute(x, expert_ids)
    return npu.npu_moe_token_unpermute(rows.sin(), indices, weights)


def by_npu_init(x, expert_ids, weights):
    slots = torch.arange(K * x.shape[0], dtype=torch.int32).view(K, -1).T
    rows, indices, _ = npu.npu_moe_init_routing(x, slots, expert_ids.int(), x.shape[0])
    return npu.npu_moe_finalize_routing(rows.sin(), x, None, None, weights, indices, None)


def by_npu_init_v2(x, expert_ids, weights):
    rows, indices, _, _ = npu.npu_moe_init_routing_v2(
        x, expert_ids, expert_num=E, expert_tokens_num_type=2
    )
    return npu.npu_moe_finalize_routing(rows.sin(), x, None, None, weights, indices, None, 2)


def by_transformer_engine(x, expert_ids, weights):
    rows, row_id_map = transformer_engine.moe_permute(x, expert_ids, map_type="index")
    return transformer_engine.moe_unpermute(rows.sin(), row_id_map, weights, map_type="index")


def by_vllm(x, expert_ids, weights):
    rows, _, offsets, inverse, _ = vllm.moe_permute(x, None, expert_ids, E)
    out = torch.empty_like(x)
    vllm.moe_unpermute(out, rows.sin(), weights, inverse, offsets)
    return out


def as_map(expert_ids, weights):
    zeros = weights.new_zeros(weights.shape[0], E)
    return zeros.bool().scatter(1, expert_ids, True), zeros.scatter(1, expert_ids, weights)


def arguments(tokens_num):
    chosen = torch.rand(tokens_num, E).argsort(1)[:, :K]
    return torch.randn(tokens_num, H), chosen, torch.rand(tokens_num, K)


class Module(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *tensors):
        return self.function(*tensors)


FUNCTIONS = [
    by_map, by_ids, by_megatron, by_npu, by_npu_init, by_npu_init_v2, by_transformer_engine, by_vllm
]  # fmt: skip


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_any_number_of_tokens(function, strict):
    tokens = {0: torch.export.Dim("T", min=2, max=1000)}
    program = torch.export.export(
        Module(function), arguments(5), dynamic_shapes=((tokens,) * 3,), strict=strict
    )
    for tokens_num in (2, 17):
        tensors = arguments(tokens_num)
        found = program.module()(*tensors)
        torch.testing.assert_close(found, function(*tensors), rtol=1e-6, atol=1e-6)
