"""The four operators on NumPy arrays, and on whatever else lends its memory.

Names and meaning are those of the contract (docs/contract.md): T, H, E are the numbers of tokens,
hidden elements and experts, N the slots, R the rows of the permuted tensors.
"""

from __future__ import annotations

from typing import Any, Optional, Sequence

import numpy as np

from . import _library
from ._arrays import (
    Result,
    empty,
    flag,
    flags,
    index_type,
    new,
    pair,
    refuse,
    rerun_with_copies,
    shape_of,
    whole,
)
from ._foreign import announce_write

__all__ = ["permute", "permute_grad", "unpermute", "unpermute_grad"]

_ndarray = np.ndarray
_MASK_FILL_SLOTS = _library.MASK_FILL_SLOTS
_TOLERATE = _library.TOLERATE_ROUTING_MISMATCH
_permute = _library.permute
_permute_grad = _library.permute_grad
_unpermute = _library.unpermute
_unpermute_grad = _library.unpermute_grad


# The names of the arrays, inputs first, in the order that the C functions take them.
_PERMUTE = (
    "tokens", "routing_map", "probs", "permuted_tokens", "permuted_probs", "sorted_indices"
)  # fmt: skip
_PERMUTE_GRAD = (
    "permuted_tokens_grad", "permuted_probs_grad", "sorted_indices", "routing_map",
    "tokens_grad", "probs_grad",
)  # fmt: skip
_UNPERMUTE = (
    "permuted_tokens", "sorted_indices", "routing_map", "probs",
    "unpermuted_tokens", "out_index", "permute_token_id", "permuted_probs",
)  # fmt: skip
_UNPERMUTE_GRAD = (
    "unpermuted_tokens_grad", "out_index", "permute_token_id", "routing_map", "permuted_tokens",
    "probs", "permuted_tokens_grad", "probs_grad",
)  # fmt: skip

_BOTH = (True, True)  # the default output_mask, told by identity


def _options(mask_fill_slots: Any, tolerate_routing_mismatch: Any) -> int:
    """The flags of the library's options."""
    if mask_fill_slots is False and tolerate_routing_mismatch is False:
        return 0
    return (
        flag("mask_fill_slots", mask_fill_slots) * _MASK_FILL_SLOTS
        + flag("tolerate_routing_mismatch", tolerate_routing_mismatch) * _TOLERATE
    )


def _outputs(out: Optional[Sequence[Any]], count: int) -> Sequence[Any]:
    if not isinstance(out, (tuple, list)) or len(out) != count:
        raise TypeError(f"out is no tuple of {count} arrays (or None, to have one made)")
    for i, array in enumerate(out):
        if array is not None and type(array) is not _ndarray:
            announce_write(f"out[{i}]", array)
    return out


