"""`compile(fn)`: with layouts it gives a callable, with tensors it traces on first sight and calls at once."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping
from functools import update_wrapper
from typing import Any

from plait.framework import tree_utils
from plait.framework.tensor import Tensor
from plait.jit.compiled import CompiledCallable
from plait.jit.layout import TensorLayout
from plait.jit.native import Progress
from plait.jit.stage import argument_names, positional_parameters, trace

MAX_ENTRIES = 64

Guards = tuple[tuple[int, ...], ...]  # per argument and axis: 0 or 1 as it is, else the number of its symbol


class Compiled:
    """What `compile(fn)` gives."""

    def __init__(
        self, fn: Callable[..., Any], weights: Mapping[str, Any] | None, strict: bool, progress: Progress | None
    ) -> None:
        self.fn = fn
        self.weights = weights
        self.strict = strict
        self.progress = progress
        self.entries: dict[Any, CompiledCallable] = {}
        self._lock = threading.RLock()
        self._warned = False
        update_wrapper(self, fn, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """All layouts: a CompiledCallable. All tensors: fn's results.

        Raises: TypeError naming the argument when layouts and tensors are mixed.
        """
        leaves, tree = tree_utils.flatten((args, kwargs), leaf=(TensorLayout, Tensor))
        given = [isinstance(leaf, TensorLayout) for leaf in leaves]
        if any(given) and not all(given):
            self._refuse_mix(args, kwargs, leaves)
        if any(given):
            return self._compile(args, kwargs)
        return self._call(leaves, tree, args, kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Decorated methods bind as functions do; each instance is a static argument of its own entries."""
        return self if instance is None else _Method(self, instance)

    def _compile(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CompiledCallable:
        staged = trace(self.fn, args, kwargs)
        return CompiledCallable(staged, self.weights, strict=self.strict, progress=self.progress)

    def _refuse_mix(self, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: list[Any]) -> None:
        paths = tree_utils.paths((args, kwargs), leaf=(TensorLayout, Tensor))
        names = argument_names(positional_parameters(self.fn), paths)
        tensor = next(name for name, leaf in zip(names, leaves, strict=True) if isinstance(leaf, Tensor))
        layout = next(name for name, leaf in zip(names, leaves, strict=True) if not isinstance(leaf, Tensor))
        raise TypeError(
            f"compile: argument {tensor!r} is a tensor and argument {layout!r} a layout; give all as layouts to "
            f"get a callable, or all as tensors to call at once."
        )

    def _call(self, leaves: list[Tensor], tree: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        guards = _guards(leaves)
        key = (tree, _static_types(tree), tuple(leaf.dtype for leaf in leaves), guards)
        with self._lock:
            entry = self.entries.get(key)
            if entry is None:
                entry = self._new_entry(key, leaves, tree, guards)
        return entry(*args, **kwargs)

    def _new_entry(self, key: Any, leaves: list[Tensor], tree: Any, guards: Guards) -> CompiledCallable:
        layouts = [TensorLayout(leaf.dtype, _layout_shape(guard)) for leaf, guard in zip(leaves, guards, strict=True)]
        layout_args, layout_kwargs = tree_utils.unflatten(tree, layouts)
        entry = self._compile(layout_args, layout_kwargs)
        if len(self.entries) >= MAX_ENTRIES:
            self._warn()
            self.entries.pop(next(iter(self.entries)))
        self.entries[key] = entry
        return entry

    def _warn(self) -> None:
        if not self._warned:
            self._warned = True
            name = getattr(self.fn, "__qualname__", repr(self.fn))
            warnings.warn(
                f"compile: {name} was compiled for more than {MAX_ENTRIES} kinds of arguments; the oldest are dropped. "
                f"Pass what varies as tensors, or compile it for layouts once.",
                stacklevel=5,
            )


class _Method:
    """A compiled function bound to an instance."""

    def __init__(self, compiled: Compiled, instance: Any) -> None:
        self.compiled, self.instance = compiled, instance

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.compiled(self.instance, *args, **kwargs)


def _static_types(tree: Any) -> tuple[type, ...]:
    """Equal values of different types, such as 1 and True, are different static arguments."""
    inner = tuple(kind for child in tree.children for kind in _static_types(child))
    return (type(tree.meta), *inner) if tree.kind == "static" else inner


def _guards(leaves: list[Tensor]) -> Guards:
    """Which sizes are 0 or 1, and which of the others are equal: equal sizes share a symbol."""
    numbers: dict[int, int] = {0: 0, 1: 1}
    return tuple(tuple(numbers.setdefault(size, len(numbers)) for size in leaf.shape) for leaf in leaves)


def _layout_shape(guard: tuple[int, ...]) -> tuple[int | str, ...]:
    return tuple(number if number < 2 else f"s{number - 2}" for number in guard)


def compile(
    fn: Callable[..., Any] | None = None,
    *,
    weights: Mapping[str, Any] | None = None,
    strict: bool = False,
    progress: Progress | None = None,
) -> Any:
    """Compile a function of tensors.

    `compile(fn)(*layouts)` traces fn and gives a CompiledCallable. `compile(fn)(*tensors)` runs fn, traced once per
    tree, static values, dtypes, ranks and per pattern of sizes that are 0, 1 or equal; other sizes are symbols.
    `weights` holds what the trace takes with `external`. `strict` refuses host calls. `progress(done, total)` is told
    of every kernel. Also a decorator, with or without arguments.
    """
    if fn is None:
        return lambda function: Compiled(function, weights, strict, progress)
    return Compiled(fn, weights, strict, progress)
