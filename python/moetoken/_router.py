"""The router on NumPy arrays: from logits to experts and their weights, and back.

T, E, K are the numbers of tokens, of experts, and of the experts that a token is sent to. See
docs/router.md for what the options mean and which numbers come out.
"""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Optional, Sequence

import numpy as np

from . import _library
from ._arrays import (
    Result,
    dtype_of,
    empty,
    flag,
    index_type,
    new,
    refuse,
    rerun_with_copies,
    shape_of,
    to_dtype,
    whole,
)
from ._foreign import announce_write
from ._router_config import check_topk, raise_as_here, real, settings

__all__ = [
    "BalanceLossResult",
    "DropResult",
    "RouterResult",
    "ZLossResult",
    "router",
    "router_balance_loss",
    "router_drop",
    "router_grad",
    "router_update_bias",
    "router_z_loss",
]

# The names of the arrays, inputs first, in the order that the C functions take them.
_ROUTER = (
    "logits", "bias", "token_mask",
    "expert_ids", "weights", "routing_map", "probs", "scores", "rows_per_expert",
)  # fmt: skip
_ROUTER_GRAD = (
    "logits", "token_mask", "expert_ids", "weights_grad", "probs_grad", "scores_grad",
    "logits_grad",
)  # fmt: skip
_BALANCE_LOSS = ("scores", "rows_per_expert", "loss_grad", "loss", "scores_grad")
_Z_LOSS = ("logits", "token_mask", "loss_grad", "loss", "logits_grad")
_UPDATE_BIAS = ("bias", "rows_per_expert", "updated_bias")
_DROP = ("expert_ids", "weights", "kept_ids", "kept_weights", "rows_per_expert")

_INT64 = np.dtype(np.int64)
_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)


class RouterResult(NamedTuple):
    """What :func:`router` returns."""

    expert_ids: np.ndarray  # [T, K]
    weights: np.ndarray  # [T, K]
    scores: Result  # [T, E]
    rows_per_expert: np.ndarray  # [E] int64


class BalanceLossResult(NamedTuple):
    """What :func:`router_balance_loss` returns."""

    loss: Any  # a number
    scores_grad: np.ndarray  # [T, E]


class ZLossResult(NamedTuple):
    """What :func:`router_z_loss` returns."""

    loss: Any  # a number
    logits_grad: np.ndarray  # [T, E]


class DropResult(NamedTuple):
    """What :func:`router_drop` returns."""

    kept_ids: np.ndarray  # [T, K]
    kept_weights: np.ndarray  # [T, K]
    rows_per_expert: np.ndarray  # [E] int64


def _run(
    operator: Callable[..., Any],
    names: tuple[str, ...],
    inputs: tuple[Any, ...],
    outputs: tuple[Any, ...],
    numbers: tuple[Any, ...],
    threads: Any,
    replaced: Optional[str] = None,
) -> None:
    values = (*inputs, *outputs, *numbers, 0, whole("threads", threads))
    try:
        if operator(*values) is NotImplemented:
            cut = len(inputs)
            rerun_with_copies(operator, names[:cut], names[cut:], values, replaced)
    except ValueError as error:
        raise_as_here(error)


def _given(out: Any, count: int) -> Sequence[Any]:
    """The arrays to write into: `count` of them, None for one that is to be made."""
    if out is None:
        return (None,) * count
    if not isinstance(out, (tuple, list)) or len(out) != count:
        raise TypeError(f"out is no tuple of {count} arrays (or None, to have one made)")
    for i, array in enumerate(out):
        announce_write(f"out[{i}]", array)
    return out