def unpermute_grad(
    unpermuted_tokens_grad: Any,
    out_index: Any,
    permute_token_id: Any = None,
    *,
    routing_map: Any = None,
    permuted_tokens: Any = None,
    probs: Any = None,
    drop_and_pad: bool = False,
    restore_shape: Optional[Sequence[int]] = None,
    rows_num: Optional[int] = None,
    output_mask: Sequence[bool] = _BOTH,
    mask_fill_slots: bool = False,
    tolerate_routing_mismatch: bool = False,
    out: Optional[tuple[Any, Any]] = None,
    threads: int = 0,
) -> tuple[Result, Result]:
    """The gradient of the weighted combine, :func:`unpermute`.

    For every slot i with row r, token t, expert e and weight w::

        permuted_tokens_grad[r, :] = w * g[t, :]
        probs_grad[t, e]           = sum over h of permuted_tokens[r, h] * g[t, h]

    where g is ``unpermuted_tokens_grad``, and zero wherever no slot reaches. The row is
    ``out_index[i]``; -1 marks an unused slot.

    Parameters
    ----------
    unpermuted_tokens_grad : [T, H] float32, float16, bfloat16 or float64
    out_index : [N] int32 or int64
    permute_token_id : [N] int32 or int64
        The token of each slot. May be left out unless ``drop_and_pad``: then slot i belongs to
        token i // K, with K = N / T.
    routing_map : [T, E] bool, int8 or uint8
        Non-zero where the expert processes the token. Required with ``probs``.
    permuted_tokens : [R, H] like ``unpermuted_tokens_grad``
        The rows that the forward pass combined. Required with ``probs``.
    probs : [T, E] the token type, or float32 with float16 or bfloat16 tokens
        The weights; without them all are 1.
    drop_and_pad : every expert has N / E rows, and slots hold no -1.
    restore_shape : (T, H), only checked.
    rows_num : R. Where it is not given: the rows of ``permuted_tokens``, else of ``out[0]``,
        else N.
    output_mask : which of the two results to compute; the other one is None.
    mask_fill_slots : with ``drop_and_pad``, slots whose pair is not in ``routing_map`` are zero.
    tolerate_routing_mismatch : a slot that ``routing_map`` has no expert for gets weight 0
        instead of an error.
    out : (permuted_tokens_grad, probs_grad) to write into, each may be None.
        ``permuted_tokens`` itself may be given for the first: it is then replaced in place.
    threads : the most threads to use; 0: OMP_NUM_THREADS, or the processors there are.

    Returns
    -------
    permuted_tokens_grad : [R, H], or None
    probs_grad : [T, E] of the type of ``probs``, or None without ``probs``

    Raises
    ------
    ValueError, TypeError, IndexError
        With the library's message, which names the argument, the place and the values. Nothing
        has been written then.

    Examples
    --------
    Three tokens, two slots each, the second slot of token 1 unused:

    >>> import numpy as np, moetoken
    >>> g = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
    >>> x = np.arange(10, dtype=np.float32).reshape(5, 2)
    >>> routing_map = np.array([[1, 0, 1], [0, 1, 0], [1, 1, 0]], bool)
    >>> probs = np.where(routing_map, np.float32(0.5), np.float32(0))
    >>> dx, dprobs = moetoken.unpermute_grad(
    ...     g, np.array([0, 4, 2, -1, 1, 3]),
    ...     routing_map=routing_map, permuted_tokens=x, probs=probs)
    >>> dx[4]
    array([0.5, 1. ], dtype=float32)
    >>> dprobs
    array([[ 2.,  0., 26.],
           [ 0., 32.,  0.],
           [28., 72.,  0.]], dtype=float32)
    """
    tokens_grad = probs_grad = tokens_num = hidden_size = None
    if output_mask is not _BOTH:
        output_mask = flags("output_mask", output_mask, 2)
    wants_tokens_grad, wants_probs_grad = output_mask
    drop_and_pad = flag("drop_and_pad", drop_and_pad)
    threads = whole("threads", threads)
    if restore_shape is not None:
        tokens_num, hidden_size = pair("restore_shape", restore_shape)
    if rows_num is not None:
        rows_num = whole("rows_num", rows_num)
    if out is not None:
        tokens_grad, probs_grad = _outputs(out, 2)
    try:
        if not wants_tokens_grad:
            tokens_grad = None
        elif tokens_grad is None:
            if rows_num is None and permuted_tokens is not None:
                rows_num = permuted_tokens.shape[0]
            elif rows_num is None:
                rows_num = shape_of(out_index)[0]
            if type(unpermuted_tokens_grad) is _ndarray:  # as empty() does, without the calls
                shape = (rows_num, unpermuted_tokens_grad.shape[1])
                tokens_grad = new(shape, unpermuted_tokens_grad.dtype)
            else:
                shape = (rows_num, shape_of(unpermuted_tokens_grad)[1])
                tokens_grad = empty(shape, unpermuted_tokens_grad)
        if not wants_probs_grad or probs is None:
            probs_grad = None
        elif probs_grad is None:
            if type(probs) is _ndarray:
                probs_grad = new(probs.shape, probs.dtype)
            else:
                probs_grad = empty(shape_of(probs), probs)
    except (AttributeError, IndexError, TypeError) as error:
        refuse(
            error,
            ("unpermuted_tokens_grad", unpermuted_tokens_grad, 2),
            ("out_index", out_index, 1),
            optional=[("permuted_tokens", permuted_tokens, 2), ("probs", probs, 2)],
        )
    options = _options(mask_fill_slots, tolerate_routing_mismatch)
    # fmt: off
    if _unpermute_grad(
        unpermuted_tokens_grad, out_index, permute_token_id, routing_map, permuted_tokens, probs,
        tokens_grad, probs_grad, drop_and_pad, tokens_num, hidden_size, options, threads,
    ) is NotImplemented:
        rerun_with_copies(_unpermute_grad, _UNPERMUTE_GRAD[:6], _UNPERMUTE_GRAD[6:], (
            unpermuted_tokens_grad, out_index, permute_token_id, routing_map, permuted_tokens,
            probs, tokens_grad, probs_grad, drop_and_pad, tokens_num, hidden_size, options, threads,
        ), "permuted_tokens")
    # fmt: on
    return tokens_grad, probs_grad


