"""The Ascend plug-in's functions: signatures, shapes, and how its callers use them."""

import inspect

import numpy as np
import pytest
from hypothesis import given

import moetoken
import oracle
from cases import cases, make_case

torch = pytest.importorskip("torch")

from moetoken.torch import npu  # noqa: E402
from test_torch import raw, tensor  # noqa: E402


def test_signatures():
    """As in the plug-in's schemas: what is positional, what is by keyword only."""
    expected = {
        "npu_moe_token_permute": ("tokens indices num_out_tokens padded_mode", ""),
        "npu_moe_token_unpermute": (
            "permuted_tokens sorted_indices probs padded_mode restore_shape",
            "",
        ),
        "npu_moe_init_routing": ("x row_idx expert_idx active_num", ""),
        "npu_moe_init_routing_v2": (
            "x expert_idx",
            "scale offset active_num expert_capacity expert_num drop_pad_mode "
            "expert_tokens_num_type expert_tokens_num_flag quant_mode active_expert_range "
            "row_idx_type x_dtype",
        ),
        "npu_moe_finalize_routing": (
            "expanded_permuted_rows skip1 skip2 bias scales expanded_src_to_dst_row "
            "export_for_source_row drop_pad_mode k",
            "",
        ),
        "npu_moe_re_routing": (
            "tokens expert_token_num_per_rank",
            "per_token_scales expert_token_num_type idx_type tokens_dtype",
        ),
        "npu_moe_gating_top_k": (
            "x k",
            "bias input_ids tid2eid k_group group_count group_select_mode renorm norm_type out_flag "
            "routed_scaling_factor eps",
        ),
        "npu_moe_gating_top_k_softmax": ("x finished k", ""),
        "npu_moe_gating_top_k_softmax_v2": ("x", "k finished renorm output_softmax"),
        "npu_moe_compute_expert_tokens": ("sorted_expert_for_source_row num_expert", ""),
        "npu_moe_token_permute_with_routing_map": (
            "tokens routing_map",
            "probs num_out_tokens drop_and_pad",
        ),
        "npu_moe_token_permute_with_routing_map_grad": (
            "permuted_token_out_grad probs_grad sorted_indices routing_map experts_num tokens_num "
            "drop_and_pad",
            "",
        ),
        "npu_moe_token_unpermute_with_routing_map": (
            "permuted_tokens sorted_indices restore_shape",
            "probs routing_map drop_and_pad",
        ),
        "_npu_moe_token_unpermute_with_routing_map": (
            "permuted_tokens sorted_indices restore_shape",
            "probs routing_map drop_and_pad",
        ),
        "npu_moe_token_unpermute_with_routing_map_grad": (
            "unpermuted_tokens_grad out_index permuted_token_id routing_map permuted_tokens probs "
            "drop_and_pad restore_shape",
            "",
        ),
    }
    assert set(npu.__all__) == set(expected)
    for name, (positional, keywords) in expected.items():
        parameters = inspect.signature(getattr(npu, name)).parameters.values()
        by_kind = {True: [], False: []}
        for parameter in parameters:
            by_kind[parameter.kind is parameter.KEYWORD_ONLY].append(parameter.name)
        assert by_kind == {False: positional.split(), True: keywords.split()}, name


@given(cases(smallest=1))
def test_permute_and_its_gradient(case):
    slots_num = case.sizes[3]
    rows, row_probs, indices = npu.npu_moe_token_permute_with_routing_map(
        tensor(case.tokens),
        tensor(case.routing_map),
        probs=tensor(case.probs),
        num_out_tokens=slots_num,
        drop_and_pad=case.padded,
    )
    expected = moetoken.permute(case.tokens, case.routing_map, case.probs, slots_num, case.padded)
    assert indices.dtype == torch.int32 and rows.shape == (slots_num, case.tokens.shape[1])
    assert raw(rows) == raw(expected[0]) and raw(indices) == raw(expected[2])
    assert (row_probs is None) == (case.probs is None)
    tokens_grad, probs_grad = npu.npu_moe_token_permute_with_routing_map_grad(
        rows,
        row_probs,
        indices,
        tensor(case.routing_map),
        case.routing_map.shape[1],
        len(case.tokens),
        case.padded,
    )
    expected = moetoken.permute_grad(*expected, case.routing_map, drop_and_pad=case.padded)
    assert raw(tokens_grad) == raw(expected[0])
    assert (probs_grad is None) == (case.probs is None)
    assert probs_grad is None or raw(probs_grad) == raw(expected[1])