def _weights_type(weights_dtype: Any, logits: np.dtype) -> np.dtype:
    """float32, or float64 with float64 logits, unless another is asked for."""
    if weights_dtype is None:
        return _FLOAT64 if logits == _FLOAT64 else _FLOAT32
    try:
        found: Any = to_dtype(weights_dtype)
    except TypeError:
        found = None
    if found is None or found not in (_FLOAT32, _FLOAT64, logits):
        named = f", or {logits} as logits is" if logits not in (_FLOAT32, _FLOAT64) else ""
        raise TypeError(f"weights_dtype is {weights_dtype!r}, expected float32 or float64{named}")
    return found


def router(
    logits: Any,
    *,
    topk: Optional[int] = None,
    recipe: Optional[str] = None,
    score: Optional[str] = None,
    bias: Any = None,
    token_mask: Any = None,
    groups_num: Optional[int] = None,
    groups_top: Optional[int] = None,
    group_score_count: Optional[int] = None,
    normalize: Optional[bool] = None,
    normalize_scores: Optional[bool] = None,
    eps: Optional[float] = None,
    scale: Optional[float] = None,
    weights_dtype: Any = None,
    index_dtype: Any = np.int64,
    with_scores: bool = True,
    out: Optional[tuple[Any, Any, Any, Any]] = None,
    threads: int = 0,
) -> RouterResult:
    """Chooses each token's experts, and the weight of each.

    Scores come from the logits in binary64; an expert's choice value is score + bias. Of the groups
    the ``groups_top`` best stay, then the ``topk`` best experts of those, best first; ties go to
    the lower index, and NaN ranks below everything. A weight is the chosen expert's score without
    bias, divided by (the sum of the chosen + ``eps``) with ``normalize``, times ``scale``, rounded
    once.

    Parameters
    ----------
    logits : [T, E] float32, float16, bfloat16 or float64
    topk : K. May be left out with ``recipe``.
    recipe : the settings of a model
        ``"mixtral"``, ``"qwen3"``, ``"deepseek-v3"``, ``"gpt-oss"``, ``"llama-4"``, ``"olmoe"``,
        ``"kimi-k2"`` or ``"glm-4.5"``. Options that are given too win over it.
    score : ``"softmax"`` (the default), ``"sigmoid"``, ``"sqrtsoftplus"`` or ``"softmax_after"``
        With ``"softmax_after"`` the logits choose, and the weights are the softmax over the K
        chosen ones; ``scores`` is the softmax over all E.
    bias : [E] float32, float64 or the type of the logits
        Acts on the choice alone (``e_score_correction_bias``).
    token_mask : [T] bool, int8 or uint8
        A token whose entry is 0 is not routed: ids -1, everything else 0, counted nowhere.
    groups_num : the experts are so many groups of equal size, one after another. By default 1.
    groups_top : the groups that stay. By default 1.
    group_score_count : a group's value is the sum of so many of its best choice values. By
        default 2.
    normalize : by default False
    normalize_scores : divide ``scores`` by (its sum over E + ``eps``). By default False.
    eps : by default 1e-20
    scale : by default 1
    weights_dtype : the type of ``weights`` and ``scores``
        float32 (the default, but with float64 logits), float64 or the type of the logits.
    index_dtype : the type of ``expert_ids``, int64 or int32
    with_scores : False: ``scores`` is None, and not computed where nothing else needs it.
    out : arrays to write the four results into, each may be None.
    threads : the most threads to use; 0: OMP_NUM_THREADS, or the processors there are.

    Returns
    -------
    expert_ids : [T, K]
    weights : [T, K]
    scores : [T, E], what the losses take
    rows_per_expert : [E] int64, the tokens of each expert

    Raises
    ------
    ValueError, TypeError
        With a message that names the argument and the values. Nothing has been written then.

    Examples
    --------
    >>> import numpy as np, moetoken
    >>> logits = np.log(np.array([[1., 2., 3., 2.], [4., 1., 1., 2.]]))
    >>> result = moetoken.router(logits, topk=2, normalize=True)
    >>> result.expert_ids
    array([[2, 1],
           [0, 3]])
    >>> result.weights.round(6)
    array([[0.6     , 0.4     ],
           [0.666667, 0.333333]])
    >>> result.rows_per_expert
    array([1, 1, 1, 1])
    """
    config = settings(
        recipe, topk, score, normalize, normalize_scores, groups_num, groups_top,
        group_score_count, eps, scale,
    )  # fmt: skip
    ids, weights, scores, counts = _given(out, 4)
    kind = index_type(index_dtype)
    with_scores = flag("with_scores", with_scores)
    try:
        tokens_num, experts_num = shape_of(logits)
        numbers = _weights_type(weights_dtype, dtype_of(logits))
        ids = new((tokens_num, config.topk), kind) if ids is None else ids
        weights = new((tokens_num, config.topk), numbers) if weights is None else weights
        if not with_scores:
            scores = None
        elif scores is None:
            scores = new((tokens_num, experts_num), numbers)
        counts = new((experts_num,), _INT64) if counts is None else counts
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        refuse(error, ("logits", logits, 2))
    inputs, outputs = (logits, bias, token_mask), (ids, weights, None, None, scores, counts)
    _run(_library.router, _ROUTER, inputs, outputs, config, threads)
    return RouterResult(ids, weights, scores, counts)