def unpermute(
    permuted_tokens: Any,
    sorted_indices: Any,
    *,
    routing_map: Any = None,
    probs: Any = None,
    restore_shape: Optional[Sequence[int]] = None,
    drop_and_pad: bool = False,
    output_mask: Sequence[bool] = (True, True, True, True),
    mask_fill_slots: bool = False,
    tolerate_routing_mismatch: bool = False,
    out: Optional[tuple[Any, Any, Any, Any]] = None,
    threads: int = 0,
) -> tuple[Result, Result, Result, Result]:
    """The weighted combine: adds the experts' rows up again, in token order.

    ``unpermuted_tokens[t, :]`` is the sum over the slots of token t, in slot order, of
    w * permuted_tokens[row, :]. A token without slots gets zeros; a slot of weight 0 adds nothing.

    Parameters
    ----------
    permuted_tokens : [R, H] float32, float16, bfloat16 or float64
    sorted_indices : [N] int32 or int64
        The row of each slot, K slots a token, -1 where a slot is unused; with ``drop_and_pad``
        the token of each row. What :func:`permute` returns.
    routing_map : [T, E] bool, int8 or uint8. Required with ``probs``.
    probs : [T, E] the token type, or float32 with float16 or bfloat16 tokens
        The weights; without them all are 1.
    restore_shape : (T, H). May be left out with ``routing_map``, ``probs`` or ``out[0]``.
    drop_and_pad : every expert has N / E rows.
    output_mask : which of the four results to compute; the others are None.
    mask_fill_slots : with ``drop_and_pad``, slots whose pair is not in ``routing_map`` have
        weight 0.
    tolerate_routing_mismatch : a slot that ``routing_map`` has no expert for gets weight 0
        instead of an error.
    out : arrays to write the four results into, each may be None.
    threads : the most threads to use; 0: OMP_NUM_THREADS, or the processors there are.

    Returns
    -------
    unpermuted_tokens : [T, H]
    out_index, permute_token_id : [N], of the type of ``sorted_indices``
        What :func:`unpermute_grad` takes.
    permuted_probs : [N], the weight of each slot of ``sorted_indices``; None without ``probs``

    Raises
    ------
    ValueError, TypeError, IndexError
        With the library's message. Nothing has been written then.

    Examples
    --------
    >>> import numpy as np, moetoken
    >>> x = np.array([[1., 2.], [3., 4.], [5., 6.]])
    >>> moetoken.unpermute(x, np.array([2, 0, 1, -1]), restore_shape=(2, 2))[0]
    array([[6., 8.],
           [3., 4.]])
    """
    tokens = out_index = token_id = permuted_probs = None
    if out is not None:
        tokens, out_index, token_id, permuted_probs = _outputs(out, 4)
    wants_tokens, wants_out_index, wants_token_id, wants_probs = flags(
        "output_mask", output_mask, 4
    )
    drop_and_pad = flag("drop_and_pad", drop_and_pad)
    threads = whole("threads", threads)
    options = _options(mask_fill_slots, tolerate_routing_mismatch)
    try:
        if restore_shape is not None:
            tokens_num, hidden_size = pair("restore_shape", restore_shape)
        else:
            source = tokens if tokens is not None else probs if probs is not None else routing_map
            if source is None:
                raise ValueError("restore_shape is missing, expected (tokens_num, hidden_size)")
            tokens_num, hidden_size = shape_of(source)[0], shape_of(permuted_tokens)[1]
        if not wants_tokens:
            tokens = None
        elif tokens is None:
            tokens = empty((tokens_num, hidden_size), permuted_tokens)
        slots, indices = shape_of(sorted_indices), sorted_indices
        make: Any = empty
        if type(indices) is _ndarray:  # as empty() does, but once
            indices, make = indices.dtype, new
        if not wants_out_index:
            out_index = None
        elif out_index is None:
            out_index = make(slots, indices)
        if not wants_token_id:
            token_id = None
        elif token_id is None:
            token_id = make(slots, indices)
        if not wants_probs or probs is None:
            permuted_probs = None
        elif permuted_probs is None:
            permuted_probs = empty(slots, probs)
    except (AttributeError, IndexError, TypeError) as error:
        refuse(
            error,
            ("permuted_tokens", permuted_tokens, 2),
            ("sorted_indices", sorted_indices, 1),
            optional=[("probs", probs, 2), ("routing_map", routing_map, 2)],
        )
    values = (
        permuted_tokens,
        sorted_indices,
        routing_map,
        probs,
        tokens,
        out_index,
        token_id,
        permuted_probs,
        drop_and_pad,
        tokens_num,
        hidden_size,
        options,
        threads,
    )
    if _unpermute(*values) is NotImplemented:
        rerun_with_copies(_unpermute, _UNPERMUTE[:4], _UNPERMUTE[4:], values)
    return tokens, out_index, token_id, permuted_probs


