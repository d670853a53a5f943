"""Runs the comparison and writes its report; `bench/peers/run` installs what is needed first.

Every group of peers is a process of its own with the same settings; only one computes at a time,
and in each round all peers have their turn.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from . import machine, plot, report
from .cases import DEFAULT_MODELS, DTYPES, MODELS, Shape
from .measure import measure
from .processes import MEMORY, Process
from .registry import PEERS, REFERENCE

__all__ = ["main"]

QUICK_MODELS = ["mixtral-8x7b", "qwen3-30b-a3b"]


def _list_of(known: Any, what: str) -> Any:
    def parse(text: str) -> list[str]:
        names = list(known) if text == "all" else text.split(",")
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(
                    f"no {what} {name!r}, expected some of {','.join(known)}"
                )
        return names

    return parse


def _numbers(text: str) -> list[int]:
    try:
        numbers = [int(word) for word in text.split(",")]
    except ValueError:
        numbers = [0]
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of positive numbers")
    return numbers


def _number(text: str) -> int:
    numbers = _numbers(text)
    if len(numbers) != 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no single number")
    return numbers[0]


def _arguments(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench/peers/run",
        description="unpermute_grad by moetoken and by PyTorch, JAX and NumPy, side by side.",
    )
    add = parser.add_argument
    add("--models", type=_list_of(MODELS, "model"), default=DEFAULT_MODELS, help="names, or all")
    add("--tokens", type=_numbers, default=[1, 64, 4096], help="for example 1,64,4096")
    add("--dtypes", type=_list_of(DTYPES, "type"), default=["bf16", "f32"], help="bf16,f32,f16")
    add("--threads", type=_number, default=len(machine.cores()), help="all cores by default")
    add("--rounds", type=_number, default=7, help="7 by default; the median is reported")
    add("--no-probs", action="store_true", help="the gradient of the sum without weights")
    add("--peers", type=_list_of(PEERS, "peer"), default=list(PEERS), help=",".join(PEERS))
    add("--memory", type=_list_of(MEMORY, "setting"), default=list(MEMORY), help="system,kept")
    add("--quick", action="store_true", help="two models, bf16, up to 1024 tokens: a minute")
    add("--json", type=Path, metavar="FILE", help="writes everything that was measured")
    add("--svg", type=Path, metavar="FILE", help="writes a plot")
    add("--from", dest="source", type=Path, metavar="FILE", help="reports an earlier --json FILE")
    options = parser.parse_args(given)
    if options.threads > len(machine.cores()):
        parser.error(f"--threads {options.threads}: there are {len(machine.cores())} cores")
    if options.quick:
        options.models, options.dtypes = QUICK_MODELS, ["bf16"]
        options.tokens, options.memory = [1, 64, 1024], ["system"]
    if REFERENCE not in options.peers:
        options.peers.insert(0, REFERENCE)
    return options


class Progress:
    """One line on the terminal, overwritten; nothing elsewhere."""

    def __init__(self) -> None:
        self.stream = sys.stderr if sys.stderr.isatty() else None
        self.where = ""

    def __call__(self, text: str) -> None:
        if self.stream:
            self.stream.write(f"\r\033[K{(self.where + text)[:78]}")
            self.stream.flush()

    def clear(self) -> None:
        if self.stream:
            self.stream.write("\r\033[K")
            self.stream.flush()


def _shapes(options: argparse.Namespace) -> list[Shape]:
    return [
        Shape.of_model(model, tokens, dtype, not options.no_probs)
        for dtype in options.dtypes
        for tokens in options.tokens
        for model in options.models
    ]


def _start(options: argparse.Namespace, memory: str) -> dict[str, Process]:
    cores = machine.cores()[: options.threads]
    groups = dict.fromkeys(PEERS[name].group for name in options.peers)
    return {group: Process(group, options.threads, cores, memory) for group in groups}


def _measure_all(
    options: argparse.Namespace, memory: str, found: dict[str, Any], progress: Progress
) -> None:
    """All cases of one memory setting, each printed as soon as it is done."""
    shapes = _shapes(options)
    progress("starting the frameworks")
    workers = _start(options, memory)
    try:
        for group, worker in workers.items():
            answer = worker.ask(do="hello")
            if "error" in answer:
                raise ImportError(f"{group}: {answer['error']}")
            found["versions"].update(answer["versions"])
        for i, shape in enumerate(shapes):
            progress.where = f"{i + 1}/{len(shapes)} {shape.model} {shape.tokens} {shape.dtype}: "
            case = measure(workers, options.peers, shape, memory, options.rounds, progress)
            found["cases"].append(case)
            progress.clear()
            print(report.case_table(case), end="\n\n", flush=True)
    finally:
        for worker in workers.values():
            worker.close()


def _run(options: argparse.Namespace) -> dict[str, Any]:
    began = time.perf_counter()
    found: dict[str, Any] = {
        "machine": machine.describe(),
        "settings": {
            "threads": options.threads,
            "rounds": options.rounds,
            "peers": options.peers,
            "memory": {name: MEMORY[name] for name in options.memory},
        },
        "peers": {name: PEERS[name].what for name in options.peers},
        "versions": {},
        "cases": [],
    }
    progress = Progress()
    for memory in options.memory:
        _measure_all(options, memory, found, progress)
    found["geomeans"] = report.geometric_means(found["cases"], options.peers)
    found["machine"]["load_after"] = os.getloadavg()[0]
    found["seconds"] = time.perf_counter() - began
    return found


def _write(path: Path, text: str) -> None:
    """Whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text)
    partial.replace(path)


def main() -> int:
    options = _arguments(sys.argv[1:])
    try:
        found = json.loads(options.source.read_text()) if options.source else _run(options)
    except (ImportError, OSError) as error:
        print(f"\nbench/peers: {error}", file=sys.stderr)
        return 1
    print(report.summary(found))
    if options.json:
        _write(options.json, json.dumps(found, indent=1) + "\n")
    if options.svg:
        _write(options.svg, plot.svg(found))
    return 0
