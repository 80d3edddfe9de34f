"""LLVM IR text to object bytes, and object bytes to callable addresses. Knows no cache and no kernels.

LLVM's fatal errors end the process, so a module is verified before anything else touches it.
"""

from __future__ import annotations

import itertools
import os
import re
import struct
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import llvmlite
import llvmlite.binding as llvm

from plait.framework import profiler
from plait.framework.config import config
from plait.framework.errors import CompileError
from plait.jit.target import Target, create_machine, host_target

PASSES = ("sroa", "instcombine", "simplifycfg")
CODE_MODEL = "small"
LLVM_VERSION = f"{llvmlite.__version__}/{'.'.join(map(str, llvm.llvm_version_info))}"

_ADD_PASS = {
    "sroa": "add_sroa_pass",
    "instcombine": "add_instruction_combine_pass",
    "simplifycfg": "add_simplify_cfg_pass",
}
_lock = threading.RLock()
if hasattr(os, "register_at_fork"):  # no thread is inside LLVM when the process forks
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
_names = itertools.count()


@cache
def _machine(target: Target) -> Any:
    return create_machine(target.triple, target.cpu, target.features)


def parse(name: str, ir_text: str, target: Target) -> Any:
    """A verified module set up for a target.

    Raises: CompileError with LLVM's words when the text is not valid IR.
    """
    _machine(target)  # brings LLVM up
    try:
        module = llvm.parse_assembly(ir_text)
        module.verify()
    except RuntimeError as error:
        raise CompileError(f"compile: {name} is not valid LLVM IR: {error}. This is a bug in plait.") from None
    module.triple = target.triple
    module.data_layout = target.data_layout
    return module


def _optimize(module: Any, machine: Any) -> None:
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=1))
    passes = llvm.create_new_function_pass_manager()
    for name in PASSES:
        getattr(passes, _ADD_PASS[name])()
    for function in module.functions:
        if not function.is_declaration:
            passes.run(function, builder)


def compile_ir(name: str, ir_text: str, target: Target) -> bytes:
    """Compile a module to an object file.

    Raises: CompileError when the text is not valid, or when the code would call a function outside itself that it does
    not declare (a host without an instruction, served by a call to libm).
    """
    with _lock:
        start = profiler.clock()
        machine = _machine(target)
        module = parse(name, ir_text, target)
        _optimize(module, machine)
        data = bytes(machine.emit_object(module))
        seconds = profiler.clock() - start
        profiler.add("compile", name, start, seconds, bytes=len(data), target=target.cpu)
        _report(name, ir_text, target, len(data), seconds * 1e3)
    strays = undefined_symbols(data) - declared_symbols(ir_text)
    if strays:
        raise CompileError(
            f"compile: {name} for {target.cpu} would call {', '.join(sorted(strays))}; a kernel calls nothing outside "
            f"itself. Emit the operation in another way for this target."
        )
    return data


def _report(name: str, ir_text: str, target: Target, size_bytes: int, duration_ms: float) -> None:
    if config.debug >= 1:
        print(f"compile {name}: {duration_ms:.1f} ms, {size_bytes} bytes, {target.cpu}", file=sys.stderr)
    if config.debug >= 5:
        print(ir_text, file=sys.stderr)
    if config.debug >= 6:
        print(assembly(name, ir_text, target), file=sys.stderr)


def assembly(name: str, ir_text: str, target: Target) -> str:
    """The machine code as text, from a fresh parse: a module is used up by code generation."""
    with _lock:
        machine = _machine(target)
        module = parse(name, ir_text, target)
        _optimize(module, machine)
        return str(machine.emit_assembly(module))


def declared_symbols(ir_text: str) -> set[str]:
    """Functions and globals that the text itself names as defined elsewhere."""
    functions = re.findall(r"^declare [^@]*@([\w.]+)\(", ir_text, re.MULTILINE)
    return set(functions) | set(re.findall(r"^@([\w.]+) = external", ir_text, re.MULTILINE))


def exported_symbols(ir_text: str) -> list[str]:
    """Functions the text defines for others."""
    return re.findall(r"^define (?!internal )[^@]*@([\w.]+)\(", ir_text, re.MULTILINE)


def undefined_symbols(data: bytes) -> set[str]:
    """Names an ELF64 object expects from elsewhere; empty for other file formats."""
    if data[:5] != b"\x7fELF\x02":
        return set()
    table_at, entry_size, count = *struct.unpack_from("<Q", data, 40), *struct.unpack_from("<HH", data, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, table_at + i * entry_size) for i in range(count)]
    found = set()
    for _, kind, _, _, offset, size, link, _, _, symbol_size in sections:
        if kind != 2:  # SHT_SYMTAB
            continue
        names = sections[link][4]
        for at in range(offset, offset + size, symbol_size):
            name, _, _, section = struct.unpack_from("<IBBH", data, at)
            if name and section == 0:
                found.add(data[names + name : data.index(b"\0", names + name)].decode())
    return found - {"_GLOBAL_OFFSET_TABLE_"}


class Library:
    """Loaded code. It owns the code: addresses are valid while this object lives."""

    def __init__(self, tracker: Any, symbols: Sequence[str], object_bytes: bytes) -> None:
        self._tracker = tracker
        self._addresses = {name: int(tracker[name]) for name in symbols}
        self.object_bytes = object_bytes

    def symbol(self, name: str) -> int:
        """The address of a function.

        Raises: CompileError when the code does not define it.
        """
        if name not in self._addresses:
            raise CompileError(f"library: no symbol {name!r}; it defines {', '.join(self._addresses)}.")
        return self._addresses[name]

    def close(self) -> None:
        """Unload the code; no address may be called afterwards. Dropping the object does the same."""
        if self._tracker is not None:
            self._tracker.close()
            self._tracker = None
            self._addresses = {}


@cache
def _loader() -> Any:
    # LLJIT consumes the machine it is given, so it gets its own.
    host = host_target()
    return llvm.create_lljit_compiler(create_machine(host.triple, host.cpu, host.features), suppress_errors=True)


def load_object(data: bytes, symbols: Sequence[str], imports: Mapping[str, int] | None = None) -> Library:
    """Load an object file and find its symbols.

    imports  addresses of what it declares; kernels have none

    Raises: CompileError when it cannot be linked.
    """
    return load_objects([data], symbols, imports)


def load_objects(objects: Sequence[bytes], symbols: Sequence[str], imports: Mapping[str, int] | None = None) -> Library:
    """Link object files that call each other into one library and find its symbols.

    Raises: CompileError when they cannot be linked.
    """
    library = llvm.JITLibraryBuilder()
    for data in objects:
        library.add_object_img(data)
    for name in symbols:
        library.export_symbol(name)
    for name, address in (imports or {}).items():
        library.import_symbol(name, address)
    with _lock:
        try:
            tracker = library.link(_loader(), f"plait{next(_names)}")
        except RuntimeError as error:
            raise CompileError(f"library: {', '.join(symbols)} cannot be linked: {error}.") from None
    return Library(tracker, symbols, objects[0])
