"""unpermute_grad by expert ids as a JAX Pallas kernel, one program for each token.

    permuted_tokens_grad[r, :] = w * g[t, :]
    weights_grad[t, k]         = sum over h of x[r, h] * g[t, h]

with the row r and the weight w of slot k of token t, and zero wherever no slot reaches. In interpret
mode it runs on any machine. test_kernel.py holds it to the cases and standards of moetoken.testing:

    pip install 'moetoken[jax,testing]' && pytest examples/pallas_kernel
"""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl


def _token(index_ref, g_ref, x_ref, weights_ref, zeros_ref, rows_ref, weights_grad_ref):
    """A token: its g [1, H] and weights [1, K]; the rows [R, H] and indices [N] of all."""
    del zeros_ref  # it is what rows_ref holds at first
    topk = weights_ref.shape[1]
    t = pl.program_id(0)
    g = g_ref[0, :].astype(jnp.float32)
    weights_grad_ref[...] = jnp.zeros(weights_grad_ref.shape, weights_grad_ref.dtype)
    for k in range(topk):
        row = index_ref[t * topk + k]

        @pl.when(row >= 0)
        def _(k=k, row=row):
            x = x_ref[row, :].astype(jnp.float32)
            weight = weights_ref[0, k].astype(jnp.float32)
            rows_ref[row, :] = (weight * g).astype(rows_ref.dtype)
            weights_grad_ref[0, k] = jnp.sum(x * g).astype(weights_grad_ref.dtype)


def _whole(array):
    return pl.BlockSpec(array.shape, lambda t: (0,) * array.ndim)


def _of_token(array):
    return pl.BlockSpec((1, array.shape[1]), lambda t: (t, 0))


@jax.jit
def unpermute_grad(g, out_index, x, weights):
    """g [T, H], out_index [T * K], x [R, H], weights [T, K] -> [R, H] like x, [T, K] like weights.

    out_index holds the row of each slot, -1 for one that is not used.
    """
    zeros = jnp.zeros_like(x)
    if 0 in (*g.shape, *x.shape, *weights.shape):
        return zeros, jnp.zeros_like(weights)
    return pl.pallas_call(
        _token,
        grid=(len(g),),
        in_specs=[_whole(out_index), _of_token(g), _whole(x), _of_token(weights), _whole(zeros)],
        out_specs=[_whole(zeros), _of_token(weights)],
        out_shape=[jax.ShapeDtypeStruct(like.shape, like.dtype) for like in (x, weights)],
        input_output_aliases={4: 0},
        interpret=True,
    )(out_index, g, x, weights, zeros)