def test_number_of_rows():
    """T rows by default, else rounded down to a multiple of T, or of E."""
    tokens, routing_map = torch.eye(3), torch.ones(3, 2, dtype=torch.bool)
    routing_map[0, 1] = False
    function = npu.npu_moe_token_permute_with_routing_map
    with pytest.raises(ValueError, match="routing_map"):
        function(tokens, routing_map)  # one slot a token, but token 1 has two experts
    assert [t.shape[0] for t in (function(tokens, routing_map, num_out_tokens=8))[::2]] == [6, 6]
    rows, none, indices = function(tokens, routing_map, num_out_tokens=5, drop_and_pad=True)
    assert none is None and indices.tolist() == [0, 1, 1, 2]
    assert rows.argmax(1).tolist() == [0, 1, 1, 2]


@given(cases(smallest=1, padded=False))
def test_out_index_as_token_id(case):
    """Dropless, the plug-in hands in the same tensor twice: tokens are i // K all the same."""
    token_id = case.token_id
    order = slice(None) if token_id is None else np.argsort(token_id, kind="stable")
    out_index = case.out_index[order]
    tokens_grad, probs_grad = npu.npu_moe_token_unpermute_with_routing_map_grad(
        tensor(case.tokens),
        tensor(out_index),
        tensor(out_index),
        routing_map=tensor(case.routing_map),
        permuted_tokens=tensor(case.rows),
        probs=tensor(case.probs),
        drop_and_pad=False,
        restore_shape=list(case.tokens.shape),
    )
    expected = moetoken.unpermute_grad(
        case.tokens,
        out_index,
        routing_map=case.routing_map if case.probs is not None else None,
        permuted_tokens=case.rows,
        probs=case.probs,
    )
    assert raw(tokens_grad) == raw(expected[0])
    assert (probs_grad is None) == (case.probs is None)
    if probs_grad is not None:
        assert probs_grad.dtype == tensor(case.probs).dtype
        assert raw(probs_grad) == raw(expected[1])


@given(cases(smallest=1, padded=True))
def test_padded_gradient(case):
    tokens_grad, probs_grad = npu.npu_moe_token_unpermute_with_routing_map_grad(
        tensor(case.tokens),
        tensor(case.out_index),
        tensor(case.token_id),
        tensor(case.routing_map),
        tensor(case.rows),
        tensor(case.probs),
        True,
        list(case.tokens.shape),
    )
    expected = moetoken.unpermute_grad(
        case.tokens,
        case.out_index,
        case.token_id,
        routing_map=case.routing_map if case.probs is not None else None,
        permuted_tokens=case.rows if case.probs is not None else None,
        probs=case.probs,
        drop_and_pad=True,
    )
    assert raw(tokens_grad) == raw(expected[0])
    assert probs_grad is None or raw(probs_grad) == raw(expected[1])


def test_slots_beyond_the_experts_have_weight_zero():
    """As on the NPU: no error, where the contract's own functions have one."""
    routing_map = torch.tensor([[True, False], [True, True]])
    arguments = (torch.ones(2, 3), torch.tensor([0, 1, 2, 3], dtype=torch.int32))
    rows, probs_grad = npu.npu_moe_token_unpermute_with_routing_map_grad(
        *arguments,
        arguments[1],
        routing_map=routing_map,
        permuted_tokens=torch.ones(4, 3),
        probs=torch.full((2, 2), 2.0),
        drop_and_pad=False,
        restore_shape=[2, 3],
    )
    assert rows[:, 0].tolist() == [2, 0, 2, 2]
    assert probs_grad.tolist() == [[3, 0], [3, 3]]