def _default_num_out_tokens(routing_map: Any, drop_and_pad: bool) -> int:
    """T * K, with as many slots a token as the busiest token needs."""
    if drop_and_pad:
        raise ValueError("num_out_tokens is missing, expected E * C when drop_and_pad is set")
    set_pairs = np.count_nonzero(np.asarray(routing_map), axis=1)
    return int(set_pairs.max(initial=0)) * len(set_pairs)


def _check_num_out_tokens(value: Any, routing_map: Any, drop_and_pad: bool) -> int:
    """N, of which each token (with drop_and_pad: each expert) has the same part."""
    number = whole("num_out_tokens", value)
    share = shape_of(routing_map)[1 if drop_and_pad else 0]
    if share and number % share:
        symbol = "E" if drop_and_pad else "T"
        raise ValueError(
            f"num_out_tokens = {number}, expected a multiple of {symbol} = {share} "
            "(from routing_map)"
        )
    return number


def permute(
    tokens: Any,
    routing_map: Any,
    probs: Any = None,
    num_out_tokens: Optional[int] = None,
    drop_and_pad: bool = False,
    *,
    rows_num: Optional[int] = None,
    index_dtype: Any = np.int32,
    output_mask: Sequence[bool] = (True, True, True),
    out: Optional[tuple[Any, Any, Any]] = None,
    threads: int = 0,
) -> tuple[Result, Result, Result]:
    """Sends every token to its experts: rows in expert order, bit copies of the tokens' rows.

    Parameters
    ----------
    tokens : [T, H] float32, float16, bfloat16 or float64
    routing_map : [T, E] bool, int8 or uint8
        Non-zero where the expert processes the token.
    probs : [T, E] the token type, or float32 with float16 or bfloat16 tokens
    num_out_tokens : N, the number of slots: T * K, or E * C with ``drop_and_pad``.
        Where it is not given, K is the most experts that a token of ``routing_map`` has.
    drop_and_pad : every expert takes C rows: its first C tokens, then fill slots.
    rows_num : R, at least the number of set pairs; rows beyond those are zero. N by default.
    index_dtype : int32 or int64, the type of ``sorted_indices``.
    output_mask : which of the three results to compute; the others are None.
    out : arrays to write the three results into, each may be None.
    threads : the most threads to use; 0: OMP_NUM_THREADS, or the processors there are.

    Returns
    -------
    permuted_tokens : [R, H]
    permuted_probs : [R], or None without ``probs``
    sorted_indices : [N]
        The row of each slot, K slots a token, -1 where a slot is unused; with ``drop_and_pad``
        the token of each row.

    Raises
    ------
    ValueError, TypeError
        With the library's message. Nothing has been written then.

    Examples
    --------
    >>> import numpy as np, moetoken
    >>> tokens = np.array([[1., 2.], [3., 4.]])
    >>> routing_map = np.array([[True, True], [False, True]])
    >>> rows, _, sorted_indices = moetoken.permute(tokens, routing_map, rows_num=3)
    >>> rows
    array([[1., 2.],
           [1., 2.],
           [3., 4.]])
    >>> sorted_indices
    array([ 0,  1,  2, -1], dtype=int32)
    """
    permuted_tokens = permuted_probs = sorted_indices = None
    if out is not None:
        permuted_tokens, permuted_probs, sorted_indices = _outputs(out, 3)
    wants_tokens, wants_probs, wants_indices = flags("output_mask", output_mask, 3)
    drop_and_pad = flag("drop_and_pad", drop_and_pad)
    threads = whole("threads", threads)
    try:
        if num_out_tokens is None:
            num_out_tokens = _default_num_out_tokens(routing_map, drop_and_pad)
        num_out_tokens = _check_num_out_tokens(num_out_tokens, routing_map, drop_and_pad)
        rows_num = num_out_tokens if rows_num is None else whole("rows_num", rows_num)
        if not wants_tokens:
            permuted_tokens = None
        elif permuted_tokens is None:
            permuted_tokens = empty((rows_num, shape_of(tokens)[1]), tokens)
        if not wants_probs or probs is None:
            permuted_probs = None
        elif permuted_probs is None:
            permuted_probs = empty((rows_num,), probs)
        if not wants_indices:
            sorted_indices = None
        elif sorted_indices is None:
            sorted_indices = new((num_out_tokens,), index_type(index_dtype))
    except (AttributeError, IndexError, TypeError) as error:
        refuse(
            error,
            ("tokens", tokens, 2),
            ("routing_map", routing_map, 2),
            optional=[("probs", probs, 2)],
        )
    values = (
        tokens,
        routing_map,
        probs,
        permuted_tokens,
        permuted_probs,
        sorted_indices,
        drop_and_pad,
        num_out_tokens,
        0,
        threads,
    )
    if _permute(*values) is NotImplemented:
        rerun_with_copies(_permute, _PERMUTE[:3], _PERMUTE[3:], values)
    return permuted_tokens, permuted_probs, sorted_indices


