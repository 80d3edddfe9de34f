"""The object cache: what it keeps, what it refuses, and what it survives."""

from __future__ import annotations

import multiprocessing
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from plait.framework.config import override
from plait.framework.errors import CompileError
from plait.jit import cache
from plait.jit.builder import Builder
from plait.jit.target import host_target, virtual

HOST = host_target()


def text(number: int) -> str:
    b = Builder(HOST)
    with b.function("k") as (args, _lo, _hi):
        b.store(b.index(number), b.slot(args, 0))
    return b.text()


@pytest.fixture
def folder(tmp_path: Path) -> object:
    place = tmp_path / "cache"
    cache.forget()
    with override(cache=str(place)):
        yield place
    cache.forget()


def files(folder: Path) -> list[Path]:
    return sorted((folder / "objects").glob("*.o"))


def counts() -> tuple[int, int, int]:
    return cache.counters.compiled, cache.counters.disk_hits, cache.counters.memory_hits


def change(before: tuple[int, int, int]) -> tuple[int, int, int]:
    now = counts()
    return now[0] - before[0], now[1] - before[1], now[2] - before[2]


def test_a_kernel_is_compiled_once_then_found_in_memory_then_on_disk(folder: Path) -> None:
    before = counts()
    first = cache.get("k", text(1), HOST)
    assert cache.get("k", text(1), HOST) is first
    assert change(before) == (1, 0, 1)
    del first
    cache.forget()
    assert cache.get("k", text(1), HOST).symbol("k")
    assert change(before) == (1, 1, 1)
    assert stat.S_IMODE((folder / "objects").stat().st_mode) == 0o700


def test_a_library_in_use_outlives_the_table(folder: Path) -> None:
    held = cache.get("k", text(1), HOST)
    cache.forget()
    assert cache.get("k", text(1), HOST) is held


def test_a_library_names_the_symbols_it_has(folder: Path) -> None:
    with pytest.raises(CompileError, match="no symbol 'other'; it defines k"):
        cache.get("k", text(1), HOST).symbol("other")


def test_everything_that_shapes_the_code_is_in_the_key() -> None:
    keys = {
        cache.object_key(text(1), HOST),
        cache.object_key(text(2), HOST),
        cache.object_key(text(1), virtual("haswell")),
        cache.object_key(text(1), virtual("x86-64-v3")),
    }
    assert len(keys) == 4


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "foreign", "swap"])
def test_a_damaged_file_is_a_miss_and_is_replaced(folder: Path, damage: str) -> None:
    cache.get_object("k", text(1), HOST)
    cache.get_object("k", text(2), HOST)
    path = folder / "objects" / f"{cache.object_key(text(1), HOST)}.o"
    whole = path.read_bytes()
    other = next(file for file in files(folder) if file != path).read_bytes()
    damaged = {
        "flip": whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:],
        "cut": whole[:-1],
        "empty": b"",
        "foreign": b"hello",
        "swap": other,
    }
    path.write_bytes(damaged[damage])
    before = counts()
    assert cache.get_object("k", text(1), HOST) == whole[cache._HEADER_BYTES :]
    assert change(before) == (1, 0, 0)
    assert path.read_bytes() == whole


def test_foreign_files_are_left_alone(folder: Path) -> None:
    cache.get_object("k", text(1), HOST)
    (folder / "objects" / "notes.txt").write_text("mine")
    (folder / "objects" / "sub.o").mkdir()
    store = cache.DiskStore(folder / "objects", limit_bytes=1)
    store.write("a" * 64, b"x" * 10)
    assert (folder / "objects" / "notes.txt").read_text() == "mine"


def test_a_miss_is_an_error_when_compiling_is_forbidden(folder: Path) -> None:
    with override(compile=0), pytest.raises(CompileError, match="kernel scale .*PLAIT_COMPILE=0"):
        cache.get("scale", text(1), HOST)
    cache.get("scale", text(1), HOST)
    cache.forget()
    with override(compile=0):
        assert cache.get("scale", text(1), HOST).symbol("k")


def test_without_a_folder_nothing_is_kept(folder: Path) -> None:
    with override(cache="0"):
        before = counts()
        cache.get_object("k", text(1), HOST)
        cache.get_object("k", text(1), HOST)
    assert change(before) == (2, 0, 0)
    assert not folder.exists()


@pytest.mark.parametrize("mode", [0o777, 0o720])
def test_a_folder_others_can_write_is_not_used_and_said_once(
    folder: Path, mode: int, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.mkdir()
    folder.chmod(mode)
    cache.get_object("k", text(1), HOST)
    cache.get_object("k", text(1), HOST)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and f"mode {mode:04o}" in lines[0] and "0700" in lines[0]
    assert list(folder.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_still_read(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.get_object("k", text(1), HOST)
    cache.forget()

    def refuse(*_args: object, **_kwargs: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("plait.jit.cache.tempfile.mkstemp", refuse)
    monkeypatch.setattr("plait.jit.cache.os.utime", refuse)
    before = counts()
    for number in (1, 2, 3):
        cache.get_object("k", text(number), HOST)
    assert change(before) == (2, 1, 0)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and "Read-only file system" in lines[0]


def test_a_place_that_cannot_be_a_folder_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    cache.forget()
    with override(cache=str(tmp_path / "file" / "below")):
        assert cache.get_object("k", text(1), HOST)
        assert cache.get_object("k", text(2), HOST)
    assert len(capsys.readouterr().err.splitlines()) == 1
    cache.forget()


def test_the_longest_unused_files_go_first(tmp_path: Path) -> None:
    store = cache.DiskStore(tmp_path / "objects", limit_bytes=1000)
    for number in range(4):
        store.write(str(number), b"x" * 200)
        os.utime(tmp_path / "objects" / f"{number}.o", (number + 1, number + 1))
    assert store.read("0") == b"x" * 200  # used now, so 1 is the oldest
    store.write("4", b"x" * 200)
    kept = {path.stem for path in (tmp_path / "objects").glob("*.o")}
    assert "1" not in kept and {"0", "4"} <= kept
    assert sum(path.stat().st_size for path in (tmp_path / "objects").glob("*.o")) <= 1000


WORKER = """
import sys
from plait.framework.config import config
from plait.jit import cache
from plait.jit.target import host_target
from tests.jit.test_cache import text
config.cache = sys.argv[1]
for number in range(12):
    assert cache.get("k", text(number), host_target()).symbol("k")
"""


def test_two_processes_share_a_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WORKER, str(tmp_path / "cache")]
    running = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for process in running:
        _, complaint = process.communicate(timeout=100)
        assert process.returncode == 0 and complaint == ""
    names = [path.name for path in (tmp_path / "cache" / "objects").iterdir()]
    assert len(names) == 12 and not any(name.startswith(".tmp") for name in names)


def _compile_in_child(number: int) -> bool:
    return bool(cache.get("k", text(number), HOST).symbol("k"))


def test_a_forked_child_compiles(folder: Path) -> None:
    cache.get("k", text(1), HOST)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply_async(_compile_in_child, (77,)).get(timeout=60)


def test_debug_prints_a_line_per_compile(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with override(debug=1):
        cache.get_object("scale_add", text(5), HOST)
        cache.get_object("scale_add", text(5), HOST)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("compile scale_add: ") and "ms" in lines[0]
    with override(debug=6, cache="0"):
        cache.get_object("scale_add", text(5), HOST)
    shown = capsys.readouterr().err
    assert "define void @k(" in shown and "ret" in shown and ".text" in shown
