"""GGUF reading against the reference writer, and against files made to mislead it."""

from __future__ import annotations

import os
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.framework.errors import FormatError, LoadError
from plait.pipelines.gguf import GGML_TYPES, GGUFFile

U8, STRING, ARRAY, U32, U64, BOOL = 0, 8, 9, 4, 10, 7


def text(value: str | bytes, length: int | None = None) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw) if length is None else length) + raw


def pair(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def tensor(name: str, sizes: list[int], kind: int = 0, offset: int = 0, num_axes: int | None = None) -> bytes:
    counts = struct.pack("<I", len(sizes) if num_axes is None else num_axes)
    return text(name) + counts + struct.pack(f"<{len(sizes)}Q", *sizes) + struct.pack("<IQ", kind, offset)


def container(tensors: list[bytes], pairs: list[bytes] | None = None, data: bytes = b"", **preamble: Any) -> bytes:
    """Put a GGUF v3 file together; `magic`, `version`, `num_tensors` and `num_pairs` can be made to lie."""
    pairs = pairs or []
    head = preamble.get("magic", b"GGUF") + struct.pack("<I", preamble.get("version", 3))
    head += struct.pack("<QQ", preamble.get("num_tensors", len(tensors)), preamble.get("num_pairs", len(pairs)))
    head += b"".join(pairs) + b"".join(tensors)
    return head + bytes(-len(head) % 32) + data


FOUR = np.arange(4, dtype="<f4").tobytes()
GOOD = container([tensor("w", [4])], [pair("general.name", STRING, text("tiny"))], FOUR)


def write(folder: Path, content: bytes) -> Path:
    path = folder / "model.gguf"
    path.write_bytes(content)
    return path


def test_a_hand_made_file_is_read(tmp_path: Path) -> None:
    file = GGUFFile.open(write(tmp_path, GOOD))
    assert (file.version, file.alignment, file.metadata) == (3, 32, {"general.name": "tiny"})
    assert file.tensors["w"].data.tolist() == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="read-only"):
        file.tensors["w"].data[0] = 1


def test_metadata_equals_what_the_reference_writer_wrote(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "meta.gguf", "llama")
    writer.add_uint8("a.u8", 200)
    writer.add_int16("a.i16", -300)
    writer.add_uint64("a.u64", 2**63 + 1)
    writer.add_int64("a.i64", -(2**62))
    writer.add_float32("a.f32", 0.5)
    writer.add_float64("a.f64", 0.1)
    writer.add_bool("a.bool", True)
    writer.add_string("a.text", "naïve 日本\n")
    writer.add_array("a.texts", ["", "Ġa", "日"])
    writer.add_array("a.ints", [1, -2, 3])
    writer.add_array("a.bools", [True, False])
    writer.add_array("a.nested", [[1, 2], [3]])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    metadata = GGUFFile.open(tmp_path / "meta.gguf").metadata
    plain = {key[2:]: value for key, value in metadata.items() if key.startswith("a.")}
    assert plain.pop("ints").tolist() == [1, -2, 3]
    assert plain.pop("bools").tolist() == [True, False]
    assert [row.tolist() for row in plain.pop("nested")] == [[1, 2], [3]]
    assert plain == {
        "u8": 200, "i16": -300, "u64": 2**63 + 1, "i64": -(2**62), "f32": 0.5, "f64": 0.1, "bool": True,
        "text": "naïve 日本\n", "texts": ["", "Ġa", "日"],
    }  # fmt: skip
    assert plain["bool"] is True


@pytest.mark.system(35)
@pytest.mark.parametrize("kind", gguf.GGMLQuantizationType, ids=lambda kind: kind.name)
def test_every_tensor_type_of_the_reference_is_viewed_byte_for_byte(kind: Any, tmp_path: Path) -> None:
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    assert GGML_TYPES[kind.value][:3] == (kind.name, block_size, block_bytes)
    rng = np.random.default_rng(kind.value)
    raw = rng.integers(0, 256, (3, 2 * block_bytes), dtype=np.uint8)
    writer = gguf.GGUFWriter(tmp_path / "t.gguf", "llama")
    writer.add_tensor("w", raw, raw_dtype=kind)
    writer.add_tensor("after", np.arange(5, dtype=np.float32))
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    file = GGUFFile.open(tmp_path / "t.gguf")
    read = file.tensors["w"]
    assert (read.type_name, read.shape, read.num_bytes) == (kind.name, (3, 2 * block_size), raw.size)
    assert read.data.view(np.uint8).tobytes() == raw.tobytes()
    assert read.data.shape == (raw.shape if read.type.dtype is None else read.shape)
    assert not read.data.flags.owndata and not read.data.flags.writeable
    assert file.tensors["after"].data.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.system(35)
