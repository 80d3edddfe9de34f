"""What plait finds on this machine, as titled lines. Looks, and changes nothing."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import platformdirs

import plait
from plait.framework.config import KNOBS, config
from plait.framework.errors import PlaitError

Section = tuple[str, list[str]]
PACKAGES = ("numpy", "ml-dtypes", "llvmlite", "numba", "safetensors", "tokenizers", "cuda-python", "hip-python")


def report() -> Iterator[Section]:
    """Every section, in order."""
    yield "versions", [f"plait {plait.__version__}", f"python {platform.python_version()}", *map(_version, PACKAGES)]
    yield "settings", [_setting(name) for name in KNOBS]
    yield "processor", _processor()
    yield "threads", _threads()
    yield "memory", _memory()
    yield "compile cache", _cache()
    yield "models", _models()


def _version(package: str) -> str:
    try:
        return f"{package} {metadata.version(package)}"
    except metadata.PackageNotFoundError:
        return f"{package} not installed"


def _setting(name: str) -> str:
    knob = KNOBS[name]
    value = getattr(config, name.lower())
    shown = "unset" if value in (None, "") or (name == "THREADS" and value == 0) else value
    return f"PLAIT_{name} = {shown}  ({knob.values}: {knob.help})"


def _processor() -> list[str]:
    from plait.jit.target import host_target

    target = host_target()
    wanted = ("has_fma", "has_avx512", "has_vnni", "has_half")
    features = [name.removeprefix("has_") for name in wanted if getattr(target, name)]
    lanes = f"{target.width} float32 lanes; {', '.join(features) or 'no extensions'}"
    return [f"{target.cpu} ({target.triple})", lanes]


def _threads() -> list[str]:
    from plait.jit.threads import default_threads, quota_cpus, usable_cpus

    quota = quota_cpus()
    return [f"{default_threads()} in use: {usable_cpus()} CPUs by affinity, quota {quota if quota else 'none'}"]


def _memory() -> list[str]:
    from plait.pipelines.kv_cache import MEMORY_SHARE, memory_bytes

    usable = memory_bytes() / 2**30
    return [f"{usable:.1f} GiB usable; the key-value cache takes at most {usable * MEMORY_SHARE:.1f} GiB"]


def _cache() -> list[str]:
    if config.cache == "0":
        return ["off (PLAIT_CACHE=0)"]
    folder = Path(config.cache or platformdirs.user_cache_dir("plait"))
    if not folder.exists():
        return [f"{folder}: empty"]
    files = [path for path in folder.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    state = "writable" if os.access(folder, os.W_OK) else "read-only"
    free = shutil.disk_usage(folder).free
    return [f"{folder}: {state}, {len(files)} files, {size / 1e6:.1f} MB; {free / 1e9:.1f} GB free on its disk"]


def _models() -> list[str]:
    from plait.pipelines.model_files import local_models

    try:
        return [f"{model.name}: {model.path}" for model in local_models()] or ["none"]
    except PlaitError as error:
        return [str(error)]


def try_kernels() -> int:
    """Print a line for each skeleton as its kernel compiles and runs; the exit code: 1 when one failed."""
    from plait.jit.selftest import selftest

    print(f"{'skeleton':16} {'compile':>11} {'run':>11}  result")
    failed = 0
    for outcome in selftest():
        failed += bool(outcome.problem)
        result = f"FAIL: {outcome.problem}" if outcome.problem else f"pass ({', '.join(outcome.kernels)})"
        print(f"{outcome.name:16} {outcome.compile_ms:8.1f} ms {outcome.run_ms:8.1f} ms  {result}", flush=True)
    return int(failed > 0)
