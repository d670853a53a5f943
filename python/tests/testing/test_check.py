"""What check takes from a kernel, and what it says about it."""

from collections import namedtuple

import ml_dtypes
import numpy as np
import pytest
from kernels import library

import moetoken.testing as mt


def worked_case():
    """Two tokens, two experts; token 0 has both, the second slot of token 1 is unused."""
    return mt.Case(
        "unpermute_grad", "dropless", "by-hand", {
            "unpermuted_tokens_grad": np.array([[1, 2], [3, 4]], np.float32),
            "out_index": np.array([0, 2, 1, -1], np.int32),
            "permute_token_id": np.array([0, 0, 1, 1], np.int32),
            "permuted_tokens": np.array([[1, 1], [2, 2], [3, 3]], np.float32),
            "routing_map": np.array([[True, True], [True, False]]),
            "probs": np.array([[0.5, 2], [4, 0]], np.float32),
        },
        {"drop_and_pad": False, "restore_shape": (2, 2), "num_out_tokens": 4, "tokens_num": 2,
         "experts_num": 2, "topK_num": 2}, "two tokens", "worked_case()",
    )  # fmt: skip


MESSAGE = """\
unpermute_grad, by-hand: two tokens
permuted_tokens_grad: float32 [3, 2] FAILS ecosystem-2026-07
    misplaced NaN or Inf                      0  <= 0            pass
    matched ratio                     0.8333333  >= 0.99         FAIL
    largest absolute error                   12  <= 0.01         FAIL
    elements outside tolerance                1
    worst permuted_tokens_grad[1,0] = 0 (0x00000000), expected 12 (token 1, slot 2, expert 0, row 1)
probs_grad: float32 [2, 2] FAILS ecosystem-2026-07
    misplaced NaN or Inf                      1  <= 0            FAIL
    matched ratio                             1  >= 0.99         pass
    largest absolute error                    0  <= 0.01         pass
    elements outside tolerance                0
    worst probs_grad[1,1] = nan (0x7fc00000), expected 0 (token 1, expert 1, no slot)
inputs:
    unpermuted_tokens_grad = [[1.0, 2.0], [3.0, 4.0]]
    out_index = [0, 2, 1, -1]
    permute_token_id = [0, 0, 1, 1]
    permuted_tokens = [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]
    routing_map = [[True, True], [True, False]]
    probs = [[0.5, 2.0], [4.0, 0.0]]
reproduce: case = worked_case()
look at it: case.save('case.safetensors'), then: moetoken inspect case.safetensors"""


def test_the_message():
    case = worked_case()
    outputs = case.expected()
    outputs["permuted_tokens_grad"][1, 0] = 0
    outputs["probs_grad"][1, 1] = np.nan
    with pytest.raises(AssertionError) as caught:
        mt.check(case, outputs)
    assert str(caught.value) == MESSAGE


def test_the_line_that_makes_the_case_again():
    case = mt.cases("unpermute", n=30, seed=9, modes="padded", dtypes="bf16")[29]
    outputs = {**case.expected(), "unpermuted_tokens": case.blank()["unpermuted_tokens"]}
    with pytest.raises(AssertionError) as caught:
        mt.check(case, outputs)
    line = next(one for one in str(caught.value).splitlines() if one.startswith("reproduce"))
    import moetoken

    again = eval(line.partition(" = ")[2], {"moetoken": moetoken})
    assert (again.name, again.description) == (case.name, case.description)
    assert all(np.array_equal(again.inputs[k], v) for k, v in case.inputs.items())


# ---- forms ---------------------------------------------------------------------------------------


def test_forms_that_are_taken():
    case = worked_case()
    rows, probs_grad = case.expected().values()
    Result = namedtuple("Result", ["probs_grad", "permuted_tokens_grad"])
    Nameless = namedtuple("Nameless", ["dx", "dprobs"])
    for outputs in (
        {"probs_grad": probs_grad, "permuted_tokens_grad": rows},
        (rows, probs_grad),
        [rows, probs_grad],
        Result(probs_grad, rows),
        Nameless(rows, probs_grad),
        {"permuted_tokens_grad": rows[::-1][::-1], "probs_grad": np.asfortranarray(probs_grad)},
    ):
        mt.check(case, outputs, "bits")
    mt.check(case, rows, "bits", only=["permuted_tokens_grad"])
    mt.check(case, {"probs_grad": probs_grad}, "bits", only=["probs_grad"])


@pytest.mark.parametrize("change, expected", [
    ({"probs_grad": None}, "probs_grad is missing"),
    ({"probs_grad": np.zeros((2, 2))}, "probs_grad has type float64, expected float32"),
    ({"probs_grad": np.zeros((2, 3), np.float32)}, r"probs_grad has shape \[2, 3\], expected \[2, 2\]"),
    ({"probs_grad": np.zeros(4, np.float32)}, r"probs_grad has shape \[4\], expected \[2, 2\]"),
])  # fmt: skip
def test_forms_that_fail(change, expected):
    case = worked_case()
    with pytest.raises(AssertionError, match=expected):
        mt.check(case, {**case.expected(), **change})


@pytest.mark.parametrize("outputs, error, expected", [
    ({"prob_grad": np.zeros(1)}, ValueError, "prob_grad is no output of unpermute_grad in by-hand"),
    ((1, 2, 3), ValueError, "3 outputs are given, expected 2 of unpermute_grad in by-hand"),
    ({"probs_grad": "no"}, TypeError, "probs_grad is a str, expected an array"),
])  # fmt: skip
def test_what_is_no_output_at_all(outputs, error, expected):
    with pytest.raises(error, match=expected):
        mt.check(worked_case(), outputs)


