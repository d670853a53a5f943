"""Every parameter of every function for PyTorch, given what does not fit: the error names it."""

import inspect
import re

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import moetoken.torch as by_map  # noqa: E402
from moetoken.torch import ids, megatron, npu, transformer_engine, vllm  # noqa: E402

G = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
MAP = torch.eye(2, dtype=torch.bool)
INDEX = torch.tensor([0, 1])
IDS = torch.tensor([[0], [1]])
COLUMN = G[:, :1]

# A call of each function that is right, with every tensor it takes.
CALLS = {
    by_map.permute: dict(tokens=G, routing_map=MAP, probs=G, num_out_tokens=2),
    by_map.permute_grad: dict(
        permuted_tokens_grad=G, permuted_probs_grad=G[0], sorted_indices=INDEX, routing_map=MAP
    ),
    by_map.unpermute: dict(permuted_tokens=G, sorted_indices=INDEX, routing_map=MAP, probs=G),
    by_map.unpermute_with_indices: dict(
        permuted_tokens=G, sorted_indices=INDEX, routing_map=MAP, probs=G
    ),
    by_map.unpermute_grad: dict(
        unpermuted_tokens_grad=G,
        out_index=INDEX,
        permute_token_id=INDEX,
        routing_map=MAP,
        permuted_tokens=G,
        probs=G,
    ),
    ids.permute: dict(tokens=G, expert_ids=IDS, weights=COLUMN, experts_num=2),
    ids.permute_grad: dict(
        permuted_tokens_grad=G, sorted_indices=INDEX, topk=1, permuted_weights_grad=G[0]
    ),
    ids.unpermute: dict(
        permuted_tokens=G,
        sorted_indices=INDEX,
        weights=COLUMN,
        residual=G,
        residual2=G,
        expert_bias=G,
        expert_ids=IDS,
    ),
    ids.unpermute_grad: dict(
        unpermuted_tokens_grad=G,
        sorted_indices=INDEX,
        permuted_tokens=G,
        weights=COLUMN,
        expert_bias=G,
        expert_ids=IDS,
    ),
    megatron.permute: dict(tokens=G, routing_map=MAP, probs=G, num_out_tokens=2),
    megatron.unpermute: dict(
        permuted_tokens=G, sorted_indices=INDEX, restore_shape=(2, 2), probs=G, routing_map=MAP
    ),
    npu.npu_moe_token_permute_with_routing_map: dict(tokens=G, routing_map=MAP, probs=G),
    npu.npu_moe_token_permute_with_routing_map_grad: dict(
        permuted_token_out_grad=G,
        probs_grad=G[0],
        sorted_indices=INDEX,
        routing_map=MAP,
        experts_num=2,
        tokens_num=2,
        drop_and_pad=False,
    ),
    npu.npu_moe_token_unpermute_with_routing_map: dict(
        permuted_tokens=G, sorted_indices=INDEX, restore_shape=(2, 2), probs=G, routing_map=MAP
    ),
    npu._npu_moe_token_unpermute_with_routing_map: dict(
        permuted_tokens=G, sorted_indices=INDEX, restore_shape=(2, 2), probs=G, routing_map=MAP
    ),
    npu.npu_moe_token_unpermute_with_routing_map_grad: dict(
        unpermuted_tokens_grad=G,
        out_index=INDEX,
        permuted_token_id=INDEX,
        routing_map=MAP,
        permuted_tokens=G,
        probs=G,
        drop_and_pad=True,
        restore_shape=(2, 2),
    ),
    npu.npu_moe_token_permute: dict(tokens=G, indices=IDS, num_out_tokens=2),
    npu.npu_moe_token_unpermute: dict(permuted_tokens=G, sorted_indices=INDEX, probs=COLUMN),
    npu.npu_moe_init_routing: dict(x=G, row_idx=IDS, expert_idx=IDS, active_num=2),
    npu.npu_moe_init_routing_v2: dict(x=G, expert_idx=IDS, scale=G[0], expert_num=2),
    npu.npu_moe_finalize_routing: dict(
        expanded_permuted_rows=G,
        skip1=G,
        skip2=G,
        bias=G,
        scales=COLUMN,
        expanded_src_to_dst_row=INDEX,
        export_for_source_row=IDS,
    ),
    npu.npu_moe_re_routing: dict(
        tokens=G, expert_token_num_per_rank=torch.ones(1, 2).int(), per_token_scales=G[0]
    ),
    transformer_engine.moe_permute: dict(inp=G, routing_map=IDS, map_type="index"),
    transformer_engine.moe_unpermute: dict(
        inp=G, row_id_map=INDEX, merging_probs=COLUMN, map_type="index"
    ),
    vllm.moe_permute: dict(
        hidden_states=G, a1q_scale=G, topk_ids=IDS, n_expert=2, expert_map=torch.tensor([0, 1])
    ),
    vllm.moe_unpermute: dict(
        out=G.clone(), permuted_hidden_states=G, topk_weights=COLUMN, inv_permuted_idx=INDEX
    ),
    by_map.router: dict(logits=G, topk=1, bias=G[0], token_mask=MAP[0]),
    by_map.router_grad: dict(
        logits=G, expert_ids=IDS, weights_grad=COLUMN, scores_grad=G, token_mask=MAP[0]
    ),
    by_map.router_balance_loss: dict(scores=G, rows_per_expert=INDEX, topk=1),
    by_map.router_z_loss: dict(logits=G, token_mask=MAP[0]),
    by_map.router_update_bias: dict(bias=G[0], rows_per_expert=INDEX, rate=0.5),
    by_map.router_drop: dict(expert_ids=IDS, weights=COLUMN, experts_num=2, capacity=1),
    megatron.topk_routing_with_score_function: dict(
        logits=G, topk=1, score_function="sigmoid", expert_bias=G[0]
    ),
    megatron.group_limited_topk: dict(
        scores=G, topk=1, num_tokens=2, num_experts=2, num_groups=2, group_topk=1
    ),
    megatron.compute_routing_scores_for_aux_loss: dict(
        logits=G, topk=1, score_function="softmax", padding_mask=MAP[0]
    ),
    megatron.switch_load_balancing_loss_func: dict(
        probs=G, tokens_per_expert=INDEX, total_num_tokens=2, topk=1, num_experts=2,
        moe_aux_loss_coeff=0.5, padding_mask=MAP[0],
    ),
    megatron.z_loss_func: dict(logits=G, z_loss_coeff=0.5),
    megatron.apply_router_token_dropping: dict(
        routing_probs=G, routing_map=MAP, router_topk=1, capacity_factor=1.0
    ),
    megatron.get_updated_expert_bias: dict(
        tokens_per_expert=INDEX, expert_bias=G[0], expert_bias_update_rate=0.5
    ),
    transformer_engine.fused_topk_with_score_function: dict(
        logits=G, topk=1, use_pre_softmax=False, num_groups=None, group_topk=None,
        scaling_factor=None, score_function="sigmoid", expert_bias=G[0],
    ),
    transformer_engine.fused_compute_score_for_moe_aux_loss: dict(
        logits=G, topk=1, score_function="softmax"
    ),
    transformer_engine.fused_moe_aux_loss: dict(
        probs=G, tokens_per_expert=INDEX, total_num_tokens=2, num_experts=2, topk=1, coeff=0.5
    ),
    npu.npu_moe_gating_top_k: dict(x=G, k=1, bias=G[0]),
    npu.npu_moe_gating_top_k_softmax: dict(x=G, finished=MAP[0], k=1),
    npu.npu_moe_gating_top_k_softmax_v2: dict(x=G, finished=MAP[0], k=1),
    npu.npu_moe_compute_expert_tokens: dict(sorted_expert_for_source_row=INDEX, num_expert=2),
}  # fmt: skip

