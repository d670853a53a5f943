"""The router for JAX: from logits to experts and their weights, its losses and balancing."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .._router_config import Config, check_topk, real, settings
from . import _router_ops
from ._checks import Arg, check, whole
from ._primitives import shape

__all__ = [
    "DropResult",
    "RouterResult",
    "router",
    "router_balance_loss",
    "router_drop",
    "router_grad",
    "router_update_bias",
    "router_z_loss",
]


class RouterResult(NamedTuple):
    """What :func:`router` returns."""

    expert_ids: Array  # [T, K]
    weights: Array  # [T, K]
    scores: Any  # Array [T, E]; None where it was not asked for
    rows_per_expert: Array  # [E], int64 in JAX's 64-bit mode


class DropResult(NamedTuple):
    """What :func:`router_drop` returns."""

    kept_ids: Array  # [T, K]
    kept_weights: Array  # [T, K]
    rows_per_expert: Array  # [E], int64 in JAX's 64-bit mode


def _wide(numbers: Array) -> np.dtype:
    return np.dtype(np.float64 if numbers.dtype == np.float64 else np.float32)


def _numbers(name: str, array: Any, dtype: Any, also: Any) -> None:
    """That an array is of a type that goes with the logits."""
    if array is not None and array.dtype not in (np.float32, np.float64, dtype):
        raise TypeError(
            f"{name} is {array.dtype}, expected float32, float64 or {dtype} as {also} is"
        )


def _weights_type(weights_dtype: Any, logits: Array) -> np.dtype:
    """float32, or float64 with float64 logits, unless another is asked for."""
    if weights_dtype is None:
        return _wide(logits)
    found = jnp.dtype(weights_dtype)
    if found not in (np.float32, logits.dtype) and not (
        found == np.float64 and jax.config.read("jax_enable_x64")
    ):
        raise TypeError(
            f"weights_dtype is {found}, expected float32, {logits.dtype} as logits is or, in JAX's "
            "64-bit mode, float64"
        )
    return found


def _check_choice(config: Config, experts_num: int) -> None:
    """What the library would say when the program runs, said while it is traced."""
    if config.topk > experts_num:
        raise ValueError(f"topk = {config.topk}, expected at most E = {experts_num}")
    if config.groups_num == 1 or experts_num == 0:
        return
    if experts_num % config.groups_num:
        raise ValueError(f"groups_num = {config.groups_num} does not divide E = {experts_num}")
    size = experts_num // config.groups_num
    if config.groups_top > config.groups_num:
        raise ValueError(
            f"groups_top = {config.groups_top}, expected 1 to groups_num = {config.groups_num}"
        )
    if config.group_score_count > size:
        raise ValueError(
            f"group_score_count = {config.group_score_count}, expected 1 to E / groups_num = {size}"
        )
    if config.topk > config.groups_top * size:
        raise ValueError(
            f"topk = {config.topk}, expected at most the {config.groups_top * size} experts of "
            f"groups_top = {config.groups_top} groups"
        )


def _count(ids: Array, experts_num: int) -> Array:
    """How many slots each expert has; -1 is none's."""
    places = jnp.where(ids < 0, experts_num, ids)
    return jnp.zeros(experts_num + 1, int).at[places.ravel()].add(1)[:-1]


def router(
    logits: Array,
    *,
    topk: Optional[int] = None,
    recipe: Optional[str] = None,
    score: Optional[str] = None,
    bias: Optional[Array] = None,
    token_mask: Optional[Array] = None,
    groups_num: Optional[int] = None,
    groups_top: Optional[int] = None,
    group_score_count: Optional[int] = None,
    normalize: Optional[bool] = None,
    normalize_scores: Optional[bool] = None,
    eps: Optional[float] = None,
    scale: Optional[float] = None,
    weights_dtype: Any = None,
    index_dtype: Any = np.int32,
    with_scores: bool = True,
) -> RouterResult:
    """Chooses each token's experts, and the weight of each. Differentiable in `logits`, through
    `weights` and `scores`; the choice is constant.

    Parameters and results are those of :func:`moetoken.router`; `expert_ids` are int32 unless
    `index_dtype` says int64.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, moetoken.jax
    >>> logits = jnp.log(jnp.array([[1., 2., 3., 2.], [4., 1., 1., 2.]]))
    >>> result = moetoken.jax.router(logits, topk=2, normalize=True)
    >>> result.expert_ids, result.rows_per_expert
    (Array([[2, 1],
           [0, 3]], dtype=int32), Array([1, 1, 1, 1], dtype=int32))
    >>> def first(x):
    ...     return moetoken.jax.router(x, topk=2, normalize=True).weights[0, 0]
    >>> (jax.grad(first)(logits)[0] * 100).round() + 0
    Array([  0., -24.,  24.,   0.], dtype=float32)
    """
    config = settings(
        recipe, topk, score, normalize, normalize_scores, groups_num, groups_top,
        group_score_count, eps, scale,
    )  # fmt: skip
    logits, mask = check(
        Arg("logits", logits, "TE", "tokens"), Arg("token_mask", token_mask, "T", "map")
    )
    tokens_num, experts_num = logits.shape
    (bias,) = check(Arg("bias", bias, "E", "tokens"), E=experts_num)
    _numbers("bias", bias, logits.dtype, "logits")
    _check_choice(config, experts_num)
    index = jnp.dtype(index_dtype)
    if index not in (np.int32, np.int64):
        raise TypeError(f"index_dtype is {index}, expected int32 or int64")
    numbers, slots = _weights_type(weights_dtype, logits), (tokens_num, config.topk)
    results = [
        shape(slots, jax.dtypes.canonicalize_dtype(index)),
        shape(slots, numbers),
        shape(logits.shape, numbers) if with_scores else None,
    ]
    ids, weights, scores = _router_ops.router.bind(config, (logits, bias, mask), results)
    return RouterResult(ids, weights, scores, _count(ids, experts_num))


