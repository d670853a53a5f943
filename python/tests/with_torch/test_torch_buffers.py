"""PyTorch's outputs over buffers of the cache: held by whatever shares their storage."""

import gc
import multiprocessing
import pickle

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import moetoken  # noqa: E402
import moetoken.torch as mt  # noqa: E402

H = 1024
ROWS = torch.arange(1024)
pytestmark = pytest.mark.skipif(
    not hasattr(torch.Tensor, "__dlpack_c_exchange_api__")
    or not moetoken._buffers._limit(),
    reason="the cache is off, or this PyTorch makes no tensors from C",
)


def spread(value, dtype=torch.float32):
    return mt.unpermute_grad(torch.full((1024, H), value, dtype=dtype), ROWS)[0]


@pytest.fixture(autouse=True)
def empty():
    gc.collect()
    moetoken.empty_cache()
    yield
    moetoken.empty_cache()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_a_freed_buffer_is_used_again(dtype):
    first = spread(1.0, dtype)
    address = first.data_ptr()
    assert first.is_contiguous() and first.dtype == dtype and first.device.type == "cpu"
    assert type(first) is torch.Tensor and not first.requires_grad and first._version == 0
    del first
    second = spread(2.0, dtype)
    assert second.data_ptr() == address and bool((second == 2).all())


KEEPERS = {
    "a view": lambda t: t[3:5, ::2],
    "a detached tensor": lambda t: t.detach(),
    "another type": lambda t: t.view(torch.int32),
    "the storage": lambda t: t.untyped_storage(),
    "NumPy": lambda t: t.numpy(),
    "a NumPy view": lambda t: t[1:].numpy()[::2],
    "DLPack": lambda t: torch.utils.dlpack.to_dlpack(t),
    "NumPy by DLPack": lambda t: np.from_dlpack(t),
    "a parameter": lambda t: torch.nn.Parameter(t),
    "a graph": lambda t: (t * torch.ones(1, requires_grad=True)).grad_fn,
    "a tensor with .data": lambda t: torch.empty(0).set_(t.untyped_storage(), 0, (5,), (1,)),
}


@pytest.mark.parametrize("keeper", KEEPERS)
def test_what_is_in_use_is_not_handed_out(keeper):
    tensor = spread(1.0)
    address = tensor.data_ptr()
    kept = KEEPERS[keeper](tensor)
    del tensor
    gc.collect()
    others = [spread(2.0), spread(3.0)]
    assert address not in [other.data_ptr() for other in others]
    if isinstance(kept, torch.Tensor):
        assert bool((kept == (0x3F800000 if kept.dtype == torch.int32 else 1)).all())
    del kept
    gc.collect()
    assert spread(4.0).data_ptr() == address


def test_saved_for_backward_is_in_use():
    """Only autograd knows of the rows that unpermute's gradient needs."""
    x = torch.randn(512, H, requires_grad=True)
    routing_map = torch.ones(512, 2, dtype=torch.bool)
    probs = torch.rand(512, 2, requires_grad=True)
    rows, _, indices = mt.permute(x, routing_map, num_out_tokens=1024)
    y = mt.unpermute(rows, indices, routing_map=routing_map, probs=probs)
    expected = (x.detach().double() * y.detach().double()).sum(1, keepdim=True).expand(-1, 2)
    del rows
    for value in (2.0, 3.0):
        spread(value)
    grad = torch.autograd.grad(y, probs, y.detach())[0]
    assert torch.allclose(grad.double(), expected, rtol=1e-4, atol=1e-2)


def test_copies():
    tensor = spread(1.0)
    copies = [pickle.loads(pickle.dumps(tensor)), tensor.clone(), tensor.double()]
    del tensor
    spread(2.0)
    assert all(bool((one == 1).all()) for one in copies)


def test_moved_to_shared_memory():
    tensor = spread(1.0)
    tensor.share_memory_()
    others = [spread(2.0), spread(3.0)]
    assert tensor.is_shared() and bool((tensor == 1).all())
    assert tensor.data_ptr() not in [other.data_ptr() for other in others]


def _sum(queue, answers):
    """By NumPy: the threads of PyTorch's OpenMP do not survive fork."""
    answers.put(float(queue.get(timeout=120).numpy().sum(dtype=np.float64)))


def test_sent_to_another_process():
    context = multiprocessing.get_context("fork")
    queue, answers = torch.multiprocessing.get_context("fork").Queue(), context.Queue()
    child = context.Process(target=_sum, args=(queue, answers))
    child.start()
    try:
        queue.put(spread(1.0))
        assert answers.get(timeout=120) == 1024 * H
    finally:
        child.kill()


def test_inference_mode():
    with torch.inference_mode():
        tensor = spread(1.0)
        assert tensor.is_inference()
    assert not spread(1.0).is_inference()


def test_modified_in_place():
    tensor = spread(1.0)
    tensor.add_(1)
    assert tensor._version == 1 and bool((tensor == 2).all())
    tensor.requires_grad_()
    (tensor * tensor).sum().backward()
    assert bool((tensor.grad == 4).all())
