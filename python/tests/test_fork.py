"""Processes that multiprocessing forks after the library's threads have been at work."""

import multiprocessing
import sys

import numpy as np
import pytest

import moetoken

G = np.arange(512 * 1024, dtype=np.float32).reshape(512, 1024)  # 2 MiB: above what stays serial
INDEX = np.random.default_rng(0).permutation(len(G))


def work(threads):
    rows, _ = moetoken.unpermute_grad(G, INDEX, threads=threads)
    return rows.tobytes()


def answer(queue, threads):
    queue.put(work(threads))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux forks by default")
@pytest.mark.parametrize("threads", [0, 1, 4])
def test_a_forked_child_gets_its_answer(threads):
    expected = np.zeros_like(G)
    expected[INDEX] = G
    assert work(4) == expected.tobytes()  # the parent's threads exist now; the child has none
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=answer, args=(queue, threads))
    child.start()
    try:
        assert queue.get(timeout=60) == expected.tobytes()
        child.join(60)
        assert child.exitcode == 0
    finally:
        child.kill()
    assert work(4) == expected.tobytes()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux forks by default")
def test_a_pool_of_forked_workers():
    expected = work(4)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map_async(work, [0, 2, 4, 1]).get(timeout=60) == [expected] * 4