FLAGS = {
    "drop_and_pad", "mask_fill_slots", "tolerate_routing_mismatch", "with_scores", "out_flag",
    "pad_to_capacity", "output_softmax",
}  # fmt: skip
NUMBERS = {
    "num_out_tokens", "rows_num", "tokens_num", "experts_num", "expert_begin", "expert_end",
    "capacity", "topk", "active_num", "expert_num", "expert_capacity", "n_expert", "n_local_expert",
    "groups_num", "groups_top", "group_score_count", "total_tokens", "group_topk", "router_topk",
    "num_tokens", "num_experts", "k", "k_group", "group_count", "num_expert",
}  # fmt: skip
OTHERS = {
    "restore_shape": [3, (2,), (2, 2, 2), ("2", 2), (-1, 2), (2, 2**70)],
    "output_mask": [3, (), (True,), "ab", ("false", True)],
    "index_dtype": [torch.float32, "int9", torch.int8, 3],
    "active_expert_range": [3, (1,), ("0", 1), "ab"],
    "drop_pad_mode": [9, "0", None],
    "expert_tokens_num_type": [9, "0"],
    "row_idx_type": [9, "0"],
    "idx_type": [9, "0"],
    "padded_mode": [True],
    "map_type": ["rows", None],
    "normalize": ["false", 2, [True]],
    "normalize_scores": ["false", 2, [True]],
    "score": ["Softmax", "", 0],
    "score_function": ["Softmax", "", 0],
    "recipe": ["Mixtral", "", 0],
    "drop_policy": ["first", 0],
    "weights_dtype": [torch.float16, torch.int32, "float32", 3],
    "total_num_tokens": ["2", 2**70, -1],
    "group_select_mode": [2, -1, "0", True],
    "norm_type": [3, -1, "0"],
    "renorm": [2, "0"],
    "routing_map_format": ["bits", 2, None],
    "scale": [0, "1", float("inf"), G],
    **dict.fromkeys(
        (
            "eps", "coeff", "rate", "scaling_factor", "moe_aux_loss_coeff", "z_loss_coeff",
            "capacity_factor", "expert_bias_update_rate", "routed_scaling_factor",
        ),
        ["1", float("nan"), G, [1.0, 2.0]],
    ),
}
TENSORS = [3, [[1.0]], "text", np.ones((2, 2)), torch.ones(2, 2, 1, 1)]
ANY_RANK = {  # rows are [..., H] there, scales of any shape
    (npu.npu_moe_finalize_routing, "expanded_permuted_rows"),
    (npu.npu_moe_init_routing_v2, "scale"),
    (npu.npu_moe_re_routing, "per_token_scales"),
    (vllm.moe_permute, "a1q_scale"),
    (megatron.z_loss_func, "logits"),
    (transformer_engine.fused_topk_with_score_function, "logits"),
    (transformer_engine.fused_compute_score_for_moe_aux_loss, "logits"),
    (npu.npu_moe_gating_top_k_softmax, "x"),
    (npu.npu_moe_gating_top_k_softmax_v2, "x"),
}


