"""Draws the JSON's ratios as SVG: a panel for each type and number of tokens, a group a model."""

from __future__ import annotations

import math
from typing import Any, Optional
from xml.sax.saxutils import escape

from .report import BEST_OF, best_ratio

__all__ = ["svg"]

# What is drawn, and its colours on light and on dark paper.
SERIES: list[tuple[str, list[str], str, str]] = [
    ("NumPy", ["numpy"], "#8a8f98", "#9aa0aa"),
    ("PyTorch eager", ["eager"], "#c2410c", "#f97316"),
    ("PyTorch autograd", ["eager-autograd"], "#d4a106", "#fde047"),
    ("torch.compile (better of two)", BEST_OF["best torch.compile"], "#1d4ed8", "#60a5fa"),
    ("JAX jit (better of two)", BEST_OF["best JAX"], "#15803d", "#4ade80"),
]
WIDTH, MARGIN, LEFT = 980, 16, 34
PANEL_HEIGHT, PLOT_HEIGHT, TOP = 196, 132, 84
MANY_TOKENS = 1024
TICKS = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000]


def _style() -> str:
    light = "".join(f".s{i}{{fill:{series[2]}}}" for i, series in enumerate(SERIES))
    dark = "".join(f".s{i}{{fill:{series[3]}}}" for i, series in enumerate(SERIES))
    return (
        "<style>text{font:11px system-ui,sans-serif;fill:#1f2328}.small{font-size:8.5px}"
        ".axis{font-size:9.5px}.title{font-size:15px;font-weight:600}.head{font-weight:600}"
        ".paper{fill:#ffffff}.grid{stroke:#d0d7de;stroke-width:.6}.one{stroke:#1f2328}"
        f"{light}@media (prefers-color-scheme:dark){{text{{fill:#e6edf3}}.paper{{fill:#0d1117}}"
        f".grid{{stroke:#30363d}}.one{{stroke:#e6edf3}}{dark}}}</style>"
    )


def _text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    where = f'x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}"'
    return f"<text {where}>{escape(words)}</text>"


class Scale:
    """A logarithmic axis over all ratios of the report: equal lengths mean the same everywhere."""

    def __init__(self, ratios: list[float]) -> None:
        self.low = min([0.8, *(ratio / 1.1 for ratio in ratios)])
        self.high = max([2.0, *(ratio * 1.25 for ratio in ratios)])

    def height(self, ratio: float) -> float:
        return PLOT_HEIGHT * math.log(ratio / self.low) / math.log(self.high / self.low)

    def ticks(self) -> list[float]:
        return [tick for tick in TICKS if self.low <= tick <= self.high]


def _grid(scale: Scale, x: float, base: float, width: float) -> list[str]:
    parts = []
    for tick in scale.ticks():
        y = base - scale.height(tick)
        kind = "one" if tick == 1 else "grid"
        parts.append(f'<path class="{kind}" d="M{x:.1f} {y:.1f}h{width:.1f}"/>')
        parts.append(_text(x - 4, y + 3, f"{tick:g}", "axis", "end"))
    return parts


def _bar(scale: Scale, ratio: Optional[float], series: int, x: float, base: float, width: float):
    """From 1 up where moetoken is faster, from 1 down where it is slower."""
    if ratio is None:
        return []
    one, end = base - scale.height(1), base - scale.height(ratio)
    top, height = min(one, end), max(abs(one - end), 0.5)
    return [
        f'<rect class="s{series}" x="{x:.1f}" y="{top:.1f}" width="{width - 1:.1f}" '
        f'height="{height:.1f}"/>',
        _text(x + (width - 1) / 2, top - 2, _short(ratio), "small", "middle"),
    ]


def _short(ratio: float) -> str:
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.1f}"


def _panel(
    scale: Scale, cases: list[dict[str, Any]], x: float, y: float, width: float
) -> list[str]:
    first = cases[0]
    title = f"{first['dtype']}, {first['tokens']} token{'s' * (first['tokens'] != 1)}"
    memory = " (freed memory kept, huge pages)" if first["memory"] == "kept" else ""
    base = y + 24 + PLOT_HEIGHT
    parts = [_text(x, y + 14, title + memory, "head"), *_grid(scale, x, base, width)]
    group = width / len(cases)
    bar = group * 0.9 / len(SERIES)
    for i, case in enumerate(cases):
        left = x + i * group + group * 0.05
        for j, (_, peers, _, _) in enumerate(SERIES):
            parts += _bar(scale, best_ratio(case, peers), j, left + j * bar, base, bar)
        parts.append(_text(x + (i + 0.5) * group, base + 13, case["model"], "axis", "middle"))
    return parts


def _panels(cases: list[dict[str, Any]]) -> list[list[list[dict[str, Any]]]]:
    """Rows of panels: (tokens, memory) down, (type, probs) across."""
    rows = dict.fromkeys((case["tokens"], case["memory"] == "kept") for case in cases)
    columns = dict.fromkeys((case["dtype"], case["probs"]) for case in cases)
    return [
        [
            [
                case
                for case in cases
                if (case["tokens"], case["memory"] == "kept") == row
                and (case["dtype"], case["probs"]) == column
            ]
            for column in columns
        ]
        for row in sorted(rows)
    ]


def _drawn(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without the small cases of the second memory setting: what malloc does matters less there."""
    first = cases[0]["memory"]
    return [case for case in cases if case["memory"] == first or case["tokens"] >= MANY_TOKENS]


def _legend() -> list[str]:
    parts, x = [], float(MARGIN)
    for i, (name, _, _, _) in enumerate(SERIES):
        parts.append(f'<rect class="s{i}" x="{x:.0f}" y="48" width="11" height="11"/>')
        parts.append(_text(x + 16, 58, name))
        x += 36 + 6.2 * len(name)
    return parts


def svg(report: dict[str, Any]) -> str:
    """The plot of a report, as XML text."""
    cases = _drawn(report["cases"])
    ratios = [r for c in cases for _, peers, _, _ in SERIES if (r := best_ratio(c, peers))]
    scale, rows = Scale(ratios), _panels(cases)
    height = TOP + PANEL_HEIGHT * len(rows) + 26
    machine, versions = report["machine"], report["versions"]
    threads = report["settings"]["threads"]
    note = f"{machine['cpu']}, {threads} thread{'s' * (threads != 1)}; " + ", ".join(
        f"{name} {version}" for name, version in versions.items()
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" role="img">',
        "<title>Time of the gradient of unpermute, relative to moetoken</title>",
        _style(),
        f'<rect class="paper" width="{WIDTH}" height="{height}"/>',
        _text(MARGIN, 26, "Gradient of unpermute: how many times moetoken's time", "title"),
        *_legend(),
    ]
    for i, row in enumerate(rows):
        width = (WIDTH - MARGIN) / len(row)
        for j, panel in enumerate(row):
            x, y = MARGIN / 2 + j * width + LEFT, TOP + i * PANEL_HEIGHT
            if panel:
                parts += _panel(scale, panel, x, y, width - LEFT - MARGIN / 2)
    parts += [_text(MARGIN, height - 10, note, "axis"), "</svg>"]
    return "\n".join(parts) + "\n"
