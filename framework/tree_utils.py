"""Trees of values: nested containers and objects that declare themselves nodes. No registry; knows no tensor.

A type is a node if it is exactly list, tuple, dict, OrderedDict or defaultdict, a namedtuple, or declares the protocol:
`__tree_flatten__(self) -> (children, meta)` with `__tree_unflatten__(cls, meta, children)` or
`__tree_empty__(cls, meta)`, and optionally `__tree_setattr__(self, key, value)`. Children in a mapping are named and
keep its order, in a sequence they are numbered.

`leaf=` says where to stop: a type, a tuple of types or a predicate; None stops at whatever is no node. What is neither
leaf nor node is static: part of the structure. `shared=True` counts an object that appears twice once.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Predicate = Callable[[Any], bool]
Selector = type | tuple[type, ...] | Predicate | None
Key = str | int

_SEQUENCES = (list, tuple)
_MAPPINGS = (dict, OrderedDict, defaultdict)
_ATOMS = (type(None), bool, int, float, complex, str, bytes, tuple)


@dataclass(frozen=True, eq=False)
class TreeDef:
    """The structure of a tree. Equality compares structure and payloads; the hash leaves payloads out.

    kind   leaf, static, ref, list, tuple, namedtuple, dict or node
    meta   what rebuilds the node: its type and payload; the value of a static; the number of the object a ref repeats
    """

    kind: str
    children: tuple[TreeDef, ...] = ()
    keys: tuple[Any, ...] = ()
    meta: Any = None

    @property
    def num_leaves(self) -> int:
        """Leaves a flatten gives."""
        return (self.kind == "leaf") + sum(child.num_leaves for child in self.children)

    @property
    def child_keys(self) -> tuple[Any, ...]:
        """The key of each child, in order."""
        return self.keys

    @property
    def leaf_paths(self) -> list[str]:
        """The dotted path of each leaf, in order."""
        return [path for path, _ in self._walk("")]

    def _walk(self, path: str) -> Iterator[tuple[str, TreeDef]]:
        if self.kind == "leaf":
            yield path, self
        for key, child in zip(self.keys, self.children, strict=True):
            yield from child._walk(extend_path(path, key))

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, TreeDef):
            return NotImplemented
        same = self.kind == other.kind and self.keys == other.keys and len(self.children) == len(other.children)
        return same and _equal(self.meta, other.meta) and all(
            a == b for a, b in zip(self.children, other.children, strict=True)
        )

    def __hash__(self) -> int:
        return hash((self.kind, tuple(str(key) for key in self.keys), self.children))


_LEAF = TreeDef("leaf")


def _equal(a: Any, b: Any) -> bool:
    """Payload equality: identity first; a comparison that raises or gives no bool is unequal."""
    if a is b:
        return True
    if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        return all(_equal(x, y) for x, y in zip(a, b, strict=True))
    try:
        return (a == b) is True
    except Exception:
        return False


def is_node(value: Any) -> bool:
    """Whether a walk enters a value. Does not call `__tree_flatten__`."""
    kind = type(value)
    return kind in _SEQUENCES or kind in _MAPPINGS or _is_namedtuple(kind) or _declares(kind)


def _declares(kind: type) -> bool:
    return kind is not type and hasattr(kind, "__tree_flatten__")


def _is_namedtuple(kind: type) -> bool:
    return issubclass(kind, tuple) and kind is not tuple and hasattr(kind, "_fields")


def as_predicate(selector: Selector, default: Predicate | None = None) -> Predicate | None:
    """A selector as a predicate; None gives the default."""
    if selector is None:
        return default
    if isinstance(selector, type | tuple):
        kinds = selector
        return lambda value: isinstance(value, kinds)
    return selector


def flatten_one_level(value: Any) -> tuple[list[Any], list[Any], Any]:
    """(children, keys, meta) of a node.

    Raises: TypeError for what is no node, and for dict keys that cannot be sorted.
    """
    children, keys, meta, _ = _open(value)
    return children, keys, meta


def _open(value: Any) -> tuple[list[Any], list[Any], Any, str]:
    kind = type(value)
    if kind in _SEQUENCES:
        return list(value), list(range(len(value))), None, kind.__name__
    if kind in _MAPPINGS:
        return _open_mapping(value)
    if _declares(kind):
        children, meta = value.__tree_flatten__()
        if isinstance(children, Mapping):
            return list(children.values()), list(children), (kind, meta, True), "node"
        return list(children), list(range(len(children))), (kind, meta, False), "node"
    if _is_namedtuple(kind):
        return list(value), list(kind._fields), kind, "namedtuple"
    raise TypeError(f"tree: a {kind.__name__} is no node; a node is a container or declares __tree_flatten__.")


def _open_mapping(value: Any) -> tuple[list[Any], list[Any], Any, str]:
    kind = type(value)
    keys = list(value)
    if kind is not OrderedDict:
        try:
            keys.sort()
        except TypeError:
            types = sorted({type(key).__name__ for key in keys})
            raise TypeError(
                f"tree: dict keys of types {', '.join(types)} are not sortable; use keys of one type, or an OrderedDict."
            ) from None
    factory = value.default_factory if kind is defaultdict else None
    return [value[key] for key in keys], keys, (kind, factory), "dict"


def extend_path(path: str, key: Any) -> str:
    """A dotted path with one more key; an empty key adds no segment."""
    return ".".join(part for part in (path, str(key)) if part)


class _Walk:
    """One pass over a tree: what is a leaf, what was seen, what is being entered."""

    def __init__(self, leaf: Selector, shared: bool) -> None:
        self.chosen = as_predicate(leaf)
        self.shared = shared
        self.seen: dict[int, int] = {}
        self.keep: list[Any] = []
        self.entered: dict[int, str] = {}
        self.open_tuples: set[int] = set()

    def is_leaf(self, value: Any) -> bool:
        return self.chosen(value) if self.chosen is not None else not is_node(value)

    def repeats(self, value: Any) -> int | None:
        """The number of an object met before. Atoms and tuples are never tracked."""
        if not self.shared or type(value) in _ATOMS or isinstance(value, tuple):
            return None
        number = self.seen.get(id(value))
        if number is None:
            self.seen[id(value)] = len(self.seen)
            self.keep.append(value)
        return number

    def enter(self, value: Any, path: str) -> None:
        if id(value) not in self.entered:
            self.entered[id(value)] = path
            return
        if self.shared:
            raise ValueError(f"tree: a cycle closes through a tuple at {path!r}; close it through a list, dict or object.")
        raise ValueError(f"tree: {path!r} is inside {self.entered[id(value)]!r} and is the same object; use shared=True.")

    def leave(self, value: Any) -> None:
        del self.entered[id(value)]


def flatten(tree: Any, *, leaf: Selector = None, shared: bool = False) -> tuple[list[Any], TreeDef]:
    """Leaves from left to right, and the structure.

    Raises: ValueError for a cycle that cannot be represented, TypeError for unsortable dict keys.
    """
    walk, found = _Walk(leaf, shared), []

    def visit(value: Any, path: str) -> TreeDef:
        number = walk.repeats(value) if walk.is_leaf(value) or is_node(value) else None
        if number is not None:
            return TreeDef("ref", meta=number)
        if walk.is_leaf(value):
            found.append(value)
            return _LEAF
        if not is_node(value):
            return TreeDef("static", meta=value)
        walk.enter(value, path)
        children, keys, meta, kind = _open(value)
        inner = tuple([visit(child, extend_path(path, key)) for child, key in zip(children, keys, strict=True)])
        walk.leave(value)
        return TreeDef(kind, inner, tuple(keys), meta)

    try:
        structure = visit(tree, "")
    finally:
        del visit  # the closure refers to itself; without this the leaves would wait for the garbage collector
    return found, structure


def leaves(tree: Any, *, leaf: Selector = None, shared: bool = False) -> list[Any]:
    """The leaves from left to right."""
    return flatten(tree, leaf=leaf, shared=shared)[0]


def unflatten(treedef: TreeDef, leaves: Iterable[Any]) -> Any:
    """A fresh tree of a structure.

    Raises: ValueError for too few or too many leaves, a dangling ref or an unknown kind; TypeError for a node that
    cannot be rebuilt.
    """
    supply = iter(leaves)
    builder = _Builder(supply, treedef.num_leaves)
    tree = builder.build(treedef)
    extra = sum(1 for _ in supply)
    if extra:
        raise ValueError(f"unflatten: {treedef.num_leaves + extra} leaves for {treedef.num_leaves} places; {extra} too many.")
    return tree


_UNFINISHED = object()


class _Builder:
    """Rebuilds a structure; `made` numbers objects in the order in which a shared flatten met them."""

    def __init__(self, supply: Iterator[Any], expected: int) -> None:
        self.supply = supply
        self.expected = expected
        self.made: list[Any] = []

    def build(self, treedef: TreeDef) -> Any:
        makers: dict[str, Callable[[TreeDef], Any]] = {
            "leaf": self._leaf,
            "static": lambda t: t.meta,
            "ref": self._ref,
            "list": self._list,
            "tuple": lambda t: tuple(self.build(child) for child in t.children),
            "namedtuple": lambda t: t.meta(*[self.build(child) for child in t.children]),
            "dict": self._dict,
            "node": self._node,
        }
        if treedef.kind not in makers:
            raise ValueError(f"unflatten: {treedef.kind!r} is no kind of node; known: {', '.join(makers)}.")
        return makers[treedef.kind](treedef)

    def _leaf(self, treedef: TreeDef) -> Any:
        try:
            value = next(self.supply)
        except StopIteration:
            raise ValueError(f"unflatten: the leaves ran out; {self.expected} are needed.") from None
        if type(value) not in _ATOMS and not isinstance(value, tuple):
            self.made.append(value)
        return value

    def _ref(self, treedef: TreeDef) -> Any:
        if not isinstance(treedef.meta, int) or not 0 <= treedef.meta < len(self.made):
            raise ValueError(f"unflatten: ref {treedef.meta!r} points at none of {len(self.made)} objects made so far.")
        value = self.made[treedef.meta]
        if value is _UNFINISHED:
            raise TypeError("unflatten: a cycle passes through a node with __tree_unflatten__ only; define __tree_empty__.")
        return value

    def _list(self, treedef: TreeDef) -> list[Any]:
        made: list[Any] = []
        self.made.append(made)
        made.extend(self.build(child) for child in treedef.children)
        return made

    def _dict(self, treedef: TreeDef) -> Any:
        kind, factory = treedef.meta
        made = kind(factory) if kind is defaultdict else kind()
        self.made.append(made)
        for key, child in zip(treedef.keys, treedef.children, strict=True):
            made[key] = self.build(child)
        return made

    def _node(self, treedef: TreeDef) -> Any:
        kind, meta, named = treedef.meta
        place = len(self.made)
        self.made.append(_UNFINISHED)
        if hasattr(kind, "__tree_empty__"):
            made = self.made[place] = kind.__tree_empty__(meta)
            for key, child in zip(treedef.keys, treedef.children, strict=True):
                _place(made, key, self.build(child))
            return made
        if not hasattr(kind, "__tree_unflatten__"):
            raise TypeError(f"unflatten: {kind.__name__} defines neither __tree_unflatten__ nor __tree_empty__; define one.")
        children = [self.build(child) for child in treedef.children]
        made = kind.__tree_unflatten__(meta, dict(zip(treedef.keys, children, strict=True)) if named else children)
        self.made[place] = made
        return made


def _place(node: Any, key: Any, value: Any) -> None:
    """Put a child where it goes in a node."""
    kind = type(node)
    if _declares(kind) and hasattr(kind, "__tree_setattr__"):
        node.__tree_setattr__(key, value)
    elif _declares(kind):
        if not isinstance(key, str):
            raise TypeError(f"tree: {kind.__name__} has a positional child {key!r}; define __tree_setattr__ to place it.")
        setattr(node, key, value)
    else:
        node[key] = value


def paths(tree: Any, *, leaf: Selector = None, shared: bool = False) -> dict[str, Any]:
    """Leaves by dotted path.

    Raises: ValueError when two leaves share a path.
    """
    values, treedef = flatten(tree, leaf=leaf, shared=shared)
    named: dict[str, Any] = {}
    for path, value in zip(treedef.leaf_paths, values, strict=True):
        if path in named:
            raise ValueError(f"tree: two leaves share the path {path!r}; give the transparent node's children other names.")
        named[path] = value
    return named


def nodes(
    tree: Any, node_type: type | tuple[type, ...], *, leaf: Selector = None, shared: bool = False
) -> dict[str, Any]:
    """Every value of a type by path; the root's path is "". A match that is no node is reported, not entered."""
    walk, found = _Walk(leaf, shared), {}

    def visit(value: Any, path: str) -> None:
        if walk.repeats(value) is not None:
            return
        if isinstance(value, node_type):
            found[path] = value
        if not is_node(value) or (walk.chosen is not None and walk.chosen(value)):
            return
        walk.enter(value, path)
        children, keys, _, _ = _open(value)
        for child, key in zip(children, keys, strict=True):
            visit(child, extend_path(path, key))
        walk.leave(value)

    try:
        visit(tree, "")
    finally:
        del visit
    return found


