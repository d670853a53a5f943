"""Routing by expert ids beside PyTorch: bench/peers/run by-ids [OPTION...].

What is compared, each once in plain PyTorch and once compiled (torch.compile, one graph):

    routing         expert_ids [T, K] -> sorted_indices [T*K], rows_per_expert [E]
    permute         tokens [T, H], expert_ids -> rows in expert order, sorted_indices, rows_per_expert
    unpermute       rows, sorted_indices, weights [T, K] -> weighted sums [T, H]
    unpermute_grad  their gradient -> rows' gradient, weights' gradient [T, K]
    permute_grad    rows' gradient -> tokens' gradient [T, H]

and beside them our own operators by map ("by map"). All in one process with one number of threads;
in each round everybody has a turn, and each round begins with another one. Medians, and ratios to
ours. Results are compared before anything is timed. Outputs are fresh in every call.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from typing import Any, Callable

import numpy as np
import torch
from torch import Tensor

import moetoken.ids
import moetoken.torch
from moetoken.torch import ids

from . import machine
from .cases import MODELS

__all__ = ["main"]

Call = Callable[[], Any]
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


class Layer:
    """One routing: distinct experts of skewed popularity for each token, and numbers around it."""

    def __init__(self, model: tuple[int, int, int], tokens: int, dtype: torch.dtype):
        hidden, self.experts, self.topk = model
        self.tokens_num = tokens
        rng = np.random.default_rng(1)
        popularity = np.arange(1, self.experts + 1) ** -0.5
        race = rng.exponential(size=(tokens, self.experts)) / popularity
        order = np.argpartition(race, self.topk - 1, axis=1)[:, : self.topk]
        self.expert_ids = torch.from_numpy(order.astype(np.int64))
        self.weights = torch.rand(tokens, self.topk)
        self.hidden = torch.randn(tokens, hidden).to(dtype)
        self.rows = torch.randn(tokens * self.topk, hidden).to(dtype)
        self.sorted_indices = ids.permute(
            None, self.expert_ids, experts_num=self.experts
        ).sorted_indices
        self.routing_map = torch.zeros(tokens, self.experts, dtype=torch.bool)
        self.routing_map.scatter_(1, self.expert_ids, True)
        self.probs = torch.zeros(tokens, self.experts).scatter_(
            1, self.expert_ids, self.weights
        )
        self.map_indices = moetoken.torch.permute(
            self.hidden[:, :1].contiguous(), self.routing_map, num_out_tokens=tokens * self.topk
        )[2]


# ---- PyTorch ------------------------------------------------------------------------------------


def torch_routing(expert_ids: Tensor, experts: int) -> tuple[Tensor, Tensor]:
    flat = expert_ids.flatten()
    order = torch.argsort(flat, stable=True)
    return torch.argsort(order), torch.bincount(flat, minlength=experts)


def torch_permute(hidden: Tensor, expert_ids: Tensor, experts: int) -> tuple[Tensor, ...]:
    flat = expert_ids.flatten()
    order = torch.argsort(flat, stable=True)
    rows = hidden.index_select(0, order // expert_ids.shape[1])
    return rows, torch.argsort(order), torch.bincount(flat, minlength=experts)


def torch_unpermute(rows: Tensor, sorted_indices: Tensor, weights: Tensor) -> Tensor:
    """Gathers a token's rows, then adds them up: view-sum."""
    tokens, topk = weights.shape
    gathered = rows.index_select(0, sorted_indices).view(tokens, topk, -1)
    return (gathered * weights.unsqueeze(-1)).sum(1).to(rows.dtype)


