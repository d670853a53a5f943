"""The four operators on a routing by expert ids, the form that most frameworks hold.

``expert_ids`` [T, K] lists the experts of each token (topk_ids, top_k_index), ``weights`` [T, K]
their weights. Slot t * K + k belongs to token t and expert ``expert_ids[t, k]``; -1 there stands
for an unused slot. Nothing of size T * E is made or read. Results are the same bits that the
functions of :mod:`moetoken` give for the same routing as a map.

T, H, E, K are the numbers of tokens, hidden elements, experts and slots of a token, N = T * K,
R the rows of the permuted tensors. Arrays are those that :mod:`moetoken` takes: floats are float32,
float16, bfloat16 or float64 and of one type in a call, weights of the same type or float32 with
16-bit tokens, indices int32 or int64. Results are NumPy arrays; one that nothing was given for is
None. Every function raises ValueError, TypeError or IndexError with a message that names the
argument, the place and the values.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterator, NamedTuple, NoReturn, Optional

import numpy as np

from . import _library
from ._arrays import Result, empty, new, refuse, rerun_with_copies, shape_of, whole

__all__ = [
    "PermuteGradResult",
    "PermuteResult",
    "UnpermuteGradResult",
    "permute",
    "permute_grad",
    "unpermute",
    "unpermute_grad",
]

# The names of the arrays, inputs first, in the order that the C functions take them.
_PERMUTE = (
    "tokens", "expert_ids", "weights",
    "permuted_tokens", "permuted_weights", "sorted_indices", "source_slots", "rows_per_expert",
)  # fmt: skip
_PERMUTE_GRAD = (
    "permuted_tokens_grad", "permuted_weights_grad", "sorted_indices",
    "tokens_grad", "weights_grad",
)  # fmt: skip
_UNPERMUTE = (
    "permuted_tokens", "sorted_indices", "weights", "residual", "residual2", "expert_bias",
    "expert_ids", "unpermuted_tokens",
)  # fmt: skip
_UNPERMUTE_GRAD = (
    "unpermuted_tokens_grad", "sorted_indices", "permuted_tokens", "weights", "expert_bias",
    "expert_ids", "permuted_tokens_grad", "weights_grad",
)  # fmt: skip

# What the library calls the arguments that have another name here.
_RENAMED = (("permuted_probs", "permuted_weights"), ("out_index", "sorted_indices"))


class PermuteResult(NamedTuple):
    """What :func:`permute` returns."""

    permuted_tokens: Result
    permuted_weights: Result
    sorted_indices: np.ndarray
    source_slots: np.ndarray
    rows_per_expert: np.ndarray


class PermuteGradResult(NamedTuple):
    """What :func:`permute_grad` returns."""

    tokens_grad: Result
    weights_grad: Result


class UnpermuteGradResult(NamedTuple):
    """What :func:`unpermute_grad` returns."""

    permuted_tokens_grad: np.ndarray
    weights_grad: Result


def _run(
    operator: Callable[..., Any],
    names: tuple[str, ...],
    inputs: tuple[Any, ...],
    outputs: tuple[Any, ...],
    numbers: tuple[int, ...],
    threads: int,
    flags: int = 0,
) -> None:
    values = (*inputs, *outputs, *numbers, flags, whole("threads", threads))
    with names_as_here():
        if operator(*values) is NotImplemented:
            rerun_with_copies(operator, names[: len(inputs)], names[len(inputs) :], values)


@contextlib.contextmanager
def names_as_here() -> Iterator[None]:
    """The library's messages with the names that the arguments have in this form."""
    try:
        yield
    except (ValueError, TypeError, IndexError) as error:
        text = renamed = str(error)
        for library, here in _RENAMED:
            renamed = renamed.replace(library, here)
        if renamed == text:
            raise
        raise type(error)(renamed) from None


def _refuse(error: Exception, required: tuple[str, ...], **given: tuple[Any, int]) -> NoReturn:
    """Says which array, by name (array, rank), is wrong; those not required may be None."""
    arrays = [(name, array, rank) for name, (array, rank) in given.items()]
    refuse(
        error,
        *[array for array in arrays if array[0] in required],
        optional=[array for array in arrays if array[0] not in required],
    )


def _tokens_of(slots: int, topk: int) -> int:
    """T, of N slots."""
    if slots % topk:
        raise ValueError(f"sorted_indices has size {slots}, expected a multiple of topk = {topk}")
    return slots // topk


