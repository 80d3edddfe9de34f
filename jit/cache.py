"""Compiled objects, in memory and on disk. Knows IR text and targets, no graphs.

A file is a magic word, the SHA-256 of key and object, and the object. Nothing in the folder is trusted before its
checksum holds; whatever does not hold is a miss. Several processes may share a folder: a file appears whole or not.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import tempfile
import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakValueDictionary

from platformdirs import user_cache_dir

from plait.framework.config import config
from plait.framework.errors import CompileError
from plait.jit.compile_ir import (
    CODE_MODEL,
    LLVM_VERSION,
    PASSES,
    Library,
    compile_ir,
    exported_symbols,
    load_object,
)
from plait.jit.target import Target

RUNTIME_ABI = 1  # raise it when what a kernel expects of its caller changes
LIMIT_BYTES = 512 << 20
KEPT_LIBRARIES = 4096
_MAGIC = b"plaitobj"
_HEADER_BYTES = len(_MAGIC) + 32


@dataclass
class Counters:
    """What the cache did since the process started."""

    compiled: int = 0
    disk_hits: int = 0
    memory_hits: int = 0


counters = Counters()


def object_key(ir_text: str, target: Target) -> str:
    """A name for the object: everything that shapes its bytes goes in."""
    parts = (",".join(PASSES), CODE_MODEL, target.triple, target.cpu, target.features, LLVM_VERSION, str(RUNTIME_ABI))
    return hashlib.sha256("\0".join((*parts, ir_text)).encode()).hexdigest()


class DiskStore:
    """Objects in one folder. Trouble with the folder switches it off, or its writing, with one line on stderr."""

    def __init__(self, folder: Path, limit_bytes: int = LIMIT_BYTES, forbidden_mode: int = 0o077) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes
        self._forbidden_mode = forbidden_mode
        self._size_bytes: int | None = None
        self.usable = self._prepare()
        self._writable = self.usable

    def _prepare(self) -> bool:
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = self.folder.stat()
        except OSError as error:
            return self._complain(f"{error}")
        if hasattr(os, "getuid") and (
            found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & self._forbidden_mode
        ):
            mode = stat.S_IMODE(found.st_mode)
            return self._complain(f"it has mode {mode:04o} and owner {found.st_uid}; expected 0700 and {os.getuid()}")
        return True

    def _complain(self, reason: str) -> bool:
        print(f"plait: the cache {self.folder} is not used: {reason}.", file=sys.stderr)
        return False

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.o"

    def read(self, key: str) -> bytes | None:
        """The object, or None when there is none or the file does not hold what it should."""
        if not self.usable:
            return None
        try:
            text = self._path(key).read_bytes()
        except OSError:
            return None
        data = text[_HEADER_BYTES:]
        if text[:_HEADER_BYTES] != _MAGIC + _checksum(key, data):
            self._remove(self._path(key))
            return None
        try:
            os.utime(self._path(key))  # the age that eviction goes by
        except OSError:
            pass  # a read-only folder is never evicted from
        return data

    def write(self, key: str, data: bytes) -> None:
        """Keep an object; a folder that cannot be written is not tried again."""
        if not self._writable:
            return
        try:
            self._write(self._path(key), _MAGIC + _checksum(key, data) + data)
            self._bound(_HEADER_BYTES + len(data))
        except OSError as error:
            self._writable = False
            print(f"plait: the cache {self.folder} is only read: {error}.", file=sys.stderr)

    def _write(self, path: Path, text: bytes) -> None:
        handle, temporary = tempfile.mkstemp(dir=self.folder, prefix=".tmp-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(text)
            os.replace(temporary, path)
        except BaseException:
            self._remove(Path(temporary))
            raise

    def _bound(self, added_bytes: int) -> None:
        if self._size_bytes is None or self._size_bytes + added_bytes > self.limit_bytes:
            self._size_bytes = self._evict()
        else:
            self._size_bytes += added_bytes

    def _evict(self) -> int:
        """Remove the longest unused files down to 90 % of the limit; returns the bytes left."""
        files = sorted(self._scan())
        total = sum(size for _, size, _ in files)
        if total <= self.limit_bytes:
            return total
        for _, size, path in files:
            if total <= self.limit_bytes * 9 // 10:
                break
            self._remove(path)
            total -= size
        return total

    def _scan(self) -> list[tuple[float, int, Path]]:
        found = []
        for path in self.folder.iterdir():
            try:
                if path.suffix == ".o" or path.name.startswith(".tmp-"):
                    status = path.stat()
                    found.append((status.st_mtime, status.st_size, path))
            except OSError:
                continue  # another process removed it
        return found

    def _remove(self, path: Path) -> None:
        try:
            path.unlink()
        except OSError:
            pass  # gone already, or not ours to remove: it stays a miss


def _checksum(key: str, data: bytes) -> bytes:
    return hashlib.sha256(key.encode() + data).digest()


def cache_folder() -> Path | None:
    """Where plait keeps what it can make again; None when PLAIT_CACHE is 0."""
    if config.cache == "0":
        return None
    return Path(config.cache).expanduser() if config.cache else Path(user_cache_dir("plait"))


_lock = threading.RLock()
if hasattr(os, "register_at_fork"):  # no thread is inside when the process forks, so the child finds the lock free
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
_stores: dict[Path, DiskStore] = {}
_loaded: WeakValueDictionary[str, Library] = WeakValueDictionary()
_recent: OrderedDict[str, Library] = OrderedDict()


def _store() -> DiskStore | None:
    folder = cache_folder()
    if folder is None:
        return None
    if folder not in _stores:
        # A root that others can write is refused whole: they could put another folder in the place of ours.
        root = DiskStore(folder, forbidden_mode=0o022)
        _stores[folder] = DiskStore(folder / "objects") if root.usable else root
    return _stores[folder]


def get_object(name: str, ir_text: str, target: Target) -> bytes:
    """The object of a module: from disk, else compiled and kept.

    Raises: CompileError for a miss when PLAIT_COMPILE=0, and for text that does not compile.
    """
    key = object_key(ir_text, target)
    store = _store()
    data = store.read(key) if store is not None else None
    if data is not None:
        counters.disk_hits += 1
        return data
    if not config.compile:
        where = cache_folder() or "memory (PLAIT_CACHE=0)"
        raise CompileError(
            f"cache: kernel {name} for {target.cpu} is not in {where}; PLAIT_COMPILE=0 forbids compiling it. "
            f"Fill the cache in a run that may compile."
        )
    data = compile_ir(name, ir_text, target)
    counters.compiled += 1
    if store is not None:
        store.write(key, data)
    return data


def get(name: str, ir_text: str, target: Target) -> Library:
    """The loaded code of a module for this machine, compiled at most once per process and machine.

    Raises: as get_object; CompileError when the object cannot be linked.
    """
    with _lock:
        key = object_key(ir_text, target)
        library = _loaded.get(key)
        if library is not None:
            counters.memory_hits += 1
        else:
            library = load_object(get_object(name, ir_text, target), exported_symbols(ir_text))
            _loaded[key] = library
        _recent[key] = library
        _recent.move_to_end(key)
        while len(_recent) > KEPT_LIBRARIES:
            _recent.popitem(last=False)  # whoever still holds the library keeps its code
        return library


def forget() -> None:
    """Drop every loaded library that nobody else holds, and what is known of the folders."""
    with _lock:
        _recent.clear()
        _stores.clear()
