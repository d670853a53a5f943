"""JAX: jax.jit of the gradient written out, and of the forward pass's vector-Jacobian product.

XLA has no option for its number of threads on a CPU: it takes as many as the process has cores,
which is why workers are bound to as many cores as they may have threads.
"""

from __future__ import annotations

from typing import Any, Callable, Optional

import jax
import jax.numpy as jnp
import numpy as np

from .cases import Data
from .registry import Call, Result

__all__ = ["BUILDERS", "versions"]


def versions() -> dict[str, str]:
    return {"jax": jax.__version__}


def _weights(probs: jax.Array, tokens: jax.Array, experts: jax.Array) -> jax.Array:
    return probs.at[tokens, experts].get(mode="promise_in_bounds")[:, None]


def gradient(
    tokens_grad: jax.Array,
    rows: jax.Array,
    probs: Optional[jax.Array],
    tokens: jax.Array,
    experts: jax.Array,
) -> tuple[jax.Array, Optional[jax.Array]]:
    gathered = tokens_grad.at[tokens].get(mode="promise_in_bounds")
    if probs is None:
        return gathered, None
    wide = gathered.astype(jnp.float32)
    dots = (rows.astype(jnp.float32) * wide).sum(-1)
    rows_grad = (wide * _weights(probs, tokens, experts)).astype(rows.dtype)
    zeros = jnp.zeros_like(probs).at[tokens, experts]
    return rows_grad, zeros.set(dots, mode="promise_in_bounds", unique_indices=True)


def pulled_back(
    tokens_grad: jax.Array,
    rows: jax.Array,
    probs: Optional[jax.Array],
    tokens: jax.Array,
    experts: jax.Array,
) -> tuple[jax.Array, Optional[jax.Array]]:
    """jit drops what of the forward pass its gradient does not need."""

    def forward(rows: jax.Array, probs: Optional[jax.Array]) -> jax.Array:
        weighted = rows if probs is None else rows * _weights(probs, tokens, experts)
        zeros = jnp.zeros(tokens_grad.shape, weighted.dtype).at[tokens]
        return zeros.add(weighted, mode="promise_in_bounds").astype(rows.dtype)

    return jax.vjp(forward, rows, probs)[1](tokens_grad)


def _arrays(result: Any) -> Result:
    rows, probs = result
    return np.asarray(rows), None if probs is None else np.asarray(probs)


def _build(function: Callable) -> Callable[[Data], Call]:
    def build(data: Data) -> Call:
        run = jax.jit(function)
        inputs = [
            None if array is None else jnp.asarray(array)
            for array in (data.tokens_grad, data.rows, data.probs)
        ]
        inputs += [
            jnp.asarray(array.astype(np.int32)) for array in (data.token_of_row, data.expert_of_row)
        ]
        return Call(lambda: jax.block_until_ready(run(*inputs)), _arrays)

    return build


def _build_moetoken(data: Data) -> Call:
    import moetoken.jax

    names = ("tokens_grad", "out_index", "routing_map", "rows", "probs")
    inputs = [jnp.asarray(getattr(data, name)) for name in names if getattr(data, name) is not None]

    def gradient_by_moetoken(
        tokens_grad: jax.Array,
        out_index: jax.Array,
        routing_map: jax.Array,
        rows: jax.Array,
        probs: Optional[jax.Array] = None,
    ) -> Any:
        if probs is None:
            return moetoken.jax.unpermute_grad(tokens_grad, out_index)
        return moetoken.jax.unpermute_grad(
            tokens_grad, out_index, routing_map=routing_map, permuted_tokens=rows, probs=probs
        )

    run = jax.jit(gradient_by_moetoken)
    return Call(lambda: jax.block_until_ready(run(*inputs)), _arrays)


BUILDERS: dict[str, Callable[[Data], Call]] = {
    "jax": _build(gradient),
    "jax-vjp": _build(pulled_back),
    "moetoken-jax": _build_moetoken,
}