def router_grad(
    logits: Any,
    expert_ids: Any,
    weights_grad: Any,
    scores_grad: Any = None,
    *,
    topk: Optional[int] = None,
    recipe: Optional[str] = None,
    score: Optional[str] = None,
    bias: Any = None,
    token_mask: Any = None,
    groups_num: Optional[int] = None,
    groups_top: Optional[int] = None,
    group_score_count: Optional[int] = None,
    normalize: Optional[bool] = None,
    normalize_scores: Optional[bool] = None,
    eps: Optional[float] = None,
    scale: Optional[float] = None,
    out: Any = None,
    threads: int = 0,
) -> np.ndarray:
    """The gradient of :func:`router`: of the logits, from those of the weights and the scores.

    The choice is constant and ``bias`` has no gradient. Options are those of the forward call;
    ``bias`` and the groups', which belong to the choice, change nothing.

    Parameters
    ----------
    logits : [T, E], as in the forward call
    expert_ids : [T, K] int32 or int64
        As :func:`router` wrote them, -1 for a slot that never was. A slot that has been dropped
        since has a gradient of 0, not an id of -1. May be None without ``weights_grad``.
    weights_grad : [T, K] float32, float64 or the type of the logits, or None
    scores_grad : [T, E] likewise, or None
    token_mask : [T], as in the forward call
    out : the array to write into
    threads : the most threads to use; 0: OMP_NUM_THREADS, or the processors there are.

    Returns
    -------
    logits_grad : [T, E] of the type of the logits

    Examples
    --------
    >>> import numpy as np, moetoken
    >>> logits = np.zeros((1, 4))
    >>> moetoken.router_grad(logits, np.array([[0, 1]]), np.array([[1., 0.]]), normalize=True)
    array([[ 0.25, -0.25,  0.  ,  0.  ]])
    """
    slots = 0
    if weights_grad is None and scores_grad is None:
        raise ValueError("weights_grad and scores_grad are None, expected at least one of them")
    try:
        if expert_ids is not None:
            slots = shape_of(expert_ids)[1]
        logits_grad = empty(shape_of(logits), logits) if out is None else _given((out,), 1)[0]
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        refuse(error, ("logits", logits, 2), optional=[("expert_ids", expert_ids, 2)])
    config = settings(
        recipe, check_topk(topk, slots), score, normalize, normalize_scores, groups_num,
        groups_top, group_score_count, eps, scale,
    )  # fmt: skip
    inputs = (logits, token_mask, expert_ids, weights_grad, None, scores_grad)
    _run(_library.router_grad, _ROUTER_GRAD, inputs, (logits_grad,), config, threads)
    return logits_grad