def test_index_outputs_may_be_wider():
    case = next(
        case for case in mt.cases("permute", n=9, modes="ids") if case.inputs["tokens"].size > 3
    )
    outputs = case.expected()
    outputs["sorted_indices"] = outputs["sorted_indices"].astype(np.int64)
    outputs["permuted_weights"] = outputs.pop("permuted_probs")
    mt.check(case, outputs)
    with pytest.raises(AssertionError, match="source_slots has type float32, expected int32 or"):
        mt.check(case, {**outputs, "source_slots": outputs["source_slots"].astype(np.float32)})


# ---- frameworks ----------------------------------------------------------------------------------


def narrow_case():
    return next(
        case for case in mt.cases("unpermute_grad", n=60, dtypes="bf16", index_dtypes="i64")
        if case.inputs.get("probs", np.zeros(1)).dtype == ml_dtypes.bfloat16 and case.tokens_num
    )  # fmt: skip


def test_torch():
    torch = pytest.importorskip("torch")
    case = narrow_case()
    given = case.torch()
    assert given["unpermuted_tokens_grad"].dtype == torch.bfloat16
    assert given["out_index"].dtype == torch.int64
    for name, tensor in given.items():
        assert np.array_equal(tensor.double().numpy(), case.inputs[name].astype(float)), name
    given["out_index"].zero_()
    assert case.inputs["out_index"].any()  # the tensors have memory of their own
    outputs = {name: torch.tensor(a.astype(np.float32)) for name, a in case.expected().items()}
    narrow = {name: tensor.bfloat16().t().contiguous().t() for name, tensor in outputs.items()}
    mt.check(case, narrow, "bits")
    mt.check(case, {name: tensor.requires_grad_() for name, tensor in narrow.items()}, "bits")
    with pytest.raises(AssertionError, match="has type float32, expected bfloat16"):
        mt.check(case, outputs)
    blank = case.torch_blank()
    assert all(tensor.isnan().all() for tensor in blank.values())


def test_jax():
    jax = pytest.importorskip("jax")
    case = narrow_case()
    given = case.jax()
    for name, array in given.items():
        assert np.array_equal(np.asarray(array).astype(float), case.inputs[name].astype(float))
    outputs = [jax.numpy.asarray(array) for array in case.expected().values()]
    assert outputs[0].dtype == jax.numpy.bfloat16
    mt.check(case, outputs, "bits")


def test_jax_without_float64():
    jax = pytest.importorskip("jax")
    case = mt.cases("unpermute_grad", n=1, dtypes="float64")[0]
    before = jax.config.jax_enable_x64
    try:
        jax.config.update("jax_enable_x64", False)
        with pytest.raises(TypeError, match="unpermuted_tokens_grad is float64, which JAX takes"):
            case.jax()
        jax.config.update("jax_enable_x64", True)
        assert case.jax()["unpermuted_tokens_grad"].dtype == np.float64
    finally:
        jax.config.update("jax_enable_x64", before)


def test_anything_with_dlpack():
    class Lender:
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **words):
            return self.array.__dlpack__(**words)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    case = worked_case()
    mt.check(case, [Lender(array) for array in case.expected().values()], "bits")


# ---- kernels -------------------------------------------------------------------------------------


def test_a_kernel_is_run_twice_in_other_memory():
    fills = []

    def kernel(case):
        out = case.blank()
        fills.append({name: array.tobytes()[:1] for name, array in out.items()})
        for name, array in library(case)._asdict().items():
            out[name][...] = array
        return out

    case = mt.cases("permute_grad", n=1, modes="ids")[0]
    mt.check_kernel(case, kernel)
    assert [fill["tokens_grad"] for fill in fills] == [b"\xff", b"\x5d"]


def test_other_bits_the_second_time():
    case, runs = worked_case(), []

    def kernel(case):
        runs.append(case)
        rows, probs_grad = case.expected().values()
        probs_grad[0, 1] += 1e-6 * (len(runs) == 2)
        return rows, probs_grad

    expected = (
        r"probs_grad\[0,1\] has other bits when the kernel is run again: "
        r"9 \(0x41100000\), then 9\.00000095 \(0x41100001\)"
    )
    with pytest.raises(AssertionError, match=expected):
        mt.check_kernel(case, kernel)
    runs.clear()
    mt.check_kernel(case, kernel, repeats=1)


def test_results_in_memory_that_is_used_again():
    """The first run's outputs are kept, though the kernel writes the second's over them."""
    case, memory, runs = worked_case(), {}, []

    def kernel(case):
        runs.append(case)
        for name, array in case.expected().items():
            memory.setdefault(name, array)[...] = array + (len(runs) == 2) * np.float32(1e-6)
        return memory

    with pytest.raises(AssertionError, match="has other bits when the kernel is run again"):
        mt.check_kernel(case, kernel)


def test_a_changed_input():
    def kernel(case):
        outputs = case.expected()
        case.inputs["probs"][1, 0] = 7
        return outputs

    case = worked_case()
    with pytest.raises(AssertionError, match=r"probs\[1,0\]: the kernel has changed an input"):
        mt.check_kernel(case, kernel)
    assert case.inputs["probs"][1, 0] == 4


def test_what_the_kernel_raises_comes_through():
    def kernel(case):
        raise RuntimeError("no device")

    with pytest.raises(RuntimeError, match="no device"):
        mt.check_kernel(worked_case(), kernel)
