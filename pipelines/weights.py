"""From checkpoint tensors to a module's parameters, without copies where the file's bytes are what a layer wants.

Knows tensor types and how rows of several tensors make one weight. Does not know architectures or their names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from plait.framework.blocks import FORMATS
from plait.framework.conversion import from_numpy
from plait.framework.errors import FormatError, LoadError
from plait.framework.tensor import Tensor
from plait.nn.embedding import Embedding, QuantizedEmbedding
from plait.nn.linear import JoinedLinear, Linear, Product, QuantizedLinear
from plait.nn.module import Module
from plait.pipelines.gguf import GGUFFile, GGUFTensor

# Module path -> stems of the checkpoint tensors whose rows make its weight; no stems: the module computes its own.
Sources = Mapping[str, Sequence[str]]
_FLOATS = ("f32", "f16", "bf16")


def tensor_types(file: GGUFFile) -> dict[str, str]:
    """The type of every tensor of a file, in lower case, such as "q4_1" or "f32"."""
    return {name: tensor.type_name.lower() for name, tensor in file.tensors.items()}


def create_linear(
    types: Mapping[str, str],
    stems: Sequence[str],
    in_dim: int,
    out_dims: Sequence[int],
    *,
    mode: str,
    parallel: str | None = None,
) -> Product:
    """The layer for a weight stored as the named tensors: one stacked product, or joined ones if their types differ.

    Raises: LoadError for a tensor that is missing, FormatError for a type without a product.
    """
    kinds = [_kind(types, f"{stem}.weight") for stem in stems]
    bias = [f"{stem}.bias" in types for stem in stems]
    if len(set(kinds)) > 1 or len(set(bias)) > 1 or (any(bias) and kinds[0] not in _FLOATS):
        parts = zip(kinds, bias, out_dims, strict=True)
        return JoinedLinear([_single(kind, in_dim, out, has_bias, mode, parallel) for kind, has_bias, out in parts])
    return _single(kinds[0], in_dim, sum(out_dims), bias[0], mode, parallel)


def _single(kind: str, in_dim: int, out_dim: int, bias: bool, mode: str, parallel: str | None) -> Product:
    if kind in _FLOATS:
        return Linear(in_dim, out_dim, bias, parallel=parallel)
    if bias:
        raise FormatError(f"weights: a {kind} product with a bias is not supported; expected one without.")
    return QuantizedLinear(kind, in_dim, out_dim, mode, parallel=parallel)


def create_embedding(types: Mapping[str, str], stem: str, vocab_size: int, dim: int) -> Embedding | QuantizedEmbedding:
    """The layer for an embedding table stored as the named tensor."""
    kind = _kind(types, f"{stem}.weight")
    return Embedding(vocab_size, dim) if kind in _FLOATS else QuantizedEmbedding(kind, vocab_size, dim)


def _kind(types: Mapping[str, str], name: str) -> str:
    if name not in types:
        raise LoadError(f"weights: tensor {name!r} is missing from the checkpoint; the file is incomplete.")
    kind = types[name]
    if kind not in FORMATS and kind not in _FLOATS:
        known = ", ".join([*FORMATS, *_FLOATS])
        raise FormatError(f"weights: tensor {name!r} is {kind}; plait computes with {known}. convert the model.")
    return kind


def load_weights(model: Module, file: GGUFFile, sources: Sources, ignored: Iterable[str] = ()) -> None:
    """Fill a model's parameters from a file, all or none.

    Raises: LoadError naming every parameter without a tensor, or every tensor that no parameter takes; ValueError for
    a shape that does not fit.
    """
    wanted = _wanted(model, sources)
    used = {name for names in wanted.values() for name in names or ()}
    missing = sorted(used - set(file.tensors))
    unused = sorted(set(file.tensors) - used - set(ignored))
    for problem, names in (("are missing from the file", missing), ("have no place in the model", unused)):
        if names:
            shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
            raise LoadError(f"{file.path}: {len(names)} tensors {problem}: {shown}; expected exactly the model's.")

    def lookup(name: str, current: Tensor) -> Tensor:
        names = wanted[name]
        return current if names is None else read_rows([file.tensors[source] for source in names])

    model.load_state(lookup)


def _wanted(model: Module, sources: Sources) -> dict[str, list[str] | None]:
    """Parameter -> the tensors whose rows make it; None for one that the model computed. Tied parameters need one."""
    wanted: dict[str, list[str] | None] = {}
    tied: dict[int, bool] = {}
    for name, tensor in model.parameters:
        found = _sources_of(name, sources)
        if found is not None:
            wanted[name] = found or None
        tied[id(tensor)] = tied.get(id(tensor), False) or found is not None
    lost = [name for name, tensor in model.parameters if not tied[id(tensor)]]
    if lost:
        raise LoadError(f"weights: no tensor is named for parameter {lost[0]!r}; the architecture must name one.")
    return wanted


def _sources_of(name: str, sources: Sources) -> list[str] | None:
    path, _, kind = name.rpartition(".")
    if path in sources:
        return [f"{stem}.{kind}" for stem in sources[path]]
    joined, _, index = path.rpartition(".parts.")
    return [f"{sources[joined][int(index)]}.{kind}"] if joined in sources else None


def read_rows(tensors: Sequence[GGUFTensor]) -> Tensor:
    """One parameter from tensors laid one below the other. A single one in a type that layers read is not copied."""
    arrays = [_readable(tensor.data) for tensor in tensors]
    return from_numpy(arrays[0] if len(arrays) == 1 else np.concatenate(arrays))


def _readable(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return array if array.dtype in (np.uint8, np.float32) else array.astype(np.float32)