def test_bfloat16_and_three_axes_keep_dtype_and_order(tmp_path: Path) -> None:
    values = np.arange(2 * 3 * 4).reshape(2, 3, 4)
    data = values.astype(ml_dtypes.bfloat16).tobytes()
    file = GGUFFile.open(write(tmp_path, container([tensor("w", [4, 3, 2], kind=30)], data=data)))
    assert file.tensors["w"].data.dtype == ml_dtypes.bfloat16
    assert np.array_equal(file.tensors["w"].data.astype(np.int64), values)


def test_another_alignment_moves_the_data(tmp_path: Path) -> None:
    head = container([tensor("w", [4])], [pair("general.alignment", U32, struct.pack("<I", 256))])
    file = GGUFFile.open(write(tmp_path, head + bytes(-len(head) % 256) + FOUR))
    assert file.tensors["w"].data.tolist() == [0, 1, 2, 3]


HUGE_AXES = [4, 2**30 - 1, 2**30 + 1]
NAME = pair("general.name", STRING, text("tiny"))
BAD: dict[str, tuple[bytes, list[str]]] = {
    # name: content, what the message must hold: field, value, bound
    "offset past the end": (
        container([tensor("w", [4], offset=2**40)], data=FOUR),
        ["tensor 'w'", str(2**40), "16 bytes"],
    ),
    "offset that wraps": (container([tensor("w", [4], offset=2**64 - 32)], data=FOUR), ["tensor 'w'", str(2**64 - 32)]),
    "sizes whose product is huge": (container([tensor("w", HUGE_AXES)], data=FOUR), ["tensor 'w'", str(2**30 + 1)]),
    "sizes whose product wraps to 0": (container([tensor("w", [2**32, 2**32])], data=FOUR), ["tensor 'w'", str(2**66)]),
    "cut one byte short": (GOOD[:-1], ["tensor 'w'", "16 bytes", "15 bytes"]),
    "tensor count": (container([tensor("w", [4])], num_tensors=2**60), ["tensor count", str(2**60), "at most"]),
    "metadata count": (container([], num_pairs=2**60), ["metadata count", str(2**60), "at most"]),
    "string length": (container([], [pair("k", STRING, text("v", 2**62))]), ["metadata 'k'", str(2**62), "at most"]),
    "key length": (container([], [text("k", 2**62) + bytes(16)]), ["metadata key 0", str(2**62)]),
    "name length": (container([text("w", 2**62) + bytes(32)]), ["tensor 0 name", str(2**62)]),
    "array count": (
        container([], [pair("k", ARRAY, struct.pack("<IQ", U64, 2**61))]),
        ["metadata 'k' count", str(2**61), "at most"],
    ),
    "string inside an array": (
        container([], [pair("k", ARRAY, struct.pack("<IQ", STRING, 2) + text("ok") + text("no", 2**62))]),
        ["metadata 'k'[1]", str(2**62), "at most"],
    ),
    "array type": (container([], [pair("k", ARRAY, struct.pack("<IQ", 77, 1))]), ["metadata 'k' element type", "77"]),
    "value type": (container([], [pair("k", 13, bytes(8))]), ["metadata 'k' type", "13", "0 to 12"]),
    "boolean": (container([], [pair("k", BOOL, b"\2")]), ["metadata 'k'", "2", "0 or 1"]),
    "booleans": (container([], [pair("k", ARRAY, struct.pack("<IQ3B", BOOL, 3, 0, 1, 9))]), ["metadata 'k'", "9"]),
    "nine axes": (container([tensor("w", [1] * 9)], data=FOUR), ["tensor 'w' axis count", "9", "at most 4"]),
    "axis count of 2**32": (
        container([tensor("w", [1], num_axes=2**32 - 1)], data=FOUR),
        ["tensor 'w'", str(2**32 - 1)],
    ),
    "type id": (container([tensor("w", [4], kind=4)], data=FOUR), ["tensor 'w' type", "4", "8 Q8_0"]),
    "columns of a block": (
        container([tensor("w", [33], kind=8)], data=bytes(99)),
        ["tensor 'w'", "33", "multiple of 32"],
    ),
    "offset off the grid": (container([tensor("w", [4], offset=4)], data=bytes(99)), ["tensor 'w'", "offset 4", "32"]),
    "same tensor twice": (container([tensor("w", [4])] * 2, data=FOUR), ["tensor 'w'", "twice"]),
    "same key twice": (container([], [NAME, NAME]), ["general.name", "twice"]),
    "alignment 0": (
        container([], [pair("general.alignment", U32, bytes(4))]),
        ["general.alignment", "0", "power of two"],
    ),
    "alignment 12": (container([], [pair("general.alignment", U8, b"\x0c")]), ["general.alignment", "12"]),
    "alignment of 2**31": (
        container([], [pair("general.alignment", U32, struct.pack("<I", 2**31))]), ["general.alignment", str(2**31)],
    ),
    "alignment as text": (
        container([], [pair("general.alignment", STRING, text("32"))]),
        ["general.alignment", "'32'"],
    ),
    "magic": (container([], magic=b"GGJT"), ["magic", "GGJT", "GGUF"]),
    "version 1": (container([], version=1), ["version", "1", "(2, 3)"]),
    "other byte order": (container([], version=3 << 24), ["version", "big-endian"]),
    "text that is not UTF-8": (container([], [pair("k", STRING, text(b"a\xff"))]), ["metadata 'k'", "UTF-8"]),
    "texts that are not UTF-8": (
        container([], [pair("k", ARRAY, struct.pack("<IQ", STRING, 1) + text(b"\xf0\x28"))]),
        ["metadata 'k'[0]", "UTF-8"],
    ),
    "empty file": (b"", ["0 bytes", "24"]),
    "half a preamble": (GOOD[:20], ["20 bytes", "24"]),
    "header only": (GOOD[:24], ["tensor count", "1", "at most 0"]),
}  # fmt: skip


