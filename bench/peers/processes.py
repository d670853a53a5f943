"""Starts worker processes, alike in everything but what they compute, and talks to them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

__all__ = ["MEMORY", "Process"]

# How the C library hands out memory, for all workers alike.
MEMORY = {
    "system": "nothing set: malloc hands large tensors' memory back to the system at every call",
    "kept": "malloc asks for huge pages and keeps freed memory, as an allocator with a cache does",
}
_KEPT = ":".join(
    f"glibc.malloc.{setting}"
    for setting in (
        "hugetlb=1",
        "mmap_max=0",
        "trim_threshold=68719476736",
        "top_pad=268435456",
        "arena_max=1",
    )
)
_LAST_LINES = 15


def _environment(threads: int, memory: str) -> dict[str, str]:
    environment = dict(os.environ)
    for name in ("OMP", "MKL", "OPENBLAS", "NUMEXPR"):
        environment[f"{name}_NUM_THREADS"] = str(threads)
    environment["JAX_PLATFORMS"] = "cpu"
    environment["CUDA_VISIBLE_DEVICES"] = ""
    environment["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # no pool of compiling processes
    environment.pop("GLIBC_TUNABLES", None)
    if memory == "kept":
        environment["GLIBC_TUNABLES"] = _KEPT
    return environment


class Process:
    """The worker of a group, in a process of its own. One that has died is started anew."""

    def __init__(self, group: str, threads: int, cores: list[int], memory: str) -> None:
        self.group = group
        self.settings = threads, cores, memory
        self._start()

    def _start(self) -> None:
        threads, cores, memory = self.settings
        self.log = tempfile.TemporaryFile("w+")
        entry = str(Path(__file__).resolve().parent / "__main__.py")
        self.process = subprocess.Popen(
            [sys.executable, entry, "--worker", self.group, ",".join(map(str, cores))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env=_environment(threads, memory),
        )

    def ask(self, **command: Any) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(command) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if line:
            return json.loads(line)
        reason = self._last_words()
        self.close()
        self._start()
        return {"error": reason, "ended": True}  # with all that it had been told

    def _last_words(self) -> str:
        status = self.process.wait()
        self.log.seek(0)
        lines = self.log.read().strip().splitlines()[-_LAST_LINES:]
        message = lines[-1] if lines else "no message"
        if status == -9:
            message = "killed, as the system does when memory runs out"
        return f"the process of {self.group} ended with status {status}: {message}"

    def close(self) -> None:
        try:
            if self.process.stdin is not None:
                self.process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.log.close()
