"""Judges what a kernel returned for a case; says what is wrong where, and how to see it again."""

from __future__ import annotations

import copy
from typing import Any, Callable, Optional, Sequence, Union

import numpy as np

from ._case import Case
from ._golden import Golden
from ._outputs import Outputs, take_outputs
from ._places import describe_place, describe_value
from ._standards import Figure, Judgement, judge, standards
from ._types import bits_type

__all__ = ["STANDARD", "check", "check_kernel"]

STANDARD = "ecosystem-2026-07"
_SHOWN_ELEMENTS = 24  # an input that has no more is printed


def _figure_line(figure: Figure) -> str:
    line = f"    {figure.name:<28} {figure.value:>14.7g}"
    if not figure.relation:
        return line
    verdict = "pass" if figure.passed else "FAIL"
    return f"{line}  {figure.relation:>2} {figure.limit:<12.7g} {verdict}"


def _worst_line(case: Case, name: str, array: np.ndarray, golden: Golden, worst: int) -> str:
    index = tuple(int(i) for i in np.unravel_index(worst, array.shape))
    expected = golden.values[index]
    text = f"{float(expected):.17g}" if golden.values.dtype.kind == "f" else str(int(expected))
    place = describe_place(case, case._slots, name, index)
    where = ",".join(map(str, index))
    return (
        f"    worst {name}[{where}] = {describe_value(array, index)}, expected {text} ({place})"
    )


def _judgement_lines(
    case: Case, name: str, array: np.ndarray, golden: Golden, judgement: Judgement
) -> list[str]:
    verdict = "passes" if judgement.passed else "FAILS"
    lines = [f"{name}: {array.dtype} {list(array.shape)} {verdict} {judgement.standard}"]
    lines += [_figure_line(figure) for figure in judgement.figures]
    if judgement.worst >= 0:
        lines.append(_worst_line(case, name, array, golden, judgement.worst))
    return lines


def _input_lines(case: Case) -> list[str]:
    """The inputs, if none of them is large."""
    if any(array.size > _SHOWN_ELEMENTS for array in case.inputs.values()):
        return []
    return [f"    {name} = {array.tolist()}" for name, array in case.inputs.items()]


def _message(case: Case, lines: Sequence[str]) -> str:
    first = f"{case.operator}, {case.name}: {case.description}"
    small = _input_lines(case)
    return "\n".join([
        first,
        *lines,
        *(["inputs:", *small] if small else []),
        *([f"reproduce: case = {case.source}"] if case.source else []),
        "look at it: case.save('case.safetensors'), then: moetoken inspect case.safetensors",
    ])  # fmt: skip


def _judge(case: Case, outputs: Outputs, names: Sequence[str]) -> list[str]:
    """Lines about what does not pass."""
    lines = [f"{name} {problem}" for name, problem in outputs.problems.items()]
    for name, array in outputs.arrays.items():
        golden = case._golden[name]
        for standard in names:
            judgement = judge(standard, array, golden.values, golden.rounded)
            if not judgement.passed:
                lines += _judgement_lines(case, name, array, golden, judgement)
    return lines


