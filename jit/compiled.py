"""A compiled callable: arguments in, one native call, tensors out. Knows signatures, frames and weights, no kernels.

The steady state runs text made for the signature, without a builtin call but the one that enters native code. Whatever
that text does not recognise takes the slow way: first calls, views, errors, PLAIT_JIT=0, launches run one by one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from plait.framework import tree_utils
from plait.framework.buffer import Buffer
from plait.framework.config import config
from plait.framework.errors import ShapeError
from plait.framework.graph import realized
from plait.framework.interpreter import bind_shape
from plait.framework.tensor import Tensor
from plait.jit.entry import entry_function
from plait.jit.host_calls import interpret
from plait.jit.kernel import HostCall, step_name
from plait.jit.layout import BufferLayout
from plait.jit.memory import num_bytes
from plait.jit.native import Native, Progress, wrap
from plait.jit.signature import FastSource, Signature, size_text, symbol_text
from plait.jit.stage import StagedGraph
from plait.jit.stepwise import run_stepwise
from plait.jit.weights import Binding, check_weights, contiguous_buffer


class CompiledCallable:
    """A staged graph that runs as one native function.

    Arguments are checked against the layouts; symbols take their values from the arguments' sizes. Weights are bound,
    and repacked for the kernels, at the first call; a function given as `weights` is asked for them then.

    Raises: at the call, TypeError for a value that is no tensor, ValueError for one that does not fit its layout.
    """

    def __init__(
        self,
        staged: StagedGraph,
        weights: Mapping[str, Any] | Callable[[], Mapping[str, Any]] | None = None,
        *,
        strict: bool = False,
        progress: Progress | None = None,
    ) -> None:
        self.staged = staged
        self.strict = strict
        self._given = weights if callable(weights) else dict(weights or {}).copy
        self._kept: Mapping[str, Any] | None = None
        self._signature = Signature(staged)
        self._bound: Binding | None = None
        self._lock = threading.Lock()
        self._native: Native | None = None
        self._fast: Callable[..., Any] = self._slow_call
        self._finish: Callable[..., Any] | None = None
        if config.jit:
            self._ready(progress)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._fast(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<compiled {self.staged.graph.name}({', '.join(map(repr, self.staged.in_layouts))})>"

    @property
    def weights(self) -> Mapping[str, Any]:
        """What is bound, by name."""
        return MappingProxyType(dict(self._weights))

    @property
    def _weights(self) -> Mapping[str, Any]:
        """The weights of the first call, or before it what they would be."""
        return self._given() if self._kept is None else self._kept

    @property
    def launches(self) -> list[str]:
        """The names of the kernels in the order in which they run; host calls appear as "host:<op>"."""
        return [step_name(step) for step in self._ready().steps]

    @property
    def kernels(self) -> list[str]:
        """The distinct kernels, by name."""
        return [kernel.name for kernel in self._ready().program.kernels.values()]

    @property
    def host_calls(self) -> list[str]:
        """The records that run in Python, with the reason."""
        return [f"{step.node.op.name}: {step.reason}" for step in self._ready().steps if isinstance(step, HostCall)]

    def rebind(self, weights: Mapping[str, Any]) -> None:
        """Replace weights by name; those not named stay. Takes effect with the next call.

        Raises: as the first call, and changes nothing then.
        """
        merged = {**self._weights, **weights}
        with self._lock:
            check_weights(self.staged.graph.name, self.staged.graph.weights, merged)
            bound = Binding(self._native.program.bound, merged, True) if self._native is not None else None
            self._kept, self._bound = merged, bound

    def _ready(self, progress: Progress | None = None) -> Native:
        """The native code, compiled now if it is not there yet."""
        with self._lock:
            if self._native is None:
                self._native = Native(self.staged, self.strict, progress)
                self._finish, fast = _made_for(self, self._native)
                self._fast = fast or self._slow_call
            return self._native

    def _bind(self, native: Native) -> Binding:
        with self._lock:
            if self._bound is None:
                weights = self._weights
                check_weights(self.staged.graph.name, self.staged.graph.weights, weights)
                self._kept, self._bound = weights, Binding(native.program.bound, weights)
            return self._bound

    # The slow way

    def _slow_call(self, *args: Any, **kwargs: Any) -> Any:
        return self._slow(args, kwargs)

    def _slow(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensors, sizes = self._signature.check(args, kwargs)
        buffers = [self._memory(index, tensor) for index, tensor in enumerate(tensors)]
        self._refuse_aliases(buffers)
        if not config.jit or config.nan:
            return self._interpret(tensors, buffers, sizes)
        native = self._ready()
        bound = self._bind(native)
        addresses = [buffer.address for buffer in buffers]
        dims = [sizes[name] for name in self.staged.symbols]
        if config.stepwise:
            return self._stepwise(native, bound, tensors, addresses, sizes)
        assert self._finish is not None
        return self._finish(bound, *tensors, *addresses, *dims)

    def _memory(self, index: int, tensor: Tensor) -> Buffer:
        """The memory that an argument's kernels read, or store into."""
        if not isinstance(self.staged.in_layouts[index], BufferLayout):
            return contiguous_buffer(tensor)
        array = tensor.numpy()  # from here on other records that read this memory run before it changes
        name = self.staged.in_names[index]
        if not array.flags.c_contiguous or not array.flags.writeable:
            why = "read-only" if array.flags.c_contiguous else "no contiguous memory"
            raise ShapeError(
                f"{self.staged.graph.name}: argument {name!r} is stored into, and is {why}; give a copy() of it."
            )
        return Buffer.borrow(array)

    def _refuse_aliases(self, buffers: list[Buffer]) -> None:
        layouts, names = self.staged.in_layouts, self.staged.in_names
        for i, first in enumerate(buffers):
            for j, second in enumerate(buffers):
                apart = (
                    first.address + first.num_bytes <= second.address
                    or second.address + second.num_bytes <= first.address
                )
                if (
                    i != j
                    and isinstance(layouts[i], BufferLayout)
                    and not apart
                    and first.num_bytes
                    and second.num_bytes
                ):
                    raise ShapeError(
                        f"{self.staged.graph.name}: arguments {names[i]!r} and {names[j]!r} share memory and the first "
                        f"is stored into; give one of them as a copy()."
                    )

    def _rebuild(self, tensors: list[Tensor], made: list[Tensor]) -> Any:
        """The result tree; a forwarded result is the argument itself."""
        supply = iter(made)
        forwarded = self.staged.forwarded
        results = [
            tensors[forwarded[i]] if i in forwarded else next(supply) for i in range(len(self.staged.out_layouts))
        ]
        return tree_utils.unflatten(self.staged.out_tree, results)

    def _interpret(self, tensors: list[Tensor], buffers: list[Buffer], sizes: dict[str, int]) -> Any:
        """PLAIT_JIT=0 and PLAIT_NAN=1: the same graph by the rows' NumPy meanings."""
        graph = self.staged.graph
        weights = self._kept = self._weights
        check_weights(graph.name, graph.weights, weights)
        arrays = [b.array(t.dtype, t.shape) for b, t in zip(buffers, tensors, strict=True)]
        outputs = [node for i, node in enumerate(graph.outputs) if i not in self.staged.forwarded]
        return self._rebuild(tensors, interpret(graph, outputs, arrays, weights, sizes))

    def _stepwise(
        self, native: Native, bound: Binding, tensors: list[Tensor], addresses: list[int], sizes: dict[str, int]
    ) -> Any:
        """The same call, its launches one by one."""
        dims = [sizes[name] for name in self.staged.symbols]
        buffers = run_stepwise(native, bound.address, addresses, dims, sizes)
        made = [
            Tensor._of(realized(buffer, bind_shape(node.shape, sizes), node.dtype))
            for node, buffer in zip(native.program.outputs, buffers, strict=True)
        ]
        return self._rebuild(tensors, made)


