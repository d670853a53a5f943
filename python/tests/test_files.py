"""Case files: what is written can be read, by others too, and broken ones are refused."""

import json
import os
import zipfile
from concurrent.futures import ThreadPoolExecutor

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
        (safetensors(b"[1]"), "byte 8 is '{'"),
        (safetensors(b'{"a":1} x'), "Extra data"),
        (safetensors(b'{"a":' + b"[" * 100_000), "nested deeper"),
        (safetensors(b'{"a":' + b"1" * 10_000 + b"}"), "case.safetensors: "),
        (safetensors(b'{"__metadata__":{"a":NaN}}'), "holds NaN"),
        (safetensors(b'{"__metadata__":{"a":1}}'), "metadata 'a': 1, expected a string"),
        (safetensors(b'{"__metadata__":[]}'), "__metadata__ is no JSON object"),
        (safetensors(b'{"__metadata__":{"a":"b","a":"c"}}'), "has 'a' twice"),
        (safetensors(b'{"\\ud800":{}}'), "surrogates"),
        (safetensors(b'{"\xff":{}}'), "utf-8"),
        (safetensors(entry(), bytes(9)), "1 bytes after the last tensor"),
        (safetensors(entry(offsets=(1, 9)), bytes(9)), "expected them to begin at 0"),
        (
            safetensors({**entry(), "b": entry(offsets=(4, 12))["a"]}, bytes(12)),
            "tensor 'b': bytes 4 to 12, expected them to begin at 8",
        ),
        (safetensors({"a": {**entry()["a"], "more": 1}}, bytes(8)), "expected an object of dtype"),
        (safetensors(entry(shape=[True]), bytes(8)), "expected numbers from 0"),
        (safetensors(entry(shape=[2**64]), bytes(8)), "expected numbers from 0"),
        (safetensors(b"{]"), "Expecting"),
        (
            safetensors(entry(), bytes(4)),
            "tensor 'a': bytes 0 to 8, expected .* in the file's 4",
        ),
        (safetensors(entry(offsets=(0, 4)), bytes(8)), r"4 bytes for F32 \[2\], expected 8"),
        (safetensors(entry(offsets=(8, 0)), bytes(8)), r"data_offsets \[8, 0\]"),
        (safetensors(entry(shape=(-2,)), bytes(8)), "expected numbers from 0"),
        (safetensors(entry(shape=(2.0,)), bytes(8)), "expected numbers from 0"),
        (safetensors(entry(dtype=8), bytes(8)), "dtype 8, expected a string"),
        (safetensors({"a": {"dtype": "F32"}}, bytes(8)), "tensor 'a'"),
    ],
)
def test_broken_files(tmp_path, content, message):
    path = tmp_path / "case.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        moetoken.load(path)


def test_unknown_types_leave_the_others_readable(tmp_path):
    """Types of the format that NumPy has with ml_dtypes, has not, and that nobody has."""
    path = tmp_path / "case.safetensors"
    header = {
        "good": {"dtype": "I32", "shape": [1], "data_offsets": [0, 4]},
        "e4m3": {"dtype": "F8_E4M3", "shape": [2], "data_offsets": [4, 6]},
        "f4": {"dtype": "F4", "shape": [4], "data_offsets": [6, 8]},
        "new": {"dtype": "Q7", "shape": [4], "data_offsets": [8, 16]},
        "vast": {"dtype": "U8", "shape": [0, 2**40, 2**40], "data_offsets": [16, 16]},
    }
    path.write_bytes(safetensors(header, b"\5\0\0\0\x38\xb8" + bytes(10)))
    case = moetoken.load(path)
    assert case["good"].tolist() == [5] and case["e4m3"].astype(float).tolist() == [1.0, -1.0]
    assert sorted(case) == ["e4m3", "good"] and sorted(case.unread) == ["f4", "new", "vast"]
    for name, words in (("f4", "type 'F4'"), ("new", "type 'Q7'"), ("vast", "shape")):
        with pytest.raises(TypeError, match=f"case.safetensors: tensor '{name}': {words}"):
            case[name]
    with pytest.raises(KeyError, match="absent"):
        case["absent"]


def test_npz_types_that_cannot_be_read(tmp_path):
    path = tmp_path / "case.npz"
    np.savez(path, a=np.array([{}], object), f8=np.ones(2, ml_dtypes.float8_e5m2), good=np.eye(2))
    case = moetoken.load(path)
    assert case["good"].tolist() == [[1, 0], [0, 1]]
    with pytest.raises(TypeError, match="case.npz: array 'a': type object, Python objects"):
        case["a"]
    with pytest.raises(TypeError, match="case.npz: array 'f8': type '<f1'"):
        case["f8"]


def npy(header, data=b""):
    text = header.encode("latin-1")
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


def npy_of(shape, descr="'<f4'", data=b"", fortran="False"):
    return npy(f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}}}", data)