def map(f: Callable[..., Any], tree: Any, *rest: Any, leaf: Selector = None, shared: bool = False) -> Any:  # noqa: A001
    """A new tree of f(leaf, *leaves of the rest at the same place).

    Raises: ValueError naming the tree whose structure differs.
    """
    values, treedef = flatten(tree, leaf=leaf, shared=shared)
    columns = [values]
    for number, other in enumerate(rest, start=2):
        found, structure = flatten(other, leaf=leaf, shared=shared)
        if structure != treedef:
            raise ValueError(
                f"map: tree {number} differs from the first; expected leaves at {treedef.leaf_paths}, "
                f"found {structure.leaf_paths}. Give trees of one structure."
            )
        columns.append(found)
    return unflatten(treedef, [f(*row) for row in zip(*columns, strict=True)])


def update(tree: Any, state: Mapping[str, Any], *, leaf: Selector = None, shared: bool = False) -> Any:
    """Write leaves by path where they stand; containers keep their identity, tuples are rebuilt in their parent.

    Raises: ValueError listing every name that is no leaf's path.
    """
    known = paths(tree, leaf=leaf, shared=shared)
    unknown = [name for name in state if name not in known]
    if unknown:
        raise ValueError(f"update: {unknown} name no leaf; the leaves are {list(known)}.")
    return _Update(state, _Walk(leaf, shared)).visit(tree, "")


class _Update:
    """Writes a state into a tree."""

    def __init__(self, state: Mapping[str, Any], walk: _Walk) -> None:
        self.state = state
        self.walk = walk
        self.new: dict[int, Any] = {}

    def visit(self, value: Any, path: str) -> Any:
        """The value that stands at a path afterwards."""
        is_leaf = self.walk.is_leaf(value)
        if not is_leaf and not is_node(value):
            return value
        if self.walk.repeats(value) is not None:
            return self.new.get(id(value), value)
        if is_leaf:
            self.new[id(value)] = self.state.get(path, value)
            return self.new[id(value)]
        return self._node(value, path)

    def _node(self, value: Any, path: str) -> Any:
        self.walk.enter(value, path)
        children, keys, _, _ = _open(value)
        after = [self.visit(child, extend_path(path, key)) for child, key in zip(children, keys, strict=True)]
        self.walk.leave(value)
        changed = [(key, new) for key, old, new in zip(keys, children, after, strict=True) if new is not old]
        if not changed:
            return value
        if isinstance(value, tuple) and not _declares(type(value)):
            return type(value)(*after) if _is_namedtuple(type(value)) else tuple(after)
        for key, new in changed:
            _place(value, key, new)
        return value


__all__: Sequence[str] = (
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
)
