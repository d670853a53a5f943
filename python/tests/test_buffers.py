"""The cache of freed output buffers: bounded, and nothing that is in use comes out of it."""

import gc
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest

import moetoken

H = 1024
CACHE_IS_ON = os.environ.get("MOETOKEN_CACHE_BYTES", "").strip() != "0"
pytestmark = pytest.mark.skipif(not CACHE_IS_ON, reason="MOETOKEN_CACHE_BYTES=0")


def spread(value, rows=1024):
    """[rows, H] float32 of `value`, 4 KiB a row, over a buffer of the cache."""
    g = np.full((rows, H), value, np.float32)
    return moetoken.unpermute_grad(g, np.arange(rows))[0]


def current(quantity):
    return moetoken.memory_stats()[f"{quantity}.all.current"]


@pytest.fixture(autouse=True)
def empty():
    gc.collect()
    moetoken.empty_cache()
    yield
    moetoken.empty_cache()


def test_a_freed_buffer_is_used_again():
    first = spread(1)
    address = first.ctypes.data
    assert address % (2 << 20) == 0  # begins with a huge page
    assert first.flags.writeable and first.flags.c_contiguous
    del first
    second = spread(2)
    assert second.ctypes.data == address
    assert (second == 2).all()


def test_small_outputs_are_not_of_the_cache():
    before = current("allocation")
    kept = spread(1, rows=16)
    assert current("allocation") == before and len(kept) == 16


KEEPERS = {
    "a view": lambda array: array[3:5, ::2],
    "a transposed view of a view": lambda array: array[1:].T[:5],
    "another type": lambda array: array.view(np.int32),
    "a memoryview": memoryview,
    "DLPack": lambda array: np.from_dlpack(array),
}


@pytest.mark.parametrize("keeper", KEEPERS)
def test_what_is_in_use_is_not_handed_out(keeper):
    array = spread(1)
    address = array.ctypes.data
    kept = KEEPERS[keeper](array)
    expected = np.array(kept)
    del array
    gc.collect()
    others = [spread(value) for value in (2, 3)]
    assert address not in [other.ctypes.data for other in others]
    assert np.array_equal(np.array(kept), expected)
    del kept
    gc.collect()
    assert spread(4).ctypes.data == address


def test_pickled_and_copied_arrays_have_memory_of_their_own():
    array = spread(1)
    copies = [pickle.loads(pickle.dumps(array)), array.copy(), array.astype(np.float64)]
    del array
    spread(2)
    assert all((one == 1).all() for one in copies)


def test_numbers():
    before = moetoken.memory_stats()
    a, b = spread(1), spread(2)
    after = moetoken.memory_stats()

    def change(name):
        return after[name] - before[name]

    assert change("allocation.all.current") == change("allocation.all.allocated") == 2
    assert change("allocated_bytes.all.current") == a.nbytes + b.nbytes
    assert change("segment.all.allocated") == 2
    assert change("reserved_bytes.all.current") >= a.nbytes + b.nbytes
    del a, b
    assert current("allocation") == before["allocation.all.current"]
    assert current("reserved_bytes") == after["reserved_bytes.all.current"]
    moetoken.empty_cache()
    assert current("reserved_bytes") == before["reserved_bytes.all.current"]
    for values in (before, after, moetoken.memory_stats()):
        for quantity in ("allocation", "allocated_bytes", "segment", "reserved_bytes"):
            now, peak, gained, lost = (
                values[f"{quantity}.all.{number}"]
                for number in ("current", "peak", "allocated", "freed")
            )
            assert now == gained - lost and now <= peak


def test_a_much_smaller_output_does_not_take_a_large_buffer():
    large = spread(1, rows=4096)
    address = large.ctypes.data
    del large
    assert spread(2, rows=1024).ctypes.data != address


def test_threads():
    """Every thread finds in its arrays what it wrote, however many take and give at once."""
    wrong = []

    def work(seed):
        rng = np.random.default_rng(seed)
        kept = []
        for i in range(60):
            value = seed * 1000 + i
            kept.append((value, spread(value, rows=int(rng.integers(256, 700)))))
            if len(kept) > 3:
                value, array = kept.pop(int(rng.integers(len(kept))))
                if not (array == value).all():
                    wrong.append(value)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def _child(queue, kept):
    own = spread(7)
    moetoken.empty_cache()
    queue.put((bool((own == 7).all()), bool((kept == 1).all()), own.tobytes() == kept.tobytes()))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux forks by default")
def test_fork():
    kept, freed = spread(1), spread(2)
    del freed
    stop = threading.Event()

    def churn():  # may hold the lock of the cache when the process forks
        while not stop.is_set():
            spread(3, rows=256)

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        context = multiprocessing.get_context("fork")
        for _ in range(5):
            queue = context.Queue()
            child = context.Process(target=_child, args=(queue, kept))
            child.start()
            try:
                assert queue.get(timeout=120) == (True, True, False)
                child.join(60)
                assert child.exitcode == 0
            finally:
                child.kill()
    finally:
        stop.set()
        thread.join()
    assert (kept == 1).all()


def run(code, limit):
    return subprocess.run(
        [sys.executable, "-c", "import moetoken, numpy as np\n" + code],
        env={**os.environ, "MOETOKEN_CACHE_BYTES": limit},
        capture_output=True,
        text=True,
        timeout=300,
    )


SPREAD = """
def spread(rows):
    return moetoken.unpermute_grad(np.ones((rows, 1024), np.float32), np.arange(rows))[0]
def waiting():
    stats = moetoken.memory_stats()
    return stats["reserved_bytes.all.current"] - stats["allocated_bytes.all.current"]
"""


def test_the_limit():
    """Of buffers of 4, 8 and 6 MiB the last 14 MiB stay."""
    code = SPREAD + "a, b, c = spread(1024), spread(2048), spread(1536)\n"
    found = run(code + "del a\ndel b\ndel c\nprint(waiting() >> 20)", str(14 << 20))
    assert found.stdout == "14\n", found.stderr
    found = run(code + "del a\ndel b\ndel c\nprint(waiting() >> 20)", str(1 << 20))
    assert found.stdout == "0\n", found.stderr


def test_off():
    found = run(SPREAD + "a = spread(1024); print(moetoken.memory_stats().values())", "0")
    assert found.stdout == f"dict_values({[0] * 16})\n", found.stderr


@pytest.mark.parametrize("limit", ["1G", "-1", "x", str(2**63)])
def test_a_limit_that_is_no_number(limit):
    found = run("", limit)
    assert f"MOETOKEN_CACHE_BYTES is {limit!r}, expected a number of bytes" in found.stderr
    assert found.returncode == 1


def test_an_array_outlives_the_package():
    """Arrays that die when the interpreter does."""
    code = SPREAD + "import sys\nsys.keep = spread(1024)\nkept = sys.keep[1:]"
    found = run(code, str(1 << 30))
    assert (found.returncode, found.stderr) == (0, "")
