"""What moetoken.testing and the tool must have alike: cases, golden results, figures of standards."""

import json
import subprocess

import ml_dtypes
import numpy as np
import pytest
from test_tool import TOOL

import moetoken
import moetoken.testing as mt
from moetoken.testing import _standards

pytestmark = pytest.mark.skipif(TOOL is None, reason="the tool is not built (or MOETOKEN_TOOL set)")

OPERATORS = ["unpermute_grad", "unpermute", "permute", "permute_grad"]
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def conform(operator, cases, seed, *more):
    words = ["--operator", operator.replace("_", "-"), "--cases", str(cases), "--seed", str(seed)]
    command = [TOOL, "conform", *words, *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module", params=OPERATORS)
def kept(request, tmp_path_factory):
    """(operator, the files of 54 cases of seed 11, by number)"""
    folder = tmp_path_factory.mktemp("cases")
    copy = f"n=$(ls {folder} | wc -l); cp {{case}} {folder}/$n.safetensors; : {{out}}; exit 77"
    run = conform(request.param, 54, 11, "--jobs", "1", "--dtypes", "f32,f16,bf16,f64",
                  "--run", copy)  # fmt: skip
    assert "NOTHING TRIED" in run.stdout, run.stderr
    return request.param, [folder / f"{i}.safetensors" for i in range(54)]


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("options, words", [
    ({}, []),
    ({"modes": ["padded", "ids"], "dtypes": ["bf16"], "index_dtypes": "i64", "map_dtypes": "u8"},
     ["--modes", "padded,ids", "--dtypes", "bf16", "--index-dtypes", "i64", "--map-dtypes", "u8"]),
])  # fmt: skip
def test_the_list(operator, options, words):
    listed = conform(operator, 200, 5, "--list", *words).stdout.splitlines()
    cases = mt.cases(operator, n=200, seed=5, **options)
    assert listed == [f"{i:5d}  {case.description}" for i, case in enumerate(cases)]


def test_inputs_byte_by_byte(kept):
    operator, paths = kept
    cases = mt.cases(operator, n=54, seed=11, dtypes=["f32", "f16", "bf16", "f64"])
    for case, path in zip(cases, paths):
        file = moetoken.load(path)
        assert file.metadata == case.metadata()
        assert set(file) == set(case.inputs), case
        for name, array in case.inputs.items():
            assert (file[name].dtype, file[name].shape) == (array.dtype, array.shape), (case, name)
            assert file[name].tobytes() == array.tobytes(), (case, name)


def test_expected_outputs(kept, tmp_path):
    """The tool's oracle finds our golden results right, to half a unit in the last place.

    float64: the tool adds in long double, which cancellation makes coarser than half a unit.
    """
    operator, paths = kept
    for path in paths:
        case = mt.load(path)
        if case.tokens_num == 0:  # there the tool knows no K
            continue
        out = tmp_path / "out.safetensors"
        moetoken.save(out, case.expected())
        wide = "float64" in case.description
        run = subprocess.run(
            [TOOL, "verify", path, out, "--operator", operator.replace("_", "-"),
             "--standard", "ecosystem-2026-04" if wide else "ulp:0.5"],
            capture_output=True, text=True,
        )  # fmt: skip
        assert run.returncode == 0, (case, run.stdout, run.stderr)


def test_saved_cases_are_the_tools(tmp_path):
    """What Case.save writes goes through the tool's operator, and the result through check."""
    for case in mt.cases("unpermute_grad", n=12, seed=3):
        path, out = tmp_path / "case.npz", tmp_path / "out.npz"
        case.save(path)
        subprocess.run([TOOL, "unpermute-grad", path, "-o", out], check=True, capture_output=True)
        mt.check(case, dict(moetoken.load(out)))


# ---- standards -----------------------------------------------------------------------------------

NAMES = ["ecosystem-2026-04", "ecosystem-2026-07", "msprobe", "bits", "ulp:2"]


def pairs():
    """(actual, golden) of many kinds: right, a little and quite wrong, special values, integers."""
    rng = np.random.default_rng(0)
    types = [np.dtype(np.float32), np.dtype(np.float16), BFLOAT16, np.dtype(np.float64)]
    for i in range(60):
        dtype = types[i % 4]
        count = int(rng.integers(1, 300))
        golden = rng.standard_normal(count) * 10.0 ** rng.integers(-3, 4)
        error = rng.standard_normal(count) * 10.0 ** rng.integers(-9, 0)
        actual = golden * (1 + error * (rng.random(count) < rng.choice([0.005, 0.05, 1])))
        if i % 3 == 0:
            golden[rng.integers(count)] = rng.choice([np.nan, np.inf, -np.inf, 0, -0.0, 1e39])
            actual = np.where(np.isfinite(golden), actual, golden)
        if i % 5 == 0:
            actual[rng.integers(count)] = rng.choice([np.nan, np.inf, 0, 1e-310])
        with np.errstate(all="ignore"):
            yield actual.astype(dtype), golden if i % 2 else golden.astype(dtype)
    for i in range(8):
        golden = rng.integers(-(2**31), 2**31, 50).astype([np.int32, np.int64][i % 2])
        actual = golden.copy()
        actual[rng.integers(50)] += i // 4
        yield actual, golden
    yield np.zeros(3, np.float32), np.zeros(3, np.float32)
    yield np.zeros((0, 4), np.float32), np.zeros((0, 4))
    yield np.array([True, False]), np.array([True, True])


def number(value):
    return float(value) if isinstance(value, str) else value


def test_figures(tmp_path):
    actual = {f"t{i:02d}": pair[0] for i, pair in enumerate(pairs())}
    golden = {f"t{i:02d}": pair[1] for i, pair in enumerate(pairs())}
    moetoken.save(tmp_path / "a.safetensors", actual)
    moetoken.save(tmp_path / "g.safetensors", golden)
    run = subprocess.run(
        [TOOL, "compare", tmp_path / "a.safetensors", tmp_path / "g.safetensors", "--json",
         "--standard", ",".join(NAMES)], capture_output=True, text=True,
    )  # fmt: skip
    verdicts = {True: 0, False: 0}
    for tensor in json.loads(run.stdout)["tensors"]:
        name = tensor["name"]
        for theirs in tensor["judgements"]:
            ours = _standards.judge(theirs["standard"], actual[name], golden[name])
            assert ours.passed == theirs["passed"], (name, ours, theirs)
            worst = theirs["worst"]["element"] if theirs["worst"] else -1
            assert ours.worst == worst, (name, ours, theirs)
            assert len(ours.figures) == len(theirs["figures"])
            for mine, other in zip(ours.figures, theirs["figures"]):
                assert mine.name == other["name"]
                assert mine.value == pytest.approx(number(other["value"]), rel=1e-12, nan_ok=True)
                if "limit" in other:
                    assert (mine.relation, mine.passed) == (other["relation"], other["passed"])
                    assert mine.limit == pytest.approx(number(other["limit"]), rel=1e-15)
            verdicts[ours.passed] += 1
    assert min(verdicts.values()) > 100, verdicts