def router_grad(
    logits: Array,
    expert_ids: Optional[Array],
    weights_grad: Optional[Array],
    scores_grad: Optional[Array] = None,
    *,
    topk: Optional[int] = None,
    recipe: Optional[str] = None,
    score: Optional[str] = None,
    bias: Optional[Array] = None,
    token_mask: Optional[Array] = None,
    groups_num: Optional[int] = None,
    groups_top: Optional[int] = None,
    group_score_count: Optional[int] = None,
    normalize: Optional[bool] = None,
    normalize_scores: Optional[bool] = None,
    eps: Optional[float] = None,
    scale: Optional[float] = None,
) -> Array:
    """The gradient of :func:`router` by itself; see :func:`moetoken.router_grad`."""
    if weights_grad is None and scores_grad is None:
        raise ValueError("weights_grad and scores_grad are None, expected at least one of them")
    if weights_grad is not None and expert_ids is None:
        raise ValueError("expert_ids is missing, expected an array as weights_grad is given")
    logits, mask, ids = check(
        Arg("logits", logits, "TE", "tokens"),
        Arg("token_mask", token_mask, "T", "map"),
        Arg("expert_ids", expert_ids, "TK", "indices"),
    )
    sizes = dict(T=logits.shape[0], E=logits.shape[1], K=0 if ids is None else ids.shape[1])
    (weights,) = check(Arg("weights_grad", weights_grad, "TK", "tokens"), **sizes)
    (scores,) = check(Arg("scores_grad", scores_grad, "TE", "tokens"), **sizes)
    _numbers("weights_grad", weights, logits.dtype, "logits")
    _numbers("scores_grad", scores, logits.dtype, "logits")
    config = settings(
        recipe, check_topk(topk, sizes["K"]), score, normalize, normalize_scores, groups_num,
        groups_top, group_score_count, eps, scale,
    )  # fmt: skip
    arguments, results = (logits, mask, ids, weights, scores), [shape(logits.shape, logits)]
    return _router_ops.router_slopes.gradient.bind(config, arguments, results)[0]


def router_balance_loss(
    scores: Array,
    rows_per_expert: Array,
    *,
    topk: int,
    coeff: float = 1.0,
    total_tokens: Optional[int] = None,
) -> Array:
    """The switch load balancing loss, an array of one number. Differentiable in `scores`.

    Parameters are those of :func:`moetoken.router_balance_loss`; `rows_per_expert` may be int32.
    """
    scores, counts = check(
        Arg("scores", scores, "TE", "tokens"),
        Arg("rows_per_expert", rows_per_expert, "E", "indices"),
    )
    total = 0 if total_tokens is None else whole("total_tokens", total_tokens)
    numbers = _router_ops.Balance(whole("topk", topk, 1), total, real("coeff", coeff))
    results = [shape((1,), _wide(scores))]
    return _router_ops.balance_loss.bind(numbers, (scores, counts), results)[0][0]


def router_z_loss(
    logits: Array, *, coeff: float = 1.0, token_mask: Optional[Array] = None
) -> Array:
    """The z-loss, an array of one number. Differentiable in `logits`.

    Parameters are those of :func:`moetoken.router_z_loss`.
    """
    logits, mask = check(
        Arg("logits", logits, "TE", "tokens"), Arg("token_mask", token_mask, "T", "map")
    )
    results = [shape((1,), _wide(logits))]
    return _router_ops.z_loss.bind(real("coeff", coeff), (logits, mask), results)[0][0]


def router_update_bias(bias: Array, rows_per_expert: Array, rate: float) -> Array:
    """``bias[e] + rate * sign(mean count - rows_per_expert[e])``, in JAX's own arithmetic.

    The comparison is exact. `rows_per_expert` may be int32.
    """
    bias, counts = check(
        Arg("bias", bias, "E", "tokens"), Arg("rows_per_expert", rows_per_expert, "E", "indices")
    )
    experts_num = max(bias.shape[0], 1)
    mean, rest = counts.sum() // experts_num, counts.sum() % experts_num
    above = counts > mean
    below = (counts < mean) | ((counts == mean) & (rest > 0))
    sign = below.astype(bias.dtype) - above.astype(bias.dtype)
    wide = jnp.promote_types(bias.dtype, jnp.float32)
    return (bias.astype(wide) + real("rate", rate) * sign.astype(wide)).astype(bias.dtype)


def router_drop(
    expert_ids: Array, weights: Array, *, experts_num: int, capacity: int
) -> DropResult:
    """Each expert keeps its `capacity` heaviest slots. Differentiable in `weights`.

    Parameters and results are those of :func:`moetoken.router_drop`.
    """
    ids, weights = check(
        Arg("expert_ids", expert_ids, "TK", "indices"), Arg("weights", weights, "TK", "tokens")
    )
    numbers = _router_ops.Drop(whole("experts_num", experts_num), whole("capacity", capacity))
    results = [shape(ids.shape, ids)]
    arguments = (ids, jax.lax.stop_gradient(weights))
    (kept_ids,) = _router_ops.drop.bind(numbers, arguments, results)
    kept_weights = jnp.where(kept_ids == ids, weights, 0)
    return DropResult(kept_ids, kept_weights, _count(kept_ids, numbers.experts_num))
