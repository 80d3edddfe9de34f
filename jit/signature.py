"""The signature of a compiled callable: which arguments fit, what its symbols become, and why others do not fit.

`Signature.check` is the slow, exact reading that explains every refusal. `fast_source` is the same reading as straight
Python without a single builtin call, for the steady state; whatever it does not recognise goes the slow way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from plait.framework import tree_utils
from plait.framework.dim import Dim, FloorDiv, Size, evaluate, symbols_of
from plait.framework.errors import DTypeError, ShapeError
from plait.framework.tensor import Tensor
from plait.jit.layout import BufferLayout, TensorLayout
from plait.jit.stage import StagedGraph


class ArgumentTypeError(DTypeError, ValueError):
    """An argument whose dtype is not the layout's."""


class Signature:
    """What a staged graph accepts.

    Raises: ShapeError when a symbol is the size of no axis by itself, so that no call could tell its value.
    """

    def __init__(self, staged: StagedGraph) -> None:
        self.staged = staged
        self.name = staged.graph.name
        bare = {str(size) for layout in staged.in_layouts for size in layout.shape if is_symbol(size)}
        for symbol in staged.symbols:
            if symbol not in bare:
                raise ShapeError(
                    f"compile: {self.name}: symbol {symbol!r} is the size of no axis by itself; give one argument an "
                    f"axis of exactly that size."
                )

    def check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Tensor], dict[str, int]]:
        """The tensors among the arguments and the values of the symbols.

        Raises: TypeError for a value that should be a tensor, ValueError for anything else that does not fit; each
        names the argument, what was found and what was expected.
        """
        tensors, tree = tree_utils.flatten((args, kwargs), leaf=Tensor)
        for path, problem, kind in _differences(self.staged.in_tree, tree, ()):
            raise kind(f"{self.name}: {self._label(path)}: {problem}")
        sizes: dict[str, int] = {}
        for name, layout, tensor in zip(self.staged.in_names, self.staged.in_layouts, tensors, strict=True):
            self._check_tensor(name, layout, tensor, sizes)
        for name, layout, tensor in zip(self.staged.in_names, self.staged.in_layouts, tensors, strict=True):
            self._check_sizes(name, layout, tensor, sizes)
        return tensors, sizes

    def _label(self, path: tuple[Any, ...]) -> str:
        if not path:
            return "arguments"
        side, *rest = path
        if not rest:
            return "positional arguments" if side == 0 else "keyword arguments"
        first = rest[0]
        parameters = self.staged.parameters
        name = parameters[first] if side == 0 and first < len(parameters) else first
        return f"argument {'.'.join(map(str, [name, *rest[1:]]))!r}"

    def _check_tensor(self, name: str, layout: TensorLayout, tensor: Tensor, sizes: dict[str, int]) -> None:
        if tensor.dtype is not layout.dtype:
            raise ArgumentTypeError(
                f"{self.name}: argument {name!r} has dtype {tensor.dtype.name}; expected {layout.dtype.name}. "
                f"Convert it with astype."
            )
        if len(tensor.shape) != len(layout.shape):
            raise ShapeError(
                f"{self.name}: argument {name!r} has shape {tensor.shape} of rank {len(tensor.shape)}; expected rank "
                f"{len(layout.shape)}, {layout}."
            )
        for wanted, found in zip(layout.shape, tensor.shape, strict=True):
            if is_symbol(wanted) and sizes.setdefault(str(wanted), found) != found:
                raise ShapeError(
                    f"{self.name}: argument {name!r} has shape {tensor.shape}, so that {wanted} = {found}; an argument "
                    f"before it has {wanted} = {sizes[str(wanted)]}. Give both the same size."
                )

    def _check_sizes(self, name: str, layout: TensorLayout, tensor: Tensor, sizes: Mapping[str, int]) -> None:
        for axis, (wanted, found) in enumerate(zip(layout.shape, tensor.shape, strict=True)):
            if evaluate(wanted, sizes) != found:
                where = "" if isinstance(wanted, int) else f" ({wanted})"
                raise ShapeError(
                    f"{self.name}: argument {name!r} has shape {tensor.shape}: axis {axis} is {found}; expected "
                    f"{evaluate(wanted, sizes)}{where}."
                )


def is_symbol(size: Size) -> bool:
    """Whether a size is a name and nothing else."""
    return isinstance(size, Dim) and str(size) in symbols_of(size)


Difference = tuple[tuple[Any, ...], str, type[Exception]]


