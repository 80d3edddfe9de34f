"""Safetensors files against the safetensors package, both ways, and against files that lie about themselves."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, deserialize, safe_open
from safetensors.numpy import load_file, save_file

from plait.framework import safetensors
from plait.framework.errors import DTypeError, FormatError, IndexingError, LoadError

NUMPY_DTYPES = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64".split()
ML_DTYPES = "bfloat16 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu".split()
# As the format names them; the package's own table is not public.
NAMES = {
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
}


def sample(dtype: str, *shape: int) -> np.ndarray[Any, Any]:
    raw = np.random.default_rng(3).integers(0, 2 if dtype == "bool" else 256, np.prod(shape, dtype=int) * 16, np.uint8)
    found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, dtype, dtype))
    return np.ndarray(shape, found, raw.tobytes() or b"\0" * 16)


def write(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


def one(dtype: Any = "U8", shape: Any = (4,), offsets: Any = (0, 4)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


# Both ways with the package


@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0, 2), (2, 3, 5)])
def test_the_package_reads_what_we_write(tmp_path: Path, shape: tuple[int, ...]) -> None:
    arrays = {name: sample(name, *shape) for name in NUMPY_DTYPES}
    safetensors.save(tmp_path / "a", arrays, {"made by": "plait ✓"})
    found = load_file(tmp_path / "a")
    assert {name: (a.dtype, a.shape, a.tobytes()) for name, a in found.items()} == {
        name: (a.dtype, a.shape, a.tobytes()) for name, a in arrays.items()
    }
    with safe_open(tmp_path / "a", framework="np") as file:
        assert file.metadata() == {"made by": "plait ✓"}


def test_the_package_reads_our_small_floats_as_their_bytes(tmp_path: Path) -> None:
    arrays = {name: sample(name, 2, 3) for name in ML_DTYPES}
    safetensors.save(tmp_path / "a", arrays)
    found = dict(deserialize((tmp_path / "a").read_bytes()))  # type: ignore[no-untyped-call]
    assert {name: (f["dtype"], f["shape"], bytes(f["data"])) for name, f in found.items()} == {
        name: (NAMES[name], [2, 3], array.tobytes()) for name, array in arrays.items()
    }


@pytest.mark.parametrize("shape", [(), (0, 4), (2, 3, 5)])
def test_we_read_what_the_package_writes(tmp_path: Path, shape: tuple[int, ...]) -> None:
    arrays = {name: sample(name, *shape) for name in [*NUMPY_DTYPES, "bfloat16"]}
    save_file(arrays, tmp_path / "a", {"k": "v"})
    found = safetensors.load(tmp_path / "a")
    assert found.keys() == arrays.keys() and safetensors.metadata(tmp_path / "a") == {"k": "v"}
    for name, array in arrays.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, shape)
        assert found[name].tobytes() == array.tobytes()


@pytest.mark.parametrize("name", [*NUMPY_DTYPES, *ML_DTYPES])
def test_every_dtype_comes_back_bit_for_bit(tmp_path: Path, name: str) -> None:
    array = sample(name, 4, 8)
    safetensors.save(tmp_path / "a", {"x": array})
    found = safetensors.load(tmp_path / "a")["x"]
    assert found.dtype == array.dtype and found.tobytes() == array.tobytes()


def test_small_floats_mean_what_ml_dtypes_says(tmp_path: Path) -> None:
    header = {"a": one("F8_E4M3", [3], (0, 3)), "b": one("F8_E5M2", [3], (3, 6)), "c": one("BF16", [1], (6, 8))}
    found = safetensors.load(write(tmp_path / "a", header, bytes.fromhex("387eb8 3c7bbc 803f")))
    values = {name: array.astype(np.float32).tolist() for name, array in found.items()}
    assert values == {"a": [1, 448, -1], "b": [1, 57344, -1], "c": [1]}  # 448 and 57344: OCP FP8, table 1


def test_strides_and_byte_order_do_not_reach_the_file(tmp_path: Path) -> None:
    base = np.arange(24, dtype=np.int32).reshape(4, 6)
    arrays = {"t": base.T, "r": base[::-1, 1::2], "big": base.astype(">i4"), "b": np.broadcast_to(base[0], (2, 6))}
    safetensors.save(tmp_path / "a", arrays)
    found = load_file(tmp_path / "a")
    assert {name: a.tolist() for name, a in found.items()} == {name: a.tolist() for name, a in arrays.items()}


# Views


def test_arrays_are_aligned_read_only_views_of_the_file(tmp_path: Path) -> None:
    safetensors.save(tmp_path / "a", {"odd": np.ones(3, np.uint8), "x": np.ones(5, np.float64), "none": np.ones(0)})
    found = safetensors.load(tmp_path / "a")
    for array in found.values():
        assert array.flags.aligned and not array.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    with (tmp_path / "a").open("r+b") as file:  # a view, so the file's new bytes show
        file.seek(-3, os.SEEK_END)
        file.write(b"\x07")
    assert found["odd"].tolist() == [7, 1, 1]


def test_views_outlive_the_reader_and_the_file(tmp_path: Path) -> None:
    safetensors.save(tmp_path / "a", {"x": np.arange(5000)})
    part = safetensors.Reader(tmp_path / "a").slice("x", (slice(10, 20),))
    safetensors.save(tmp_path / "a", {"x": np.zeros(5000, np.int64)})
    (tmp_path / "a").unlink()
    assert part.tolist() == list(range(10, 20))


@pytest.mark.parametrize(
    "index",
    [
        (),
        (slice(1, 3),),
        (slice(None), slice(2, 5)),
        (slice(-2, None), slice(0, 6, 2), slice(1, 1)),
        (slice(None, None, -1),),
    ],
)
def test_slices_are_those_of_numpy(tmp_path: Path, index: tuple[slice, ...]) -> None:
    array = sample("bfloat16", 4, 6, 2)
    safetensors.save(tmp_path / "a", {"pad": np.ones(3, np.int8), "x": array})
    found = safetensors.Reader(tmp_path / "a").slice("x", index)
    assert found.shape == array[index].shape and found.tobytes() == array[index].tobytes()


def test_a_slice_reads_its_own_bytes_only(tmp_path: Path) -> None:
    rows, columns = 1 << 14, 1 << 16  # 1 GiB, of which the file system stores nothing
    write(tmp_path / "a", {"x": one("U8", [rows, columns], (0, rows * columns))})
    os.truncate(tmp_path / "a", (tmp_path / "a").stat().st_size + rows * columns)

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    if not Path("/proc/self/statm").exists():
        pytest.skip("needs /proc/self/statm to count resident pages")
    before = resident()
    part = safetensors.Reader(tmp_path / "a").slice("x", (slice(100, 116),))
    assert part.sum() == 0 and part.size == 1 << 20
    assert resident() - before < 64 << 20


def test_slices_outside_the_tensor_are_refused(tmp_path: Path) -> None:
    safetensors.save(tmp_path / "a", {"x": np.zeros((4, 6))})
    reader = safetensors.Reader(tmp_path / "a")
    for index, said in [
        ((slice(0, 5),), "axis 0: slice\\(0, 5, None\\) is outside its size 4"),
        ((slice(None), slice(-7, None)), "axis 1"),
        ((slice(None),) * 3, "3 slices; expected at most 2"),
        ((1,), "expected a slice"),
    ]:
        with pytest.raises(IndexingError, match=said):
            reader.slice("x", index)  # type: ignore[arg-type]


def test_a_name_that_is_absent_is_told_with_those_that_are_there(tmp_path: Path) -> None:
    safetensors.save(tmp_path / "a", {"x": np.zeros(1)})
    reader = safetensors.Reader(tmp_path / "a")
    assert "x" in reader and "y" not in reader and reader.entry("x").shape == (1,)
    with pytest.raises(LoadError, match="no tensor 'y'; it has 'x'"):
        reader.tensor("y")
    safetensors.save(tmp_path / "a", {})
    with pytest.raises(LoadError, match="it has none"):
        safetensors.Reader(tmp_path / "a").tensor("y")


# Ties


def test_one_memory_under_several_names_is_stored_once(tmp_path: Path) -> None:
    table = np.arange(3000, dtype=np.float32).reshape(30, 100)
    tensors = {"embed": table, "head": table[:], "turned": table.T, "copy": table.copy(), "third": table}
    safetensors.save(tmp_path / "a", tensors, {"own": "note"})
    assert 3 * table.nbytes < (tmp_path / "a").stat().st_size < 3 * table.nbytes + 1000
    with safe_open(tmp_path / "a", framework="np") as file:
        assert set(file.keys()) == {"embed", "turned", "copy"}
        assert file.metadata() == {"own": "note", "plait.tie.head": "embed", "plait.tie.third": "embed"}
    found = safetensors.load(tmp_path / "a")
    assert found["head"] is found["embed"] is found["third"] is not found["copy"]
    assert {name: a.tolist() for name, a in found.items()} == {name: a.tolist() for name, a in tensors.items()}
    assert safetensors.metadata(tmp_path / "a") == {"own": "note"}
    reader = safetensors.Reader(tmp_path / "a")
    assert reader.ties == {"head": "embed", "third": "embed"} and set(reader.names) == set(tensors)
    assert reader.slice("head", (slice(2, 3),)).tolist() == table[2:3].tolist()


def test_a_reload_that_is_saved_again_keeps_its_ties(tmp_path: Path) -> None:
    table = np.arange(300)
    safetensors.save(tmp_path / "a", {"embed": table, "head": table})
    safetensors.save(tmp_path / "a", safetensors.load(tmp_path / "a"))
    assert safetensors.Reader(tmp_path / "a").ties == {"head": "embed"}


def test_empty_or_differently_read_memory_is_no_tie(tmp_path: Path) -> None:
    base = np.arange(8, dtype=np.int32)
    tensors = {"a": base, "b": base.view(np.uint32), "c": base.reshape(2, 4), "d": base[:0], "e": base[:0]}
    safetensors.save(tmp_path / "a", tensors)
    assert safetensors.Reader(tmp_path / "a").ties == {}
    assert load_file(tmp_path / "a").keys() == tensors.keys()


# Writing


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    safetensors.save(tmp_path / "a", {"x": np.ones(3)})
    before = (tmp_path / "a").read_bytes()

    def full(handle: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="disk full"):
        safetensors.save(tmp_path / "a", {"x": np.zeros(9)})
    assert (tmp_path / "a").read_bytes() == before and os.listdir(tmp_path) == ["a"]


def test_the_bytes_are_durable_before_the_name_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    fsync, replace = os.fsync, os.replace

    def noted_fsync(handle: int) -> None:
        seen.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        fsync(handle)

    def noted_replace(*paths: Any) -> None:
        seen.append("rename")
        replace(*paths)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "replace", noted_replace)
    safetensors.save(tmp_path / "a", {"x": np.ones(3)})
    assert seen == ["file", "rename", "folder"]


def test_writing_through_a_link_keeps_the_link(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "blobs" / "a")
    safetensors.save(tmp_path / "link", {"x": np.ones(3)})
    assert (tmp_path / "link").is_symlink() and load_file(tmp_path / "blobs" / "a")["x"].tolist() == [1, 1, 1]


def test_the_same_tensors_give_the_same_bytes(tmp_path: Path) -> None:
    arrays = {"b": np.ones(2), "a": np.zeros(3, np.int8), "c": np.ones(1)}
    safetensors.save(tmp_path / "a", arrays)
    safetensors.save(tmp_path / "b", dict(reversed(arrays.items())))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize(
    ("tensors", "notes", "error", "said"),
    [
        ({"x": np.ones(2, np.complex128)}, {}, DTypeError, "'x' is complex128"),
        ({"x": np.array(["a"])}, {}, DTypeError, "'x' is <U1"),
        ({"x": np.array([None])}, {}, DTypeError, "'x' is object"),
        ({"__metadata__": np.ones(2)}, {}, FormatError, "'__metadata__'"),
        ({3: np.ones(2)}, {}, FormatError, "named 3"),
        ({}, {"epoch": 3}, FormatError, "'epoch' is 3; expected strings"),
        ({}, {"plait.tie.x": "y"}, FormatError, "starts with 'plait.tie.'"),
    ],
)
def test_what_the_format_cannot_hold_is_refused(
    tmp_path: Path, tensors: Any, notes: Any, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        safetensors.save(tmp_path / "a", tensors, notes)
    assert os.listdir(tmp_path) == []


# Files that are not sound

DEEP = b'{"a":' * 100_000
BAD_HEADERS: list[tuple[str, Any, str]] = [
    ("no json", b"{", "expected a JSON object in UTF-8"),
    ("no object", b"[]", "starts with '\\['; expected '{'"),
    ("leading space", b" {}", "starts with ' '"),
    ("no utf-8", b'{"\xff":1}', "expected a JSON object in UTF-8"),
    ("too deep", DEEP, "expected a JSON object"),
    ("twice", b'{"x":1,"x":2}', "key 'x' stands twice"),
    ("metadata", {"__metadata__": {"k": 1}}, "__metadata__ is {'k': 1}; expected an object of strings"),
    ("metadata list", {"__metadata__": []}, "__metadata__ is \\[\\]"),
    ("entry", {"x": 3}, "tensor 'x': entry is 3"),
    ("fields", {"x": {"dtype": "U8"}}, "tensor 'x': entry is .* expected dtype, shape and data_offsets"),
    ("dtype", {"x": one("Q4")}, "tensor 'x': dtype is 'Q4'; expected one of BOOL"),
    ("dtype kind", {"x": one([])}, "tensor 'x': dtype is \\[\\]"),
    ("shape", {"x": one(shape=[-4])}, "tensor 'x': shape is \\[-4\\]"),
    ("shape float", {"x": one(shape=[4.0])}, "tensor 'x': shape is \\[4.0\\]"),
    ("shape bool", {"x": one(shape=[True], offsets=[0, 1])}, "tensor 'x': shape is \\[True\\]"),
    ("ndim", {"x": one(shape=[1] * 65)}, "tensor 'x': shape .* expected at most 64 integers"),
    ("huge", {"x": one(shape=[10**4000] * 60)}, "tensor 'x': shape is"),
    ("huge empty", {"x": one(shape=[2**62, 4, 0], offsets=[0, 0])}, "tensor 'x': shape is .* of a product up to"),
    ("size", {"x": one("F32")}, "tensor 'x': data_offsets is \\[0, 4\\]; expected 16 bytes for F32\\[4\\]"),
    ("outside", {"x": one(shape=[5], offsets=[0, 5])}, "data_offsets is \\[0, 5\\]; expected 0 <= start <= stop <= 4"),
    ("negative", {"x": one(offsets=[-4, 0])}, "data_offsets is \\[-4, 0\\]"),
    ("reversed", {"x": one(offsets=[4, 0])}, "data_offsets is \\[4, 0\\]"),
    ("three", {"x": one(offsets=[0, 2, 4])}, "data_offsets is \\[0, 2, 4\\]"),
    (
        "overlap",
        {"x": one(), "y": one(shape=[1], offsets=[3, 4])},
        "'y': .* start at 3 and overlap; expected 4, .* 'x'",
    ),
    ("hole", {"x": one(shape=[1], offsets=[3, 4])}, "'x': .* start at 3 and leave a hole; expected 0"),
    ("rest", {"x": one(shape=[3], offsets=[0, 3])}, "4 bytes follow the header; expected 3"),
]


@pytest.mark.parametrize(("header", "said"), [case[1:] for case in BAD_HEADERS], ids=[case[0] for case in BAD_HEADERS])
def test_a_header_that_lies_is_refused_by_name_and_bound(tmp_path: Path, header: Any, said: str) -> None:
    path = write(tmp_path / "bad.safetensors", header, b"\0" * 4)
    with pytest.raises(FormatError, match=said) as caught:
        safetensors.load(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("ties", "said"),
    [
        ({"plait.tie.a": "b"}, "'plait.tie.a' is 'b'; expected a stored tensor"),
        ({"plait.tie.x": "x"}, "ties 'x'; expected a name that is not stored itself"),
        ({"plait.tie.a": "x", "plait.tie.b": "a"}, "'plait.tie.b' is 'a'; expected a stored tensor"),
    ],
)
def test_ties_that_lead_nowhere_are_refused(tmp_path: Path, ties: dict[str, str], said: str) -> None:
    with pytest.raises(FormatError, match=said):
        safetensors.load(write(tmp_path / "a", {"__metadata__": ties, "x": one()}, b"\0" * 4))


@pytest.mark.parametrize("length", [3, 100, 2**63, 2**64 - 1])
def test_a_header_length_beyond_the_file_is_refused(tmp_path: Path, length: int) -> None:
    path = write(tmp_path / "a", {}, length=length)
    with pytest.raises(FormatError, match="header length is|header of 3 bytes|4 bytes follow"):
        safetensors.load(path)


@pytest.mark.parametrize("size", [0, 7])
def test_a_file_too_short_for_a_length_is_refused(tmp_path: Path, size: int) -> None:
    (tmp_path / "a").write_bytes(b"\0" * size)
    with pytest.raises(FormatError, match=f"size is {size} bytes; expected at least 8"):
        safetensors.load(tmp_path / "a")


def test_a_file_that_is_absent_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        safetensors.load(tmp_path / "a")


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 400), value=st.integers(0, 255), cut=st.integers(0, 40))
def test_a_damaged_file_is_refused_or_read_as_the_package_reads_it(
    tmp_path: Path, at: int, value: int, cut: int
) -> None:
    path = tmp_path / "a"
    save_file({"x": np.arange(6.0), "y": np.ones((2, 3), np.int16), "z": np.zeros((0, 2))}, path, {"k": "v"})
    raw = bytearray(path.read_bytes())
    raw[at % len(raw)] = value
    path.write_bytes(raw[: len(raw) - cut // 20])
    try:
        ours = safetensors.load(path)
    except FormatError:
        return
    theirs = load_file(path)
    assert {name: (a.shape, a.tobytes()) for name, a in ours.items()} == {
        name: (a.shape, a.tobytes()) for name, a in theirs.items()
    }


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.tuples(st.integers(-1, 9), st.integers(-1, 9)), max_size=3), total=st.integers(0, 9))
def test_offsets_are_accepted_exactly_when_the_package_accepts_them(
    tmp_path: Path, sizes: list[tuple[int, int]], total: int
) -> None:
    header = {f"t{i}": one("U8", [max(b - a, 0)], [a, b]) for i, (a, b) in enumerate(sizes)}
    path = write(tmp_path / "a", header, b"\0" * total)
    try:
        load_file(path)
        accepted = True
    except SafetensorError:
        accepted = False
    if accepted:
        assert safetensors.load(path).keys() == header.keys()
    else:
        with pytest.raises(FormatError):
            safetensors.load(path)
