"""A worker: the process of one group of peers. It makes data, checks its peers and times them.

Commands come as lines of JSON on standard input, answers go to what was standard output; one
command at a time, so that while one worker computes all others wait.

    {"do": "hello"}                                 versions of what is installed
    {"do": "case", "shape": {...}}                  makes the data, forgets the case before
    {"do": "prepare", "peer": NAME}          builds, runs once, compares with moetoken
    {"do": "time", "peer": NAME, "calls": N}        seconds per call
    {"do": "forget"}                                lets data and peers go
"""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import importlib
import json
import math
import os
import sys
import time
import traceback
from typing import Any, Optional

from . import agreement
from .cases import Data, Shape, make_data
from .registry import GROUPS, PEERS, Call, Result

__all__ = ["Worker", "main"]

SECONDS_A_ROUND = 0.01  # short calls are repeated until they take this long
MOST_CALLS = 1000
LONG_SECONDS = 0.1  # a call for which it makes no difference what ran before
LARGE_BYTES = 16 << 20  # of [R, H], where a call is long enough by itself


class Worker:
    """Answers commands; `ask` never raises, an error is an answer."""

    def __init__(self, group: str) -> None:
        self.module = importlib.import_module(GROUPS[group].module)
        self.data: Optional[Data] = None
        self.expected: Optional[agreement.Expected] = None
        self.calls: dict[str, Call] = {}
        self.seconds: dict[str, float] = {}  # what the last round found

    def ask(self, **command: Any) -> dict[str, Any]:
        try:
            return getattr(self, "_" + command.pop("do"))(**command)
        except Exception as error:  # a peer may fail in any way: that is reported, not fatal
            traceback.print_exc()
            lines = str(error).splitlines() or [""]
            return {"error": f"{type(error).__name__}: {lines[0]}"}

    def _hello(self) -> dict[str, Any]:
        return {"versions": self.module.versions()}

    def _forget(self) -> dict[str, Any]:
        self.calls.clear()
        self.seconds.clear()
        self.data = self.expected = None
        getattr(self.module, "reset", lambda: None)()
        gc.collect()
        _hand_back_memory()
        return {}

    def _case(self, shape: dict[str, Any]) -> dict[str, Any]:
        self._forget()
        self.data = make_data(Shape(**shape))
        return {}

    def _prepare(self, peer: str) -> dict[str, Any]:
        if self.data is None:
            raise RuntimeError("there is no data: the worker has been started anew")
        began = time.perf_counter()
        call = self.module.BUILDERS[peer](self.data)
        result = call.run()
        seconds = time.perf_counter() - began
        found = self._compare(self.data, peer, call.arrays(result))
        del result
        self.calls[peer] = call
        calls = _calls_a_round(call) if self.data.shape.rows_bytes < LARGE_BYTES else 1
        return {"prepare_seconds": seconds, "agreement": found, "calls": calls}

    def _compare(self, data: Data, peer: str, result: Result) -> dict[str, Any]:
        if self.expected is None:
            self.expected = agreement.expected_result(data)
        arithmetic = PEERS[peer].arithmetic
        found = agreement.agreement(result, self.expected, data.shape, arithmetic)
        return {**dataclasses.asdict(found), "same": found.same}

    def _time(self, peer: str, calls: int) -> dict[str, Any]:
        """Results are let go at once, as each is no longer needed when the next one is made."""
        run = self.calls[peer].run
        if self.seconds.get(peer, 0.0) < LONG_SECONDS:
            run()  # other processes have run since: threads wake up, caches are filled again
        began = time.perf_counter()
        for _ in range(calls):
            run()
        self.seconds[peer] = (time.perf_counter() - began) / calls
        return {"seconds": self.seconds[peer]}


def _calls_a_round(call: Call) -> int:
    began = time.perf_counter()
    call.run()
    estimate = time.perf_counter() - began
    return min(MOST_CALLS, max(1, math.ceil(SECONDS_A_ROUND / estimate)))


def _hand_back_memory() -> None:
    """What malloc keeps of one case would be missing in the next one, in other processes."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))


def _bind(cores: str) -> None:
    """Before anything starts a thread: as many cores as there may be threads."""
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {int(core) for core in cores.split(",")})


def main() -> int:
    """python bench/peers --worker GROUP CORES"""
    group, cores = sys.argv[2:4]
    _bind(cores)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not end up among the answers
    worker = Worker(group)
    for line in sys.stdin:
        answers.write(json.dumps(worker.ask(**json.loads(line))) + "\n")
        answers.flush()
    return 0
