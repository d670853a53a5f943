"""What is computed: shapes of real models' layers, and random data that every peer is handed alike.

Data depends on nothing but the shape, so each process makes its own and all have the same.
"""

from __future__ import annotations

import dataclasses
import zlib
from typing import Any, Optional

import numpy as np

__all__ = ["DEFAULT_MODELS", "DTYPES", "MODELS", "Data", "Shape", "make_data"]

# hidden size, experts, experts a token: the same table as the tool's (cli/cases/models.c).
MODELS: dict[str, tuple[int, int, int]] = {
    "mixtral-8x7b": (4096, 8, 2),
    "deepseek-v3": (7168, 256, 8),
    "qwen3-30b-a3b": (2048, 128, 8),
    "qwen3-235b-a22b": (4096, 128, 8),
    "qwen3-next-80b-a3b": (2048, 512, 10),
    "gpt-oss-120b": (2880, 128, 4),
    "llama-4-maverick": (5120, 128, 1),
    "kimi-k2": (7168, 384, 8),
    "olmoe-1b-7b": (2048, 64, 8),
    "granite-3.0-3b-a800m": (1536, 40, 8),
    "dbrx": (6144, 16, 4),
    "hunyuan-large": (6400, 16, 1),
    "openpangu-72b-v2": (4608, 80, 8),
    "pangu-ultra-moe": (7680, 256, 8),
}
DEFAULT_MODELS = [
    "mixtral-8x7b",
    "deepseek-v3",
    "qwen3-30b-a3b",
    "gpt-oss-120b",
    "llama-4-maverick",
]

# For each type: bytes, the bits of a random 64-bit word that are kept, and the bits that are set.
# What comes out has a random sign and mantissa and is between 0.5 and 2 in size.
DTYPES: dict[str, tuple[int, int, int]] = {
    "f32": (4, 0x80FFFFFF80FFFFFF, 0x3F0000003F000000),
    "bf16": (2, 0x80FF80FF80FF80FF, 0x3F003F003F003F00),
    "f16": (2, 0x87FF87FF87FF87FF, 0x3800380038003800),
}
MEAN_SQUARE = 35 / 24  # of such numbers
_BLOCK = 1 << 20  # words made at a time, so that making data takes little memory
_ALIGNMENT = 64  # JAX takes arrays as they are only when they are aligned to this


@dataclasses.dataclass(frozen=True)
class Shape:
    """One case: a layer of a model with a number of tokens."""

    model: str
    hidden_size: int
    experts_num: int
    topk_num: int
    tokens: int
    dtype: str
    probs: bool = True

    @classmethod
    def of_model(cls, model: str, tokens: int, dtype: str, probs: bool = True) -> Shape:
        return cls(model, *MODELS[model], tokens, dtype, probs)

    @property
    def rows(self) -> int:
        return self.tokens * self.topk_num

    @property
    def rows_bytes(self) -> int:
        """The bytes of one [R, H] tensor in the tokens' type."""
        return self.rows * self.hidden_size * DTYPES[self.dtype][0]


@dataclasses.dataclass
class Data:
    """The inputs, as NumPy arrays. Weights are float32 whatever the tokens are."""

    shape: Shape
    tokens_grad: np.ndarray  # [T, H]
    rows: np.ndarray  # [R, H], what the forward pass combined
    probs: Optional[np.ndarray]  # [T, E] float32, or None
    routing_map: np.ndarray  # [T, E] bool
    out_index: np.ndarray  # [R] int32, the row of each slot, what moetoken takes
    token_of_row: np.ndarray  # [R] int64, what indexing takes
    expert_of_row: np.ndarray  # [R] int64


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    if dtype == "bf16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype({"f32": np.float32, "f16": np.float16}[dtype])


def random_numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Numbers of both signs and full mantissa, from 0.5 to 2 in size, aligned to 64 bytes."""
    size, kept, added = DTYPES[dtype]
    wanted = int(np.prod(shape)) * size
    memory = np.empty(wanted + 8 + _ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % _ALIGNMENT
    words = memory[begin : begin + (wanted + 7) // 8 * 8].view(np.uint64)
    for i in range(0, len(words), _BLOCK):
        block = words[i : i + _BLOCK]
        block[:] = rng.integers(0, 2**64, len(block), np.uint64)
        block &= np.uint64(kept)
        block |= np.uint64(added)
    return memory[begin : begin + wanted].view(numpy_dtype(dtype)).reshape(shape)


def _routing(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Every token has topk_num experts, drawn at random."""
    routing_map = np.zeros((shape.tokens, shape.experts_num), bool)
    order = rng.random(routing_map.shape).argsort(1)
    np.put_along_axis(routing_map, order[:, : shape.topk_num], True, 1)
    return routing_map


def make_data(shape: Shape) -> Data:
    """The data of a case: rows are in expert order, ascending token inside an expert."""
    rng = np.random.default_rng(zlib.crc32(repr(shape).encode()))
    routing_map = _routing(rng, shape)
    expert_of_row, token_of_row = np.nonzero(routing_map.T)
    row_of_pair = np.empty(routing_map.shape, np.int32)
    row_of_pair[token_of_row, expert_of_row] = np.arange(shape.rows)
    pairs = (shape.tokens, shape.experts_num)
    return Data(
        shape=shape,
        tokens_grad=random_numbers(rng, (shape.tokens, shape.hidden_size), shape.dtype),
        rows=random_numbers(rng, (shape.rows, shape.hidden_size), shape.dtype),
        probs=random_numbers(rng, pairs, "f32") if shape.probs else None,
        routing_map=routing_map,
        out_index=row_of_pair[routing_map],
        token_of_row=token_of_row,
        expert_of_row=expert_of_row,
    )
