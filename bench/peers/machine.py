"""What the numbers were taken on."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

__all__ = ["cores", "describe"]

_CACHES = "/sys/devices/system/cpu/cpu0/cache"


def cores() -> list[int]:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _line_of(path: str, key: str) -> str:
    for line in _read(path).splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return ""


def _caches() -> str:
    found = []
    for index in range(8):
        level, kind, size = (
            _read(f"{_CACHES}/index{index}/{k}") for k in ("level", "type", "size")
        )
        if size and kind != "Instruction":
            found.append(f"L{level} {size}")
    return ", ".join(found)


def _huge_pages() -> str:
    """The word in brackets of "always [madvise] never"."""
    setting = _read("/sys/kernel/mm/transparent_hugepage/enabled")
    return setting.partition("[")[2].partition("]")[0]


def describe() -> dict[str, Any]:
    return {
        "cpu": _line_of("/proc/cpuinfo", "model name") or platform.processor(),
        "architecture": platform.machine(),
        "cores": len(cores()),
        "caches": _caches(),
        "memory": _line_of("/proc/meminfo", "MemTotal"),
        "transparent_huge_pages": _huge_pages(),
        "system": f"{platform.system()} {platform.release()}, {' '.join(platform.libc_ver())}",
        "python": platform.python_version(),
        "load_before": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    }
