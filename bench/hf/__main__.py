"""Times of experts layers, in interleaved rounds, and the memory that a step needs.

    python bench/hf [--json FILE] [--svg FILE] [OPTION...]

Every round calls each implementation once, in turn, so that a machine which is slow for a while is
slow for all; medians over the rounds are compared. With --clock cpu the time is that which the
process spent computing, on one thread: for a machine that has other work to do. Memory is the most
that a step needs beyond what is there before it, with frozen experts: gradients of weights are the
same for all.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch  # noqa: E402
from hf.layers import IMPLEMENTATIONS, Shape, call_of  # noqa: E402
from hf.plot import svg  # noqa: E402
from peers.machine import describe  # noqa: E402

_CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("bench/hf", description=__doc__.splitlines()[0])
    numbers = lambda text: [int(word) for word in text.split(",")]
    parser.add_argument("--tokens", type=numbers, default=[1, 16, 128, 512, 2048])
    parser.add_argument("--experts", type=numbers, default=[8, 64, 128])
    parser.add_argument("--topk", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--inner", type=int, default=1024)
    parser.add_argument("--types", default="f32,bf16")
    parser.add_argument("--what", default="train,forward,routing")
    parser.add_argument("--implementations", default=",".join(IMPLEMENTATIONS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clock", choices=_CLOCKS, default="wall")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--svg", type=Path)
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    return parser.parse_args()


def _shapes(arguments: argparse.Namespace) -> list[Shape]:
    given = itertools.product(
        arguments.what.split(","), arguments.types.split(","), arguments.experts, arguments.tokens
    )
    sizes = (arguments.topk, arguments.hidden, arguments.inner)
    return [Shape(t, e, *sizes, dtype, what) for what, dtype, e, t in given if e >= arguments.topk]


def _faults() -> int:
    """Pages of the process that the system had to find and clear so far."""
    return int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[7])


def _times(shape: Shape, names: list[str], rounds: int, clock: Any) -> dict[str, Any]:
    """Medians, spreads and page faults of the implementations."""
    names = [name for name in names if not shape.is_heavy(name)]
    calls = {name: call_of(shape, name) for name in names}
    taken: dict[str, list[float]] = {name: [] for name in names}
    faults: dict[str, list[int]] = {name: [] for name in names}
    for i in range(rounds + 1):
        for name in names:
            pages, began = _faults(), clock()
            calls[name]()
            if i:  # the first is not counted
                taken[name].append(clock() - began)
                faults[name].append(_faults() - pages)
    return {
        name: {
            "seconds": statistics.median(taken[name]),
            "least": min(taken[name]),
            "most": max(taken[name]),
            "page_faults": statistics.median(faults[name]),
        }
        for name in names
    }


def _peak(shape: Shape, name: str) -> int:
    """In this process: the bytes that a step needs at most, after one that warms up."""
    call = call_of(shape, name, wants_tensors=False)
    call()
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    before = _status("VmRSS")
    call()
    return _status("VmHWM") - before


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(f"/proc/self/status has no {key}")


def _memory(asked: list[tuple[Shape, str]]) -> list[int]:
    """The peaks of all steps, in a process whose freed memory goes back at once, so that the mark
    is of what is in use."""
    tunables = "glibc.malloc.mmap_threshold=65536:glibc.malloc.trim_threshold=65536"
    words = json.dumps([[*shape, name] for shape, name in asked])
    found = subprocess.run(
        [sys.executable, str(Path(__file__).parent), "--memory-of", words],
        env={**os.environ, "GLIBC_TUNABLES": tunables},
        check=True,
        capture_output=True,
    )
    return json.loads(found.stdout)


def _print(case: dict[str, Any]) -> None:
    shape, found = Shape(*case["shape"]), case["results"]
    best = min(r["seconds"] for name, r in found.items() if name != "moetoken")
    cells = [f"{shape.what:8} {shape.dtype:4} {shape.experts:4} experts {shape.tokens:5} tokens"]
    for name in IMPLEMENTATIONS:
        if name in found:
            entry = found[name]
            memory = f" {entry['bytes'] / 2**20:.0f} MB" if "bytes" in entry else ""
            cells.append(f"{name} {entry['seconds'] * 1e3:.2f} ms{memory}")
    cells.append(f"gain {best / found['moetoken']['seconds']:.2f}")
    print("; ".join(cells), flush=True)


def main() -> None:
    arguments = _arguments()
    if arguments.memory_of:
        print([_peak(Shape(*s), name) for *s, name in json.loads(arguments.memory_of)])
        return
    threads = 1 if arguments.clock == "cpu" else arguments.threads
    torch.set_num_threads(threads)
    cases, memory, shapes = [], {}, _shapes(arguments)
    names = arguments.implementations.split(",")
    if "moetoken" not in names or not set(names) < set(IMPLEMENTATIONS + ("",)) or len(names) < 2:
        raise SystemExit(f"bench/hf: --implementations takes moetoken and of {IMPLEMENTATIONS[1:]}")
    if not arguments.no_memory:
        asked = [
            (shape, name)
            for shape in shapes
            for name in names
            if shape.what == "train" and not shape.is_heavy(name)
        ]
        memory = dict(zip(asked, _memory(asked)))
    for shape in shapes:
        found = _times(shape, names, arguments.rounds, _CLOCKS[arguments.clock])
        for name in found:
            if (shape, name) in memory:
                found[name]["bytes"] = memory[shape, name]
        cases.append({"shape": list(shape), "results": found})
        _print(cases[-1])
    settings = {"threads": threads, "clock": arguments.clock, "rounds": arguments.rounds}
    report = {"machine": describe(), "settings": settings, "cases": cases}
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    if arguments.svg:
        arguments.svg.write_text(svg(report))


if __name__ == "__main__":
    main()
