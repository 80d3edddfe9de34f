"""Module: an object whose Tensor attributes are parameters and whose Module attributes are children.

Knows names, state and how a forward becomes a compiled graph. Does not know layers or checkpoints. Lists, tuples
and dicts held by a module are walked through; their keys become part of the names.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from plait.framework import safetensors
from plait.framework.conversion import from_numpy
from plait.framework.device import Device, as_device
from plait.framework.errors import ShapeError
from plait.framework.graph import Graph, weight_node
from plait.framework.sharding import NamedMapping
from plait.framework.tensor import Tensor
from plait.jit.compiled import CompiledCallable
from plait.jit.stage import StagedGraph, stage

Progress = Callable[[int, int], None]
Lookup = Callable[[str, Tensor], Any]


class Slot(NamedTuple):
    """Where one parameter stands: its qualified name, its holder, its key there and its value."""

    name: str
    holder: Any
    key: Any
    value: Tensor

    def put(self, value: Tensor) -> None:
        if isinstance(self.holder, Module):
            setattr(self.holder, self.key, value)
        elif isinstance(self.holder, tuple):
            raise TypeError(f"module: parameter {self.name!r} is held by a tuple; hold it in a list, which can change.")
        else:
            self.holder[self.key] = value


class Module:
    """Base of every layer and model. Define `forward`; nothing is registered, no `super().__init__()` is called.

    Example:
        >>> class Double(Module):
        ...     def forward(self, x):
        ...         return x * 2
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{type(self).__qualname__}: forward is not defined; define it.")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)

    # Names

    @property
    def local_parameters(self) -> Iterable[tuple[str, Tensor]]:
        """This module's own parameters."""
        return [(slot.name, slot.value) for slot in _slots(self) if slot.holder is self]

    @property
    def parameters(self) -> Iterable[tuple[str, Tensor]]:
        """Every parameter by qualified name: own ones first, then depth-first. A tied one appears under each name."""
        return [(slot.name, slot.value) for slot in _slots(self)]

    @property
    def children(self) -> Iterable[tuple[str, Module]]:
        """The modules that this one holds directly, also in lists, tuples and dicts."""
        return list(_children(self, ""))

    @property
    def descendants(self) -> Iterable[tuple[str, Module]]:
        """Every module below this one, depth-first."""
        return [found for name, child in self.children for found in [(name, child), *_below(name, child)]]

    @property
    def local_mappings(self) -> dict[str, NamedMapping]:
        """How own parameters lie on a mesh, by name; one that is not named is replicated."""
        return {}

    @property
    def mappings(self) -> dict[str, NamedMapping]:
        """How every parameter lies on a mesh, by qualified name."""
        modules = [("", self), *self.descendants]
        declared = {_join(at, name): spec for at, module in modules for name, spec in module.local_mappings.items()}
        return {name: declared.get(name, NamedMapping(spec=())) for name, _ in self.parameters}

    # State

    def state_dict(self) -> dict[str, Tensor]:
        """The parameters by name. Tied parameters show as one tensor under several names."""
        return dict(self.parameters)

    def load_state(self, lookup: Lookup) -> None:
        """Replace every parameter by `lookup(name, current)`, all or none. Tied parameters stay tied.

        Raises: KeyError for a name that `lookup` does not have; ValueError for a wrong shape or dtype, or for tied
        names that are given different values.
        """
        slots = list(_slots(self))
        groups: dict[int, list[Slot]] = {}
        for slot in slots:
            groups.setdefault(id(slot.value), []).append(slot)
        loaded = {key: _look_up(group, lookup) for key, group in groups.items()}
        for slot in slots:
            slot.put(loaded[id(slot.value)])

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Load parameters by name, all or none.

        Raises: KeyError naming a missing parameter; ValueError for a wrong shape or dtype, or (strict) unused names.
        """
        names = {name for name, _ in self.parameters}
        unused = sorted(set(state) - names)
        if strict and unused:
            raise ValueError(
                f"load_state_dict: {_listed(unused)} not among the parameters of {type(self).__qualname__}; "
                f"rename or remove them, or pass strict=False."
            )
        self.load_state(lambda name, current: state[name])

    def save(self, path: str | Path) -> None:
        """Write the parameters to a safetensors file, whole or not at all; a tied one once, under its names."""
        safetensors.save(path, {name: tensor._host() for name, tensor in self.parameters})

    def load(self, path: str | Path, strict: bool = True) -> None:
        """Read the parameters from a safetensors file, all or none, without copying them.

        Raises: KeyError, ValueError as `load_state_dict`; FormatError for a file that is not sound.
        """
        self.load_state_dict(safetensors.load(path), strict)

    def map_parameters(self, function: Callable[[str, Tensor], Tensor]) -> Self:
        """A copy of the module with every parameter replaced by `function(name, parameter)`; ties stay."""
        twin = copy.deepcopy(self, {id(value): value for _, value in self.parameters})
        changed: dict[int, Tensor] = {}
        for slot in _slots(twin):
            if id(slot.value) not in changed:
                changed[id(slot.value)] = function(slot.name, slot.value)
        for slot in list(_slots(twin)):
            slot.put(changed[id(slot.value)])
        return twin

    def to(self, device: Device | str) -> Self:
        """Move every parameter to a device, in place."""
        target = as_device(device)
        for slot in list(_slots(self)):
            slot.put(slot.value.to(target))
        return self

    # Compilation

    def trace(self, *layouts: Any, method: str = "forward", name: str | None = None) -> Graph:
        """The graph of a method for arguments of these layouts; parameters are weights that are bound later."""
        return self._stage(layouts, method, name).graph

    def _stage(self, layouts: tuple[Any, ...], method: str, name: str | None) -> StagedGraph:
        title = name or type(self).__qualname__ + ("" if method == "forward" else f".{method}")
        with self._parameters_as_weights():
            return stage(getattr(self, method), name=title)(*layouts)

    def compile(
        self,
        *layouts: Any,
        strict: bool = False,
        name: str | None = None,
        method: str = "forward",
        progress: Progress | None = None,
    ) -> CompiledCallable:
        """One native function for a method, for arguments of these layouts. A size may be a name: symbolic.

        The parameters that the module has at the first call are bound then; `rebind` of the result replaces them.
        `strict` refuses a graph that needs a host call. `progress(done, total)` is told of every kernel.
        Raises: CompileError as the compiler does; whatever the method raises.
        """
        staged = self._stage(layouts, method, name)
        return CompiledCallable(staged, self.state_dict, strict=strict, progress=progress)

    @contextmanager
    def _parameters_as_weights(self) -> Iterator[None]:
        """Put named leaves in the parameters' places, one per distinct tensor; afterwards everything is as it was."""
        slots = list(_slots(self))
        leaves: dict[int, Tensor] = {}
        for slot in slots:
            if id(slot.value) not in leaves:
                leaves[id(slot.value)] = Tensor._of(weight_node(slot.name, slot.value.shape, slot.value.dtype))
        try:
            for slot in slots:
                slot.put(leaves[id(slot.value)])
            yield
        finally:
            for slot in slots:
                slot.put(slot.value)

    # Trees and text

    def __tree_flatten__(self) -> tuple[Mapping[str, Any], None]:
        return dict(vars(self)), None

    @classmethod
    def __tree_empty__(cls, meta: None) -> Self:
        return cls.__new__(cls)

    def __repr__(self) -> str:
        return "\n".join(_lines(self))


