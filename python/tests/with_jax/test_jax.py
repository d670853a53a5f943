"""JAX: jit, grad and vmap, a whole layer against JAX's own gradients, and the interface to XLA."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

import moetoken
import oracle
from cases import bits, cases, make_case

jax = pytest.importorskip("jax")
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_platforms", "cpu")

import jax.numpy as jnp  # noqa: E402

import moetoken.jax as mj  # noqa: E402

PADDED = pytest.mark.parametrize("padded", [False, True], ids=["dropless", "padded"])


def array(value):
    return None if value is None else jnp.asarray(value)


@settings(max_examples=25)
@given(cases())
def test_same_bits_as_numpy(case):
    given_map = case.routing_map if case.probs is not None else None
    arguments = dict(routing_map=given_map, permuted_tokens=case.rows, probs=case.probs)
    expected = moetoken.unpermute_grad(
        case.tokens, case.out_index, case.token_id, drop_and_pad=case.padded, **arguments
    )
    found = mj.unpermute_grad(
        array(case.tokens),
        array(case.out_index),
        array(case.token_id),
        drop_and_pad=case.padded,
        **{name: array(value) for name, value in arguments.items()},
    )
    for a, b in zip(found, expected):
        assert (a is None) == (b is None)
        assert a is None or (a.dtype == b.dtype and bits(a) == bits(b))


def small_case(padded, dtype=np.float64, seed=11):
    return make_case(seed, padded, 9, 5, 4, 2, np.dtype(dtype), True, False)


def combine(case, tokens, probs, weights):
    """permute, something in the middle, unpermute: to be differentiated in three places."""
    slots_num = case.sizes[3]
    rows, row_probs, indices = mj.permute(
        tokens, array(case.routing_map), probs, slots_num, case.padded
    )
    rows = jnp.sin(rows * weights) * row_probs[:, None]
    return mj.unpermute(
        rows,
        indices,
        routing_map=array(case.routing_map),
        probs=probs,
        drop_and_pad=case.padded,
    )


def combine_in_jax(case, tokens, probs, weights):
    """The same with indexing, which JAX differentiates by itself."""
    token, expert, _ = (np.array(a, int) for a in oracle_rows(case))
    rows = jnp.sin(tokens[token] * weights[: len(token)]) * probs[token, expert][:, None]
    return jnp.zeros_like(tokens).at[token].add(rows * probs[token, expert][:, None])


def oracle_rows(case):
    return oracle.permute(case.routing_map, case.sizes[3], case.padded)


def inputs(case):
    rng = np.random.default_rng(case.seed)
    weights = rng.standard_normal((case.sizes[3], case.tokens.shape[1]))
    return array(case.tokens), array(case.probs), jnp.asarray(weights)


@PADDED
@pytest.mark.parametrize("with_jit", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 1, 2)], ids=str)
def test_gradients_in_float64(padded, with_jit, wanted):
    case = small_case(padded)
    found = []
    for function in (combine, combine_in_jax):
        loss = lambda *a: jnp.sum(jnp.cos(function(case, *a)))  # noqa: B023, E731
        gradient = jax.grad(loss, wanted)
        found.append((jax.jit(gradient) if with_jit else gradient)(*inputs(case)))
    for ours, theirs in zip(*found):
        scale = jnp.abs(theirs).max()
        assert scale > 0 and jnp.abs(ours - theirs).max() <= 1e-12 * scale


@PADDED
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision(padded, dtype):
    """The combine and its gradients are at least as close to the float64 truth as JAX's own."""
    case = make_case(7, padded, 48, 67, 8, 4, np.dtype(np.float64), True, False)
    token, expert, indices = (np.array(a, int) for a in oracle_rows(case))
    rng = np.random.default_rng(1)
    rows = jnp.asarray(rng.standard_normal((len(token), 67)), dtype)
    probs, g = jnp.asarray(case.probs, dtype), jnp.asarray(case.tokens, dtype)

    def ours(rows, probs):
        return mj.unpermute(
            rows,
            jnp.asarray(indices),
            routing_map=array(case.routing_map),
            probs=probs,
            drop_and_pad=padded,
        )

    def theirs(rows, probs):
        weighted = rows * probs[token, expert][:, None]
        return jnp.zeros((48, 67), rows.dtype).at[token].add(weighted)

    def results(function, dtype):
        y, back = jax.vjp(function, rows.astype(dtype), probs.astype(dtype))
        return [y, *back(g.astype(dtype))]

    truth = results(theirs, "float64")
    for true, mine, other in zip(truth, results(ours, dtype), results(theirs, dtype)):
        assert mine.dtype == other.dtype
        error, other_error = (jnp.linalg.norm(a.astype("float64") - true) for a in (mine, other))
        assert error <= other_error * (1 + 1e-12)