def _differences(wanted: Any, found: Any, path: tuple[Any, ...]) -> Iterator[Difference]:
    """Where two trees differ: path, problem and kind of error, outermost first."""
    if wanted.kind == "leaf" and found.kind != "leaf":
        value = f"{found.meta!r}" if found.kind == "static" else f"a {found.kind}"
        yield path, f"{value} is no tensor; expected a Tensor.", TypeError
    elif found.kind == "leaf" and wanted.kind != "leaf":
        value = f"the static value {wanted.meta!r}" if wanted.kind == "static" else f"a {wanted.kind}"
        yield path, f"a Tensor; expected {value}.", ValueError
    elif wanted.kind != found.kind:
        yield path, f"found {_words(found)}; expected {_words(wanted)}.", ValueError
    elif wanted.kind == "static":
        if not _same(wanted.meta, found.meta):
            yield (
                path,
                f"static value {found.meta!r}; the callable was compiled for {wanted.meta!r}. Compile it again.",
                ValueError,
            )
    else:
        yield from _inner_differences(wanted, found, path)


def _inner_differences(wanted: Any, found: Any, path: tuple[Any, ...]) -> Iterator[Difference]:
    if list(wanted.keys or ()) != list(found.keys or ()) or len(wanted.children) != len(found.children):
        yield path, f"found {_words(found)}; expected {_words(wanted)}.", ValueError
        return
    if wanted.kind not in ("tuple", "list", "dict") and wanted != found and wanted.meta != found.meta:
        yield path, f"found {_words(found)} with {found.meta!r}; expected {wanted.meta!r}.", ValueError
    keys = wanted.keys or range(len(wanted.children))
    for key, left, right in zip(keys, wanted.children, found.children, strict=True):
        yield from _differences(left, right, (*path, key))


def _words(tree: Any) -> str:
    if tree.kind == "static":
        return f"{tree.meta!r}"
    if tree.kind == "dict":
        return f"a dict with keys {list(tree.keys or ())}"
    return f"a {tree.kind} of {len(tree.children)}"


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    try:
        return type(a) is type(b) and bool(a == b)
    except Exception:  # noqa: BLE001  # a comparison that fails means different
        return False


# ---- the same as Python text without builtin calls ------------------------------------------------------------------


def size_text(size: Size) -> str:
    """A size as a Python expression over the variables of `symbol_text`."""
    if not isinstance(size, Dim):
        return str(size)
    terms = []
    for monomial, coefficient in sorted(size.terms.items(), key=str):
        factors = [_atom_text(atom) for atom in monomial]
        terms.append(" * ".join([str(coefficient), *factors] if coefficient != 1 or not factors else factors))
    return f"({' + '.join(terms)})"


def symbol_text(name: str) -> str:
    return f"d_{name}"


def _atom_text(atom: str | FloorDiv) -> str:
    if isinstance(atom, str):
        return symbol_text(atom)
    return f"({size_text(atom.numerator)} // {size_text(atom.denominator)})"