class ModuleList(list[Any], Module):
    """A list of modules that is itself a child; its items are named by index."""

    __hash__ = object.__hash__  # type: ignore[assignment]
    __repr__ = Module.__repr__

    def __tree_flatten__(self) -> tuple[Any, None]:
        return list(self), None

    def __tree_setattr__(self, key: int, value: Any) -> None:
        self[key : key + 1] = [value]

    def forward(self, x: Any) -> Any:
        """Apply the modules one after the other."""
        for module in self:
            x = module(x)
        return x


Sequential = ModuleList


def _entries(holder: Any) -> Iterable[tuple[Any, Any]]:
    """The keys and values of a module or container; none for anything else."""
    if isinstance(holder, list | tuple):
        return list(enumerate(holder))
    if isinstance(holder, dict):
        return list(holder.items())
    return list(vars(holder).items()) if isinstance(holder, Module) else []


def _join(prefix: str, key: Any) -> str:
    return f"{prefix}.{key}" if prefix else str(key)


def _slots(holder: Any, prefix: str = "", outer: tuple[int, ...] = ()) -> Iterator[Slot]:
    if id(holder) in outer:
        raise ValueError(f"module: {prefix!r} leads back to a module that holds it; modules must form a tree.")
    entries = [(key, value, _join(prefix, key)) for key, value in _entries(holder)]
    for key, value, name in entries:
        if isinstance(value, Tensor):
            yield Slot(name, holder, key, value)
    for _, value, name in entries:
        yield from _slots(value, name, (*outer, id(holder)))


def _children(holder: Any, prefix: str) -> Iterator[tuple[str, Module]]:
    for key, value in _entries(holder):
        if isinstance(value, Module):
            yield _join(prefix, key), value
        else:
            yield from _children(value, _join(prefix, key))


def _below(name: str, module: Module) -> list[tuple[str, Module]]:
    return [(f"{name}.{inner}", found) for inner, found in module.descendants]


def _look_up(group: list[Slot], lookup: Lookup) -> Tensor:
    """The new value of one parameter, which may have several names."""
    found: dict[str, Any] = {}
    for slot in group:
        try:
            found[slot.name] = lookup(slot.name, slot.value)
        except KeyError:
            continue
    if not found:
        names = " or ".join(repr(slot.name) for slot in group)
        raise KeyError(f"load_state: no value for parameter {names}; every parameter needs one.")
    tensors = {name: _fitting(name, value, group[0].value) for name, value in found.items()}
    (first, chosen), *others = tensors.items()
    for name, tensor in others:
        same = tensor is chosen or found[name] is found[first]
        if not same and not np.array_equal(tensor._host(), chosen._host()):
            raise ValueError(f"load_state: {first!r} and {name!r} are one tied parameter; they got different values.")
    return chosen


def _fitting(name: str, value: Any, current: Tensor) -> Tensor:
    tensor = value if isinstance(value, Tensor) else from_numpy(np.asarray(value))
    if tuple(tensor.shape) != tuple(current.shape):
        raise ShapeError(f"load_state: {name!r} is given shape {tensor.shape}; expected {current.shape}.")
    if tensor.dtype is not current.dtype:
        found = f"{name!r} is given {tensor.dtype.name}"
        raise ValueError(f"load_state: {found}; expected {current.dtype.name}. cast it first.")
    return tensor


def _listed(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:8]))
    return shown + (f" and {len(names) - 8} more are" if len(names) > 8 else " is" if len(names) == 1 else " are")


def _lines(module: Module) -> Iterator[str]:
    own = [f"{name}: {value.dtype.name}{list(value.shape)}" for name, value in module.local_parameters]
    plain = [f"{k}={v!r}" for k, v in _entries(module) if isinstance(v, bool | int | float | str)]
    head = f"{type(module).__qualname__}({', '.join([*plain, *own])}"
    children = list(module.children)
    if not children:
        yield head + ")"
        return
    yield head
    for name, child in children:
        first, *rest = repr(child).split("\n")
        yield from (f"  {name}: {first}", *(f"  {line}" for line in rest))
    yield ")"
