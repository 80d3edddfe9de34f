"""Which architectures plait knows: how to read their configuration, build their module and name their tensors."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from plait.framework.errors import LoadError
from plait.framework.tensor import Tensor
from plait.nn.kv_cache import CacheParams
from plait.nn.module import Module
from plait.pipelines import architectures
from plait.pipelines.gguf import GGUFFile
from plait.pipelines.weights import Sources, load_weights, tensor_types


class LanguageModel(Protocol):
    """What the engine asks of a model; any Module that has it can be served.

    `forward` maps a step's rows to each sequence's next-token logits (S, V).
    """

    @property
    def cache_params(self) -> CacheParams: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def context_length(self) -> int: ...

    def forward(
        self, tokens: Tensor, row_offsets: Tensor, lengths: Tensor, page_table: Tensor, cache: Tensor
    ) -> Tensor: ...

    def compile(self, *layouts: Any, progress: Callable[[int, int], None] | None = None) -> Callable[..., Any]: ...


@dataclass(frozen=True)
class Blueprint:
    """A file's facts, as an architecture reads them: metadata, tensor types, and the options that shape the module."""

    metadata: Mapping[str, Any]
    types: Mapping[str, str]
    mode: str
    page_size: int


@dataclass(frozen=True)
class SupportedArchitecture:
    """One architecture.

    name      what `general.architecture` says
    build     blueprint -> module, parameters not filled yet
    sources   module -> which tensors fill it
    ignored   tensors that may be in a file and carry nothing the module needs
    """

    name: str
    build: Callable[[Blueprint], Any]
    sources: Callable[[Any], Sources]
    ignored: frozenset[str] = frozenset()


_registered: dict[str, SupportedArchitecture] = {}


def register(architecture: SupportedArchitecture) -> None:
    """Make an architecture known; a later one of the same name takes its place."""
    _registered[architecture.name] = architecture


def supported_architectures() -> dict[str, SupportedArchitecture]:
    """Every architecture by name: those of the architectures folder, then registered ones."""
    found: dict[str, SupportedArchitecture] = {}
    for module in pkgutil.iter_modules(architectures.__path__, architectures.__name__ + "."):
        for architecture in importlib.import_module(module.name).ARCHITECTURES:
            found[architecture.name] = architecture
    return found | _registered


def find_architecture(name: str) -> SupportedArchitecture:
    """Look an architecture up.

    Raises: LoadError naming the known ones.
    """
    known = supported_architectures()
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise LoadError(f"architecture {name!r}: not known; {hint}known: {', '.join(known)}.")


def load_model(file: GGUFFile, *, mode: str, page_size: int) -> Module:
    """The module of a file, its parameters filled.

    Raises: LoadError, FormatError naming what does not fit.
    """
    name = file.metadata.get("general.architecture")
    if not isinstance(name, str):
        raise LoadError(f"{file.path}: metadata 'general.architecture' is {name!r}; expected a string.")
    architecture = find_architecture(name)
    model: Module = architecture.build(Blueprint(file.metadata, tensor_types(file), mode, page_size))
    load_weights(model, file, architecture.sources(model), architecture.ignored)
    return model
