"""Draws the report as SVG: how many times the time, and the memory, of moetoken the others take."""

from __future__ import annotations

import math
from typing import Any
from xml.sax.saxutils import escape

__all__ = ["svg"]

_OTHERS = [
    ("grouped_mm", "#1d4ed8", "#60a5fa"),
    ("batched_mm", "#15803d", "#4ade80"),
    ("eager", "#c2410c", "#f97316"),
]
_WORDS = {
    "train": "forward and backward",
    "forward": "forward alone",
    "routing": "routing alone, both ways",
}
_TICKS = [0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256]
_WIDTH, _LEFT, _PANEL, _PLOT, _TOP = 980, 40, 190, 120, 76


def _style() -> str:
    light = "".join(f".s{i}{{fill:{series[1]}}}" for i, series in enumerate(_OTHERS))
    dark = "".join(f".s{i}{{fill:{series[2]}}}" for i, series in enumerate(_OTHERS))
    return (
        "<style>text{font:11px system-ui,sans-serif;fill:#1f2328}.axis{font-size:9.5px}"
        ".title{font-size:15px;font-weight:600}.head{font-weight:600}.paper{fill:#fff}"
        f".grid{{stroke:#d0d7de;stroke-width:.6}}.one{{stroke:#1f2328}}{light}"
        "@media (prefers-color-scheme:dark){text{fill:#e6edf3}.paper{fill:#0d1117}"
        f".grid{{stroke:#30363d}}.one{{stroke:#e6edf3}}{dark}}}</style>"
    )


def _text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    where = f'x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}"'
    return f"<text {where}>{escape(words)}</text>"


def _panels(cases: list[dict[str, Any]]) -> list[tuple[str, list[tuple[str, dict[str, float]]]]]:
    """(title, [(label, {implementation: ratio})])"""
    found: dict[str, list[tuple[str, dict[str, float]]]] = {}
    for key, unit in (("seconds", "time"), ("bytes", "memory")):
        for case in cases:
            tokens, experts, _, _, _, dtype, what = case["shape"]
            results = case["results"]
            ours = results["moetoken"].get(key)
            if not ours:
                continue
            others = ((n, r.get(key)) for n, r in results.items() if n != "moetoken")
            ratios = {name: value / ours for name, value in others if value}
            title = f"{unit}, {_WORDS[what]}, {dtype}"
            found.setdefault(title, []).append((f"{tokens}/{experts}", ratios))
    return list(found.items())


def _panel(title: str, groups: list[Any], low: float, high: float, x: float, y: float, w: float):
    base = y + 22 + _PLOT
    height = lambda ratio: _PLOT * math.log(ratio / low) / math.log(high / low)
    parts = [_text(x, y + 12, title, "head")]
    for tick in (tick for tick in _TICKS if low <= tick <= high):
        at = base - height(tick)
        parts.append(f'<path class="{"one" if tick == 1 else "grid"}" d="M{x} {at:.1f}h{w:.1f}"/>')
        parts.append(_text(x - 4, at + 3, f"{tick:g}", "axis", "end"))
    group = w / len(groups)
    bar = group * 0.86 / len(_OTHERS)
    for i, (label, ratios) in enumerate(groups):
        parts.append(_text(x + (i + 0.5) * group, base + 13, label, "axis", "middle"))
        for j, (name, _, _) in enumerate(_OTHERS):
            if name in ratios:
                one, end = base - height(1), base - height(ratios[name])
                left = x + i * group + group * 0.07 + j * bar
                parts.append(
                    f'<rect class="s{j}" x="{left:.1f}" y="{min(one, end):.1f}" '
                    f'width="{bar - 0.5:.1f}" height="{max(abs(one - end), 0.5):.1f}"/>'
                )
    return parts


def svg(report: dict[str, Any]) -> str:
    """The plot of a report, as XML text."""
    panels = _panels(report["cases"])
    ratios = [r for _, groups in panels for _, found in groups for r in found.values()]
    low, high = min([0.8, *(r / 1.1 for r in ratios)]), max([2.0, *(r * 1.2 for r in ratios)])
    total = _TOP + _PANEL * math.ceil(len(panels) / 2) + 26
    settings, machine = report["settings"], report["machine"]
    _, _, topk, hidden, inner, _, _ = report["cases"][0]["shape"]
    clock = "CPU time" if settings["clock"] == "cpu" else "elapsed time"
    note = (
        f"{machine['cpu']}; {settings['threads']} thread(s), {clock}, medians of "
        f"{settings['rounds']} rounds; hidden {hidden}, expert {inner}, top-{topk}"
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{total}" '
        f'viewBox="0 0 {_WIDTH} {total}" role="img">',
        "<title>Experts of transformers: time and memory relative to moetoken</title>",
        _style(),
        f'<rect class="paper" width="{_WIDTH}" height="{total}"/>',
        _text(16, 24, "Experts of transformers: how many times moetoken's time and memory", "title"),
        _text(400, 56, "below each group: tokens/experts; below 1 moetoken loses", "axis"),
    ]
    for i, (name, _, _) in enumerate(_OTHERS):
        parts.append(f'<rect class="s{i}" x="{16 + 120 * i}" y="46" width="11" height="11"/>')
        parts.append(_text(32 + 120 * i, 56, name))
    width = _WIDTH / 2
    for i, (title, groups) in enumerate(panels):
        x, y = i % 2 * width + _LEFT, _TOP + i // 2 * _PANEL
        parts += _panel(title, groups, low, high, x, y, width - _LEFT - 12)
    parts += [_text(16, total - 10, note, "axis"), "</svg>"]
    return "\n".join(parts) + "\n"
