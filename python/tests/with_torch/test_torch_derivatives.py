"""PyTorch: derivatives forward, backward and twice, vmap, and other ways to hand tensors in."""

import pytest

torch = pytest.importorskip("torch")

import moetoken.torch as mt  # noqa: E402
from moetoken.torch import _operators as operators  # noqa: E402
from moetoken.torch import megatron, npu  # noqa: E402
from test_torch import MODES, randn, routing, samples  # noqa: E402

T, E, H = 5, 4, 3


def unpermute_slots(padded):
    """A routing map, slots in another order than permute makes them, and R."""
    routing_map, slots_num = routing(padded)
    indices = mt.permute(torch.zeros(T, H), routing_map, None, slots_num, padded)[2]
    if padded:
        order = torch.randperm(slots_num, generator=torch.Generator().manual_seed(4))
        return routing_map, order, indices[order], slots_num
    tokens = torch.arange(T).repeat_interleave(slots_num // T)
    order = torch.arange(slots_num).view(T, -1).flip(0).reshape(-1)  # tokens backwards
    return routing_map, indices[order], tokens[order], slots_num


def functions(padded, with_probs, mask_fill=False):
    """Each operator as a function of its differentiable arguments, with such arguments."""
    routing_map, slots_num = routing(padded)
    indices = mt.permute(torch.zeros(T, H), routing_map, None, slots_num, padded)[2]
    _, out_index, token_id, rows_num = unpermute_slots(padded)
    rows, row_probs, probs = randn(slots_num, H, seed=3), randn(slots_num, seed=5), randn(T, E)
    tokens = randn(T, H, seed=7)
    probs_or_none = (probs,) if with_probs else ()

    def permute(tokens, probs=None):
        found = mt.permute(tokens, routing_map, probs, slots_num, padded)
        return found[:2] if with_probs else found[0]

    def permute_grad(rows, row_probs=None):
        found = mt.permute_grad(rows, row_probs, indices, routing_map, drop_and_pad=padded)
        return found if with_probs else found[0]

    def unpermute(rows, probs=None):
        return mt.unpermute(
            rows,
            indices,
            routing_map=routing_map,
            probs=probs,
            restore_shape=(T, H),
            drop_and_pad=padded,
            mask_fill_slots=mask_fill,
        )

    def unpermute_grad(g, x=None, probs=None):
        found = mt.unpermute_grad(
            g,
            out_index,
            token_id,
            routing_map=routing_map,
            permuted_tokens=x,
            probs=probs,
            rows_num=rows_num,
            drop_and_pad=padded,
            mask_fill_slots=mask_fill,
        )
        return found if with_probs else found[0]

    return {
        "permute": (permute, (tokens, *probs_or_none)),
        "permute_grad": (permute_grad, (rows, row_probs) if with_probs else (rows,)),
        "unpermute": (unpermute, (rows, *probs_or_none)),
        "unpermute_grad": (unpermute_grad, (tokens, rows, probs) if with_probs else (tokens,)),
    }


NAMES = ["permute", "permute_grad", "unpermute", "unpermute_grad"]


CASES = [(name, *mode.values, False) for name in NAMES for mode in MODES]
CASES += [(name, True, with_probs, True) for name in NAMES[2:] for with_probs in (False, True)]


@pytest.mark.parametrize("name, padded, with_probs, mask_fill", CASES)
def test_derivatives_against_differences(name, padded, with_probs, mask_fill):
    """Backward, forward, batched, and both orders of the second derivative."""
    function, arguments = functions(padded, with_probs, mask_fill)[name]
    assert torch.autograd.gradcheck(
        function,
        arguments,
        check_forward_ad=True,
        check_batched_grad=True,
        check_batched_forward_grad=True,
    )
    assert torch.autograd.gradgradcheck(function, arguments, check_fwd_over_rev=True)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("padded, with_probs", MODES)
def test_functional_transforms_agree(name, padded, with_probs):
    """jacfwd, jacrev and the derivative that autograd computes row by row are one matrix."""
    function, arguments = functions(padded, with_probs)[name]
    arguments = tuple(argument.detach() for argument in arguments)

    def scalars(*values):
        found = function(*values)
        found = found if isinstance(found, tuple) else (found,)
        return torch.cat([part.flatten() for part in found])

    places = tuple(range(len(arguments)))
    forward = torch.func.jacfwd(scalars, places)(*arguments)
    backward = torch.func.jacrev(scalars, places)(*arguments)
    plain = torch.autograd.functional.jacobian(scalars, arguments)
    for a, b, c in zip(forward, backward, plain):
        assert c.abs().max() > 0
        torch.testing.assert_close(a, c, rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(b, c, rtol=1e-13, atol=1e-13)
    curvature = torch.func.hessian(lambda *v: (scalars(*v) ** 2).sum(), places)(*arguments)
    plain = torch.autograd.functional.hessian(lambda *v: (scalars(*v) ** 2).sum(), arguments)
    for a, b in zip(curvature, plain):
        for c, d in zip(a, b):
            torch.testing.assert_close(c, d, rtol=1e-12, atol=1e-12)


def test_jvp_by_hand():
    """d/dp of p00 * x0 and p10 * x1 + p11 * x1 along ones."""
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    routing_map = torch.tensor([[True, False], [True, True]])
    probs = torch.tensor([[0.5, 0.0], [0.25, 0.75]])
    rows, _, indices = mt.permute(x, routing_map, num_out_tokens=4)
    _, tangent = torch.func.jvp(
        lambda p: mt.unpermute(rows, indices, routing_map=routing_map, probs=p),
        (probs,),
        (torch.ones_like(probs),),
    )
    assert tangent.tolist() == [[1.0, 2.0], [6.0, 8.0]]
    for permute in (
        lambda t: megatron.permute(t, routing_map)[0],
        lambda t: npu.npu_moe_token_permute_with_routing_map(t, routing_map, num_out_tokens=4)[0],
    ):
        rows, tangent = torch.func.jvp(permute, (x,), (torch.ones_like(x),))
        assert tangent.tolist() == [[1.0, 1.0]] * 3 + [[0.0, 0.0]] * (len(rows) - 3)


@pytest.mark.parametrize("padded, with_probs", MODES)
def test_vmap_is_a_loop(padded, with_probs):
    """Over every tensor of an operator that the package's functions hand on, and over none."""
    for operator, arguments in samples(padded, with_probs):
        function = getattr(operators, operator._name)
        arguments = [a.detach() if isinstance(a, torch.Tensor) else a for a in arguments]
        expected = operator(*arguments)
        for place, argument in enumerate(arguments):
            if not isinstance(argument, torch.Tensor):
                continue
            batched = torch.stack([argument] * 3, 1)
            in_dims = [None] * len(arguments)
            in_dims[place] = 1
            for call in (function, operator):
                found = torch.vmap(call, tuple(in_dims))(
                    *arguments[:place], batched, *arguments[place + 1 :]
                )
                for one, many in zip(expected, found):
                    assert torch.equal(torch.stack([one] * 3), many)
                empty = torch.vmap(call, tuple(in_dims))(
                    *arguments[:place], batched[:, :0], *arguments[place + 1 :]
                )
                assert [tuple(e.shape) for e in empty] == [(0, *one.shape) for one in expected]


# ---- the ways tensors come in -------------------------------------------------------------------


def test_a_meta_tensor_among_others_is_refused():
    rows, indices = torch.ones(2, 3), torch.tensor([0, 1])
    for wrong in ((rows.to("meta"), indices), (rows, indices.to("meta"))):
        with pytest.raises(Exception, match="cpu and meta|meta"):
            mt.unpermute(*wrong, restore_shape=(2, 3))
    y = mt.unpermute(rows.to("meta"), indices.to("meta"), restore_shape=(2, 3))
    assert y.is_meta and y.shape == (2, 3)


def test_lazy_views_are_resolved():
    values = torch.tensor([[1 + 2j, 3 - 4j], [5 + 6j, 7 - 8j]], dtype=torch.complex64)
    lazy = values.conj().imag  # negated when read
    assert lazy.is_neg()
    wanted = [[-2.0, 4.0], [-6.0, 8.0]]
    indices, routing_map = torch.tensor([1, 0]), torch.eye(2, dtype=torch.bool)
    swapped = wanted[::-1]
    assert mt.unpermute(lazy, indices, restore_shape=(2, 2)).tolist() == swapped
    assert mt.permute(lazy, routing_map, num_out_tokens=2)[0].tolist() == wanted
    assert mt.unpermute_grad(lazy, indices)[0].tolist() == swapped
    assert mt.permute_grad(lazy, None, indices, tokens_num=2)[0].tolist() == swapped
    assert megatron.permute(lazy, routing_map)[0].tolist() == wanted
    tokens = mt.unpermute(lazy, indices, routing_map=routing_map, probs=lazy, restore_shape=(2, 2))
    assert tokens.tolist() == [[-2 * -6.0, -2 * 8.0], [8 * -2.0, 8 * 4.0]]


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype, compiled):
    """float32 tokens, weights of the narrow type: results as if the weights were float32."""
    routing_map, slots_num = routing(False)
    tokens = randn(T, H).detach().float().requires_grad_()
    weights = randn(T, E, seed=2).detach().to(dtype).requires_grad_()

    def layer(tokens, probs):
        rows, row_probs, indices = mt.permute(tokens, routing_map, probs, slots_num)
        y = mt.unpermute(rows * 2, indices, routing_map=routing_map, probs=probs)
        return y, row_probs

    call = torch.compile(layer, fullgraph=True, backend="aot_eager") if compiled else layer
    with torch.autocast("cpu", dtype=dtype):
        y, row_probs = call(tokens, weights)
        operator = torch.ops.moetoken.permute(
            tokens, routing_map, weights, slots_num, slots_num, False, torch.int32
        )
    y.sum().backward()
    found = (y, row_probs, tokens.grad, weights.grad)
    wide = weights.detach().float().requires_grad_()
    tokens_again = tokens.detach().requires_grad_()
    expected_y, expected_probs = layer(tokens_again, wide)
    expected_y.sum().backward()
    assert torch.equal(operator[1], expected_probs)
    for mine, other in zip(
        found, (expected_y, expected_probs, tokens_again.grad, wide.grad.to(dtype))
    ):
        assert mine.dtype == other.dtype and torch.equal(mine, other)
    with pytest.raises(TypeError, match="probs"):  # as before where autocast is not asked for
        mt.unpermute(
            torch.ones(slots_num, H),
            torch.arange(slots_num),
            routing_map=torch.ones(T, E, dtype=torch.bool),
            probs=weights.detach(),
        )


@pytest.mark.filterwarnings("ignore")
def test_forward_mode_within_compile():
    """torch.library's operators have no such rule, and PyTorch takes their tangents for zero: such
    calls are left to the package's functions."""
    rows, indices = torch.ones(2, 3), torch.tensor([0, 1])
    function = lambda x: mt.unpermute(x, indices, restore_shape=(2, 3))  # noqa: E731
    tangent = lambda x: torch.func.jvp(function, (x,), (torch.full_like(x, 2),))[1]  # noqa: E731
    assert torch.compile(tangent, backend="aot_eager")(rows).tolist() == [[2.0] * 3] * 2
