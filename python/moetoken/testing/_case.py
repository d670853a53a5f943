"""A case: the inputs of one operator call, what its outputs should hold, and where it came from."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any, Callable, Mapping, NoReturn, Optional, Union

import numpy as np

from .. import _files
from ._golden import Golden, golden_outputs, output_names
from ._layout import lay_out
from ._problem import OPERATORS, Problem
from ._slots import Slots, find_slots
from ._tensors import make_tensors

if TYPE_CHECKING:
    from jax import Array as JaxArray
    from torch import Tensor as TorchTensor

__all__ = ["Case", "load", "operator_name"]

_FILL = {True: (0xFF, 0x5D), False: (0x7B, 0x5D)}  # floats: NaN at first; not -1, as indices may be


def operator_name(name: str) -> str:
    """"unpermute_grad", also of the tool's "unpermute-grad"."""
    found = str(name).replace("-", "_")
    if found not in OPERATORS:
        raise ValueError(f"operator is {name!r}, expected one of {', '.join(OPERATORS)}")
    return found


class Case:
    """The inputs of one call of an operator.

    Attributes
    ----------
    operator : "unpermute_grad", "unpermute", "permute" or "permute_grad".
    mode : "dropless" or "padded", both by routing map, or "ids", by expert ids.
    name : a word for it, also its id in pytest.
    description : its types and sizes in a line, that of ``moetoken conform --list``.
    inputs : the operator's tensors by name, NumPy arrays, in the order of its arguments. They are
        made when they are first asked for.
    attributes : what else a call needs: ``drop_and_pad``, ``restore_shape`` (T, H),
        ``num_out_tokens`` N, ``tokens_num`` T, ``experts_num`` E, ``topK_num`` K and, padded or
        by ids with one, ``capacity`` C.
    rows_num : R, the rows of the permuted tensors.
    source : the expression that makes the case again; "" when Hypothesis drew it.
    """

    def __init__(
        self,
        operator: str,
        mode: str,
        name: str,
        inputs: Union[Mapping[str, np.ndarray], Callable[[], dict[str, np.ndarray]]],
        attributes: Mapping[str, Any],
        description: str,
        source: str,
    ) -> None:
        self.operator, self.mode, self.name = operator, mode, name
        self.attributes = dict(attributes)
        self.description, self.source = description, source
        self._inputs = inputs
        self._repeat = 0  # which run of a kernel it is given to

    @classmethod
    def _of_problem(cls, problem: Problem, name: str, source: str) -> Case:
        layout = lay_out(problem)
        slots = len(layout.row)
        return cls(
            problem.operator,
            problem.mode,
            name,
            lambda: make_tensors(problem, layout),
            problem.attributes(slots),
            problem.describe(slots, len(layout.by_row)),
            source,
        )

    @property
    def __name__(self) -> str:  # pytest takes ids from it
        return self.name

    def __repr__(self) -> str:
        return f"<{self.source or self.name}: {self.operator}, {self.description}>"

    @functools.cached_property
    def inputs(self) -> dict[str, np.ndarray]:
        return dict(self._inputs() if callable(self._inputs) else self._inputs)

    @property
    def tokens_num(self) -> int:
        """T"""
        return int(self.attributes["tokens_num"])

    @property
    def hidden_size(self) -> int:
        """H"""
        return int(self.attributes["restore_shape"][1])

    @property
    def experts_num(self) -> int:
        """E"""
        return int(self.attributes["experts_num"])

    @property
    def slots_num(self) -> int:
        """N"""
        return int(self.attributes["num_out_tokens"])

    @property
    def rows_num(self) -> int:
        return self._slots.rows

    @property
    def topk(self) -> int:
        """K, the slots of each token; padded there is none, and this is a ValueError."""
        if self.mode == "padded":
            raise ValueError(f"{self.name}: padded, expected a case whose tokens have K slots each")
        return self._slots.topk

    @functools.cached_property
    def _slots(self) -> Slots:
        return find_slots(self)

    @functools.cached_property
    def _golden(self) -> dict[str, Golden]:
        return golden_outputs(self, self._slots)

    def expected(self) -> dict[str, np.ndarray]:
        """The outputs that the operator writes here, in its order, each rounded once to its type.

        Computed from exact products and sums of some hundred bits, without the library.
        """
        return {name: golden.rounded.copy() for name, golden in self._golden.items()}

    def blank(self) -> dict[str, np.ndarray]:
        """Arrays for the outputs, full of NaN (indices: of 0x7b7b7b7b), to be written into.

        What a kernel leaves unwritten is found in them. In the second run of
        :func:`check_kernel` they hold other bytes.
        """
        found = {}
        for name, golden in self._golden.items():
            found[name] = np.empty_like(golden.rounded, order="C")
            is_index = golden.values.dtype.kind == "i"
            found[name].view(np.uint8)[...] = _FILL[not is_index][self._repeat]
        return found

    def arguments(self) -> dict[str, np.ndarray]:
        """Copies of the inputs, which a kernel may do with what it likes."""
        return {name: array.copy() for name, array in self.inputs.items()}

    def torch(self, device: Any = None) -> dict[str, TorchTensor]:
        """The inputs as PyTorch tensors of their own memory, bfloat16 included."""
        from ._arrays import to_torch

        return {name: to_torch(array, device) for name, array in self.inputs.items()}

    def torch_blank(self, device: Any = None) -> dict[str, TorchTensor]:
        """:meth:`blank` as PyTorch tensors."""
        from ._arrays import to_torch

        return {name: to_torch(array, device) for name, array in self.blank().items()}

    def jax(self) -> dict[str, JaxArray]:
        """The inputs as JAX arrays. Without ``jax_enable_x64`` int64 is int32 there.

        TypeError for float64 without it, which JAX would make float32.
        """
        from ._arrays import to_jax

        return {name: to_jax(name, array) for name, array in self.inputs.items()}

    def metadata(self) -> dict[str, str]:
        """The attributes as the tool's files have them."""
        found = {"operator": self.operator.replace("_", "-")}
        for name, value in self.attributes.items():
            values = value if isinstance(value, tuple) else (value,)
            found[name] = ",".join(str(one).lower() for one in values)
        return found

    def save(self, path: Union[str, os.PathLike[str]]) -> None:
        """Writes the inputs as a case file, which the tool's commands and :func:`load` read.

        safetensors, or .npz when `path` ends so. OSError when it cannot be written.
        """
        _files.save(path, self.inputs, self.metadata())


