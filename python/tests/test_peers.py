"""The comparison with other frameworks (bench/peers) on tiny cases: it runs, and refuses errors.

Times mean nothing here. torch.compile is left out: it would take longer than all the rest.
"""

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
if not (ROOT / "bench" / "peers").exists():
    pytest.skip("bench/peers is not part of this tree", allow_module_level=True)
for module in ("torch", "jax", "ml_dtypes"):
    pytest.importorskip(module)
sys.path.insert(0, str(ROOT / "bench"))

from oracle import slots, unpermute_grad  # noqa: E402
from peers import agreement, cases, compare, machine, numpy_peers, plot, report  # noqa: E402
from peers import measure as measure_module  # noqa: E402
from peers.measure import measure  # noqa: E402
from peers.processes import Process  # noqa: E402
from peers.registry import GROUPS, PEERS, Call  # noqa: E402
from peers.worker import Worker  # noqa: E402

TESTED = [name for name, peer in PEERS.items() if peer.group != "compile"]


def tiny(dtype, probs=True):
    """Odd sizes, two experts for each of five tokens."""
    return cases.Shape("tiny", 67, 6, 2, 5, dtype, probs)


@pytest.fixture(scope="module")
def workers():
    return {group: Worker(group) for group in GROUPS if group != "compile"}


def statuses(case):
    return {entry["peer"]: (entry["status"], entry["reason"]) for entry in case["results"]}


@pytest.mark.parametrize(
    ("dtype", "probs"), [("f32", True), ("bf16", True), ("f16", True), ("bf16", False)]
)
def test_all_peers_agree(workers, dtype, probs):
    case = measure(workers, TESTED, tiny(dtype, probs), "system", rounds=1)
    assert statuses(case) == {name: ("ok", "") for name in TESTED}
    for entry in case["results"]:
        assert entry["seconds"] > 0 and entry["ratio"] > 0 and entry["rounds"] == 1
        assert entry["calls"] >= 1 and entry["prepare_seconds"] > 0


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_data(dtype):
    """Every pair of the map has a row, rows are in expert order, numbers are as intended."""
    shape = tiny(dtype)
    data = cases.make_data(shape)
    assert (data.routing_map.sum(1) == shape.topk_num).all()
    pairs = list(zip(data.expert_of_row.tolist(), data.token_of_row.tolist()))
    assert pairs == sorted(set(pairs)) and len(pairs) == shape.rows
    assert all(data.routing_map[token, expert] for expert, token in pairs)
    for array in (data.tokens_grad, data.rows, data.probs):
        sizes = np.abs(array.astype(np.float64))
        assert sizes.min() >= 0.5 and sizes.max() < 2 and array.ctypes.data % 64 == 0
        assert 0.2 < (array.astype(np.float64) < 0).mean() < 0.8
        assert len(np.unique(array)) > array.size / 3
    again = cases.make_data(shape)
    assert again.rows.tobytes() == data.rows.tobytes()


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_what_peers_are_compared_with(dtype):
    """The expected result is that of the contract, worked out slot by slot in binary64."""
    data = cases.make_data(tiny(dtype))
    routing_map, probs = data.routing_map, data.probs
    found = slots(data.out_index, None, data.shape.tokens, routing_map, probs, padded=False)
    rows, probs_grad, _ = unpermute_grad(
        data.tokens_grad, found, data.shape.rows, data.rows, data.probs
    )
    right = rows.astype(data.rows.dtype), probs_grad.astype(np.float32)
    result = agreement.agreement(right, agreement.expected_result(data), data.shape, "float32")
    assert result.same, result.reason


def wrong_builders():
    """Each changes one thing of a right result."""

    def one_element(rows, probs_grad):
        rows[3, 11] *= 1.02

    def two_rows_exchanged(rows, probs_grad):
        rows[[2, 7]] = rows[[7, 2]]

    def not_a_number(rows, probs_grad):
        rows[0, 0] = np.nan

    def one_probs_grad(rows, probs_grad):
        probs_grad[np.nonzero(probs_grad)[0][0], np.nonzero(probs_grad)[1][0]] += 0.1

    def beside_a_slot(rows, probs_grad):
        probs_grad[np.nonzero(probs_grad == 0)[0][0], np.nonzero(probs_grad == 0)[1][0]] = 1

    def nothing(rows, probs_grad):
        rows[...] = 0

    return [one_element, two_rows_exchanged, not_a_number, one_probs_grad, beside_a_slot, nothing]


