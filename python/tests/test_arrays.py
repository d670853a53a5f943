"""How arrays come in: NumPy, DLPack, the buffer protocol; strides, errors, threads, the GIL."""

import array
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import moetoken
from cases import BFLOAT16, TOKEN_TYPES, bits, make_case, numbers

G = np.array([[1, 2, 3], [4, 5, 6]], np.float32)


# ---- protocols ----------------------------------------------------------------------------------


class OnlyDLPack:
    """An array that has nothing but DLPack; `versions` says whether it knows max_version."""

    def __init__(self, inner, versions=True):
        self.inner, self.versions = inner, versions
        self.shape, self.dtype = inner.shape, inner.dtype

    def __dlpack__(self, **keywords):
        if keywords and not self.versions:
            raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
        return self.inner.__dlpack__(**keywords)

    def __dlpack_device__(self):
        return self.inner.__dlpack_device__()


@pytest.mark.parametrize("versions", [True, False])
def test_dlpack(versions):
    g = OnlyDLPack(G[:, ::2], versions)
    index = OnlyDLPack(np.array([1, 0]), versions)
    out = np.zeros((2, 2), np.float32)
    rows, _ = moetoken.unpermute_grad(g, index, out=(OnlyDLPack(out, versions), None))
    assert out.tolist() == [[4, 6], [1, 3]]
    rows, _ = moetoken.unpermute_grad(g, index)
    assert type(rows) is np.ndarray and rows.tolist() == out.tolist()


def test_dlpack_capsules():
    out = np.zeros((2, 3), np.float32)
    moetoken.unpermute_grad(G.__dlpack__(), np.array([1, 0]), rows_num=2, out=(out, None))
    assert out.tolist() == [[4, 5, 6], [1, 2, 3]]


def test_buffers():
    """memoryview, array.array and ctypes arrays are taken as they are."""
    index = array.array("i", [1, 0])
    rows, _ = moetoken.unpermute_grad(memoryview(G), index)
    assert rows.tolist() == [[4, 5, 6], [1, 2, 3]]
    target = bytearray(24)
    out = memoryview(target).cast("B").cast("f", (2, 3))
    moetoken.unpermute_grad(memoryview(G)[::-1], memoryview(index), out=(out, None))
    assert np.frombuffer(target, np.float32).tolist() == [1, 2, 3, 4, 5, 6]


def test_subclasses_of_ndarray(tmp_path):
    g = np.memmap(tmp_path / "g", np.float32, "w+", shape=(2, 3))
    g[...] = G
    rows, _ = moetoken.unpermute_grad(g, np.array([1, 0]))
    assert rows.tolist() == [[4, 5, 6], [1, 2, 3]]


def test_nothing_is_copied():
    """An output is written where it lies, through every protocol."""
    storage = np.zeros(24, np.uint8)
    for view in (storage, memoryview(storage), OnlyDLPack(storage)):
        if view is storage:
            out = storage.view(np.float32).reshape(2, 3)
        elif isinstance(view, memoryview):
            out = view.cast("B").cast("f", (2, 3))
        else:
            out = OnlyDLPack(storage.view(np.float32).reshape(2, 3))
        storage[:] = 255
        moetoken.unpermute_grad(G, np.array([0, 1]), out=(out, None))
        assert bits(storage) == bits(G)


# ---- strides ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TOKEN_TYPES, ids=str)
def test_strides_of_every_kind(dtype):
    """Negative, zero, and no multiple of the element size: inputs and outputs."""
    rng = np.random.default_rng(1)
    g = numbers(rng, (4, 5), dtype)
    index = np.array([2, 0, 3, 1])
    expected = moetoken.unpermute_grad(g, index)[0]
    record = np.dtype([("pad", np.uint8), ("value", dtype)])
    odd = np.zeros((4, 5), record)
    odd["value"] = g
    for view in (g[::-1, ::-1].copy()[::-1, ::-1], odd["value"], np.asfortranarray(g)):
        assert bits(moetoken.unpermute_grad(view, index)[0]) == bits(expected)
    assert bits(moetoken.unpermute_grad(g, index[::-1].copy()[::-1])[0]) == bits(expected)
    target = np.zeros((4, 5), record)
    for out in (target["value"], np.zeros((4, 5), dtype)[::-1], np.zeros((4, 5), dtype)[:, ::-1]):
        found, _ = moetoken.unpermute_grad(g, index, out=(out, None))
        assert found is out and bits(out) == bits(expected)
    assert not target["pad"].any()
    expanded = np.broadcast_to(g[:1, :1], (4, 5))
    found, _ = moetoken.unpermute_grad(expanded, index)
    assert bits(found) == bits(np.full((4, 5), g[0, 0], dtype))