def _refuse(path: str, what: str) -> NoReturn:
    raise ValueError(f"{path}: {what}, expected a file of Case.save or of moetoken conform")


def _attributes(path: str, metadata: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    names = ("drop_and_pad", "restore_shape", "num_out_tokens", "tokens_num", "experts_num",
             "topK_num", "capacity")  # fmt: skip
    for name in names:
        text = metadata.get(name)
        if text is None:
            if name not in ("topK_num", "capacity"):
                _refuse(path, f"metadata {name!r} is missing")
            continue
        try:
            if name == "drop_and_pad":
                found[name] = {"true": True, "false": False}[text]
            elif name == "restore_shape":
                tokens, hidden = text.split(",")
                found[name] = (int(tokens), int(hidden))
            else:
                found[name] = int(text)
        except (KeyError, ValueError):
            _refuse(path, f"metadata {name!r} is {text!r}")
    return found


def _mode(attributes: Mapping[str, Any], operator: str, arrays: Mapping[str, Any]) -> str:
    """By ids: there are weights or expert_ids, or nothing that a routing by map has."""
    if attributes["drop_and_pad"]:
        return "padded"
    if {"weights", "expert_ids"} & set(arrays):
        return "ids"
    if {"routing_map", "permute_token_id"} & set(arrays) or operator == "unpermute":
        return "dropless"
    return "ids" if "permuted_probs_grad" in arrays else "dropless"


def load(path: Union[str, os.PathLike[str]], operator: Optional[str] = None) -> Case:
    """A case from a file: one of :meth:`Case.save`, or ``case.safetensors`` of `moetoken conform`.

    Raises
    ------
    OSError, ValueError
        The file cannot be read, or is none of these; the message names it and what is wrong.
    """
    file = _files.load(path)
    words = os.fsdecode(os.fspath(path))
    named = file.metadata.get("operator") if operator is None else operator
    if named is None:
        _refuse(words, "metadata 'operator' is missing")
    found = operator_name(named)
    attributes = _attributes(words, file.metadata)
    arrays = {name: np.array(array) for name, array in file.items()}
    mode = _mode(attributes, found, arrays)
    source = f"moetoken.testing.load({words!r})"
    case = Case(found, mode, os.path.basename(words), arrays, attributes, "", source)
    first = output_names(found, mode)[0]
    tokens, hidden = attributes["restore_shape"]
    case.description = (
        f"{'by expert ids' if mode == 'ids' else mode}, {case._golden[first].rounded.dtype}, "
        f"T={tokens} H={hidden} E={case.experts_num} N={case.slots_num} R={case.rows_num}"
    )
    return case
