"""Counter-based random numbers: number i of a stream is a function of (seed, stream, i) alone.

The numbers of the tool's cli/values/random_values.c, one by one as whole numbers and many at a
time as arrays; tests hold the two against each other.
"""

from __future__ import annotations

import numpy as np

__all__ = ["bits", "bits_of", "key", "keys", "units"]

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio, odd
_FIRST = 0xBF58476D1CE4E5B9  # the multipliers of SplitMix64
_SECOND = 0x94D049BB133111EB


def _scramble(x: int) -> int:
    x = (x ^ x >> 30) * _FIRST & _MASK
    x = (x ^ x >> 27) * _SECOND & _MASK
    return x ^ x >> 31


def _scramble_all(x: np.ndarray) -> np.ndarray:
    x = (x ^ x >> np.uint64(30)) * np.uint64(_FIRST)
    x = (x ^ x >> np.uint64(27)) * np.uint64(_SECOND)
    found: np.ndarray = x ^ x >> np.uint64(31)
    return found


def key(seed: int, stream: int) -> int:
    """The key of a stream."""
    return _scramble(_scramble(seed + _GOLDEN & _MASK) ^ (stream + 1) * _GOLDEN & _MASK)


def keys(seed: int, streams: np.ndarray) -> np.ndarray:
    """The keys of many streams, uint64."""
    steps = (streams.astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN)
    return _scramble_all(np.uint64(_scramble(seed + _GOLDEN & _MASK)) ^ steps)


def bits(stream_key: int, i: int) -> int:
    """64 random bits for place i of the stream."""
    return _scramble(stream_key + (i + 1) * _GOLDEN & _MASK)


def bits_of(stream_keys: np.ndarray, places: np.ndarray) -> np.ndarray:
    """The same for arrays of keys and places, which are broadcast."""
    steps = (places.astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN)
    return _scramble_all(stream_keys + steps)


def units(random_bits: np.ndarray) -> np.ndarray:
    """In (0, 1]: multiples of 2^-53."""
    whole = (random_bits >> np.uint64(11)) + np.uint64(1)
    found: np.ndarray = whole.astype(np.float64) * 2.0**-53
    return found
