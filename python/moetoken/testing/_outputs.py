"""What a kernel returned -> its outputs by name, as NumPy arrays of the right types and shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Optional, Sequence

import numpy as np

from ._arrays import to_numpy
from ._golden import Golden, output_names

if TYPE_CHECKING:
    from ._case import Case

__all__ = ["Outputs", "take_outputs"]

_OTHER_NAMES = {"permuted_weights": "permuted_probs"}  # as moetoken.ids has it


class Outputs:
    """The arrays by name, and what is wrong with the form of others."""

    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray] = {}
        self.problems: dict[str, str] = {}  # by output, in words that follow its name


def _by_order(case: Case, outputs: Sequence[Any]) -> dict[str, Any]:
    """All that the operator has, None for what it does not write here; or what it writes alone."""
    every, written = output_names(case.operator, case.mode), list(case._golden)
    if len(outputs) == len(every):
        return dict(zip(every, outputs))
    if len(outputs) == len(written):
        return dict(zip(written, outputs))
    raise ValueError(
        f"{len(outputs)} outputs are given, expected {len(written)} of {case.operator} in "
        f"{case.name}: {', '.join(written)}"
    )


def _by_name(case: Case, outputs: Any) -> dict[str, Any]:
    """A lone array is the first output."""
    if isinstance(outputs, Mapping):
        return {_OTHER_NAMES.get(str(name), str(name)): it for name, it in outputs.items()}
    if hasattr(outputs, "_asdict"):
        fields = _by_name(case, outputs._asdict())
        if set(case._golden) & set(fields):
            return fields
    if not isinstance(outputs, (tuple, list)):
        return {next(iter(case._golden)): outputs}
    return _by_order(case, outputs)


def _form_problem(golden: Golden, array: np.ndarray) -> str:
    """Why the array cannot be the output, or ""."""
    wanted = golden.rounded
    if golden.values.dtype.kind == "i":
        if array.dtype.name not in ("int32", "int64"):
            return f"has type {array.dtype}, expected int32 or int64"
    elif array.dtype != wanted.dtype:
        return f"has type {array.dtype}, expected {wanted.dtype}"
    if array.shape != wanted.shape:
        return f"has shape {list(array.shape)}, expected {list(wanted.shape)}"
    return ""


def take_outputs(case: Case, outputs: Any, only: Optional[Sequence[str]] = None) -> Outputs:
    """The outputs to judge.

    ValueError for names that the operator does not write in this case, TypeError for what is no
    array at all.
    """
    golden, found = case._golden, Outputs()
    given = _by_name(case, outputs)
    for name in [*given, *(only or ())]:
        if name not in golden and not (name in given and given[name] is None):
            raise ValueError(
                f"{name} is no output of {case.operator} in {case.name}, expected some of "
                f"{', '.join(golden)}"
            )
    for name, wanted in golden.items():
        array = given.get(name)
        if only is not None and name not in only:
            continue
        if array is None:
            if wanted.required or only is not None:
                found.problems[name] = "is missing"
            continue
        taken = to_numpy(name, array)
        problem = _form_problem(wanted, taken)
        if problem:
            found.problems[name] = problem
        else:
            found.arrays[name] = np.ascontiguousarray(taken).reshape(taken.shape)
    return found
