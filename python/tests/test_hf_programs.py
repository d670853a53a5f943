"""The example and the benchmark for transformers' experts: they run, and what they print is so."""

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

ROOT = Path(__file__).parents[2]
if not (ROOT / "bench" / "hf").exists():
    pytest.skip("bench and examples are not part of this tree", allow_module_level=True)


def run(*words):
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_finetune_learns_the_same_with_each():
    small = ["--hidden", 32, "--inner", 16, "--layers", 1, "--experts", 4, "--topk", 2]
    printed = run(
        ROOT / "examples/finetune_hf/finetune.py", *small, "--length", 16, "--batch", 2,
        "--steps", 3, "--implementations", "moetoken,eager", "--text", Path(__file__),
    )  # fmt: skip
    rows = [re.findall(r"\S+", line) for line in printed.splitlines()[1:]]
    assert [row[0] for row in rows] == ["moetoken", "eager"]
    losses = [[float(word) for word in row[-2:]] for row in rows]
    for ours, others in zip(*losses):
        assert abs(ours - others) < 1e-4 and 4 < ours < 7  # log 256 = 5.55


def test_benchmark(tmp_path):
    report, plot = tmp_path / "report.json", tmp_path / "plot.svg"
    printed = run(
        ROOT / "bench/hf", "--tokens", "1,9", "--experts", "3", "--topk", 2, "--hidden", 16,
        "--inner", 8, "--rounds", 1, "--clock", "cpu", "--json", report, "--svg", plot,
    )  # fmt: skip
    cases = json.loads(report.read_text())["cases"]
    assert len(cases) == len(printed.splitlines()) == 12
    for case in cases:
        assert set(case["results"]) == {"moetoken", "grouped_mm", "batched_mm", "eager"}
        assert all(entry["seconds"] > 0 for entry in case["results"].values())
        is_training = case["shape"][-1] == "train"
        assert all(("bytes" in entry) == is_training for entry in case["results"].values())
    words = "".join(ElementTree.parse(plot).getroot().itertext())
    assert "routing alone, both ways, bf16" in words and "time, forward alone, f32" in words


def test_without_gemms_all_do_the_same():
    """What is timed as routing is routing: the weighted sum of a token's own copies."""
    sys.path.insert(0, str(ROOT / "bench"))
    import torch
    from hf.layers import IMPLEMENTATIONS, Shape, _layer, _own_routing, _without_gemms

    shape = Shape(7, 5, 3, 16, 8, "f32", "routing")
    x, layer = torch.randn(7, 16), _layer(shape)
    weights, ids = torch.rand(7, 5).softmax(1).topk(3)
    for name in IMPLEMENTATIONS:
        layer.config._experts_implementation = name
        with _without_gemms():
            y = (_own_routing(5) if name == "moetoken" else layer)(x, ids, weights)
        assert torch.allclose(y, x * weights.sum(1, keepdim=True), atol=1e-6), name