@pytest.mark.parametrize(
    "member, message",
    [
        (b"", "ends after 0 of 8"),
        (b"\x93NUMPY\x09\x00", "expected an array of NumPy's format"),
        (npy("(" * 5000), "nested too deep"),
        (npy("-" * 60_000 + "1"), "no literal"),
        (npy("__import__('os').system('x')"), "no literal"),
        (npy("{}"), "expected descr"),
        (npy_of("(2,)", data=bytes(4)), "ends after 4 of 8 bytes"),
        (npy_of("(2,)", data=bytes(12)), "more than the 8 bytes"),
        (npy_of("(2**60,)"), "no literal"),
        (npy_of(f"({2**60},)"), "does not have so many"),
        (npy_of(f"({2**60}, 0, {2**60})"), ""),
        (npy_of("(-1,)"), "expected numbers from 0"),
        (npy_of("(True,)", data=bytes(4)), "expected numbers from 0"),
        (npy_of("(1,)", data=bytes(4), fortran="0"), "fortran_order 0"),
    ],
)
@pytest.mark.parametrize("way", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_broken_npz(tmp_path, member, message, way):
    path = tmp_path / "case.npz"
    with zipfile.ZipFile(path, "w", way) as archive:
        archive.writestr("x.npy", member)
    with pytest.raises(ValueError, match=f"case.npz: array 'x': .*{message}"):
        moetoken.load(path)


def test_npz_that_claims_to_inflate_without_end(tmp_path):
    """A claimed size that no deflate stream of the file's length can have asks for no memory."""
    path = tmp_path / "case.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", npy_of(f"({2**28},)"))
    content = bytearray(path.read_bytes())
    at = content.rindex(b"PK\1\2")
    content[at + 24 : at + 28] = (2**31).to_bytes(4, "little")  # its size in the directory
    path.write_bytes(content)
    with pytest.raises(ValueError, match="does not have so many"):
        moetoken.load(path)


