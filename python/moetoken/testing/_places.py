"""The token, slot, expert and row that an element of an output belongs to, in words."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import numpy as np

from ._slots import Slots

if TYPE_CHECKING:
    from ._case import Case

__all__ = ["describe_place", "describe_value"]

_SHOWN = 8  # of a token's slots


def _slot(slots: Slots, slot: int) -> str:
    expert, row = int(slots.expert[slot]), int(slots.row[slot])
    text = f"token {slots.token[slot]}, slot {slot}"
    text += f", expert {expert}" if expert >= 0 else ""
    return text + (f", row {row}" if row >= 0 else ", no row")


def _row(slots: Slots, row: int) -> str:
    slot = int(slots.of_row[row])
    return _slot(slots, slot) if slot >= 0 else f"row {row}, which no slot names"


def _token(slots: Slots, token: int) -> str:
    """A sum over the slots of a token."""
    found = slots.of_token(token)
    parts = []
    for slot in found[:_SHOWN]:
        expert, row = int(slots.expert[slot]), int(slots.row[slot])
        inside = [f"expert {expert}"] if expert >= 0 else []
        parts.append(f"{slot} ({', '.join([*inside, f'row {row}' if row >= 0 else 'no row'])})")
    if len(found) > _SHOWN:
        parts.append("...")
    return f"token {token}, slots {', '.join(parts) or 'none'}"


def _pair(slots: Slots, token: int, expert: int) -> str:
    """The first slot that has the pair."""
    for slot in slots.of_token(token):
        if slots.expert[slot] == expert:
            return _slot(slots, int(slot))
    return f"token {token}, expert {expert}, no slot"


def describe_place(case: Case, slots: Slots, output: str, index: tuple[int, ...]) -> str:
    """"token 3, slot 7, expert 2, row 5", as far as it can be told."""
    first = int(index[0])
    if output in ("unpermuted_tokens", "tokens_grad"):
        return _token(slots, first)
    if output == "probs_grad":
        return _pair(slots, first, int(index[1]))
    if output == "weights_grad":
        return _slot(slots, first * slots.topk + int(index[1]))
    if output == "rows_per_expert":
        return f"expert {first}"
    if output == "sorted_indices":
        return _slot(slots, first)
    if case.operator == "unpermute":  # an element for each slot
        if case.mode == "padded" and output != "permuted_probs":
            first = int(np.argsort(slots.token, kind="stable")[first])
        return _slot(slots, first)
    return _row(slots, first)


def describe_value(array: np.ndarray, index: tuple[int, ...]) -> str:
    """"1.5 (0x3fc0)", "-1"."""
    value = array[index]
    if array.dtype.kind in "iub":
        return str(int(value))
    digits = 17 if array.dtype.itemsize == 8 else 9
    bits = np.array([value]).tobytes()[:: -1 if sys.byteorder == "little" else 1].hex()
    return f"{float(value):.{digits}g} (0x{bits})"
