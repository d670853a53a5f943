"""The router beside PyTorch and JAX: bench/peers/run router [OPTION...].

What is compared, for softmax scores, weights divided by their sum, float32 logits [T, E]:

    forward   logits -> experts and weights. PyTorch and JAX: softmax, topk, division, and with "map"
              a scatter into routing_map and probs [T, E], as Megatron-Core's router does it; ours:
              expert_ids and weights [T, K], rows_per_expert [E]
    gradient  forward, and then from the gradient of the weights to that of the logits
    chain     logits and tokens [T, H] -> rows in expert order

PyTorch plain and compiled (torch.compile, one graph), JAX under jit. All in one process with one
number of threads; in each round everybody has a turn, and each round begins with another one.
Medians, and ratios to ours. The weights are compared before anything is timed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from typing import Any, Callable

import torch
from torch import Tensor

import moetoken.torch
from moetoken.torch import ids

from . import machine
from .by_ids import measure

__all__ = ["main"]

Call = Callable[[], Any]
Operation = dict[str, Call]


# ---- PyTorch ------------------------------------------------------------------------------------


def torch_router(logits: Tensor, topk: int) -> tuple[Tensor, Tensor]:
    weights, experts = torch.topk(torch.softmax(logits, -1), topk)
    return weights / weights.sum(-1, keepdim=True), experts


def torch_router_map(logits: Tensor, topk: int) -> tuple[Tensor, Tensor]:
    weights, experts = torch_router(logits, topk)
    probs = torch.zeros_like(logits).scatter(1, experts, weights)
    routing_map = torch.zeros_like(logits, dtype=torch.bool).scatter(1, experts, True)
    return probs, routing_map


def torch_gradient(logits: Tensor, topk: int, grad: Tensor) -> Tensor:
    logits = logits.detach().requires_grad_()
    weights, _ = torch_router(logits, topk)
    return torch.autograd.grad(weights, logits, grad)[0]


def torch_gradient_map(logits: Tensor, topk: int, grad: Tensor) -> Tensor:
    logits = logits.detach().requires_grad_()
    probs, _ = torch_router_map(logits, topk)
    return torch.autograd.grad(probs, logits, grad)[0]


def torch_chain(logits: Tensor, topk: int, tokens: Tensor) -> tuple[Tensor, Tensor]:
    weights, experts = torch_router(logits, topk)
    order = torch.argsort(experts.flatten(), stable=True)
    return weights, tokens.index_select(0, order // topk)


# ---- who takes part -----------------------------------------------------------------------------


def torch_calls(
    logits: Tensor, topk: int, grad: Tensor, tokens: Tensor, compiled: bool
) -> dict[str, Operation]:
    probs_grad = torch.randn_like(logits)
    functions: dict[str, dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]] = {
        "forward": {
            "eager": (torch_router, (logits, topk)),
            "eager map": (torch_router_map, (logits, topk)),
        },
        "gradient": {
            "eager": (torch_gradient, (logits, topk, grad)),
            "eager map": (torch_gradient_map, (logits, topk, probs_grad)),
        },
        "chain": {"eager": (torch_chain, (logits, topk, tokens))},
    }
    calls: dict[str, Operation] = {}
    for operation, peers in functions.items():
        calls[operation] = {n: (lambda f=f, a=a: f(*a)) for n, (f, a) in peers.items()}
        for name, (function, arguments) in peers.items() if compiled else ():
            if operation == "gradient":
                calls[operation][name.replace("eager", "compile")] = compiled_gradient(
                    torch_router if name == "eager" else torch_router_map, *arguments
                )
            else:
                run = torch.compile(function, dynamic=False)
                calls[operation][name.replace("eager", "compile")] = (
                    lambda f=run, a=arguments: f(*a)
                )
    return calls


def compiled_gradient(
    function: Callable[..., Any], logits: Tensor, topk: int, grad: Tensor
) -> Call:
    run = torch.compile(function, dynamic=False)

    def call() -> Tensor:
        leaf = logits.detach().requires_grad_()
        return torch.autograd.grad(run(leaf, topk)[0], leaf, grad)[0]

    return call


def jax_calls(logits: Tensor, topk: int, grad: Tensor) -> dict[str, Operation]:
    import jax
    import jax.numpy as jnp

    def router(x: Any) -> Any:
        weights, experts = jax.lax.top_k(jax.nn.softmax(x), topk)
        return weights / weights.sum(-1, keepdims=True), experts

    def router_map(x: Any) -> Any:
        weights, experts = router(x)
        rows = jnp.arange(x.shape[0])[:, None]
        zeros = jnp.zeros_like(x)
        return zeros.at[rows, experts].set(weights), (zeros != 0).at[rows, experts].set(True)

    def gradient(x: Any, g: Any) -> Any:
        return jax.vjp(lambda y: router(y)[0], x)[1](g)[0]

    x, g = jnp.asarray(logits.numpy()), jnp.asarray(grad.numpy())
    plain, by_map, back = jax.jit(router), jax.jit(router_map), jax.jit(gradient)
    return {
        "forward": {
            "jax": lambda: jax.block_until_ready(plain(x)),
            "jax map": lambda: jax.block_until_ready(by_map(x)),
        },
        "gradient": {"jax": lambda: jax.block_until_ready(back(x, g))},
    }


def our_calls(logits: Tensor, topk: int, grad: Tensor, tokens: Tensor) -> dict[str, Operation]:
    def forward() -> Any:
        return moetoken.torch.router(logits, topk=topk, normalize=True, with_scores=False)

    def gradient() -> Any:
        found = forward()
        return moetoken.torch.router_grad(logits, found.expert_ids, grad, normalize=True)

    def chain() -> Any:
        found = forward()
        rows = ids.permute(tokens, found.expert_ids, experts_num=logits.shape[1])
        return found.weights, rows.permuted_tokens

    return {
        "forward": {"ours": forward},
        "gradient": {"ours": gradient},
        "chain": {"ours": chain},
    }


def contestants(experts: int, arguments: argparse.Namespace) -> dict[str, Operation]:
    """By operation: the calls of each contestant, ours first."""
    torch.manual_seed(experts)
    logits = torch.randn(arguments.tokens, experts)
    grad = torch.randn(arguments.tokens, arguments.topk)
    tokens = torch.randn(arguments.tokens, arguments.hidden).to(torch.bfloat16)
    found = our_calls(logits, arguments.topk, grad, tokens)
    peers = [torch_calls(logits, arguments.topk, grad, tokens, not arguments.no_compile)]
    if not arguments.no_jax:
        peers.append(jax_calls(logits, arguments.topk, grad))
    for calls in peers:
        for operation, others in calls.items():
            found[operation].update(others)
    return found


def check_agreement(operation: str, calls: Operation) -> None:
    """The weights, the gradient, or the weights and the rows, to float32's rounding."""

    def results(call: Call) -> list[Tensor]:
        result = call()
        if operation == "forward":
            result = result.weights if hasattr(result, "weights") else result[0]
        result = result if isinstance(result, tuple) else (result,)
        return [r if isinstance(r, Tensor) else torch.tensor(r.__array__()) for r in result]

    ours = results(calls["ours"])
    for name, call in calls.items():
        if name.endswith("map"):
            continue  # other outputs
        for mine, other in zip(ours, results(call)):
            if not torch.allclose(mine.float(), other.float(), rtol=1e-4, atol=1e-5):
                raise SystemExit(f"router: {operation}: {name} computes something else than ours")