MOVED = {  # what is copied and not computed with may be of any type
    (megatron.permute, "probs"),
    (npu.npu_moe_init_routing_v2, "x"),
    (npu.npu_moe_init_routing_v2, "scale"),
    (npu.npu_moe_re_routing, "tokens"),
    (npu.npu_moe_re_routing, "per_token_scales"),
    (vllm.moe_permute, "a1q_scale"),
}
UNREAD = {  # as in the functions that these stand for
    (npu.npu_moe_token_unpermute, "restore_shape"),
    (transformer_engine.moe_unpermute, "restore_shape"),
    (by_map.router_grad, "bias"),
    (npu.npu_moe_finalize_routing, "k"),
}


def wrong_values(function, name, good):
    if (function, name) in UNREAD:
        return []
    if isinstance(good, torch.Tensor):
        return TENSORS[:-1] if (function, name) in ANY_RANK else TENSORS
    if name in FLAGS:
        return ["false", "", 2, 1.0, None]
    if name in NUMBERS:
        return [2.0, "2", 2**63, 2**70, [2, 2], G]
    if name in OTHERS:
        return OTHERS[name]
    return []


PLACES = [
    pytest.param(function, name, value, id=f"{function.__module__}.{function.__name__}-{name}-{i}")
    for function, good in CALLS.items()
    for name in inspect.signature(function).parameters
    for i, value in enumerate(wrong_values(function, name, good.get(name)))
]


@pytest.mark.parametrize("function, name, value", PLACES)
def test_the_argument_is_named(function, name, value):
    function(**CALLS[function])
    with pytest.raises((ValueError, TypeError)) as caught:
        function(**{**CALLS[function], name: value})
    assert re.search(rf"\b{name}\b", str(caught.value))


@pytest.mark.parametrize("function", CALLS)
def test_complex_tensors(function):
    """A type that no operator takes, told by the name that the function has for the tensor."""
    for name, good in CALLS[function].items():
        is_float = isinstance(good, torch.Tensor) and good.is_floating_point()
        if is_float and (function, name) not in MOVED:
            with pytest.raises((ValueError, TypeError), match=rf"\b{name}\b"):
                function(**{**CALLS[function], name: good + 0j})


def test_sizes_of_numpy_and_of_tensors():
    expected = by_map.permute(G, MAP, num_out_tokens=2, drop_and_pad=True)[0]
    for number, flag in ((np.int64(2), np.True_), (torch.tensor(2), 1), (MAP.sum(), torch.ones(1))):
        if isinstance(flag, torch.Tensor):
            flag = flag.bool()
        found = by_map.permute(G, MAP, num_out_tokens=number, drop_and_pad=flag)[0]
        assert torch.equal(found, expected)