def permute(
    tokens: Any,
    expert_ids: Any,
    weights: Any = None,
    *,
    experts_num: int,
    expert_begin: int = 0,
    expert_end: Optional[int] = None,
    capacity: Optional[int] = None,
    rows_num: Optional[int] = None,
    threads: int = 0,
) -> PermuteResult:
    """Sends every token to its experts: rows in expert order, bit copies of the tokens' rows.

    Inside an expert rows are in slot order. A token may name one expert twice: two slots, two rows.

    Parameters
    ----------
    tokens : [T, H], or None: only the indices and weights are made
    expert_ids : [T, K] int32 or int64
        -1 is an unused slot; so is an expert outside [expert_begin, expert_end).
    weights : [T, K], or None
    experts_num : E; ids below -1 or from E on are an IndexError.
    expert_begin, expert_end : the experts whose rows are made; all of them by default.
    capacity : C, the most rows of an expert. Its further slots are dropped; row
        (e - expert_begin) * C + c holds the c-th slot of expert e. None: as many as there are.
    rows_num : R. Rows from R on are dropped, their slots get -1; rows that no slot fills are zero.
        By default N, with ``capacity`` (expert_end - expert_begin) * C.
    threads : the most threads to use; 0: OMP_NUM_THREADS, or the processors there are.

    Returns
    -------
    permuted_tokens : [R, H], or None without ``tokens``
    permuted_weights : [R] of the type of ``weights``, or None without
    sorted_indices : [N] of the type of ``expert_ids``
        The row of each slot, -1 for a slot that is unused or dropped.
    source_slots : [R] of the type of ``expert_ids``
        The slot of each row, -1 for a row that no slot fills.
    rows_per_expert : [expert_end - expert_begin] int64, the rows of each expert that are kept

    Examples
    --------
    >>> import numpy as np
    >>> from moetoken import ids
    >>> tokens = np.array([[1., 2.], [3., 4.]])
    >>> result = ids.permute(tokens, np.array([[1, 0], [-1, 1]]), experts_num=2, rows_num=3)
    >>> result.permuted_tokens
    array([[1., 2.],
           [1., 2.],
           [3., 4.]])
    >>> result.sorted_indices, result.source_slots, result.rows_per_expert
    (array([ 1,  0, -1,  2]), array([1, 0, 3]), array([1, 2]))
    """
    experts_num = whole("experts_num", experts_num)
    expert_begin = whole("expert_begin", expert_begin)
    expert_end = experts_num if expert_end is None else whole("expert_end", expert_end)
    if not expert_begin <= expert_end <= experts_num:
        raise ValueError(
            f"expert_begin = {expert_begin}, expert_end = {expert_end}: expected "
            f"0 <= expert_begin <= expert_end <= experts_num = {experts_num}"
        )
    experts = expert_end - expert_begin
    capacity = 0 if capacity is None else whole("capacity", capacity, least=1)
    permuted_tokens = permuted_weights = None
    try:
        tokens_num, topk = shape_of(expert_ids)
        if rows_num is not None:
            rows_num = whole("rows_num", rows_num)
        else:
            rows_num = capacity * experts if capacity else tokens_num * topk
        if tokens is not None:
            permuted_tokens = empty((rows_num, shape_of(tokens)[1]), tokens)
        if weights is not None:
            permuted_weights = empty((rows_num,), weights)
        sorted_indices = empty((tokens_num * topk,), expert_ids)
        source_slots = empty((rows_num,), expert_ids)
        rows_per_expert = new((experts,), np.dtype(np.int64))
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        _refuse(
            error,
            ("expert_ids",),
            tokens=(tokens, 2),
            expert_ids=(expert_ids, 2),
            weights=(weights, 2),
        )
    if experts == 0:  # the library takes [0, 0) for all experts
        expert_begin = expert_end = experts_num
    result = PermuteResult(
        permuted_tokens, permuted_weights, sorted_indices, source_slots, rows_per_expert
    )
    numbers = (experts_num, expert_begin, expert_end, capacity)
    _run(_library.permute_by_ids, _PERMUTE, (tokens, expert_ids, weights), result, numbers, threads)
    return result


