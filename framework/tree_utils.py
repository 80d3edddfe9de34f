"""Trees of values: nested containers and objects that declare themselves nodes. No registry; knows no tensor.

A type is a node if it is exactly list, tuple, dict, OrderedDict or defaultdict, a namedtuple, or declares the protocol:
`__tree_flatten__(self) -> (children, meta)` with `__tree_unflatten__(cls, meta, children)` or, preferred and needed
where a cycle closes, `__tree_empty__(cls, meta)`; optionally `__tree_setattr__(self, key, value)`. Children in a
mapping are named and keep its order, in a sequence they are numbered.

`leaf=` says where to stop: a type, a tuple of types or a predicate; None stops at whatever is no node. What is neither
leaf nor node is static: part of the structure. `shared=True` counts an object that appears twice once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import UnionType
from typing import Any

from plait.framework.tree_def import (
    LEAF,
    TreeDef,
    declares,
    extend_path,
    first_difference,
    is_namedtuple,
    is_node,
    open_node,
    place_child,
    unflatten,
)

__all__ = [
    "TreeDef",
    "as_predicate",
    "extend_path",
    "flatten",
    "flatten_one_level",
    "is_node",
    "leaves",
    "map",
    "nodes",
    "paths",
    "unflatten",
    "update",
]

Predicate = Callable[[Any], bool]
Selector = type | UnionType | tuple[type, ...] | Predicate | None

_ATOMS = (type(None), bool, int, float, complex, str, bytes)  # equal ones may be one object by accident


def as_predicate(selector: Selector, default: Predicate) -> Predicate:
    """A selector as a predicate; None gives the default.

    Raises: TypeError for what selects nothing.
    """
    if selector is None:
        return default
    if isinstance(selector, type | UnionType | tuple):
        kinds = selector
        isinstance(None, kinds)  # a tuple of anything but types raises here, not in the middle of a walk
        return lambda value: isinstance(value, kinds)
    if not callable(selector):
        raise TypeError(f"tree: leaf is {selector!r}; expected a type, a tuple of types, a predicate or None.")
    return selector


def flatten_one_level(value: Any) -> tuple[list[Any], list[Any], Any]:
    """(children, keys, meta) of a node.

    Raises: TypeError for what is no node, and for dict keys that cannot be sorted.
    """
    opened = open_node(value)
    return opened.children, opened.keys, opened.meta


class _Walk:
    """One pass over a tree: what is a leaf, what was met before, what is being entered."""

    def __init__(self, leaf: Selector, shared: bool) -> None:
        self.is_leaf = as_predicate(leaf, lambda value: not is_node(value))
        self.shared = shared
        self.count = 0
        self.met: dict[int, tuple[int, Any]] = {}  # id: number, and the object so that the id stays its own
        self.entered: dict[int, Any] = {}  # id: the key under which its child is being visited

    def repeats(self, value: Any) -> int | None:
        """The number of a leaf or node met before; counts it if it is new. Atoms and tuples are always new."""
        if self.shared and type(value) not in _ATOMS and not isinstance(value, tuple):
            number, _ = self.met.setdefault(id(value), (self.count, value))
            if number != self.count:
                return number
        self.count += 1
        return None

    def enter(self, value: Any) -> None:
        """Note that the children of a node are next.

        Raises: ValueError when it is being entered already: a cycle that cannot be told.
        """
        if id(value) in self.entered:
            path, above = "", ""
            for number, key in self.entered.items():
                above = path if number == id(value) else above
                path = extend_path(path, key)
            remedy = "close it through a list, a dict or an object" if self.shared else "use shared=True"
            through = " and closes through a tuple" if self.shared else ""
            raise ValueError(f"tree: a cycle: {path!r} is the object at {above!r}, which holds it{through}; {remedy}.")
        self.entered[id(value)] = ""

    def at(self, value: Any, key: Any) -> None:
        """Note which child of an entered node is next."""
        self.entered[id(value)] = key

    def leave(self, value: Any) -> None:
        """Note that the children of a node are done."""
        del self.entered[id(value)]


class _Flatten:
    """Takes a tree apart. A recursive closure would do, but holds the leaves until the garbage collector runs."""

    def __init__(self, walk: _Walk) -> None:
        self.walk = walk
        self.found: list[Any] = []

    def visit(self, value: Any) -> TreeDef:
        walk = self.walk
        is_leaf = walk.is_leaf(value)
        if not is_leaf and not is_node(value):
            return TreeDef("static", meta=value)
        number = walk.repeats(value)
        if number is not None:
            return TreeDef("ref", meta=number)
        if is_leaf:
            self.found.append(value)
            return LEAF
        walk.enter(value)
        children, keys, meta, kind = open_node(value)
        inside = []
        for key, child in zip(keys, children, strict=True):
            walk.at(value, key)
            inside.append(self.visit(child))
        walk.leave(value)
        return TreeDef(kind, tuple(inside), tuple(keys), meta)


def flatten(tree: Any, *, leaf: Selector = None, shared: bool = False) -> tuple[list[Any], TreeDef]:
    """Leaves from left to right, and the structure.

    Raises: ValueError for a cycle that cannot be told, TypeError for dict keys that cannot be sorted.
    """
    walk = _Flatten(_Walk(leaf, shared))
    structure = walk.visit(tree)
    return walk.found, structure


def leaves(tree: Any, *, leaf: Selector = None, shared: bool = False) -> list[Any]:
    """The leaves from left to right."""
    return flatten(tree, leaf=leaf, shared=shared)[0]


def paths(tree: Any, *, leaf: Selector = None, shared: bool = False) -> dict[str, Any]:
    """Leaves by dotted path.

    Raises: ValueError when two leaves share a path.
    """
    values, treedef = flatten(tree, leaf=leaf, shared=shared)
    named: dict[str, Any] = {}
    for path, value in zip(treedef.leaf_paths, values, strict=True):
        if path in named:
            raise ValueError(f"tree: two leaves share the path {path!r}; rename the child of one.")
        named[path] = value
    return named


def nodes(
    tree: Any, node_type: type | tuple[type, ...], *, leaf: Selector = None, shared: bool = False
) -> dict[str, Any]:
    """Every value of a type by path; the root's path is "". A match that is no node is reported, not entered.

    Raises: ValueError when two matches share a path, and for a cycle that cannot be told.
    """
    found: dict[str, Any] = {}
    _collect(tree, "", node_type, _Walk(leaf, shared), found)
    return found


def _collect(value: Any, path: str, wanted: type | tuple[type, ...], walk: _Walk, found: dict[str, Any]) -> None:
    if walk.repeats(value) is not None:
        return
    if isinstance(value, wanted):
        if path in found:
            raise ValueError(f"tree: two nodes share the path {path!r}; give the child of one a key.")
        found[path] = value
    if walk.is_leaf(value) or not is_node(value):
        return
    walk.enter(value)
    opened = open_node(value)
    for key, child in zip(opened.keys, opened.children, strict=True):
        walk.at(value, key)
        _collect(child, extend_path(path, key), wanted, walk, found)
    walk.leave(value)


def map(f: Callable[..., Any], tree: Any, *rest: Any, leaf: Selector = None, shared: bool = False) -> Any:
    """A new tree of f(leaf, *leaves of the rest at the same place).

    Raises: ValueError naming the tree whose structure differs, and where.
    """
    values, treedef = flatten(tree, leaf=leaf, shared=shared)
    columns = [values]
    for number, other in enumerate(rest, start=2):
        found, structure = flatten(other, leaf=leaf, shared=shared)
        problem = first_difference(treedef, structure)
        if problem is not None:
            raise ValueError(
                f"map: tree {number} differs from the first {problem}; the first has leaves "
                f"{_listed(treedef.leaf_paths)}, tree {number} {_listed(structure.leaf_paths)}."
            )
        columns.append(found)
    return unflatten(treedef, [f(*row) for row in zip(*columns, strict=True)])


def update(tree: Any, state: Mapping[str, Any], *, leaf: Selector = None, shared: bool = False) -> Any:
    """Write leaves by path where they stand. Containers keep their identity, tuples are rebuilt in their parent.

    The result is the tree itself, or a new tuple where the root is one. Leaves that `state` does not name stay.
    Raises: ValueError listing every name that is no leaf's path; TypeError for a child that cannot be placed.
    """
    known = paths(tree, leaf=leaf, shared=shared)
    unknown = [name for name in state if name not in known]
    if unknown:
        raise ValueError(f"update: {unknown} are paths of no leaf; the leaves are {_listed(known)}.")
    return _Update(state, _Walk(leaf, shared)).visit(tree, "")


class _Update:
    """Writes a state into a tree."""

    def __init__(self, state: Mapping[str, Any], walk: _Walk) -> None:
        self.state = state
        self.walk = walk
        self.written: dict[int, Any] = {}

    def visit(self, value: Any, path: str) -> Any:
        """What stands at the path afterwards."""
        is_leaf = self.walk.is_leaf(value)
        if not is_leaf and not is_node(value):
            return value
        if self.walk.repeats(value) is not None:
            return self.written.get(id(value), value)
        if not is_leaf:
            return self._node(value, path)
        after = self.state.get(path, value)
        if after is not value:
            self.written[id(value)] = after
        return after

    def _node(self, value: Any, path: str) -> Any:
        self.walk.enter(value)
        children, keys, _, _ = open_node(value)
        after = []
        for key, child in zip(keys, children, strict=True):
            self.walk.at(value, key)
            after.append(self.visit(child, extend_path(path, key)))
        self.walk.leave(value)
        changed = [(key, new) for key, old, new in zip(keys, children, after, strict=True) if new is not old]
        kind = type(value)
        if changed and kind is tuple:
            return tuple(after)
        if changed and is_namedtuple(kind) and not declares(kind):
            return value._make(after)
        for key, new in changed:
            place_child(value, key, new)
        return value


def _listed(names: list[str] | dict[str, Any]) -> str:
    names = list(names)
    rest = f" and {len(names) - 12} more" if len(names) > 12 else ""
    return f"{names[:12]}{rest}"