# ---- report -------------------------------------------------------------------------------------


def report(experts: int, operation: str, seconds: dict[str, list[float]]) -> None:
    median = {name: statistics.median(times) for name, times in seconds.items()}
    least = {name: min(times) for name, times in seconds.items()}
    print(f"E={experts:<4d}{operation:9s} ours {median['ours'] * 1e3:8.3f} ms", end="")
    for name in median:
        if name != "ours":
            print(
                f"   {name} {median[name] / median['ours']:.2f}x"
                f" ({least[name] / least['ours']:.2f})",
                end="",
            )
    print(flush=True)


def _arguments(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench/peers/run router",
        description=(__doc__ or "").partition("\n\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--experts", default="64,128,256", help="comma between numbers")
    parser.add_argument("--topk", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--hidden", type=int, default=2048, help="of the chain's tokens, bfloat16")
    parser.add_argument("--threads", type=int, default=len(machine.cores()))
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="time of the processor, of all threads, instead of the clock's: where others are at "
        "work too; with --threads 1",
    )
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile")
    parser.add_argument("--no-jax", action="store_true", help="without JAX")
    parser.add_argument("--json", metavar="FILE", help="write all times too")
    return parser.parse_args(given)


def main() -> int:
    arguments = _arguments(sys.argv[2:])
    torch.set_num_threads(arguments.threads)
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    about = machine.describe()
    print(
        f"{about['cpu']}, {arguments.threads} threads, load {about['load_before']:.1f}; "
        f"PyTorch {torch.__version__}, moetoken {moetoken.__version__}\n"
        f"{arguments.tokens} tokens, K = {arguments.topk}; times of others as multiples of ours: "
        "of medians (of the fastest rounds)"
    )
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    found: dict[str, Any] = {"machine": about, "options": vars(arguments), "seconds": {}}
    for experts in (int(number) for number in arguments.experts.split(",")):
        for operation, calls in contestants(experts, arguments).items():
            check_agreement(operation, calls)
            seconds = measure(calls, arguments.rounds, clock)
            found["seconds"].setdefault(str(experts), {})[operation] = seconds
            report(experts, operation, seconds)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(found, file)
    return 0