def permute_grad(
    permuted_tokens_grad: Any,
    sorted_indices: Any,
    *,
    topk: int,
    permuted_weights_grad: Any = None,
    threads: int = 0,
) -> PermuteGradResult:
    """The gradient of :func:`permute`.

    ``tokens_grad[t, :]`` is the sum over the slots of token t, in slot order, of
    ``permuted_tokens_grad[row, :]``; ``weights_grad[t, k]`` is ``permuted_weights_grad[row]``, 0
    for an unused slot.

    Parameters
    ----------
    permuted_tokens_grad : [R, H], or None
    sorted_indices : [N], what :func:`permute` returned; no row may be named twice
    topk : K, with N = T * K
    permuted_weights_grad : [R], or None
    threads : the most threads to use; 0: OMP_NUM_THREADS, or the processors there are.

    Returns
    -------
    tokens_grad : [T, H], or None without ``permuted_tokens_grad``
    weights_grad : [T, K], or None without ``permuted_weights_grad``

    Examples
    --------
    >>> import numpy as np
    >>> from moetoken import ids
    >>> rows_grad = np.array([[1., 2.], [3., 4.], [5., 6.]])
    >>> ids.permute_grad(rows_grad, np.array([1, 0, -1, 2]), topk=2).tokens_grad
    array([[4., 6.],
           [5., 6.]])
    """
    topk = whole("topk", topk, least=1)
    tokens_grad = weights_grad = None
    try:
        (slots,) = shape_of(sorted_indices)
        tokens_num = _tokens_of(slots, topk)
        if permuted_tokens_grad is not None:
            tokens_grad = empty(
                (tokens_num, shape_of(permuted_tokens_grad)[1]), permuted_tokens_grad
            )
        if permuted_weights_grad is not None:
            weights_grad = empty((tokens_num, topk), permuted_weights_grad)
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        _refuse(
            error,
            ("sorted_indices",),
            permuted_tokens_grad=(permuted_tokens_grad, 2),
            sorted_indices=(sorted_indices, 1),
            permuted_weights_grad=(permuted_weights_grad, 1),
        )
    inputs = (permuted_tokens_grad, permuted_weights_grad, sorted_indices)
    result = PermuteGradResult(tokens_grad, weights_grad)
    _run(_library.permute_grad_by_ids, _PERMUTE_GRAD, inputs, result, (tokens_num,), threads)
    return result


def unpermute(
    permuted_tokens: Any,
    sorted_indices: Any,
    weights: Any = None,
    *,
    topk: Optional[int] = None,
    residual: Any = None,
    residual2: Any = None,
    expert_bias: Any = None,
    expert_ids: Any = None,
    threads: int = 0,
) -> np.ndarray:
    """The weighted combine: adds the experts' rows up again, in token order.

    ``unpermuted_tokens[t, :]`` is the sum of ``residual[t, :]``, ``residual2[t, :]`` and, over the
    slots of token t in slot order, of w * permuted_tokens[row, :], then w * expert_bias[e, :]. Sums
    are in float32 (float64 for float64 tokens), rounded once. A slot of weight 0 adds nothing.

    Parameters
    ----------
    permuted_tokens : [R, H]
    sorted_indices : [N]
        What :func:`permute` returned, -1 where a slot is unused. A row may be named twice.
    weights : [T, K]; without them all are 1
    topk : K, with N = T * K. Needed without ``weights``, ``expert_ids`` and ``residual``.
    residual, residual2 : [T, H], added first; the second needs the first
    expert_bias : [E, H], with ``expert_ids``
    expert_ids : [T, K], which row of ``expert_bias`` belongs to a slot
    threads : the most threads to use; 0: OMP_NUM_THREADS, or the processors there are.

    Returns
    -------
    unpermuted_tokens : [T, H]

    Examples
    --------
    >>> import numpy as np
    >>> from moetoken import ids
    >>> rows = np.array([[1., 2.], [3., 4.], [5., 6.]])
    >>> weights = np.array([[1., 2.], [0., 0.5]])
    >>> ids.unpermute(rows, np.array([1, 0, -1, 2]), weights, residual=np.ones((2, 2)))
    array([[6. , 9. ],
           [3.5, 4. ]])
    """
    try:
        (slots,) = shape_of(sorted_indices)
        if topk is not None:
            tokens_num = _tokens_of(slots, whole("topk", topk, least=1))
        else:
            givers = (weights, expert_ids, residual)
            source = next((array for array in givers if array is not None), None)
            if source is None:
                raise ValueError(
                    "topk is missing: without weights, expert_ids and residual it must be given"
                )
            tokens_num = shape_of(source)[0]
        unpermuted_tokens = empty((tokens_num, shape_of(permuted_tokens)[1]), permuted_tokens)
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        _refuse(
            error,
            ("permuted_tokens", "sorted_indices"),
            permuted_tokens=(permuted_tokens, 2),
            sorted_indices=(sorted_indices, 1),
            weights=(weights, 2),
            expert_ids=(expert_ids, 2),
            residual=(residual, 2),
        )
    flags = _library.REPEATED_ROWS if weights is None and expert_ids is None else 0
    inputs = (
        permuted_tokens, sorted_indices, weights, residual, residual2, expert_bias, expert_ids
    )  # fmt: skip
    _run(_library.unpermute_by_ids, _UNPERMUTE, inputs, (unpermuted_tokens,), (), threads, flags)
    return unpermuted_tokens


