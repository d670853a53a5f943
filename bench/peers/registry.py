"""The peers by name: what each does, and in which process. Nothing heavy is imported here.

A group is one process with one copy of the data; its module has `BUILDERS`, a function for each
peer that turns data into a `Call`, and `versions()`.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Optional

import numpy as np

__all__ = ["GROUPS", "PEERS", "REFERENCE", "Call", "Peer", "Result"]

REFERENCE = "moetoken"
Result = tuple[np.ndarray, Optional[np.ndarray]]  # permuted_tokens_grad, probs_grad


@dataclasses.dataclass(frozen=True)
class Group:
    """`tensors` is about how many tensors of [R, H] its process has at most, beside the data."""

    module: str
    tensors: int


GROUPS = {
    "moetoken": Group("peers.moetoken_peers", 4),
    "numpy": Group("peers.numpy_peers", 4),
    "torch": Group("peers.torch_peers", 5),
    "compile": Group("peers.compile_peers", 3),
    "jax": Group("peers.jax_peers", 5),
}


@dataclasses.dataclass(frozen=True)
class Peer:
    """One way to compute the gradient.

    `arithmetic` says which errors are its own: "float32" or, where weights or products are rounded
    to the tokens' type on the way, "tokens".
    """

    name: str
    group: str
    what: str
    arithmetic: str = "float32"


@dataclasses.dataclass
class Call:
    """A peer that is ready to run: `run` computes and waits, `arrays` shows its result to NumPy."""

    run: Callable[[], Any]
    arrays: Callable[[Any], Result]


_ALL = [
    Peer("moetoken", "moetoken", "moetoken.torch.unpermute_grad"),
    Peer("moetoken-autograd", "moetoken", "backward of moetoken.torch.unpermute"),
    Peer("moetoken-out", "moetoken", "moetoken.unpermute_grad, out= kept tensors"),
    Peer("moetoken-c", "moetoken", "the C function, kept outputs and workspace"),
    Peer("numpy", "numpy", "NumPy: indexing, einsum, product; one thread"),
    Peer(
        "eager",
        "torch",
        "PyTorch: index_select, mul, sum, masked_scatter, mul",
        arithmetic="tokens",
    ),
    Peer("eager-autograd", "torch", "PyTorch: backward of Megatron-Core's unpermute"),
    Peer(
        "eager-tuned",
        "torch",
        "PyTorch: weights rounded first, bmm, product in place",
        arithmetic="tokens",
    ),
    Peer("compile", "compile", "torch.compile of the gradient written out"),
    Peer("compile-autograd", "compile", "torch.compile of the forward pass, its backward"),
    Peer("jax", "jax", "jax.jit of the gradient written out"),
    Peer("jax-vjp", "jax", "jax.jit of jax.vjp of the forward pass"),
    Peer("moetoken-jax", "jax", "jax.jit of moetoken.jax.unpermute_grad"),
]
PEERS: dict[str, Peer] = {peer.name: peer for peer in _ALL}