# ---- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error, message, call",
    [
        (IndexError, r"out_index\[1\] = 2 is outside \[0, 2\)", lambda: grad(G, [0, 2])),
        (ValueError, "out_index", lambda: grad(G, [1, 1])),
        (TypeError, "out_index", lambda: moetoken.unpermute_grad(G, np.array([0.0, 1.0]))),
        (TypeError, "unpermuted_tokens_grad", lambda: grad(G.astype(">f4"), [0, 1])),
        (TypeError, "unpermuted_tokens_grad", lambda: grad(G.astype(complex), [0, 1])),
        (TypeError, "unpermuted_tokens_grad is no array", lambda: grad([[1.0]], [0])),
        (TypeError, "out_index is no array", lambda: moetoken.unpermute_grad(G, [0, 1])),
        (ValueError, "unpermuted_tokens_grad has 1 dimension,", lambda: grad(G[0], [0, 1])),
        (ValueError, "unpermuted_tokens_grad is missing", lambda: grad(None, [0, 1])),
        (ValueError, "restore_shape", lambda: grad(G, [0, 1], restore_shape=(3, 3))),
        (ValueError, "read-only", lambda: grad(G, [0, 1], out=(read_only(), None))),
        (TypeError, "out is no tuple of 2", lambda: grad(G, [0, 1], out=G)),
        (ValueError, "routing_map", lambda: grad(G, [0, 1], probs=G, permuted_tokens=G)),
        (ValueError, "threads", lambda: grad(G, [0, 1], threads=-1)),
        (ValueError, "restore_shape is missing", lambda: moetoken.unpermute(G, np.array([0, 1]))),
        (TypeError, "index_dtype is int8", lambda: permute(index_dtype=np.int8)),
        (TypeError, "routing_map is float32", lambda: permute(routing_map=G)),
        (ValueError, "tokens has 3 dimensions", lambda: permute(tokens=G[None])),
        (ValueError, "tokens_num is missing", lambda: moetoken.permute_grad(G, None, G)),
    ],
)
def test_errors(error, message, call):
    with pytest.raises(error, match=message):
        call()


def grad(g, index, **keywords):
    return moetoken.unpermute_grad(g, np.array(index), **keywords)


MAP = np.ones((2, 3), bool)


def permute(tokens=G, routing_map=MAP, **keywords):
    return moetoken.permute(tokens, routing_map, num_out_tokens=6, **keywords)


def read_only():
    array = np.zeros((2, 3), np.float32)
    array.setflags(write=False)
    return array


def test_errors_leave_outputs_alone():
    out = numbers(np.random.default_rng(0), (2, 3), np.dtype(np.float32))
    before = bits(out)
    with pytest.raises(IndexError):
        moetoken.unpermute_grad(G, np.array([0, 5]), out=(out, None))
    assert bits(out) == before


# ---- threads ------------------------------------------------------------------------------------


def test_threads_calling_at_once():
    """Results are those of one thread; an error belongs to the thread that made it."""
    cases = [make_case(i, i % 2 == 1, 40, 129, 6, 3, BFLOAT16, True, i % 3 == 0) for i in range(8)]

    def run(case):
        return moetoken.unpermute_grad(
            case.tokens,
            case.out_index,
            case.token_id,
            routing_map=case.routing_map,
            permuted_tokens=case.rows,
            probs=case.probs,
            drop_and_pad=case.padded,
        )

    def run_often(i):
        for _ in range(30):
            with pytest.raises(IndexError, match=rf"out_index\[0\] = {1000 + i} is outside"):
                moetoken.unpermute_grad(G, np.array([1000 + i, 0]))
            found.append((i, [bits(part) for part in run(cases[i])]))

    expected = [[bits(part) for part in run(case)] for case in cases]
    found = []
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(run_often, range(8)))
    assert len(found) == 240 and all(parts == expected[i] for i, parts in found)


def test_the_gil_is_released():
    g = np.ones((4000, 4096), np.float32)
    index = np.random.default_rng(0).permutation(8000)
    out = (np.empty((8000, 4096), np.float32), None)
    worker = threading.Thread(
        target=lambda: [moetoken.unpermute_grad(g, index, out=out, threads=1) for _ in range(3)]
    )
    turns = 0
    worker.start()
    while worker.is_alive():
        time.sleep(0.001)
        turns += 1
    assert turns > 10  # with the GIL held, each of the three calls would be a single turn


def test_a_call_costs_microseconds():
    """A bound ten times the goal, for busy machines: bench/python_calls.py has the real number."""
    index = np.array([1, 0])

    def seconds(count):
        began = time.perf_counter()
        for _ in range(count):
            moetoken.unpermute_grad(G, index)
        return (time.perf_counter() - began) / count

    assert min(seconds(200) for _ in range(20)) < 50e-6