@pytest.mark.parametrize("spoil", wrong_builders(), ids=lambda f: f.__name__)
def test_a_wrong_peer_is_refused(workers, monkeypatch, spoil):
    right = workers["numpy"].module.BUILDERS["numpy"]

    def build(data):
        call = right(data)

        def run():
            result = call.run()
            spoil(*result)
            return result

        return Call(run, call.arrays)

    monkeypatch.setitem(workers["numpy"].module.BUILDERS, "numpy", build)
    case = measure(workers, ["moetoken", "numpy"], tiny("f32"), "system", rounds=1)
    reference, refused = case["results"]
    assert reference["status"] == "ok"
    assert refused["status"] == "refused" and "is off by" in refused["reason"]
    assert refused["seconds"] is None and refused["ratio"] is None
    assert "numpy is refused: " in report.case_table(case)
    assert report.geometric_means([case], ["moetoken", "numpy"]) == []


def test_wrong_form_is_refused():
    shape = tiny("f32")
    expected = agreement.expected_result(cases.make_data(shape))
    rows, probs_grad = expected.rows, expected.probs_grad
    assert agreement.agreement((rows, probs_grad), expected, shape, "float32").same
    for found in (
        (rows[:-1], probs_grad),
        (rows.astype(np.float16), probs_grad),
        (rows, None),
        (rows, probs_grad.astype(np.float64)),
    ):
        assert not agreement.agreement(found, expected, shape, "float32").same


def test_a_failing_peer_is_reported(workers, monkeypatch):
    def build(data):
        raise ValueError("no such thing")

    monkeypatch.setitem(workers["numpy"].module.BUILDERS, "numpy", build)
    case = measure(workers, ["moetoken", "numpy"], tiny("f32"), "system", rounds=1)
    assert statuses(case)["numpy"] == ("failed", "ValueError: no such thing")


def test_large_results_are_sampled(monkeypatch):
    shape = tiny("f32")
    monkeypatch.setattr(agreement, "_MOST_ELEMENTS", 4 * shape.hidden_size)
    data = cases.make_data(shape)
    expected = agreement.expected_result(data)
    assert len(set(expected.sample)) == len(expected.rows) == 4 < shape.rows
    whole = numpy_peers.gradient(data)
    assert agreement.agreement(whole, expected, shape, "float32").same
    whole[0][expected.sample[2], 5] += 1
    assert not agreement.agreement(whole, expected, shape, "float32").same


def test_group_by_group_where_memory_is_short(workers, monkeypatch):
    needed = [measure_module._needed_bytes(tiny("f32"), group) for group in ("moetoken", "numpy")]
    short = int((sum(needed) - 1) / measure_module.MOST_OF_MEMORY)
    monkeypatch.setattr(measure_module, "_available_bytes", lambda: short)
    names = ["moetoken", "numpy"]
    case = measure(workers, names, tiny("f32"), "system", rounds=1)
    assert not case["interleaved"] and {s for s, _ in statuses(case).values()} == {"ok"}
    monkeypatch.setattr(measure_module, "_available_bytes", lambda: 0)
    case = measure(workers, names, tiny("f32"), "system", rounds=1)
    assert {entry["status"] for entry in case["results"]} == {"skipped"}
    assert "are available" in case["results"][0]["reason"]


def test_a_process_that_dies_is_started_anew():
    process = Process("numpy", threads=1, cores=machine.cores()[:1], memory="system")
    try:
        assert "numpy" in process.ask(do="hello")["versions"]
        process.process.kill()
        assert "when memory runs out" in process.ask(do="hello")["error"]
        assert "started anew" in process.ask(do="prepare", peer="numpy")["error"]
    finally:
        process.close()


@pytest.mark.parametrize("command", ["prepare", "time"])
def test_a_process_that_dies_takes_its_group_along(workers, command):
    class Dying:
        def ask(self, **asked):
            if asked["do"] == command and asked["peer"] == "eager-autograd":
                return {"error": "the process of torch ended", "ended": True}
            return workers["torch"].ask(**asked)

    names = ["moetoken", "eager", "eager-autograd", "eager-tuned"]
    case = measure({**workers, "torch": Dying()}, names, tiny("f32"), "system", rounds=2)
    found = statuses(case)
    assert found["moetoken"] == ("ok", "")
    assert found["eager-autograd"] == ("failed", "the process of torch ended")
    assert found["eager"] == ("failed", "the process of torch ended")
    later = "skipped" if command == "prepare" else "failed"
    assert found["eager-tuned"] == (later, "the process of torch ended")


