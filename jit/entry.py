"""The one call from Python into a compiled graph: a builtin emitted as LLVM IR. Knows frames and gates, no graphs.

    enter(gate, frame, bound, *inputs, *result_bytes, *dims) -> tuple of (memory, address) per result, or an int

A gate is the native face of one compiled callable; a frame is the runtime block of one call in flight. `frame` is 0 to
take one from the gate's free list. Results are fresh `bytes` objects that nothing but their tensors hold. An int
means that nothing was returned: 0 that no frame was free, else the frame, whose status word says why and which is the
caller's then. Frames are taken and given back while the GIL is held, so that the list needs no lock.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from plait.framework.buffer import Buffer
from plait.jit import cache
from plait.jit.builder import Builder, Value
from plait.jit.compile_ir import Library, load_object
from plait.jit.pool import shared_pool
from plait.jit.program import RT, RT_WORDS
from plait.jit.target import Target, host_target
from plait.jit.trampoline import python_callable

GATE = {name: index for index, name in enumerate(("head", "entry", "inputs", "results", "dims", "steps"))}
_LEADING = 3  # gate, frame, bound
_ALIGN = 64
_API = {
    "PyLong_AsVoidPtr": ("ptr", "ptr"),
    "PyLong_AsLongLong": ("i64", "ptr"),
    "PyLong_FromVoidPtr": ("ptr", "ptr"),
    "PyTuple_New": ("ptr", "i64"),
    "PyTuple_SetItem": ("i32", "ptr", "i64", "ptr"),
    "PyBytes_FromStringAndSize": ("ptr", "ptr", "i64"),
    "PyBytes_AsString": ("ptr", "ptr"),
    "PyEval_SaveThread": ("ptr",),
    "PyEval_RestoreThread": ("void", "ptr"),
    "Py_DecRef": ("void", "ptr"),
}


class Frame:
    """The runtime block of one call in flight and its arena."""

    def __init__(self, num_words: int, host_address: int) -> None:
        self.memory = Buffer((RT_WORDS + num_words) * 8)
        self.address = self.memory.address
        self.words = np.asarray(self.memory).view(np.int64)
        self.words[:] = 0
        self.words[RT["host"]] = host_address
        pool = shared_pool()
        self.words[RT["pool"]], self.words[RT["pool_run"]] = pool.address, pool.run_address
        self.arena: Buffer | None = None

    def grow(self, num_bytes: int) -> None:
        """Have an arena of at least so many bytes."""
        self.arena = None  # the old one may serve the new one
        self.arena = Buffer(num_bytes)
        self.words[RT["arena"]], self.words[RT["capacity"]] = self.arena.address, num_bytes

    def __getitem__(self, name: str) -> int:
        return int(self.words[RT[name]])

    def set(self, name: str, value: int) -> None:
        self.words[RT[name]] = value


class Gate:
    """The native face of one compiled callable."""

    def __init__(self, entry_address: int, num_inputs: int, num_results: int, num_dims: int, num_steps: int) -> None:
        self.memory = Buffer(len(GATE) * 8)
        self.address = self.memory.address
        self.words = np.asarray(self.memory).view(np.int64)
        self.words[:] = (0, entry_address, num_inputs, num_results, num_dims, num_steps)
        self.num_words = num_inputs + num_results + num_dims

    def forget_frames(self) -> None:
        self.words[GATE["head"]] = 0


def _text(target: Target) -> str:
    b = Builder(target)
    for name, (result, *types) in _API.items():
        b.declare(result, name, types)
    params = (("ptr", "self"), ("ptr", "items"), ("i64", "count"))
    with b.function("enter", params, result="ptr") as (_, items, _count):
        gate = _pointer(b, items, 0)
        given = _pointer(b, items, 1)
        missing = b.icmp("eq", given, _null(b))
        head = b.gep("i64", gate, GATE["head"])
        (frame,) = b.if_(missing, lambda: [b.load("ptr", head, 8)], lambda: [given])
        none_free = b.icmp("eq", frame, _null(b))
        (answer,) = b.if_(
            none_free,
            lambda: [_call(b, "PyLong_FromVoidPtr", _null(b))],
            lambda: [_run(b, items, gate, frame, missing)],
        )
        b.ret(answer)
    return b.text()


def _null(b: Builder) -> Value:
    return b.constant("ptr", 0)


def _call(b: Builder, name: str, *arguments: Value) -> Value:
    value = b.call(_API[name][0], name, *arguments)
    return value if value is not None else Value("", "void")


def _item(b: Builder, items: Value, index: Value | int) -> Value:
    return b.load("ptr", b.gep("ptr", items, index), 8)


def _pointer(b: Builder, items: Value, index: Value | int) -> Value:
    return _call(b, "PyLong_AsVoidPtr", _item(b, items, index))


def _run(b: Builder, items: Value, gate: Value, frame: Value, missing: Value) -> Value:
    head = b.gep("i64", gate, GATE["head"])
    b.if_(missing, lambda: b.store(b.load("ptr", frame, 8), head, 8))
    counts = {name: b.load("i64", b.gep("i64", gate, GATE[name]), 8) for name in ("inputs", "results", "dims", "steps")}
    b.store(_pointer(b, items, 2), b.gep("i64", frame, RT["bound"]), 8)
    b.store(b.constant("i64", 0), b.gep("i64", frame, RT["begin"]), 8)
    b.store(counts["steps"], b.gep("i64", frame, RT["end"]), 8)
    words = b.gep("i64", frame, RT_WORDS)
    b.loop(
        0, counts["inputs"], 1, lambda i: b.store(_pointer(b, items, b.iadd(i, _LEADING)), b.gep("i64", words, i), 8)
    )
    first = b.iadd(counts["inputs"], _LEADING)
    made = _call(b, "PyTuple_New", b.imul(counts["results"], 2))

    def allocate(i: Value, is_whole: Value) -> list[Value]:
        size = _call(b, "PyLong_AsLongLong", _item(b, items, b.iadd(first, i)))
        block = _call(b, "PyBytes_FromStringAndSize", _null(b), b.iadd(size, _ALIGN))

        def keep() -> list[Value]:
            start = b.ptr_to_int(_call(b, "PyBytes_AsString", block))
            address = b.int_to_ptr(b.band(b.iadd(start, _ALIGN - 1), -_ALIGN))
            b.store(address, b.gep("i64", words, b.iadd(counts["inputs"], i)), 8)
            _call(b, "PyTuple_SetItem", made, b.imul(i, 2), block)
            _call(b, "PyTuple_SetItem", made, b.iadd(b.imul(i, 2), 1), _call(b, "PyLong_FromVoidPtr", address))
            return [is_whole]

        return b.if_(b.icmp("eq", block, _null(b)), lambda: [b.constant("i1", False)], keep)

    (is_whole,) = b.loop(0, counts["results"], 1, allocate, [b.constant("i1", True)])
    return b.if_(
        is_whole,
        lambda: [_execute(b, items, gate, frame, counts, words, made)],
        lambda: [_out_of_memory(b, gate, frame, made)],
    )[0]


def _out_of_memory(b: Builder, gate: Value, frame: Value, made: Value) -> Value:
    """The exception is set already."""
    _call(b, "Py_DecRef", made)
    _give_back(b, gate, frame)
    return _null(b)


def _give_back(b: Builder, gate: Value, frame: Value) -> None:
    head = b.gep("i64", gate, GATE["head"])
    b.store(b.load("ptr", head, 8), frame, 8)
    b.store(frame, head, 8)


def _execute(
    b: Builder, items: Value, gate: Value, frame: Value, counts: dict[str, Value], words: Value, made: Value
) -> Value:
    arguments = b.iadd(counts["inputs"], counts["results"])
    dims = b.gep("i64", words, arguments)
    first = b.iadd(arguments, _LEADING)

    def read_dim(i: Value) -> None:
        b.store(_call(b, "PyLong_AsLongLong", _item(b, items, b.iadd(first, i))), b.gep("i64", dims, i), 8)

    b.loop(0, counts["dims"], 1, read_dim)
    entry = b.load("ptr", b.gep("i64", gate, GATE["entry"]), 8)
    state = _call(b, "PyEval_SaveThread")
    status = b.call("i32", entry, frame, words, dims)
    assert status is not None
    _call(b, "PyEval_RestoreThread", state)
    b.store(b.sext(status, "i64"), b.gep("i64", frame, RT["status"]), 8)

    def succeed() -> list[Value]:
        _give_back(b, gate, frame)
        return [made]

    def fail() -> list[Value]:
        _call(b, "Py_DecRef", made)
        return [_call(b, "PyLong_FromVoidPtr", frame)]

    return b.if_(b.icmp("eq", status, 0), succeed, fail)[0]


_lock = threading.Lock()
_loaded: list[tuple[Library, Callable[..., Any]]] = []


def entry_function() -> Callable[..., Any]:
    """`enter`, compiled or read from the cache once per process."""
    with _lock:
        if not _loaded:
            target = host_target()
            data = cache.get_object("enter", _text(target), target)
            imports = {name: _address(getattr(ctypes.pythonapi, name)) for name in _API}
            library = load_object(data, ("enter",), imports)
            _loaded.append((library, python_callable(library.symbol("enter"), "enter", None)))
        return _loaded[0][1]


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def call_natively(entry: int, frame: Frame, arguments: Sequence[int], dims: Sequence[int]) -> int:
    """Run part of an entry from Python: for measuring launches one by one."""
    words = frame.words[RT_WORDS:]
    words[: len(arguments)] = arguments
    words[len(arguments) : len(arguments) + len(dims)] = dims
    start = frame.address + RT_WORDS * 8
    function = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(entry)
    return int(function(frame.address, start, start + len(arguments) * 8))