# ---- text made for one signature ------------------------------------------------------------------------------------


def _made_for(me: CompiledCallable, native: Native) -> tuple[Callable[..., Any], Callable[..., Any] | None]:
    """`finish(bound, *tensors, *addresses, *dims)` and, where the argument trees allow it, `call(*args, **kwargs)`."""
    fast = FastSource(me.staged)
    text = fast.source()
    constants = fast.constants
    constants |= {"me": me, "config": config, "slow": me._slow, "retry": native.retry, "wrap": wrap}
    constants |= {"enter": entry_function(), "unflatten": tree_utils.unflatten, "out_tree": me.staged.out_tree}
    lines = _finish_lines(me.staged, native, constants)
    exec(compile(f"{lines}\n{text}", f"<plait {native.name}>", "exec"), constants)  # noqa: S102
    return constants["finish"], constants["call"] if fast.simple else None


def _finish_lines(staged: StagedGraph, native: Native, constants: dict[str, Any]) -> str:
    outputs = native.program.outputs
    addresses = [f"a{i}" for i in range(len(staged.in_layouts))]
    dims = [symbol_text(name) for name in staged.symbols]
    vector = ", ".join(["bound.address", *addresses, *(f"z{i}" for i in range(len(outputs))), *dims])
    parameters = ["bound", *(f"x{i}" for i in range(len(staged.in_layouts))), *addresses, *dims]
    body = [f"z{i} = {size_text(num_bytes(node))}" for i, node in enumerate(outputs)]
    body.append(f"r = enter({native.gate.address}, 0, {vector})")
    body.append(f"if type(r) is int: r = retry(r, {vector})")
    if outputs:
        body.append(f"[{', '.join(f'm{i}, p{i}' for i in range(len(outputs)))}] = r")
    results: list[str] = []
    number = 0
    for position, layout in enumerate(staged.out_layouts):
        if position in staged.forwarded:
            results.append(f"x{staged.forwarded[position]}")
            continue
        constants[f"t{number}"] = layout.dtype
        shape = f"({''.join(size_text(size) + ', ' for size in layout.shape)})"
        results.append(f"wrap(m{number}, p{number}, z{number}, {shape}, t{number})")
        number += 1
    supply, all_results = iter(results), ", ".join(results)
    tree = _tree_text(staged.out_tree, supply)
    body.append(f"return {tree or f'unflatten(out_tree, [{all_results}])'}")
    return "\n".join([f"def finish({', '.join(parameters)}):", *(f"  {line}" for line in body)])


def _tree_text(tree: Any, supply: Any) -> str | None:
    """A result tree as a Python expression; None when tree_utils has to build it."""
    if tree.kind == "leaf":
        return str(next(supply))
    if tree.kind == "static":
        return repr(tree.meta) if tree.meta is None else None
    if tree.kind not in ("tuple", "list", "dict") or (tree.kind == "dict" and tree.meta[0] is not dict):
        return None
    parts = [_tree_text(child, supply) for child in tree.children]
    if any(part is None for part in parts):
        return None
    if tree.kind == "dict":
        return "{" + ", ".join(f"{key!r}: {part}" for key, part in zip(tree.keys, parts, strict=True)) + "}"
    inside = "".join(f"{part}, " for part in parts)
    return f"({inside})" if tree.kind == "tuple" else f"[{inside}]"