def test_damaged_files_raise_what_is_promised(tmp_path):
    """Bytes changed, cut and doubled at random: arrays or ValueError, whatever the damage."""
    rng = np.random.default_rng(1)
    outcomes = set()
    for name in ("case.safetensors", "case.npz", "squeezed.npz"):
        if name == "squeezed.npz":
            np.savez_compressed(tmp_path / name, a=np.zeros(50), b=np.arange(9))
        else:
            moetoken.save(tmp_path / name, ARRAYS, METADATA)
        whole = (tmp_path / name).read_bytes()
        for _ in range(400):
            content = bytearray(whole)
            for at in rng.integers(len(content), size=rng.integers(1, 4)):
                how = rng.integers(3)
                if how == 0:
                    content[at : at + 1] = bytes([rng.integers(256)])
                elif how == 1:
                    del content[at : at + rng.integers(1, 40)]
                else:
                    content[at:at] = content[at // 2 : at // 2 + rng.integers(1, 40)]
            (tmp_path / "damaged").write_bytes(content)
            try:
                case = moetoken.load(tmp_path / "damaged")
                outcomes.add(sum(array.size for array in case.values()) > 0)
            except ValueError as error:
                assert str(tmp_path / "damaged") in str(error)
                outcomes.add("refused")
    assert outcomes >= {True, "refused"}


def test_content_decides_the_kind(tmp_path):
    """A safetensors file that holds the bytes of a zip archive is no .npz, whatever its name."""
    moetoken.save(tmp_path / "inner.npz", {"a": np.eye(3)})
    inner = np.frombuffer((tmp_path / "inner.npz").read_bytes(), np.uint8)
    path = tmp_path / "case.npz.safetensors"
    moetoken.save(path, {"zip": inner})
    path = path.rename(tmp_path / "outer.npz")
    assert bits(moetoken.load(path)["zip"]) == bits(inner)
    (tmp_path / "inner.npz").rename(tmp_path / "plain")
    assert moetoken.load(tmp_path / "plain")["a"].tolist() == np.eye(3).tolist()
    (tmp_path / "neither").write_bytes(b"\x02\0\0\0\0\0\0\0[]")
    with pytest.raises(ValueError, match="neither: is neither .npz"):
        moetoken.load(tmp_path / "neither")


@pytest.mark.parametrize(
    "name, array, text",
    [
        ("drop_and_pad", True, "true"),
        ("drop_and_pad", np.array([False]), "false"),
        ("drop_and_pad", np.int8(1), "1"),
        ("num_out_tokens", 12, "12"),
        ("num_out_tokens", np.array([2**40]), str(2**40)),
        ("restore_shape", (3, 4), "3,4"),
        ("restore_shape", np.array([3, 4], np.uint16), "3,4"),
        ("drop_and_pad", "false", None),
        ("drop_and_pad", 1.0, None),
        ("drop_and_pad", [True, True], None),
        ("num_out_tokens", [[1]], None),
        ("restore_shape", 3, None),
        ("restore_shape", [1, 2, 3], None),
        ("restore_shape", [True, True], None),
        ("restore_shape", [3.0, 4.0], None),
    ],
)
def test_attributes_as_arrays(tmp_path, name, array, text):
    path = tmp_path / "case.npz"
    np.savez(path, **{name: array, "x": np.eye(2)})
    if text is None:
        with pytest.raises(ValueError, match=f"case.npz: array '{name}': .*expected"):
            moetoken.load(path)
    else:
        case = moetoken.load(path)
        assert case.metadata == {name: text} and np.array_equal(case[name], array)
        np.savez(path, **{name: array, f"__metadata__.{name}": "said"})
        assert moetoken.load(path).metadata == {name: "said"}


def test_arrays_of_a_file_as_arguments(tmp_path):
    path = tmp_path / "case.npz"
    np.savez(path, tokens=np.eye(2), routing_map=np.ones((2, 1), bool), drop_and_pad=False, n=[2])
    case = moetoken.load(path)
    rows, _, _ = moetoken.permute(
        case["tokens"], case["routing_map"], None, case["n"], case["drop_and_pad"]
    )
    assert rows.tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize("kind", ["safetensors", "npz"])
def test_what_save_refuses(tmp_path, kind):
    path = tmp_path / f"case.{kind}"
    for error, message, arrays, metadata in (
        (ValueError, "array '__metadata__'", {"__metadata__": np.eye(2)}, None),
        (ValueError, "array '__metadata__.a'", {"__metadata__.a": np.eye(2)}, None),
        (TypeError, "array 3: expected a string", {3: np.eye(2)}, None),
        (ValueError, "its name is no Unicode", {"\ud800": np.eye(2)}, None),
        (ValueError, "zero byte", {"a\0b": np.eye(2)}, None),
        (TypeError, "array 'a': type >f4", {"a": np.eye(2, dtype=">f4")}, None),
        (TypeError, "array 'a'", {"a": object()}, None),
        (ValueError, "metadata 'k': .*no Unicode", {}, {"k": "\udfff"}),
    ):
        with pytest.raises(error, match=message):
            moetoken.save(path, arrays, metadata)
    assert not list(tmp_path.iterdir())


def test_null_metadata_can_be_saved_again(tmp_path):
    path = tmp_path / "case.safetensors"
    path.write_bytes(safetensors(b'{"__metadata__":null}'))
    case = moetoken.load(path)
    assert case.metadata == {}
    moetoken.save(path, case)
    assert moetoken.load(path) == {}


def test_permissions(tmp_path):
    """A new file has those of the umask, which is not touched; an existing one keeps its own."""
    path = tmp_path / "case.npz"
    before = os.umask(0o026)
    try:
        moetoken.save(path, {"a": np.eye(2)})
        assert path.stat().st_mode & 0o7777 == 0o640
        path.chmod(0o600)
        moetoken.save(path, {"a": np.eye(3)})
        assert path.stat().st_mode & 0o7777 == 0o600 and len(moetoken.load(path)["a"]) == 3
        assert os.umask(0o026) == 0o026
    finally:
        os.umask(before)


def test_the_umask_is_never_set(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "umask", lambda mask: pytest.fail("another thread's files see this"))
    moetoken.save(tmp_path / "case.npz", {"a": np.eye(2)})


def test_links_are_followed(tmp_path):
    (tmp_path / "folder").mkdir()
    for target in ("folder/there", "folder/dangling"):
        link = tmp_path / "link"
        link.symlink_to(target)
        if target == "folder/there":
            (tmp_path / target).write_bytes(b"old")
        moetoken.save(link, {"a": np.eye(2)})
        assert link.is_symlink() and moetoken.load(tmp_path / target)["a"].shape == (2, 2)
        link.unlink()
    assert sorted(p.name for p in (tmp_path / "folder").iterdir()) == ["dangling", "there"]


@pytest.mark.parametrize("kind", ["safetensors", "npz"])
def test_fifos_and_devices(tmp_path, kind):
    """Written through, and read; /dev/full tells that it is full and stays what it is."""
    path = tmp_path / f"fifo.{kind}"
    os.mkfifo(path)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(moetoken.load, path)
        moetoken.save(path, ARRAYS, METADATA)
        case = reading.result(60)
    assert case.metadata == METADATA and set(case) == set(ARRAYS) and path.is_fifo()
    assert bits(case["f32"]) == bits(ARRAYS["f32"])
    full = tmp_path / f"full.{kind}"
    full.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space"):
        moetoken.save(full, ARRAYS)
    assert full.is_char_device()


def test_a_failed_save_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "case.safetensors"
    moetoken.save(path, {"a": np.eye(2)})
    before = path.read_bytes()

    def fail(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        moetoken.save(path, {"a": np.eye(3)})
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_the_reference_reader_agrees(tmp_path):
    reference = pytest.importorskip("safetensors.numpy")
    path = tmp_path / "case.safetensors"
    numpys_own = {name: a for name, a in ARRAYS.items() if a.dtype.name != "bfloat16"}
    moetoken.save(path, numpys_own, METADATA)
    for key, array in reference.load_file(path).items():
        assert array.dtype == ARRAYS[key].dtype and bits(array) == bits(ARRAYS[key])
    reference.save_file({k: np.ascontiguousarray(a) for k, a in numpys_own.items()}, path)
    case = moetoken.load(path)
    assert {k: bits(a) for k, a in case.items()} == {k: bits(a) for k, a in numpys_own.items()}