@pytest.mark.parametrize("padded", [False, True], ids=["dropless", "padded"])
def test_autograd_through_both(padded):
    """The plug-in's functions are differentiable; their gradients are the grad functions'."""
    case = make_case(3, padded, 6, 5, 4, 2, np.dtype(np.float64), True, False)
    routing_map = tensor(case.routing_map)
    tokens, probs = (tensor(a).requires_grad_() for a in (case.tokens, case.probs))
    rows, _, indices = npu.npu_moe_token_permute_with_routing_map(
        tokens, routing_map, num_out_tokens=case.sizes[3], drop_and_pad=padded
    )
    y = npu.npu_moe_token_unpermute_with_routing_map(
        rows * rows, indices, [6, 5], probs=probs, routing_map=routing_map, drop_and_pad=padded
    )
    y.sum().backward()
    token, expert, _ = oracle.permute(case.routing_map, case.sizes[3], padded)
    for row, t in enumerate(token):
        assert torch.equal(rows[row], tokens[t])
    counts = np.zeros(case.probs.shape)
    np.add.at(counts, (token, expert), 1)
    squares = (case.tokens**2).sum(1)
    np.testing.assert_allclose(probs.grad, counts * squares[:, None], rtol=1e-12)
    expected = 2 * case.tokens * (counts * case.probs).sum(1)[:, None]
    np.testing.assert_allclose(tokens.grad, expected, rtol=1e-12)


@given(cases(smallest=1))
def test_all_results_of_the_combine(case):
    """MindSpeed's fused path: what its backward pass takes is what the NumPy function returns."""
    indices = case.out_index
    if case.padded:
        indices = np.empty_like(case.token_id)
        indices[case.out_index] = case.token_id
    elif case.token_id is not None:
        indices = case.out_index[np.argsort(case.token_id, kind="stable")]
    given_map = case.routing_map if case.probs is not None else None
    expected = moetoken.unpermute(
        case.rows,
        indices,
        routing_map=given_map,
        probs=case.probs,
        restore_shape=case.tokens.shape,
        drop_and_pad=case.padded,
    )
    found = npu._npu_moe_token_unpermute_with_routing_map(
        tensor(case.rows),
        tensor(indices),
        list(case.tokens.shape),
        probs=tensor(case.probs),
        routing_map=tensor(given_map),
        drop_and_pad=case.padded,
    )
    for mine, other in zip(found, expected):
        assert (mine is None) == (other is None)
        assert mine is None or (tuple(mine.shape) == other.shape and raw(mine) == raw(other))


def test_the_gradient_of_drop_and_pad_by_its_indices():
    """C = 2, tokens by expert [0, 2 | 1, 2 | 0, 1]: the example of the contract, page by page."""
    g = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    routing_map = torch.tensor([[1, 0, 1], [0, 1, 0], [1, 1, 0]], dtype=torch.bool)
    probs = torch.tensor([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0], [4.0, 5.0, 0.0]])
    indices = torch.tensor([0, 2, 1, 2, 0, 1], dtype=torch.int32)
    _, out_index, token_id, weights = npu._npu_moe_token_unpermute_with_routing_map(
        torch.ones(6, 2), indices, (3, 2), probs=probs, routing_map=routing_map, drop_and_pad=True
    )
    assert out_index.tolist() == [0, 4, 2, 5, 1, 3] and token_id.tolist() == [0, 0, 1, 1, 2, 2]
    assert weights.tolist() == [1.0, 4.0, 3.0, 5.0, 2.0, 0.0]
    rows_grad, _ = npu.npu_moe_token_unpermute_with_routing_map_grad(
        g, out_index, token_id, routing_map, torch.ones(6, 2), probs, True, (3, 2)
    )
    assert rows_grad.tolist() == [[1, 2], [20, 24], [9, 12], [25, 30], [2, 4], [0, 0]]
