"""Arrays of PyTorch and JAX handed to the NumPy functions.

Autograd is told of what is written; what must not be written is refused, and so are views whose
memory does not hold their values.
"""

import numpy as np
import pytest

import moetoken

ROWS, INDICES = np.ones((2, 2), np.float32), np.array([0, 1])
MAP, PROBS = np.eye(2, dtype=bool), np.ones((2, 2), np.float32)


def calls(out):
    """Every function with `out` as its first output."""
    yield lambda: moetoken.unpermute_grad(ROWS, INDICES, out=(out, None))
    yield lambda: moetoken.unpermute(
        ROWS, INDICES, restore_shape=(2, 2), out=(out, None, None, None)
    )
    yield lambda: moetoken.permute(ROWS, MAP, num_out_tokens=2, out=(out, None, None))
    yield lambda: moetoken.permute_grad(ROWS, None, INDICES, tokens_num=2, out=(out, None))


@pytest.mark.parametrize("which", range(4))
def test_autograd_hears_of_tensors_that_it_saved(which):
    torch = pytest.importorskip("torch")
    weights, kept = torch.ones(2, 2, requires_grad=True), torch.full((2, 2), 5.0)
    loss = (weights * kept).sum()
    list(calls(kept))[which]()
    assert kept.tolist() == ROWS.tolist()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("which", range(4))
def test_what_must_not_be_written(which):
    torch, jnp = pytest.importorskip("torch"), pytest.importorskip("jax.numpy")
    constant = jnp.zeros((2, 2), "float32")
    leaf = torch.zeros(2, 2, requires_grad=True)
    lazy = torch.zeros(2, 2, dtype=torch.complex64).conj().imag
    for out, match in (
        (constant, r"out\[0\] is a JAX array, which is immutable"),
        (leaf, r"out\[0\] is a tensor that requires gradients"),
        (leaf * 1, r"out\[0\] is a tensor that requires gradients"),
        (lazy, r"out\[0\] is a lazy view"),
    ):
        with pytest.raises(ValueError, match=match):
            list(calls(out))[which]()
    assert not constant.any() and not leaf.detach().any() and not lazy.any()


def test_tensors_of_inference_mode_have_no_version():
    torch = pytest.importorskip("torch")
    with torch.inference_mode():
        kept = torch.zeros(2, 2)
    moetoken.unpermute_grad(ROWS, INDICES, out=(kept, None))
    assert kept.tolist() == ROWS.tolist()


def test_lazy_inputs_are_refused():
    torch = pytest.importorskip("torch")
    lazy = torch.ones(2, 2, dtype=torch.complex64).conj().imag
    assert lazy.is_neg()
    with pytest.raises(ValueError, match="unpermuted_tokens_grad is a lazy view, negated when"):
        moetoken.unpermute_grad(lazy, INDICES)
    assert moetoken.unpermute_grad(lazy.resolve_neg(), INDICES)[0].tolist() == lazy.tolist()