@PADDED
def test_vmap(padded):
    """Over tokens and probs with a routing of their own each, and with one for all."""
    batch = [small_case(padded, seed=seed) for seed in (1, 2, 3)]
    slots_num = batch[0].sizes[3]
    tokens, probs = (jnp.stack([getattr(c, n) for c in batch]) for n in ("tokens", "probs"))
    maps = jnp.stack([np.asarray(c.routing_map, bool) for c in batch])

    def loss(tokens, probs, routing_map):
        rows, row_probs, indices = mj.permute(tokens, routing_map, probs, slots_num, padded)
        y = mj.unpermute(
            jnp.sin(rows) * row_probs[:, None],
            indices,
            routing_map=routing_map,
            probs=probs,
            drop_and_pad=padded,
        )
        return jnp.sum(y * y)

    gradient = jax.value_and_grad(loss, (0, 1))
    for axes, the_maps in (((0, 0, 0), maps), ((0, 0, None), maps[0])):
        value, found = jax.jit(jax.vmap(gradient, axes))(tokens, probs, the_maps)
        for i in range(3):
            one, expected = gradient(tokens[i], probs[i], maps[i if axes[2] == 0 else 0])
            np.testing.assert_allclose(value[i], one, rtol=1e-14)
            for a, b in zip(found, expected):
                np.testing.assert_allclose(a[i], b, rtol=1e-13, atol=1e-300)
    nested = jax.vmap(jax.vmap(loss, (None, 0, None)), (0, None, None))(tokens, probs, maps[0])
    for i in range(3):
        for j in range(3):
            np.testing.assert_allclose(nested[i, j], loss(tokens[i], probs[j], maps[0]), rtol=1e-13)
    empty = jax.vmap(loss, (0, 0, None))(tokens[:0], probs[:0], maps[0])
    assert empty.shape == (0,)


def test_tokens_without_slots_and_empty():
    x = jnp.zeros((0, 3))
    y = mj.unpermute(x, jnp.full(4, -1), restore_shape=(2, 3))
    assert y.shape == (2, 3) and not y.any()
    assert jax.grad(lambda x: mj.unpermute(x, jnp.full(4, -1), restore_shape=(2, 3)).sum())(
        x
    ).shape == (0, 3)


def test_errors_are_the_librarys():
    with pytest.raises(Exception, match=r"sorted_indices\[1\] = 9 is outside \[0, 2\)"):
        mj.unpermute(jnp.ones((2, 2)), jnp.array([0, 9]), restore_shape=(2, 2)).block_until_ready()
    with pytest.raises(Exception, match="routing_map"):
        mj.permute(jnp.ones((3, 2)), jnp.ones((3, 2)), num_out_tokens=6)[0].block_until_ready()
    with pytest.raises(ValueError, match="num_out_tokens is missing"):
        mj.permute(jnp.ones((3, 2)), jnp.ones((3, 2), bool))


def test_structs_agree_with_jaxlib(tmp_path):
    """xla_ffi.h against the header that the installed jaxlib ships: offsets of what is read."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    assert compiler, "no C compiler to check the structs with"
    pairs = {
        "XLA_FFI_CallFrame xla_call_frame": "api api stage stage args arguments rets results "
        "attrs attributes extension_start extension",
        "XLA_FFI_Args xla_buffers": "size count types kinds args buffers",
        "XLA_FFI_Rets xla_buffers": "size count types kinds rets buffers",
        "XLA_FFI_Attrs xla_attributes": "size count types kinds names names attrs values",
        "XLA_FFI_Buffer xla_buffer": "dtype type data data rank rank dims shape",
        "XLA_FFI_Scalar xla_scalar": "dtype type value value",
        "XLA_FFI_ByteSpan xla_text": "ptr characters len length",
        "XLA_FFI_Api xla_api": "api_version version XLA_FFI_Error_Create create_error",
        "XLA_FFI_Error_Create_Args xla_error_create": "message message errc code",
        "XLA_FFI_Metadata xla_metadata": "api_version version traits traits",
        "XLA_FFI_Metadata_Extension xla_metadata_extension": "metadata metadata",
    }
    source = ['#include "xla/ffi/api/c_api.h"', '#include "xla_ffi.h"']
    for structs, fields in pairs.items():
        theirs, ours = structs.split()
        names = fields.split()
        for their_field, our_field in zip(names[::2], names[1::2]):
            source.append(
                f"_Static_assert(offsetof({theirs}, {their_field}) == "
                f'offsetof(struct {ours}, {our_field}), "{theirs}.{their_field}");'
            )
    for their_value, our_value in (
        ("XLA_FFI_DataType_BF16", "XLA_TYPE_BF16"),
        ("XLA_FFI_DataType_F16", "XLA_TYPE_F16"),
        ("XLA_FFI_DataType_PRED", "XLA_TYPE_PRED"),
        ("XLA_FFI_DataType_S64", "XLA_TYPE_S64"),
        ("XLA_FFI_ExecutionStage_EXECUTE", "XLA_STAGE_EXECUTE"),
        ("XLA_FFI_AttrType_SCALAR", "XLA_ATTRIBUTE_SCALAR"),
        ("XLA_FFI_Error_Code_INVALID_ARGUMENT", "XLA_ERROR_INVALID_ARGUMENT"),
    ):
        source.append(f'_Static_assert((int){their_value} == (int){our_value}, "{our_value}");')
    file = tmp_path / "layout.c"
    file.write_text("\n".join(source) + "\n")
    includes = [jax.ffi.include_dir(), str(Path(__file__).parents[2] / "csrc")]
    command = [compiler, "-std=c11", "-fsyntax-only", *(f"-I{path}" for path in includes), file]
    subprocess.run(command, check=True)
