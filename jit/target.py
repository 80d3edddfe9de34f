"""What a machine can do, as code generation needs it: width, fused multiply-add, byte dot products. Knows no kernel."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import llvmlite.binding as llvm

from plait.framework.errors import CompileError


@dataclass(frozen=True)
class Target:
    """One machine that code is generated for.

    width        float32 lanes of a vector register: 16, 8, 4, or 1 where there are no vectors
    features     LLVM feature string, only what this process may use
    has_fma      fused multiply-add is one instruction
    has_vnni     u8 x i8 dot products of 4 over 512-bit vectors
    has_ldexp    scaling by 2^n is a vector instruction
    has_round    floor, ceil, trunc and round are instructions
    has_half     float16 <-> float32 are instructions
    """

    kind: str
    triple: str
    cpu: str
    features: str
    width: int
    has_fma: bool
    has_avx512: bool
    has_vnni: bool
    has_ldexp: bool
    has_round: bool
    has_half: bool
    data_layout: str


# What instructions LLVM may use depends on these; everything else about a virtual CPU comes from its name.
_LEVELS: dict[str, tuple[str, frozenset[str]]] = {
    "x86-64": ("x86_64-unknown-linux-gnu", frozenset({"sse2"})),
    "x86-64-v2": ("x86_64-unknown-linux-gnu", frozenset({"sse4.1"})),
    "x86-64-v3": ("x86_64-unknown-linux-gnu", frozenset({"sse4.1", "avx2", "fma", "f16c"})),
    "haswell": ("x86_64-unknown-linux-gnu", frozenset({"sse4.1", "avx2", "fma", "f16c"})),
    "x86-64-v4": ("x86_64-unknown-linux-gnu", frozenset({"sse4.1", "avx2", "fma", "f16c", "avx512f", "avx512vl"})),
    "znver4": (
        "x86_64-unknown-linux-gnu",
        frozenset({"sse4.1", "avx2", "fma", "f16c", "avx512f", "avx512vl", "avx512vnni"}),
    ),
    "neoverse-n1": ("aarch64-unknown-linux-gnu", frozenset({"neon"})),
    "apple-m1": ("arm64-apple-darwin", frozenset({"neon"})),
}
VIRTUAL_CPUS = tuple(_LEVELS)


@cache
def _initialize() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.initialize_native_asmparser()


def create_machine(triple: str, cpu: str, features: str) -> Any:
    """An LLVM TargetMachine. The code model must be small with pic: the JIT default corrupts constants once an object
    with real GOT entries is loaded beside it."""
    _initialize()
    target = llvm.Target.from_triple(triple)
    return target.create_target_machine(cpu=cpu, features=features, opt=3, reloc="pic", codemodel="small", jit=True)


def _describe(triple: str, cpu: str, features: str, usable: frozenset[str]) -> Target:
    arm = triple.startswith(("aarch64", "arm64"))
    avx512 = {"avx512f", "avx512vl"} <= usable
    width = 16 if avx512 else 8 if "avx2" in usable else 4 if arm or "sse2" in usable or "sse4.1" in usable else 1
    machine = create_machine(triple, cpu, features)
    return Target(
        kind="cpu",
        triple=triple,
        cpu=cpu,
        features=features,
        width=width,
        has_fma=arm or "fma" in usable,
        has_avx512=avx512,
        has_vnni=avx512 and "avx512vnni" in usable,
        has_ldexp=avx512,
        has_round=arm or "sse4.1" in usable,
        has_half=arm or "f16c" in usable,
        data_layout=str(machine.target_data),
    )


@cache
def host_target() -> Target:
    """The machine this process runs on. AMX is left out: using it needs a permission the process may not hold."""
    _initialize()
    found = llvm.get_host_cpu_features()
    usable = {name: on and not name.startswith("amx") for name, on in found.items()}
    features = ",".join(f"{'+' if on else '-'}{name}" for name, on in sorted(usable.items()))
    names = frozenset(name for name, on in usable.items() if on)
    return _describe(llvm.get_process_triple(), llvm.get_host_cpu_name(), features, names)


@cache
def virtual(march: str) -> Target:
    """A machine that need not be here, to compile for.

    Raises: CompileError for a name that is not in VIRTUAL_CPUS.
    """
    if march not in _LEVELS:
        raise CompileError(f"target: {march!r} is not a known CPU; expected one of {', '.join(VIRTUAL_CPUS)}.")
    triple, usable = _LEVELS[march]
    return _describe(triple, march, "", usable)
