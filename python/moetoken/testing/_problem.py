"""A case before it has tensors: a routing, and rules for the values.

Suite (a seed and a number) or a Hypothesis strategy -> problem -> layout (rows and slots) ->
tensors. As cli/conform/problem.h of the tool has it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["DROPPED", "MODES", "OPERATORS", "SET", "UNSET", "VALUES", "WEIGHTS", "Problem"]

OPERATORS = ("unpermute_grad", "unpermute", "permute", "permute_grad")
MODES = ("dropless", "padded", "ids")

# Rules for values, in the words of the tool, and for weights.
VALUES = (
    "within 0.001",
    "within 5",
    "normal",
    "outliers",
    "subnormals",
    "some -0",
    "some NaN",
    "some infinite",
    "whole numbers",
    "ones",
)
WEIGHTS = ("shares", "some 0", "huge", "ones")

# A pair of the routing map. The slot of a dropped pair, which is set, has no row.
UNSET, SET, DROPPED = 0, 1, 2


@dataclass
class Problem:
    """What a case is made from; types by their names, rules by their words."""

    operator: str
    mode: str
    seed: int
    token_type: str = "float32"
    probs_type: str = "float32"
    index_type: str = "int32"
    map_type: str = "bool"
    tokens: int = 0
    hidden: int = 1
    experts: int = 1
    topk: int = 1  # K; padded: what the routing was drawn with
    capacity: int = 0  # C; by ids: 0 is none
    spare_rows: int = 0  # rows that no slot names, as far as R <= N allows
    values: str = "within 5"
    special_one_in: int = 64  # as many of "some NaN" and "some infinite" are
    weights: str = "shares"
    zero_one_in: int = 4  # as many of "some 0" are
    weighted: bool = True
    shuffled: bool = False  # rows in any order; unpermute_grad: slots, too
    random_fill: bool = False  # padded: fill slots take any token, a pair may come up twice
    skewed: bool = False  # a few experts are far more popular
    pairs: np.ndarray = field(default_factory=lambda: np.zeros((0, 1), np.uint8))  # [T, E]
    ids: np.ndarray = field(default_factory=lambda: np.zeros((0, 1), np.int64))  # [T, K], -1: none

    def allocate(self) -> None:
        """Nothing routed, for the sizes that are in place."""
        self.pairs = np.zeros((self.tokens, self.experts), np.uint8)
        self.ids = np.full((self.tokens, self.topk), -1, np.int64)

    def describe(self, slots: int, rows: int) -> str:
        """One line, that of `moetoken conform --list`."""
        mode = "by expert ids" if self.mode == "ids" else self.mode
        letter, count = ("C", self.capacity) if self.mode == "padded" else ("K", self.topk)
        text = (
            f"{mode}, {self.token_type}, T={self.tokens} H={self.hidden} E={self.experts} "
            f"{letter}={count} N={slots} R={rows}"
        )
        if self.mode == "ids" and self.capacity > 0:
            text += f" C={self.capacity}"
        weights = f"weights {self.weights}" if self.weighted else "no weights"
        return f"{text}, values {self.values}, {weights}"

    def attributes(self, slots: int) -> dict[str, Any]:
        """What a call needs beside its tensors, in the order of the tool's metadata."""
        padded = self.mode == "padded"
        found: dict[str, Any] = {
            "drop_and_pad": padded,
            "restore_shape": (self.tokens, self.hidden),
            "num_out_tokens": slots,
            "tokens_num": self.tokens,
            "experts_num": self.experts,
        }
        if not padded:
            found["topK_num"] = self.topk
        if padded or (self.mode == "ids" and self.capacity > 0):
            found["capacity"] = self.capacity
        return found
