"""The measurement as text: a table a case, the geometric means, the machine. All from the JSON."""

from __future__ import annotations

import statistics
from typing import Any, Iterable, Optional

from .registry import REFERENCE

__all__ = ["BEST_OF", "best_ratio", "case_table", "case_title", "geometric_means", "summary"]

BUSY = 1.0  # a load average; installing just before is seen in it too

# The better of several peers in each case: what a user of that framework gets who tries all.
BEST_OF = {
    "best eager": ["eager", "eager-autograd"],
    "best torch.compile": ["compile", "compile-autograd"],
    "best JAX": ["jax", "jax-vjp"],
    "best compiled": ["compile", "compile-autograd", "jax", "jax-vjp"],
}


def _table(rows: list[list[str]]) -> str:
    """Markdown, aligned; the first row is the head, the first column is text."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    lines = []
    for row in [rows[0], rule, *rows[1:]]:
        cells = [row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:]))]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def format_seconds(seconds: Optional[float]) -> str:
    if seconds is None:
        return ""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} us"
    return f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.3f} s"


def format_ratio(ratio: Optional[float]) -> str:
    if ratio is None:
        return ""
    return f"{ratio:.1f}" if ratio >= 10 else f"{ratio:.2f}"


def case_title(case: dict[str, Any]) -> str:
    probs = "float32 probs" if case["probs"] else "no probs"
    return (
        f"{case['model']}, {case['tokens']} token{'s' * (case['tokens'] != 1)}, "
        f"{case['dtype']}, {probs}, "
        f"memory: {case['memory']}"
    )


def _case_row(entry: dict[str, Any]) -> list[str]:
    errors = entry["agreement"]
    spread = ""
    if entry["seconds"]:
        low, high = entry["fastest_seconds"], entry["slowest_seconds"]
        spread = f"{format_seconds(low)} to {format_seconds(high)}"
    return [
        entry["peer"],
        format_seconds(entry["seconds"]) or entry["status"],
        format_ratio(entry["ratio"]),
        spread,
        f"{errors['rows_error']:.0e} {errors['probs_error']:.0e}" if errors else "",
        format_seconds(entry["prepare_seconds"]),
    ]


def case_table(case: dict[str, Any]) -> str:
    """A line a peer, and below the table why a peer has no time."""
    head = ["peer", "time", "ratio", "range", "largest errors", "first call"]
    text = case_title(case) + "\n\n"
    text += _table([head, *(_case_row(entry) for entry in case["results"])])
    if not case["interleaved"]:
        text += "\nToo large for all processes at once: they had their rounds one after the other."
    for entry in case["results"]:
        if entry["status"] != "ok":
            text += f"\n{entry['peer']} is {entry['status']}: {entry['reason']}"
    return text


def best_ratio(case: dict[str, Any], names: Iterable[str]) -> Optional[float]:
    """The smallest ratio of these peers in a case."""
    wanted = set(names)
    found = [e["ratio"] for e in case["results"] if e["peer"] in wanted and e["ratio"]]
    return min(found) if found else None


def _means_of(cases: list[dict[str, Any]], peers: list[str]) -> list[dict[str, Any]]:
    names = {peer: [peer] for peer in peers if peer != REFERENCE}
    names.update({k: v for k, v in BEST_OF.items() if set(v) <= set(peers)})
    means = []
    for name, members in names.items():
        ratios = [r for r in (best_ratio(case, members) for case in cases) if r]
        if ratios:
            mean = statistics.geometric_mean(ratios)
            means.append(
                {"peer": name, "ratio": mean, "smallest": min(ratios), "cases": len(ratios)}
            )
    return means


def geometric_means(cases: list[dict[str, Any]], peers: list[str]) -> list[dict[str, Any]]:
    """Over the models, for each peer, memory setting, type and number of tokens."""
    keys = ("memory", "dtype", "probs", "tokens")
    found = []
    for key in dict.fromkeys(tuple(case[k] for k in keys) for case in cases):
        alike = [case for case in cases if tuple(case[k] for k in keys) == key]
        found += [{**dict(zip(keys, key)), **mean} for mean in _means_of(alike, peers)]
    return found


def _means_table(means: list[dict[str, Any]]) -> str:
    """Peers down, (type, tokens) across."""
    columns = list(dict.fromkeys((m["dtype"], m["tokens"]) for m in means))
    rows = [["", *(f"{dtype}, {tokens}" for dtype, tokens in columns)]]
    for peer in dict.fromkeys(m["peer"] for m in means):
        ratios = {(m["dtype"], m["tokens"]): m["ratio"] for m in means if m["peer"] == peer}
        rows.append([peer, *(format_ratio(ratios.get(column)) for column in columns)])
    return _table(rows)


def _warning(machine: dict[str, Any]) -> list[str]:
    """The load before the start is that of others."""
    if machine["load_before"] is None or machine["load_before"] < BUSY:
        return []
    return [f"warning   load {machine['load_before']:.1f} before the start: others were at work"]


def _describe(report: dict[str, Any]) -> str:
    machine, settings = report["machine"], report["settings"]
    threads, rounds = settings["threads"], settings["rounds"]
    versions = ", ".join(f"{name} {v}" for name, v in report["versions"].items())
    return "\n".join(
        [
            f"machine   {machine['cpu']} ({machine['architecture']}), {machine['cores']} cores, "
            f"{machine['caches']}, {machine['memory']}",
            f"system    {machine['system']}, Python {machine['python']}, "
            f"transparent huge pages: {machine['transparent_huge_pages']}, "
            f"load before {machine['load_before']:.1f}, after {machine['load_after']:.1f}",
            f"versions  {versions}",
            f"settings  {threads} thread{'s' * (threads != 1)}, median of {rounds} rounds, "
            f"{report['seconds']:.0f} s in all",
            *_warning(machine),
        ]
    )


def summary(report: dict[str, Any]) -> str:
    """The machine, the geometric means and what the peers are."""
    parts = [_describe(report)]
    for memory in dict.fromkeys(m["memory"] for m in report["geomeans"]):
        for probs in (True, False):
            means = [m for m in report["geomeans"] if m["memory"] == memory and m["probs"] == probs]
            if not means:
                continue
            kind = "with float32 probs" if probs else "without probs"
            title = f"Times moetoken's time, geometric mean over models, {kind}, memory: {memory}"
            parts.append(f"{title}\n\n{_means_table(means)}")
    parts.append("\n".join(f"{name:18} {what}" for name, what in report["peers"].items()))
    return "\n\n".join(parts)