def unpermute_grad(
    unpermuted_tokens_grad: Any,
    sorted_indices: Any,
    *,
    permuted_tokens: Any = None,
    weights: Any = None,
    expert_bias: Any = None,
    expert_ids: Any = None,
    rows_num: Optional[int] = None,
    threads: int = 0,
) -> UnpermuteGradResult:
    """The gradient of :func:`unpermute`.

    With g = ``unpermuted_tokens_grad``, for every slot with row r, token t, expert e, weight w::

        permuted_tokens_grad[r, :] = w * g[t, :]
        weights_grad[t, k] = <permuted_tokens[r, :], g[t, :]> + <expert_bias[e, :], g[t, :]>

    and zero wherever no slot reaches. The gradient of a residual is g itself.

    Parameters
    ----------
    unpermuted_tokens_grad : [T, H]
    sorted_indices : [N], what :func:`permute` returned; no row may be named twice
    permuted_tokens : [R, H], what :func:`unpermute` combined. Needed for ``weights_grad``.
    weights : [T, K]; without them all are 1
    expert_bias, expert_ids : [E, H] and [T, K], as :func:`unpermute` had them
    rows_num : R; by default the rows of ``permuted_tokens``, else N
    threads : the most threads to use; 0: OMP_NUM_THREADS, or the processors there are.

    Returns
    -------
    permuted_tokens_grad : [R, H]
    weights_grad : [T, K], or None without ``weights`` or ``permuted_tokens``

    Examples
    --------
    >>> import numpy as np
    >>> from moetoken import ids
    >>> g, rows = np.array([[1., 2.], [3., 4.]]), np.array([[1., 2.], [3., 4.], [5., 6.]])
    >>> result = ids.unpermute_grad(
    ...     g, np.array([1, 0, -1, 2]), permuted_tokens=rows, weights=np.array([[1., 2.], [9., 3.]]))
    >>> result.permuted_tokens_grad
    array([[ 2.,  4.],
           [ 1.,  2.],
           [ 9., 12.]])
    >>> result.weights_grad
    array([[11.,  5.],
           [ 0., 39.]])
    """
    weights_grad = None
    try:
        if rows_num is not None:
            rows_num = whole("rows_num", rows_num)
        else:
            source = sorted_indices if permuted_tokens is None else permuted_tokens
            rows_num = shape_of(source)[0]
        hidden_size = shape_of(unpermuted_tokens_grad)[1]
        permuted_tokens_grad = empty((rows_num, hidden_size), unpermuted_tokens_grad)
        if weights is not None and permuted_tokens is not None:
            weights_grad = empty(shape_of(weights), weights)
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        _refuse(
            error,
            ("unpermuted_tokens_grad", "sorted_indices"),
            unpermuted_tokens_grad=(unpermuted_tokens_grad, 2),
            sorted_indices=(sorted_indices, 1),
            permuted_tokens=(permuted_tokens, 2),
            weights=(weights, 2),
        )
    inputs = (
        unpermuted_tokens_grad, sorted_indices, permuted_tokens, weights, expert_bias, expert_ids
    )  # fmt: skip
    result = UnpermuteGradResult(permuted_tokens_grad, weights_grad)
    _run(_library.unpermute_grad_by_ids, _UNPERMUTE_GRAD, inputs, result, (), threads)
    return result