@pytest.mark.case("N14")
@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", BAD)
def test_a_false_header_is_refused_by_name_before_anything_is_allocated(name: str, tmp_path: Path) -> None:
    content, parts = BAD[name]
    path = write(tmp_path, content)
    tracemalloc.start()
    try:
        with pytest.raises(FormatError) as caught:
            GGUFFile.open(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**20
    assert [part for part in [str(path), *parts] if part not in str(caught.value)] == []


@pytest.mark.case("N14")
def test_arrays_nested_without_end_are_refused(tmp_path: Path) -> None:
    deep = struct.pack("<IQ", ARRAY, 1) * 5000 + struct.pack("<IQ", U8, 1) + b"\0"
    with pytest.raises(FormatError, match="nested more than 4 deep"):
        GGUFFile.open(write(tmp_path, container([], [pair("k", ARRAY, deep)])))


def _small_real_file(folder: Path) -> bytes:
    path = folder / "real.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_array("tokens", ["a", "bb", "ccc"])
    writer.add_array("types", [1, 2, 3])
    writer.add_bool("flag", True)
    writer.add_tensor("x", np.arange(64, dtype=np.float32).reshape(2, 32))
    writer.add_tensor("q", np.zeros((2, 34), np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    return path.read_bytes()


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    folder = tmp_path_factory.mktemp("gguf")
    return folder, _small_real_file(folder)


def open_and_read_everything(path: Path) -> None:
    for read in GGUFFile.open(path).tensors.values():
        assert read.data.nbytes == read.num_bytes
        int(read.data.view(np.uint8).sum())


def test_every_cut_of_a_file_is_refused_or_complete(real: tuple[Path, bytes]) -> None:
    folder, content = real
    last_byte = max(t.offset + t.num_bytes for t in GGUFFile.open(write(folder, content)).tensors.values())
    for length in range(last_byte):
        with pytest.raises(FormatError):
            GGUFFile.open(write(folder, content[:length]))
    open_and_read_everything(write(folder, content[:last_byte]))


@settings(max_examples=300, deadline=None)
@given(edits=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4))
def test_damaged_bytes_give_a_format_error_or_a_readable_file(
    real: tuple[Path, bytes], edits: list[tuple[int, int]]
) -> None:
    folder, content = real
    damaged = bytearray(content)
    for place, value in edits:
        damaged[place % len(damaged)] = value
    try:
        open_and_read_everything(write(folder, bytes(damaged)))
    except FormatError as error:
        assert str(folder) in str(error)


@pytest.mark.parametrize("make", [lambda path: path.mkdir(), os.mkfifo], ids=["folder", "fifo"])
def test_what_is_not_a_file_is_refused(make: Callable[[Path], object], tmp_path: Path) -> None:
    make(tmp_path / "x.gguf")
    with pytest.raises(FormatError, match="not a regular file"):
        GGUFFile.open(tmp_path / "x.gguf")


def test_a_missing_file_is_a_load_error(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="none.gguf"):
        GGUFFile.open(tmp_path / "none.gguf")


@pytest.mark.system(35)
def test_the_demo_model_is_read_as_the_reference_reads_it(smollm2_file: GGUFFile) -> None:
    assert smollm2_file.metadata["general.architecture"] == "llama"
    assert smollm2_file.metadata["llama.block_count"] == 30
    assert len(smollm2_file.metadata["tokenizer.ggml.tokens"]) == 49152
    assert len(smollm2_file.tensors) == 272
    up = smollm2_file.tensors["blk.0.ffn_up.weight"]
    assert (up.type_name, up.shape, up.data.shape) == ("Q4_1", (1536, 576), (1536, 360))
    norm = smollm2_file.tensors["blk.0.attn_norm.weight"]
    assert (norm.type_name, norm.data.shape, norm.data.dtype) == ("F32", (576,), np.float32)
    values = gguf.quants.dequantize(up.data, gguf.GGMLQuantizationType.Q4_1)
    assert values.shape == up.shape and np.isfinite(values).all() and 0.01 < values.std() < 1
