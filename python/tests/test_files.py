"""Case files: what is written can be read, by others too, and broken ones are refused."""

import json

import ml_dtypes
import numpy as np
import pytest

import moetoken
from cases import bits

ARRAYS = {
    "f32": np.array([[1.5, -2.0], [np.inf, -0.0]], np.float32),
    "bf16": np.arange(3).astype(ml_dtypes.bfloat16),
    "f16": np.zeros((0, 4), np.float16),
    "f64": np.array(3.25),
    "i32": np.array([-1, 2**31 - 1], np.int32),
    "i64": np.array([[-(2**63)]]),
    "i8": np.array([-128, 127], np.int8),
    "u8": np.array([0, 255], np.uint8),
    "bool": np.array([True, False, True]),
    "file": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
}
METADATA = {"drop_and_pad": "false", "restore_shape": "3,4"}


@pytest.mark.parametrize("name", ["case.safetensors", "case.npz"])
def test_round_trip(tmp_path, name):
    moetoken.save(tmp_path / name, ARRAYS, METADATA)
    case = moetoken.load(tmp_path / name)
    assert case.metadata == METADATA and set(case) == set(ARRAYS)
    for key, array in ARRAYS.items():
        assert (case[key].dtype, case[key].shape) == (array.dtype, array.shape)
        assert type(case[key]) is np.ndarray and bits(case[key]) == bits(array)
    moetoken.save(tmp_path / ("again-" + name), case)
    assert moetoken.load(tmp_path / ("again-" + name)).metadata == METADATA
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([name, "again-" + name])


def test_loaded_arrays_are_the_callers(tmp_path):
    path = tmp_path / "case.safetensors"
    moetoken.save(path, {"a": np.arange(4, dtype=np.int32)})
    before = path.read_bytes()
    array = moetoken.load(path)["a"]
    array[0] = 7
    assert array.tolist() == [7, 1, 2, 3] and path.read_bytes() == before


def test_strided_arrays_and_refused_types(tmp_path):
    path = tmp_path / "case.safetensors"
    moetoken.save(path, {"a": np.arange(12).reshape(3, 4)[::-1, ::2]})
    assert moetoken.load(path)["a"].tolist() == [[8, 10], [4, 6], [0, 2]]
    with pytest.raises(TypeError, match="array 'a': type complex128"):
        moetoken.save(path, {"a": np.array([1j])})
    with pytest.raises(TypeError, match="metadata 'k': 3, expected strings"):
        moetoken.save(path, {}, {"k": 3})
    assert moetoken.load(path)["a"].shape == (3, 2)


def safetensors(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"a": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "a header of 0 bytes"),
        ((2**60).to_bytes(8, "little") + b"{}", f"a header of {2**60} bytes in a file that has 2"),
        (safetensors(b"[1]"), "no JSON object"),
        (safetensors(b"{]"), "Expecting"),
        (
            safetensors(entry(), bytes(4)),
            "tensor 'a': bytes 0 to 8, expected a part of the file's 4",
        ),
        (safetensors(entry(offsets=(0, 4)), bytes(8)), r"4 bytes for F32 \[2\], expected 8"),
        (safetensors(entry(offsets=(8, 0)), bytes(8)), "bytes 8 to 0"),
        (safetensors(entry(shape=(-2,)), bytes(8)), "expected numbers from 0"),
        (safetensors(entry(shape=(2.0,)), bytes(8)), "expected numbers from 0"),
        (safetensors(entry(dtype="F8"), bytes(8)), "type 'F8', expected BF16, BOOL"),
        (safetensors({"a": {"dtype": "F32"}}, bytes(8)), "tensor 'a'"),
    ],
)
def test_broken_files(tmp_path, content, message):
    path = tmp_path / "case.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        moetoken.load(path)


def test_npz_with_objects_is_refused(tmp_path):
    np.savez(tmp_path / "case.npz", a=np.array([{}], object))
    with pytest.raises(ValueError, match="allow_pickle"):
        moetoken.load(tmp_path / "case.npz")
