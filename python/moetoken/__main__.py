"""``python -m moetoken``: the version, what the CPU has, which kernels run and why, the threads.

The same words as those of the command-line tool's ``moetoken info``; and where the library lies.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys

from ._library import isa, library, version

_LEVELS = (
    (0, "plain C, on every CPU"),
    (1, "AVX2, FMA, F16C"),
    (2, "AVX-512 F, BW, DQ, VL, on top of avx2"),
    (3, "Advanced SIMD"),
)
_HUGE_PAGES = "/sys/kernel/mm/transparent_hugepage/enabled"
_SERIAL_BYTES = 256 * 1024  # MOETOKEN_SERIAL_BYTES


def _name(level: int) -> str:
    return library.moetoken_isa_name(1 << level).decode()


def _levels() -> list[str]:
    """Which instruction sets this CPU has."""
    detected = library.moetoken_isa_detected()
    return [
        f"  {_name(level):<8} {'yes' if detected >> level & 1 else 'no':<4} {needs}"
        for level, needs in _LEVELS
    ]


def _choice() -> str:
    """Why the chosen kernels are not the highest that the CPU has, or that they are."""
    environment = os.environ.get("MOETOKEN_ISA")
    if library.moetoken_isa_chosen(0) == 0:
        return (
            f"none: MOETOKEN_ISA={environment} names no instruction set (scalar, avx2, avx512 or "
            "neon), every call fails"
        )
    if environment:
        return f"{isa()}: MOETOKEN_ISA={environment} sets the upper bound"
    return f"{isa()}: {isa()} is the highest that this CPU has and this build brings"


def _threads() -> str:
    library.moetoken_threads_chosen.restype = ctypes.c_int32
    library.moetoken_threads_chosen.argtypes = [ctypes.c_int32]
    affinity = getattr(os, "sched_getaffinity", None)
    processors = len(affinity(0)) if affinity else os.cpu_count()
    variable = next(
        (
            f"; {name} is set"
            for name in ("OMP_THREAD_LIMIT", "OMP_NUM_THREADS")
            if name in os.environ
        ),
        "",
    )
    return (
        f"{library.moetoken_threads_chosen(0)} (of {processors} processors{variable}), "
        f"none for calls below {_SERIAL_BYTES} bytes"
    )


def _huge_pages() -> str:
    try:
        with open(_HUGE_PAGES) as file:
            found = re.search(r"\[(.*?)\]", file.read())
    except OSError:
        found = None
    if found is None:
        return f"unknown ({_HUGE_PAGES} cannot be read)"
    if found[1] == "never":
        return f"never: off; large buffers are faster with 'echo madvise > {_HUGE_PAGES}'"
    if found[1] == "madvise":
        return "madvise: buffers get them that ask with madvise(MADV_HUGEPAGE)"
    return f"{found[1]}: large buffers get them by themselves"


def describe() -> str:
    """What ``python -m moetoken`` prints."""
    return "\n".join(
        [
            f"moetoken   {version()}",
            "this CPU",
            *_levels(),
            f"kernels    {_choice()}",
            f"threads    {_threads()}",
            f"huge pages {_huge_pages()}",
            f"library    {library._name}",
            f"Python     {sys.version.split()[0]}",
        ]
    )


if __name__ == "__main__":
    print(describe())
