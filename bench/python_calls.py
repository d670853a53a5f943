"""The fixed cost of a call from Python: tiny tensors, where nothing but the cost is left.

    python bench/python_calls.py [--json]

For each front end the time of unpermute_grad with probs on a handful of elements, the time of the
bare C function among it, and the difference: what Python, the arrays and the outputs cost. The
shortest of many rounds is taken.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import timeit

import numpy as np

import moetoken
from c_interface import make_arguments
from moetoken import _library

G = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
X = np.arange(10, dtype=np.float32).reshape(5, 2)
MAP = np.array([[1, 0, 1], [0, 1, 0], [1, 1, 0]], bool)
PROBS = np.where(MAP, np.float32(0.5), np.float32(0))
OUT_INDEX = np.array([0, 4, 2, -1, 1, 3])
TOKEN_ID = np.array([0, 0, 1, 1, 2, 2])


def seconds(call, rounds: int = 1000, calls: int = 100) -> float:
    call()
    return min(timeit.repeat(call, number=calls, repeat=rounds)) / calls


def bare_call() -> float:
    """The C function with everything prepared, less what an empty ctypes call takes."""
    rows_grad, probs_grad = np.empty_like(X), np.empty_like(PROBS)
    args = make_arguments(
        unpermuted_tokens_grad=G,
        out_index=OUT_INDEX,
        permute_token_id=TOKEN_ID,
        routing_map=MAP,
        permuted_tokens=X,
        probs=PROBS,
        permuted_tokens_grad=rows_grad,
        probs_grad=probs_grad,
    )
    library = ctypes.PyDLL(_library.library._name)
    run = library.moetoken_unpermute_grad
    run.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    empty = library.moetoken_version  # takes no arguments and ignores these
    empty.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    address = ctypes.addressof(args)
    assert run(address, None) == 0
    return seconds(lambda: run(address, None)) - seconds(lambda: empty(address, None))


def numpy_calls():
    keywords = dict(routing_map=MAP, permuted_tokens=X, probs=PROBS)
    out = (np.empty_like(X), np.empty_like(PROBS))
    yield "numpy", lambda: moetoken.unpermute_grad(G, OUT_INDEX, TOKEN_ID, **keywords)
    yield (
        "numpy, out=",
        lambda: moetoken.unpermute_grad(G, OUT_INDEX, TOKEN_ID, out=out, **keywords),
    )


def torch_calls():
    try:
        import torch

        import moetoken.torch
    except ImportError:
        return
    g, x, probs, indices, token_id, routing_map = (
        torch.from_numpy(a) for a in (G, X, PROBS, OUT_INDEX, TOKEN_ID, MAP)
    )
    keywords = dict(routing_map=routing_map, permuted_tokens=x, probs=probs)
    yield "torch", lambda: moetoken.torch.unpermute_grad(g, indices, token_id, **keywords)


def jax_calls():
    try:
        import jax

        import moetoken.jax
    except ImportError:
        return
    arrays = [jax.numpy.asarray(a) for a in (G, OUT_INDEX, TOKEN_ID, MAP, X, PROBS)]
    run = jax.jit(
        lambda g, index, token_id, routing_map, x, probs: moetoken.jax.unpermute_grad(
            g, index, token_id, routing_map=routing_map, permuted_tokens=x, probs=probs
        )
    )
    yield "jax, jit", lambda: run(*arrays)[0].block_until_ready()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    as_json = parser.parse_args().json
    bare = bare_call()
    results = [("C alone", bare)]
    for calls in (numpy_calls, torch_calls, jax_calls):
        results += [(name, seconds(call)) for name, call in calls()]
    for name, value in results:
        cost = value - bare if name != "C alone" else 0.0
        if as_json:
            print(json.dumps({"call": name, "seconds": value, "fixed_cost_seconds": cost}))
        else:
            print(f"{name:12} {value * 1e6:7.2f} us a call, fixed cost {cost * 1e6:6.2f} us")


if __name__ == "__main__":
    main()
