"""The router's functions as primitives, with the rules of their derivatives."""

from __future__ import annotations

from typing import Any, NamedTuple, Sequence

import jax
import jax.numpy as jnp

from .._router_config import SCORES, Config
from ._operators import _like
from ._primitives import Call, Operator, call
from ._smooth import Smooth

__all__ = ["Balance", "Drop", "balance_loss", "drop", "router", "router_slopes", "z_loss"]


# ---- router -------------------------------------------------------------------------------------


def _formula(config: Config, x: Any, mask: Any, ids: Any) -> tuple[Any, Any]:
    """weights [..., T, K], scores [..., T, E]."""
    name = SCORES[config.score]
    if name == "sigmoid":
        scores = jax.nn.sigmoid(x)
    elif name == "sqrtsoftplus":
        inner = jnp.logaddexp(x, 0)
        scores = jnp.where(inner > 0, jnp.sqrt(jnp.where(inner > 0, inner, 1)), 0)
    else:
        scores = jax.nn.softmax(x, -1)
    if ids is None:
        weights, used = x[..., :0], jnp.zeros((*x.shape[:-1], 0), bool)
    else:
        used = ids >= 0
        after = name == "softmax_after"
        weights = jnp.take_along_axis(x if after else scores, jnp.maximum(ids, 0), -1)
    some = used.any(-1, keepdims=True)
    if name == "softmax_after" and ids is not None:
        weights = jnp.where(used, weights, jnp.where(some, -jnp.inf, 0))
        weights = jax.nn.softmax(weights, -1)
    weights = jnp.where(used, weights, 0)
    if config.normalize:
        weights = weights / jnp.where(some, weights.sum(-1, keepdims=True) + config.eps, 1)
    if config.normalize_scores:
        scores = scores / (scores.sum(-1, keepdims=True) + config.eps)
    if mask is not None:
        routed = (mask != 0)[..., None]
        weights, scores = jnp.where(routed, weights, 0), jnp.where(routed, scores, 0)
    return weights * config.scale, scores


def _grad_compute(about: Call, *arguments: Any) -> list[Any]:
    return call("router_grad", about.batch, arguments, about.results, **about.settings._asdict())


router_slopes = Smooth("router", _grad_compute, _formula, fixed=2)  # token_mask, expert_ids


def _router_compute(about: Call, *arguments: Any) -> list[Any]:
    return call("router", about.batch, arguments, about.results, **about.settings._asdict())


router = Operator("router", _router_compute)  # logits, bias, token_mask -> ids, weights, scores


def _router_jvp(
    about: Call, arguments: Sequence[Any], tangents: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    logits, _, mask = arguments
    results = router.bind(about.settings, arguments, about.results, about.batch)
    changes: list[Any] = [None, None]
    if tangents[0] is not None:
        given = [tangents[0], logits, mask, results[0]]
        changes = router_slopes.tangent.bind(about.settings, given, about.results[1:], about.batch)
    return results, [None, *changes]


router.def_jvp(_router_jvp)


# ---- the balance loss: linear in the scores -----------------------------------------------------


class Balance(NamedTuple):
    """The numbers of the balance loss."""

    topk: int
    total_tokens: int
    coeff: float


def _balance_compute(about: Call, scores: Any, counts: Any) -> list[Any]:
    arguments, results = [scores, counts, None], [about.results[0], None]
    numbers = about.settings._asdict()
    return call("router_balance_loss", about.batch, arguments, results, **numbers)[:1]


def _balance_grad_compute(about: Call, loss_grad: Any, counts: Any) -> list[Any]:
    arguments, results = [None, counts, loss_grad], [None, about.results[0]]
    numbers = about.settings._asdict()
    return call("router_balance_loss", about.batch, arguments, results, **numbers)[1:]


balance_loss = Operator("router_balance_loss", _balance_compute)
_balance_grad = Operator("router_balance_loss_grad", _balance_grad_compute)


def _linear(operator: Operator, opposite: Operator) -> None:
    """Both are linear in their first argument, and each is the other's transpose."""

    def jvp(
        about: Call, arguments: Sequence[Any], tangents: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        results = operator.bind(about.settings, arguments, about.results, about.batch)
        given = [tangents[0], arguments[1]]
        return results, operator.bind(about.settings, given, about.results, about.batch)

    def transpose(
        about: Call, cotangents: Sequence[Any], arguments: Sequence[Any], linear: Sequence[Any]
    ) -> list[Any]:
        given, wanted = [cotangents[0], arguments[1]], [_like(linear[0], about.batch)]
        return [*opposite.bind(about.settings, given, wanted, about.batch), None]

    operator.def_jvp(jvp)
    operator.def_transpose(transpose)


_linear(balance_loss, _balance_grad)
_linear(_balance_grad, balance_loss)


# ---- the z-loss ---------------------------------------------------------------------------------


def _z_formula(coeff: float, x: Any, mask: Any) -> tuple[Any]:
    squares = jax.nn.logsumexp(x, -1) ** 2
    if mask is None:
        return (coeff * squares.sum(-1, keepdims=True) / max(x.shape[-2], 1),)
    routed = mask != 0
    counted = jnp.maximum(routed.sum(-1, keepdims=True), 1)
    return (coeff * jnp.where(routed, squares, 0).sum(-1, keepdims=True) / counted,)


def _z_grad_compute(about: Call, logits: Any, mask: Any, loss_grad: Any) -> list[Any]:
    arguments, results = [logits, mask, loss_grad], [None, about.results[0]]
    return call("router_z_loss", about.batch, arguments, results, coeff=about.settings)[1:]


def _z_compute(about: Call, logits: Any, mask: Any) -> list[Any]:
    arguments, results = [logits, mask, None], [about.results[0], None]
    return call("router_z_loss", about.batch, arguments, results, coeff=about.settings)[:1]


_z_slopes = Smooth("router_z_loss", _z_grad_compute, _z_formula, fixed=1)
z_loss = Operator("router_z_loss", _z_compute)


def _z_jvp(
    about: Call, arguments: Sequence[Any], tangents: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    results = z_loss.bind(about.settings, arguments, about.results, about.batch)
    given = [tangents[0], *arguments]
    return results, _z_slopes.tangent.bind(about.settings, given, about.results, about.batch)


z_loss.def_jvp(_z_jvp)


# ---- dropping: the ids alone, which have no derivative ------------------------------------------


class Drop(NamedTuple):
    """The numbers of the dropping."""

    experts_num: int
    capacity: int


def _drop_compute(about: Call, *arguments: Any) -> list[Any]:
    return call("router_drop", about.batch, arguments, about.results, **about.settings._asdict())


drop = Operator("router_drop", _drop_compute)  # expert_ids, weights -> kept_ids


def _drop_jvp(
    about: Call, arguments: Sequence[Any], tangents: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    return drop.bind(about.settings, arguments, about.results, about.batch), [None]


drop.def_jvp(_drop_jvp)
