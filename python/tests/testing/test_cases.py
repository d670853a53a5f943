"""Cases as such: names, options, what the themes promise, files, what is drawn for Hypothesis."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import find, settings

import moetoken.testing as mt

OPERATORS = ["unpermute_grad", "unpermute", "permute", "permute_grad"]


def test_a_case_does_not_depend_on_how_many_there_are():
    few, many = mt.cases("permute", n=9, seed=5), mt.cases("permute", n=30, seed=5)
    assert [case.description for case in few] == [case.description for case in many[:9]]
    other = mt.cases("permute", n=9, seed=6)
    assert [case.description for case in few] != [case.description for case in other]
    assert len({case.name for case in many}) == 30


def test_names_are_ids_in_pytest(tmp_path):
    (tmp_path / "test_user.py").write_text(
        "import moetoken.testing as mt, pytest\n"
        "@pytest.mark.parametrize('case', mt.cases('unpermute-grad', n=3, seed=1, dtypes='f32'))\n"
        "def test_kernel(case): mt.check(case, case.expected())\n"
    )
    words = ["-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", str(tmp_path)]
    run = subprocess.run([sys.executable, *words], capture_output=True, text=True)
    found = [line.partition("[")[2] for line in run.stdout.splitlines() if "::" in line]
    names = [case.name for case in mt.cases("unpermute_grad", n=3, seed=1, dtypes="f32")]
    assert found == [name + "]" for name in names], run.stdout
    assert [name.rsplit("-", 2)[0] for name in names] == ["000-plain", "001-holes", "002-normal"]


@pytest.mark.parametrize("operator", OPERATORS)
def test_options(operator):
    found = mt.cases(
        operator, n=54, modes="padded", dtypes=np.float16, index_dtypes=["int64"], map_dtypes="i8"
    )
    assert {case.mode for case in found} == {"padded"}
    for case in found:
        types = {name: array.dtype.name for name, array in case.inputs.items()}
        assert set(types.values()) <= {"float16", "float32", "int64", "int8"}
        assert {types[name] for name in types if "map" in name} <= {"int8"}


@pytest.mark.parametrize("words, expected", [
    ({"operator": "router"}, "operator is 'router', expected one of unpermute_grad, unpermute, "),
    ({"modes": ["sparse"]}, "modes has 'sparse', expected some of dropless, padded, ids"),
    ({"modes": []}, "modes is empty"),
    ({"dtypes": "int32"}, "dtypes has 'int32', expected some of float32, float16, bfloat16, "),
    ({"index_dtypes": ["i8"]}, "index_dtypes has 'i8', expected some of int32, int64"),
    ({"map_dtypes": []}, "map_dtypes is empty"),
    ({"n": -1}, "n = -1, expected at least 0"),
    ({"seed": 2**63}, "seed = 9223372036854775808, expected at least 0 and below"),
])  # fmt: skip
def test_options_that_are_none(words, expected):
    with pytest.raises(ValueError, match=expected):
        mt.cases(**{"operator": "permute", "n": 2, **words})
    if set(words) & {"n", "seed"}:
        return
    with pytest.raises(ValueError, match=expected):
        mt.strategy(**{"operator": "permute", **words})


def of_theme(operator, theme, **words):
    return [case for case in mt.cases(operator, n=135, **words) if f"-{theme}-" in case.name]


def test_themes():
    """Each shows its corner, wherever the mode lets it."""
    for case in of_theme("unpermute_grad", "no_slot", modes=["dropless", "ids"]):
        assert (case.inputs["out_index"] == -1).all()
    for case in of_theme("unpermute_grad", "h_1"):
        assert case.hidden_size == 1
    for case in of_theme("unpermute_grad", "wide"):
        assert case.hidden_size >= 6000
    for case in of_theme("unpermute_grad", "many_tokens"):
        assert case.tokens_num >= 500
    for case in of_theme("permute", "all_experts", modes="dropless"):
        assert case.inputs["routing_map"].all() and case.topk == case.experts_num
    assert any(
        np.isnan(case.inputs["tokens"].astype(float)).any() for case in of_theme("permute", "nan")
    )
    zeros = of_theme("unpermute", "zero_weights", modes="ids")
    assert any((case.inputs["weights"] == 0).any() for case in zeros)
    spare = of_theme("permute_grad", "spare_rows", modes="dropless")
    assert any(case.rows_num > (case.inputs["sorted_indices"] >= 0).sum() for case in spare)


def test_inputs_are_made_once_and_copied():
    case = mt.cases("unpermute_grad", n=1)[0]
    assert case.inputs is case.inputs
    case.arguments()["out_index"][:] = 99
    assert not (case.inputs["out_index"] == 99).any()


@pytest.mark.parametrize("operator, suffix", [
    *((operator, ".safetensors") for operator in OPERATORS), ("unpermute_grad", ".npz")
])  # fmt: skip
def test_files(tmp_path, operator, suffix):
    for case in mt.cases(operator, n=27, seed=8):
        path = tmp_path / f"case{suffix}"
        case.save(path)
        again = mt.load(path)
        assert (again.operator, again.mode) == (case.operator, case.mode), case
        assert again.attributes == case.attributes and again.rows_num == case.rows_num
        for name, array in case.expected().items():
            assert again.expected()[name].tobytes() == array.tobytes(), (case, name)
        words = [one.description.replace(",", "").split() for one in (again, case)]
        assert set(words[0]) <= set(words[1])


def test_a_file_of_something_else(tmp_path):
    import moetoken

    path = tmp_path / "other.npz"
    moetoken.save(path, {"x": np.zeros(3)})
    with pytest.raises(ValueError, match="other.npz: metadata 'operator' is missing, expected a"):
        mt.load(path)
    with pytest.raises(ValueError, match="metadata 'drop_and_pad' is missing"):
        mt.load(path, "permute")
    case = mt.cases("permute", n=1)[0]
    moetoken.save(path, case.inputs, {**case.metadata(), "restore_shape": "7"})
    with pytest.raises(ValueError, match="metadata 'restore_shape' is '7'"):
        mt.load(path)


def test_topk_of_padded_cases():
    case = mt.cases("permute", n=1, modes="padded")[0]
    with pytest.raises(ValueError, match="padded, expected a case whose tokens have K slots each"):
        case.topk  # noqa: B018


# ---- Hypothesis ----------------------------------------------------------------------------------

CORNERS = {
    "no token": lambda case: case.tokens_num == 0,
    "a hole before a used slot": lambda case: case.mode == "dropless" and any(
        a < 0 <= b for a, b in zip(*[case.inputs["out_index"][i:] for i in (0, 1)])),
    "a row that no slot names": lambda case: case.mode == "dropless" and (
        case.rows_num > (case.inputs["out_index"] >= 0).sum()),
    "an expert twice": lambda case: case.mode == "padded" and len(
        set(zip(case._slots.token, case._slots.expert))) < case.slots_num,
    "wide weights": lambda case: case.inputs.get("probs", np.zeros(1)).dtype.itemsize
    > case.inputs["unpermuted_tokens_grad"].dtype.itemsize,
    "NaN": lambda case: np.isnan(case.inputs["unpermuted_tokens_grad"].astype(float)).any(),
    "any order": lambda case: (np.diff(case.inputs["out_index"]) < 0).any(),
}  # fmt: skip


@pytest.mark.parametrize("corner", CORNERS)
def test_drawn_cases_have_the_corners(corner):
    smallest = find(
        mt.strategy("unpermute_grad"),
        CORNERS[corner],
        settings=settings(max_examples=2000, derandomize=True, database=None),
    )
    assert smallest.tokens_num <= 3 and smallest.hidden_size == 1


def test_without_hypothesis(tmp_path):
    """Everything but strategy works; it says what to install."""
    (tmp_path / "hypothesis.py").write_text("raise ImportError('none here')")
    program = (
        "import moetoken.testing as mt\n"
        "case = mt.cases('permute', n=1)[0]\n"
        "mt.check(case, case.expected())\n"
        "try: mt.strategy('permute')\n"
        "except ImportError as error: print(error)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{program}"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert "needs the package hypothesis: pip install 'moetoken[testing]'" in run.stdout, run.stderr