def _loss_like(numbers: Any) -> np.ndarray:
    return new((1,), _FLOAT64 if dtype_of(numbers) == _FLOAT64 else _FLOAT32)


def _upstream(loss_grad: Any) -> Optional[np.ndarray]:
    """The gradient that comes in, as the library takes it."""
    return None if loss_grad is None else np.array([real("loss_grad", loss_grad)])


def router_balance_loss(
    scores: Any,
    rows_per_expert: Any,
    *,
    topk: int,
    coeff: float = 1.0,
    total_tokens: Optional[int] = None,
    loss_grad: Optional[float] = None,
    out: Any = None,
    threads: int = 0,
) -> BalanceLossResult:
    """The switch load balancing loss and its gradient::

        loss = E * coeff / (topk * N**2) * sum over e of rows_per_expert[e] * S[e]

    with N = ``total_tokens`` and S[e] the sum over t of ``scores[t, e]``.

    Parameters
    ----------
    scores : [T, E] float32, float16, bfloat16 or float64, what :func:`router` returned
    rows_per_expert : [E] int64
        Those of other processes may be added up; then ``total_tokens`` is the number of all tokens.
    topk : K, at least 1
    coeff : the loss's factor
    total_tokens : N, by default T
    loss_grad : the gradient of the loss itself, by default 1
    out : the array to write ``scores_grad`` into
    threads : the most threads to use; 0: OMP_NUM_THREADS, or the processors there are.

    Returns
    -------
    loss : a number, float32; float64 with float64 scores. 0 without tokens.
    scores_grad : [T, E] of the type of ``scores``, for :func:`router_grad`

    Examples
    --------
    >>> import numpy as np, moetoken
    >>> scores = np.array([[0.5, 0.5], [0.25, 0.75]])
    >>> loss, scores_grad = moetoken.router_balance_loss(scores, np.array([0, 2]), topk=1)
    >>> float(loss)
    1.25
    >>> scores_grad
    array([[0., 1.],
           [0., 1.]])
    """
    (scores_grad,) = _given(None if out is None else (out,), 1)
    total = 0 if total_tokens is None else whole("total_tokens", total_tokens)
    numbers = (whole("topk", topk, 1), total, real("coeff", coeff))
    try:
        loss = _loss_like(scores)
        scores_grad = empty(shape_of(scores), scores) if scores_grad is None else scores_grad
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        refuse(error, ("scores", scores, 2))
    inputs = (scores, rows_per_expert, _upstream(loss_grad))
    outputs = (loss, scores_grad)
    _run(_library.router_balance_loss, _BALANCE_LOSS, inputs, outputs, numbers, threads)
    return BalanceLossResult(loss[0], scores_grad)


def router_z_loss(
    logits: Any,
    *,
    coeff: float = 1.0,
    token_mask: Any = None,
    loss_grad: Optional[float] = None,
    out: Any = None,
    threads: int = 0,
) -> ZLossResult:
    """The z-loss, ``coeff`` times the mean over the tokens of logsumexp(logits[t, :])**2.

    Parameters
    ----------
    logits : [T, E] float32, float16, bfloat16 or float64
    coeff : the loss's factor
    token_mask : [T] bool, int8 or uint8; tokens whose entry is 0 are left out of the mean.
    loss_grad : the gradient of the loss itself, by default 1
    out : the array to write ``logits_grad`` into
    threads : the most threads to use; 0: OMP_NUM_THREADS, or the processors there are.

    Returns
    -------
    loss : a number, float32; float64 with float64 logits. 0 without tokens.
    logits_grad : [T, E] of the type of the logits

    Examples
    --------
    >>> import numpy as np, moetoken
    >>> loss, logits_grad = moetoken.router_z_loss(np.array([[0., -np.inf], [2., -np.inf]]))
    >>> float(loss)
    2.0
    >>> logits_grad
    array([[0., 0.],
           [2., 0.]])
    """
    (logits_grad,) = _given(None if out is None else (out,), 1)
    try:
        loss = _loss_like(logits)
        logits_grad = empty(shape_of(logits), logits) if logits_grad is None else logits_grad
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        refuse(error, ("logits", logits, 2))
    inputs = (logits, token_mask, _upstream(loss_grad))
    numbers = (real("coeff", coeff),)
    _run(_library.router_z_loss, _Z_LOSS, inputs, (loss, logits_grad), numbers, threads)
    return ZLossResult(loss[0], logits_grad)