def test_models_are_those_of_the_tool():
    text = (ROOT / "cli" / "cases" / "models.c").read_text()
    known = re.findall(r'\{"([^"]+)", (\d+), (\d+), (\d+),', text)
    assert {name: tuple(map(int, sizes)) for name, *sizes in known} == cases.MODELS


def test_geometric_mean():
    def case(model, ratio):
        result = {"peer": "eager", "ratio": ratio}
        common = {"memory": "system", "dtype": "bf16", "probs": True, "tokens": 1}
        return {**common, "model": model, "results": [result]}

    (mean,) = report.geometric_means([case("a", 2.0), case("b", 8.0)], ["moetoken", "eager"])
    assert mean["ratio"] == pytest.approx(4) and mean["smallest"] == 2 and mean["cases"] == 2


def run(*arguments, **settings):
    command = [sys.executable, str(ROOT / "bench" / "peers"), *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, env={**os.environ, **settings}
    )


def test_the_whole_command(tmp_path):
    """Worker processes, the tables, JSON and plot; then the same report from the JSON alone."""
    outputs = ["--json", tmp_path / "peers.json", "--svg", tmp_path / "peers.svg"]
    done = run(
        *("--models", "granite-3.0-3b-a800m", "--tokens", "1,2", "--dtypes", "bf16,f32"),
        *("--peers", "numpy,moetoken-c", "--rounds", "2", "--threads", "1", "--memory", "kept"),
        *outputs,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "peers.json").read_text())
    assert {"cpu", "cores", "memory", "transparent_huge_pages"} <= set(found["machine"])
    assert {"moetoken", "numpy"} <= set(found["versions"])
    assert found["settings"]["peers"] == ["moetoken", "numpy", "moetoken-c"]
    keys = {(c["tokens"], c["dtype"], c["memory"]) for c in found["cases"]}
    assert len(keys) == len(found["cases"]) == 4
    for case in found["cases"]:
        assert (case["hidden_size"], case["experts_num"], case["topk_num"]) == (1536, 40, 8)
        for entry in case["results"]:
            assert entry["status"] == "ok", entry["reason"]
            assert entry["agreement"]["same"] and entry["rounds"] == 2
            low, high = entry["fastest_seconds"], entry["slowest_seconds"]
            assert 0 < low <= entry["seconds"] <= high
            assert entry["prepare_seconds"] > 0 and entry["ratio"] > 0
    assert {m["peer"] for m in found["geomeans"]} == {"numpy", "moetoken-c"}
    again = run("--from", tmp_path / "peers.json", "--svg", tmp_path / "again.svg")
    assert again.returncode == 0 and again.stdout in done.stdout
    assert (tmp_path / "again.svg").read_text() == (tmp_path / "peers.svg").read_text()
    drawn = ElementTree.parse(tmp_path / "peers.svg").getroot()
    assert drawn.tag.endswith("svg") and len(drawn.findall(".//{*}rect[@class='s0']")) == 5


def test_wrong_arguments():
    for arguments, expected in (
        (["--models", "gpt-5"], "no model 'gpt-5'"),
        (["--tokens", "0"], "'0' is no list of positive numbers"),
        (["--threads", "100000"], "--threads 100000"),
    ):
        done = run(*arguments)
        assert done.returncode == 2 and expected in done.stderr


def test_plot_keeps_its_scale():
    """Twice the ratio is the same height everywhere, and 1 is the line that bars begin at."""
    scale = plot.Scale([0.5, 20.0])
    assert scale.height(4) - scale.height(2) == pytest.approx(scale.height(2) - scale.height(1))
    assert 0 < scale.height(0.5) < scale.height(1) < scale.height(20.0) < plot.PLOT_HEIGHT


def test_quick_is_small():
    options = compare._arguments(["--quick"])
    assert len(options.models) == 2 and max(options.tokens) <= 1024 and options.rounds == 7
