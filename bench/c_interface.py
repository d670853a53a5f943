"""The C function moetoken_unpermute_grad and its structs, for calls with nothing but ctypes between.

For measuring alone: the package moetoken checks more and keeps memory alive by itself.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

__all__ = ["Arguments", "Options", "make_arguments"]


class DLTensor(ctypes.Structure):
    """DLPack's tensor."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    ]


TENSORS = (
    *("unpermuted_tokens_grad", "out_index", "permute_token_id"),
    *("routing_map", "permuted_tokens", "probs"),
)

BY_EXPERT_IDS = ["weights", "expert_bias", "expert_ids", "weights_grad"]  # the struct's end


class Arguments(ctypes.Structure):
    """moetoken_unpermute_grad_args."""

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        *((name, ctypes.POINTER(DLTensor)) for name in TENSORS),
        ("restore_shape", ctypes.c_void_p),
        ("drop_and_pad", ctypes.c_bool),
        ("permuted_tokens_grad", ctypes.POINTER(DLTensor)),
        ("probs_grad", ctypes.POINTER(DLTensor)),
        *((name, ctypes.POINTER(DLTensor)) for name in BY_EXPERT_IDS),
    ]


class Options(ctypes.Structure):
    """moetoken_options."""

    _fields_ = [
        ("flags", ctypes.c_uint32),
        ("isa_mask", ctypes.c_uint32),
        ("threads", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("workspace", ctypes.c_void_p),
        ("workspace_bytes", ctypes.c_size_t),
    ]


_CODES = {"float": 2, "bfloat": 4, "int": 0, "bool": 6}  # DLPack's


def _dltensor(array: np.ndarray) -> DLTensor:
    tensor = DLTensor(array.ctypes.data, (1, 0), array.ndim)
    tensor.code = _CODES[array.dtype.name.rstrip("0123456789")]
    tensor.bits, tensor.lanes = 8 * array.itemsize, 1
    tensor.kept = (ctypes.c_int64 * array.ndim)(*array.shape)
    tensor.shape = ctypes.addressof(tensor.kept)
    return tensor


def make_arguments(**arrays: np.ndarray) -> Arguments:
    """The arguments by their names; whoever keeps the result must keep the arrays as well."""
    lent = {name: _dltensor(array) for name, array in arrays.items()}
    arguments: Any = Arguments(**{name: ctypes.pointer(tensor) for name, tensor in lent.items()})
    arguments.kept = lent
    return arguments