def router_update_bias(
    bias: Any, rows_per_expert: Any, rate: float, *, out: Any = None
) -> np.ndarray:
    """Balancing without a loss: ``bias[e] + rate * sign(mean count - rows_per_expert[e])``.

    Parameters
    ----------
    bias : [E] float32, float16, bfloat16 or float64
    rows_per_expert : [E] int64; the comparison with its mean is exact.
    rate : the step
    out : the array to write into; may be ``bias`` itself.

    Returns
    -------
    updated_bias : [E] of the type of ``bias``

    Examples
    --------
    >>> import numpy as np, moetoken
    >>> moetoken.router_update_bias(np.zeros(3), np.array([4, 2, 0]), 0.5)
    array([-0.5,  0. ,  0.5])
    """
    (updated,) = _given(None if out is None else (out,), 1)
    try:
        updated = empty(shape_of(bias), bias) if updated is None else updated
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        refuse(error, ("bias", bias, 1))
    numbers, inputs = (real("rate", rate),), (bias, rows_per_expert)
    _run(_library.router_update_bias, _UPDATE_BIAS, inputs, (updated,), numbers, 0, "bias")
    return updated


def router_drop(
    expert_ids: Any,
    weights: Any,
    *,
    experts_num: int,
    capacity: int,
    out: Optional[tuple[Any, Any, Any]] = None,
) -> DropResult:
    """Each expert keeps its ``capacity`` heaviest slots; ties stay with the lower slot.

    NaN is lighter than everything. To drop by slot order instead, give
    :func:`moetoken.ids.permute` a capacity.

    Parameters
    ----------
    expert_ids : [T, K] int32 or int64, -1 for an unused slot
    weights : [T, K] float32, float16, bfloat16 or float64
    experts_num : E
    capacity : the most slots of an expert, at least 0
    out : arrays to write the three results into, each may be None.
        ``expert_ids`` and ``weights`` themselves may be given for the first two.

    Returns
    -------
    kept_ids : [T, K], -1 for a slot that is dropped
    kept_weights : [T, K], 0 for a slot that is dropped
    rows_per_expert : [E] int64, the slots that are kept

    Examples
    --------
    >>> import numpy as np, moetoken
    >>> ids, weights = np.array([[0, 1], [0, -1], [0, 1]]), np.array([[1., 2.], [3., 0.], [2., 2.]])
    >>> found = moetoken.router_drop(ids, weights, experts_num=2, capacity=1)
    >>> found.kept_ids.tolist(), found.rows_per_expert.tolist()
    ([[-1, 1], [0, -1], [-1, -1]], [1, 1])
    """
    kept_ids, kept_weights, counts = _given(out, 3)
    numbers = (whole("experts_num", experts_num), whole("capacity", capacity))
    try:
        kept_ids = empty(shape_of(expert_ids), expert_ids) if kept_ids is None else kept_ids
        if kept_weights is None:
            kept_weights = empty(shape_of(weights), weights)
        counts = new((numbers[0],), _INT64) if counts is None else counts
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        refuse(error, ("expert_ids", expert_ids, 2), ("weights", weights, 2))
    outputs = (kept_ids, kept_weights, counts)
    _run(_library.router_drop, _DROP, (expert_ids, weights), outputs, numbers, 0, "expert_ids")
    return DropResult(kept_ids, kept_weights, counts)