class FastSource:
    """Writes the steady-state reader. `simple` is False when a tree has nodes that only tree_utils can open."""

    def __init__(self, staged: StagedGraph) -> None:
        self.staged = staged
        self.constants: dict[str, Any] = {"Tensor": Tensor}
        self.lines: list[str] = []
        self.simple = True
        self._names = 0
        self._leaves = 0

    def constant(self, value: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        return name

    def refuse_if(self, condition: str) -> None:
        self.lines.append(f"if {condition}: return slow(args, kwargs)")

    def _fresh(self) -> str:
        self._names += 1
        return f"v{self._names}"

    def source(self) -> str:
        """`call(*args, **kwargs)`: ends in `finish(bound, *tensors, *addresses, *dims)`."""
        layouts, symbols = self.staged.in_layouts, self.staged.symbols
        self.refuse_if("config.stepwise or not config.jit or me._bound is None")
        self.lines.append("bound = me._bound")
        opened, self.lines = self.lines, []
        for tree, variable in zip(self.staged.in_tree.children, ("args", "kwargs"), strict=True):
            self._open(tree, variable)
        guarded, self.lines = self.lines, opened
        self.lines += ["try:", *(f"  {line}" for line in guarded or ["pass"])]
        self.lines += ["except (ValueError, TypeError, KeyError, AttributeError):", "  return slow(args, kwargs)"]
        for index, layout in enumerate(layouts):
            self._read(index, layout)
        self._check_sizes()
        self._check_aliases()
        given = [f"x{i}" for i in range(len(layouts))] + [f"b{i}.address" for i in range(len(layouts))]
        given += [symbol_text(name) for name in symbols]
        self.lines.append(f"return finish({', '.join(['bound', *given])})")
        return "\n".join(["def call(*args, **kwargs):", *(f"  {line}" for line in self.lines)])

    def _open(self, tree: Any, variable: str) -> None:
        openers = {
            "leaf": self._open_leaf, "static": self._open_static, "dict": self._open_dict, "node": self._open_node,
            "tuple": self._open_sequence, "list": self._open_sequence,
        }  # fmt: skip
        if tree.kind in openers and (tree.kind != "dict" or tree.meta[0] is dict):
            openers[tree.kind](tree, variable)
        else:
            self.simple = False

    def _open_leaf(self, tree: Any, variable: str) -> None:
        self.lines.append(f"x{self._leaves} = {variable}")
        self._leaves += 1

    def _open_static(self, tree: Any, variable: str) -> None:
        name = self.constant(tree.meta)
        self.refuse_if(f"{variable} is not {name} and (type({variable}) is not type({name}) or {variable} != {name})")

    def _open_sequence(self, tree: Any, variable: str) -> None:
        if variable != "args":
            self.refuse_if(f"type({variable}) is not {tree.kind}")
        names = [self._fresh() for _ in tree.children]
        self.lines.append(f"[{', '.join(names)}] = {variable}")
        for child, name in zip(tree.children, names, strict=True):
            self._open(child, name)

    def _open_dict(self, tree: Any, variable: str) -> None:
        if not tree.children:
            self.refuse_if(variable if variable == "kwargs" else f"type({variable}) is not dict or {variable}")
            return
        self.refuse_if(f"type({variable}) is not dict")
        self._open_named(tree, variable)

    def _open_node(self, tree: Any, variable: str) -> None:
        kind, meta, is_named = tree.meta
        self.refuse_if(f"type({variable}) is not {self.constant(kind)}")
        children, found = self._fresh(), self._fresh()
        self.lines.append(f"{children}, {found} = {variable}.__tree_flatten__()")
        name = self.constant(meta)
        self.refuse_if(f"{found} is not {name} and {found} != {name}")
        if is_named:
            self._open_named(tree, children)
        else:
            names = [self._fresh() for _ in tree.children]
            self.lines.append(f"[{', '.join(names)}] = {children}")
            for child, name in zip(tree.children, names, strict=True):
                self._open(child, name)

    def _open_named(self, tree: Any, variable: str) -> None:
        self.refuse_if(f"{{*{variable}}} != {self.constant(set(tree.keys))}")
        for key, child in zip(tree.keys, tree.children, strict=True):
            name = self._fresh()
            self.lines.append(f"{name} = {variable}[{self.constant(key)}]")
            self._open(child, name)

    def _read(self, index: int, layout: TensorLayout) -> None:
        """Tensor -> its realised record's buffer and sizes."""
        x, s, n, b = (f"{letter}{index}" for letter in "xsnb")
        self.refuse_if(f"type({x}) is not Tensor or {x}._parent is not None")
        self.lines.append(f"{s} = {x}._storage")
        self.lines.append(f"{n} = {x}._node if {s} is None else {s}.version")
        self.lines.append(f"{b} = {n}.buffer")
        mutable = f" or {s} is None or not {s}.exposed or not {b}.writable" if isinstance(layout, BufferLayout) else ""
        self.refuse_if(f"{b} is None or {n}.dtype is not {self.constant(layout.dtype)}{mutable}")
        names = [f"i{index}_{axis}" for axis in range(len(layout.shape))]
        self.lines += [
            "try:",
            f"  [{', '.join(names)}] = {n}.shape",
            "except ValueError:",
            "  return slow(args, kwargs)",
        ]

    def _check_sizes(self) -> None:
        seen: set[str] = set()
        later: list[str] = []
        for index, layout in enumerate(self.staged.in_layouts):
            for axis, size in enumerate(layout.shape):
                name = f"i{index}_{axis}"
                if is_symbol(size) and str(size) not in seen:
                    seen.add(str(size))
                    self.lines.append(f"{symbol_text(str(size))} = {name}")
                else:
                    later.append(f"{name} != {size_text(size)}")
        for condition in later:
            self.refuse_if(condition)

    def _check_aliases(self) -> None:
        """Memory that is stored into must not be another argument as well."""
        layouts = self.staged.in_layouts
        for index, layout in enumerate(layouts):
            if isinstance(layout, BufferLayout):
                others = [f"b{index}.address == b{other}.address" for other in range(len(layouts)) if other != index]
                if others:
                    self.refuse_if(" or ".join(others))