def check(
    case: Case,
    outputs: Any,
    standard: Union[str, Sequence[str]] = STANDARD,
    *,
    only: Optional[Sequence[str]] = None,
) -> None:
    """Asserts that the outputs of a case pass a precision standard.

    Parameters
    ----------
    case : one of :func:`cases`, :func:`strategy` or :func:`load`.
    outputs : a dict or named tuple by name, a tuple or list in the operator's order, or the first
        output alone; arrays of NumPy, PyTorch, JAX or anything with DLPack. None where the operator
        writes nothing. The types and shapes are those of ``case.expected()``; indices may be
        int32 or int64.

        ================  ========================================================================
        unpermute_grad    permuted_tokens_grad [R, H], probs_grad [T, E] or, by ids,
                          weights_grad [T, K]
        unpermute         unpermuted_tokens [T, H], out_index [N], permute_token_id [N],
                          permuted_probs [N]; by ids all but the first may be left out
        permute           permuted_tokens [R, H], permuted_probs [R], sorted_indices [N]; by ids
                          also source_slots [R], rows_per_expert [E]
        permute_grad      tokens_grad [T, H], probs_grad [T, E] or, by ids, weights_grad [T, K]
        ================  ========================================================================
    standard : the name of a standard, or several: "ecosystem-2026-04", "ecosystem-2026-07",
        "msprobe", "bits", "ulp:N". The golden result is ``case.expected()`` before its rounding.
    only : names of outputs; the others are not judged and may be missing.

    Raises
    ------
    AssertionError
        An output is missing, has another type or shape, or does not pass. The message has each
        figure beside its limit, the worst element with token, slot, expert and row, and the
        line that makes the case again.
    ValueError, TypeError
        A standard or an output of that name does not exist, or an output is no array.

    Examples
    --------
    >>> import moetoken
    >>> case = moetoken.testing.cases("unpermute_grad", n=1, seed=1, modes="dropless")[0]
    >>> moetoken.testing.check(case, case.expected(), standard="bits")
    """
    __tracebackhide__ = True
    names = standards(standard)
    lines = _judge(case, take_outputs(case, outputs, only), names)
    if lines:
        raise AssertionError(_message(case, lines))


def _first_difference(a: np.ndarray, b: np.ndarray) -> Optional[tuple[int, ...]]:
    """The index of the first element with other bits."""
    kind = bits_type(a.dtype)
    other = np.flatnonzero(a.reshape(-1).view(kind) != b.reshape(-1).view(kind))
    if len(other) == 0:
        return None
    return tuple(int(i) for i in np.unravel_index(int(other[0]), a.shape))


def _repeat_lines(first: Outputs, second: Outputs) -> list[str]:
    lines = []
    for name, array in first.arrays.items():
        again = second.arrays.get(name)
        if again is None or again.dtype != array.dtype:
            lines.append(f"{name} has another type or shape when the kernel is run again")
            continue
        index = _first_difference(array, again)
        if index is not None:
            where = ",".join(map(str, index))
            lines.append(
                f"{name}[{where}] has other bits when the kernel is run again: "
                f"{describe_value(array, index)}, then {describe_value(again, index)}"
            )
    return lines


def _changed_lines(case: Case, original: Case) -> list[str]:
    lines = []
    for name, array in original.inputs.items():
        index = _first_difference(array, case.inputs[name])
        if index is not None:
            lines.append(f"{name}[{','.join(map(str, index))}]: the kernel has changed an input")
    return lines


def _for_run(case: Case, repeat: int) -> Case:
    """The case with inputs of its own."""
    found = copy.copy(case)
    found._repeat = repeat
    found.__dict__["inputs"] = case.arguments()
    return found


def check_kernel(
    case: Case,
    function: Callable[[Case], Any],
    standard: Union[str, Sequence[str]] = STANDARD,
    *,
    only: Optional[Sequence[str]] = None,
    repeats: int = 2,
) -> None:
    """Runs ``function(case)`` as often as `repeats` says and asserts three things.

    The outputs pass the standard, as :func:`check` has it; they are the same bits each time; and
    the inputs are what they were. A function that writes into ``case.blank()`` or
    ``case.torch_blank()`` finds other bytes there in each run: what it leaves unwritten is found.

    Raises
    ------
    AssertionError, ValueError, TypeError
        As :func:`check`. What the function raises comes through.
    """
    __tracebackhide__ = True
    names = standards(standard)
    first: Optional[Outputs] = None
    for repeat in range(max(repeats, 1)):
        given = _for_run(case, min(repeat, 1))
        outputs = take_outputs(case, function(given), only)
        lines = _judge(case, outputs, names) if first is None else _repeat_lines(first, outputs)
        lines += _changed_lines(given, case)
        if lines:
            raise AssertionError(_message(case, lines))
        if first is None:
            first = outputs
            for name, array in first.arrays.items():  # it may be the kernel's own memory
                first.arrays[name] = array.copy()