def permute_grad(
    permuted_tokens_grad: Any,
    permuted_probs_grad: Any,
    sorted_indices: Any,
    routing_map: Any = None,
    *,
    tokens_num: Optional[int] = None,
    experts_num: Optional[int] = None,
    drop_and_pad: bool = False,
    output_mask: Sequence[bool] = _BOTH,
    tolerate_routing_mismatch: bool = False,
    out: Optional[tuple[Any, Any]] = None,
    threads: int = 0,
) -> tuple[Result, Result]:
    """The gradient of :func:`permute`.

    ``tokens_grad[t, :]`` is the sum over the slots of token t, in slot order, of
    ``permuted_tokens_grad[row, :]``; ``probs_grad[t, e]`` the sum of ``permuted_probs_grad[row]``
    over the slots of the pair, zero elsewhere.

    Parameters
    ----------
    permuted_tokens_grad : [R, H] float32, float16, bfloat16 or float64, or None
    permuted_probs_grad : [R] the token type, or float32 with float16 or bfloat16 tokens, or None
    sorted_indices : [N] int32 or int64, what :func:`permute` returned
    routing_map : [T, E] bool, int8 or uint8
        Required for ``probs_grad`` unless ``drop_and_pad``.
    tokens_num, experts_num : T and E. May be left out with ``routing_map``.
    drop_and_pad : as it was for :func:`permute`.
    output_mask : which of the two results to compute; the other one is None.
    tolerate_routing_mismatch : slots that ``routing_map`` has no expert for add nothing to
        ``probs_grad``, instead of an error.
    out : (tokens_grad, probs_grad) to write into, each may be None.
    threads : the most threads to use; 0: OMP_NUM_THREADS, or the processors there are.

    Returns
    -------
    tokens_grad : [T, H], or None without ``permuted_tokens_grad``
    probs_grad : [T, E] of the type of ``permuted_probs_grad``, or None without that

    Raises
    ------
    ValueError, TypeError, IndexError
        With the library's message. Nothing has been written then.

    Examples
    --------
    >>> import numpy as np, moetoken
    >>> rows_grad = np.array([[1., 2.], [3., 4.], [5., 6.]])
    >>> moetoken.permute_grad(rows_grad, None, np.array([0, 1, 2, -1]), tokens_num=2)
    (array([[4., 6.],
           [5., 6.]]), None)
    """
    tokens_grad = probs_grad = None
    if out is not None:
        tokens_grad, probs_grad = _outputs(out, 2)
    wants_tokens_grad, wants_probs_grad = flags("output_mask", output_mask, 2)
    drop_and_pad = flag("drop_and_pad", drop_and_pad)
    threads = whole("threads", threads)
    options = _options(False, tolerate_routing_mismatch)
    try:
        if tokens_num is not None:
            tokens_num = whole("tokens_num", tokens_num)
        if experts_num is not None:
            experts_num = whole("experts_num", experts_num)
        if routing_map is not None:
            tokens_num = shape_of(routing_map)[0] if tokens_num is None else tokens_num
            experts_num = shape_of(routing_map)[1] if experts_num is None else experts_num
        if tokens_num is None:
            raise ValueError("tokens_num is missing: without routing_map it must be given")
        if not wants_tokens_grad or permuted_tokens_grad is None:
            tokens_grad = None
        elif tokens_grad is None:
            tokens_grad = empty(
                (tokens_num, shape_of(permuted_tokens_grad)[1]), permuted_tokens_grad
            )
        if not wants_probs_grad or permuted_probs_grad is None:
            probs_grad = None
        else:
            if experts_num is None:
                raise ValueError("experts_num is missing: without routing_map it must be given")
            if probs_grad is None:
                probs_grad = empty((tokens_num, experts_num), permuted_probs_grad)
    except (AttributeError, IndexError, TypeError) as error:
        refuse(
            error,
            optional=[
                ("permuted_tokens_grad", permuted_tokens_grad, 2),
                ("permuted_probs_grad", permuted_probs_grad, 1),
                ("routing_map", routing_map, 2),
            ],
        )
    values = (
        permuted_tokens_grad,
        permuted_probs_grad,
        sorted_indices,
        routing_map,
        tokens_grad,
        probs_grad,
        drop_and_pad,
        tokens_num,
        1 if experts_num is None else experts_num,
        options,
        threads,
    )
    if _permute_grad(*values) is NotImplemented:
        rerun_with_copies(_permute_grad, _PERMUTE_GRAD[:4], _PERMUTE_GRAD[4:], values)
    return tokens_grad, probs_grad