def torch_unpermute_index_add(rows: Tensor, sorted_indices: Tensor, weights: Tensor) -> Tensor:
    """Weighs rows where they are and adds each to its token."""
    tokens, topk = weights.shape
    order = torch.argsort(sorted_indices)
    weighted = rows * weights.flatten()[order].unsqueeze(-1)
    out = torch.zeros(tokens, rows.shape[1], dtype=weighted.dtype)
    return out.index_add_(0, order // topk, weighted).to(rows.dtype)


def torch_unpermute_grad(
    grad: Tensor, rows: Tensor, sorted_indices: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor]:
    tokens, topk = weights.shape
    order = torch.argsort(sorted_indices)
    of_row = grad.index_select(0, order // topk)
    dots = (rows * of_row).sum(-1, dtype=torch.float32)
    rows_grad = (of_row * weights.flatten()[order].unsqueeze(-1)).to(grad.dtype)
    return rows_grad, dots[sorted_indices].view(tokens, topk)


def torch_permute_grad(rows_grad: Tensor, sorted_indices: Tensor, topk: int) -> Tensor:
    gathered = rows_grad.index_select(0, sorted_indices)
    return gathered.view(-1, topk, rows_grad.shape[1]).sum(1)


# ---- who takes part -----------------------------------------------------------------------------


def contestants(layer: Layer, with_compile: bool) -> dict[str, dict[str, Call]]:
    """By operation: the calls of each contestant, ours first."""
    eid, e, k = layer.expert_ids, layer.experts, layer.topk
    si, w, x, rows = layer.sorted_indices, layer.weights, layer.hidden, layer.rows
    by_map = dict(routing_map=layer.routing_map, probs=layer.probs)
    eager: dict[str, dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]] = {
        "routing": {"eager": (torch_routing, (eid, e))},
        "permute": {"eager": (torch_permute, (x, eid, e))},
        "unpermute": {
            "eager": (torch_unpermute, (rows, si, w)),
            "eager index_add_": (torch_unpermute_index_add, (rows, si, w)),
        },
        "unpermute_grad": {"eager": (torch_unpermute_grad, (x, rows, si, w))},
        "permute_grad": {"eager": (torch_permute_grad, (rows, si, k))},
    }
    ours: dict[str, dict[str, Call]] = {
        "routing": {"ours": lambda: ids.permute(None, eid, experts_num=e)[2::2]},
        "permute": {
            "ours": lambda: ids.permute(x, eid, experts_num=e),
            "by map": lambda: moetoken.torch.permute(
                x, layer.routing_map, num_out_tokens=layer.tokens_num * k
            ),
        },
        "unpermute": {
            "ours": lambda: ids.unpermute(rows, si, w),
            "by map": lambda: moetoken.torch.unpermute(rows, layer.map_indices, **by_map),
        },
        "unpermute_grad": {
            "ours": lambda: ids.unpermute_grad(x, si, permuted_tokens=rows, weights=w),
            "by map": lambda: moetoken.torch.unpermute_grad(
                x, layer.map_indices, permuted_tokens=rows, **by_map
            ),
        },
        "permute_grad": {
            "ours": lambda: ids.permute_grad(rows, si, topk=k),
            "by map": lambda: moetoken.torch.permute_grad(
                rows, None, layer.map_indices, tokens_num=layer.tokens_num
            ),
        },
    }
    for operation, functions in eager.items():
        for name, (function, arguments) in functions.items():
            ours[operation][name] = lambda f=function, a=arguments: f(*a)
        if with_compile:
            function, arguments = functions["eager"]
            compiled = torch.compile(function, dynamic=False)
            ours[operation]["compile"] = lambda f=compiled, a=arguments: f(*a)
    return ours


def first_tensors(result: Any) -> list[Tensor]:
    tensors = [result] if isinstance(result, Tensor) else list(result)
    return [t for t in tensors if isinstance(t, Tensor)]


def check_agreement(
    operation: str, name: str, ours: Any, theirs: Any, dtype: torch.dtype
) -> None:
    """What both return: indices to the bit, numbers to the rounding of the tokens' type, in which
    PyTorch forms its products."""
    mine, other = first_tensors(ours), first_tensors(theirs)
    if operation == "permute" and len(other) == 3:  # rows, sorted_indices, rows_per_expert
        mine = [mine[0], ours.sorted_indices, ours.rows_per_expert]
    for a, b in zip(mine, other):
        if name == "by map":
            continue  # another order of the rows of a token; the library's tests compare them
        if not a.is_floating_point():
            same = torch.equal(a.long(), b.long())
        else:
            width = {torch.bfloat16: 2**-6, torch.float16: 2**-9}.get(dtype, 1e-4)
            scale = float(a.abs().max()) if a.numel() else 1.0
            same = bool(((a.double() - b.double()).abs() <= width * scale).all())
        if not same:
            raise SystemExit(f"by-ids: {operation}: {name} computes something else than ours")


# ---- measuring ----------------------------------------------------------------------------------


def measure(
    calls: dict[str, Call], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    names, seconds = list(calls), {name: [] for name in calls}
    repeat = {}
    for name in names:  # at least 200 us a turn
        calls[name]()
        began = clock()
        calls[name]()
        repeat[name] = max(1, int(200e-6 / max(clock() - began, 1e-7)))
    for r in range(rounds):
        for name in names[r % len(names) :] + names[: r % len(names)]:
            call = calls[name]
            call()
            began = clock()
            for _ in range(repeat[name]):
                call()
            seconds[name].append((clock() - began) / repeat[name])
    return seconds


def report(operation: str, seconds: dict[str, list[float]]) -> None:
    median = {name: statistics.median(times) for name, times in seconds.items()}
    own = median["ours"]
    print(f"  {operation:15s} ours {own * 1e3:9.4f} ms", end="")
    for name, value in median.items():
        if name != "ours":
            print(f"   {name} {value / own:.2f}x", end="")
    print(flush=True)


def sort_scaling(rounds: int) -> dict[str, float]:
    """The routing alone for 65,536 tokens, on one thread and on all."""
    eid = np.random.default_rng(2).integers(0, 256, (65536, 8))
    most = torch.get_num_threads()
    calls = {
        str(threads): lambda n=threads: moetoken.ids.permute(
            None, eid, experts_num=256, threads=n
        )
        for threads in dict.fromkeys((1, most))
    }
    return {k: statistics.median(v) for k, v in measure(calls, rounds).items()}


def _arguments(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench/peers/run by-ids",
        description=(__doc__ or "").partition("\n\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--models", default="deepseek-v3,qwen3-30b-a3b,mixtral-8x7b", help="comma between names"
    )
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--threads", type=int, default=len(machine.cores()))
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile")
    parser.add_argument("--json", metavar="FILE", help="write all times too")
    arguments = parser.parse_args(given)
    unknown = set(arguments.models.split(",")) - set(MODELS)
    if unknown:
        parser.error(f"no model {sorted(unknown)[0]!r}, expected some of {','.join(MODELS)}")
    return arguments


def main() -> int:
    arguments = _arguments(sys.argv[2:])
    torch.manual_seed(1)
    torch.set_num_threads(arguments.threads)
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    about = machine.describe()
    print(
        f"{about['cpu']}, {arguments.threads} threads, load {about['load_before']:.1f}; "
        f"PyTorch {torch.__version__}, moetoken {moetoken.__version__}\n"
        f"{arguments.tokens} tokens, {arguments.dtype}; times of others as multiples of ours"
    )
    found: dict[str, Any] = {"machine": about, "options": vars(arguments), "seconds": {}}
    for name in arguments.models.split(","):
        layer = Layer(MODELS[name], arguments.tokens, DTYPES[arguments.dtype])
        print(f"{name}: H={layer.hidden.shape[1]} E={layer.experts} K={layer.topk}")
        for operation, calls in contestants(layer, not arguments.no_compile).items():
            mine = calls["ours"]()
            for who, call in calls.items():
                check_agreement(operation, who, mine, call(), DTYPES[arguments.dtype])
            seconds = measure(calls, arguments.rounds)
            found["seconds"].setdefault(name, {})[operation] = seconds
            report(operation, seconds)
    scaling = sort_scaling(arguments.rounds)
    text = ", ".join(f"{n} threads {s * 1e3:.3f} ms" for n, s in scaling.items())
    print(f"routing alone, 65536 x 8, E = 256: {text}")
    found["routing_65536"] = scaling
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(found, file)
    return 0
