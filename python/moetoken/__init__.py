"""Sends tokens to experts and adds their answers up again, forward and backward, on the CPU.

A mixture-of-experts layer sends each token to a few experts (:func:`permute`), lets every expert
work on its rows, and adds the answers up again, weighted (:func:`unpermute`). Each has its
gradient: :func:`permute_grad` and :func:`unpermute_grad`. Before them stands the :func:`router`,
which chooses the experts, with its gradient, losses and balancing.

The functions here take and return NumPy arrays; inputs may be anything that lends its memory
through DLPack or the buffer protocol. ``moetoken.ids`` has the operators for a
routing by expert ids, ``moetoken.torch`` has them for PyTorch,
``moetoken.jax`` for JAX. Results have the same bits on every instruction set and with every number
of threads; any number of Python threads may call at once.
"""

from ._buffers import empty_cache, memory_stats
from ._files import Case, load, save
from ._library import isa, version
from ._operators import permute, permute_grad, unpermute, unpermute_grad
from ._router import (
    router,
    router_balance_loss,
    router_drop,
    router_grad,
    router_update_bias,
    router_z_loss,
)

__all__ = [
    "Case",
    "empty_cache",
    "isa",
    "load",
    "memory_stats",
    "permute",
    "permute_grad",
    "router",
    "router_balance_loss",
    "router_drop",
    "router_grad",
    "router_update_bias",
    "router_z_loss",
    "save",
    "unpermute",
    "unpermute_grad",
    "version",
]

__version__ = version()
