"""The structure of a tree, and what a node is: how one is opened, rebuilt and written into. Does not know leaf choices.

A type is a node if it is exactly list, tuple, dict, OrderedDict or defaultdict, a namedtuple, or declares the protocol
that plait.framework.tree_utils describes.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

_SEQUENCES = (list, tuple)
_MAPPINGS = (dict, OrderedDict, defaultdict)
_UNFINISHED = object()


@dataclass(frozen=True, eq=False)
class TreeDef:
    """The structure of a tree. Equality compares structure and payloads; the hash leaves payloads out.

    kind   leaf, static, ref, list, tuple, namedtuple, dict or node
    meta   what rebuilds the node: its type and payload; the value of a static; for a ref the number of the object it
           repeats, counting leaves and nodes from 0 in the order in which a walk meets them
    """

    kind: str
    children: tuple[TreeDef, ...] = ()
    keys: tuple[Any, ...] = ()
    meta: Any = None

    @cached_property
    def num_leaves(self) -> int:
        """Leaves that a flatten gives."""
        return sum(part.kind == "leaf" for part in _parts(self))

    @property
    def child_keys(self) -> tuple[Any, ...]:
        """The key of each child, in order."""
        return self.keys

    @property
    def leaf_paths(self) -> list[str]:
        """The dotted path of each leaf, in order."""
        return list(_leaf_paths(self, ""))

    def flatten_up_to(self, tree: Any) -> list[Any]:
        """The values of a tree at the places of this structure's leaves; what stands there may be a container.

        Raises: ValueError naming the path at which the tree differs.
        """
        found: list[Any] = []
        _match(self, tree, "", found, [])
        return found

    def __eq__(self, other: object) -> bool:
        return _equal(self, other) if isinstance(other, TreeDef) else NotImplemented

    @cached_property
    def _hash(self) -> int:
        return hash(tuple((part.kind, part.keys) for part in _parts(self)))

    def __hash__(self) -> int:
        return self._hash

    def __getstate__(self) -> tuple[Any, ...]:
        return self.kind, self.children, self.keys, self.meta  # a cached hash of strings holds in one process only

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.__dict__.update(zip(("kind", "children", "keys", "meta"), state, strict=True))


LEAF = TreeDef("leaf")


class Opened(NamedTuple):
    """One node taken apart."""

    children: list[Any]
    keys: list[Any]
    meta: Any
    kind: str


def is_node(value: Any) -> bool:
    """Whether a walk enters a value. Does not call `__tree_flatten__`."""
    kind = type(value)
    return kind in _SEQUENCES or kind in _MAPPINGS or declares(kind) or is_namedtuple(kind)


def declares(kind: type) -> bool:
    """Whether a type declares the node protocol."""
    return hasattr(kind, "__tree_flatten__")


def is_namedtuple(kind: type) -> bool:
    """Whether a type is a namedtuple."""
    return issubclass(kind, tuple) and hasattr(kind, "_fields") and hasattr(kind, "_make")


def open_node(value: Any) -> Opened:
    """Take one node apart.

    Raises: TypeError for what is no node, and for dict keys that cannot be sorted.
    """
    kind = type(value)
    if kind in _SEQUENCES:
        return Opened(list(value), list(range(len(value))), None, kind.__name__)
    if kind in _MAPPINGS:
        return _open_mapping(value)
    if declares(kind):
        children, meta = value.__tree_flatten__()
        if isinstance(children, Mapping):
            return Opened(list(children.values()), list(children), (kind, meta, True), "node")
        return Opened(list(children), list(range(len(children))), (kind, meta, False), "node")
    if is_namedtuple(kind):
        return Opened(list(value), list(kind._fields), kind, "namedtuple")
    raise TypeError(f"tree: a {kind.__name__} is no node; a node is a container or declares __tree_flatten__.")


def _open_mapping(value: Any) -> Opened:
    kind = type(value)
    keys = list(value)
    if kind is not OrderedDict:
        try:
            keys.sort()
        except TypeError:
            types = ", ".join(sorted({type(key).__name__ for key in keys}))
            raise TypeError(
                f"tree: dict keys of types {types} are not sortable; use keys of one type, or an OrderedDict."
            ) from None
    factory = value.default_factory if kind is defaultdict else None
    return Opened([value[key] for key in keys], keys, (kind, factory), "dict")


def extend_path(path: str, key: Any) -> str:
    """A dotted path with one more key; an empty key adds no segment."""
    return ".".join(part for part in (path, str(key)) if part)


def place_child(node: Any, key: Any, value: Any) -> None:
    """Put a child where it goes in a node.

    Raises: TypeError for a numbered child of an object that has no `__tree_setattr__`.
    """
    kind = type(node)
    if not declares(kind):
        node[key] = value
    elif hasattr(kind, "__tree_setattr__"):
        node.__tree_setattr__(key, value)
    elif isinstance(key, str):
        setattr(node, key, value)
    else:
        raise TypeError(f"tree: {kind.__name__} has a positional child {key!r}; define __tree_setattr__ to place it.")


# Comparing


def _parts(treedef: TreeDef) -> Iterator[TreeDef]:
    """A structure and every structure below it. No recursion: what can be flattened can be counted and hashed."""
    pending = [treedef]
    while pending:
        part = pending.pop()
        yield part
        pending.extend(part.children)


def _equal(a: TreeDef, b: TreeDef) -> bool:
    pending = [(a, b)]
    while pending:
        mine, theirs = pending.pop()
        if mine is theirs:
            continue
        if (mine.kind, mine.keys) != (theirs.kind, theirs.keys) or not payload_equal(mine.meta, theirs.meta):
            return False
        pending.extend(zip(mine.children, theirs.children, strict=True))
    return True


def payload_equal(a: Any, b: Any) -> bool:
    """Identity first; then `==`, where an error or a result that is no bool means unequal."""
    if a is b:
        return True
    if type(a) is tuple and type(b) is tuple:
        return len(a) == len(b) and all(payload_equal(x, y) for x, y in zip(a, b, strict=True))
    try:
        return (a == b) is True
    except Exception:  # whatever a foreign __eq__ raises
        return False


def _mismatch(a: TreeDef, b: TreeDef) -> str | None:
    """How two structures differ at their roots; their children are not looked at."""
    if a.kind != b.kind:
        return f"expected a {a.kind}, found a {b.kind}"
    if a.keys != b.keys:
        return f"expected keys {list(a.keys)}, found {list(b.keys)}"
    if not payload_equal(a.meta, b.meta):
        return f"expected a {a.kind} with {a.meta!r}, found {b.meta!r}"
    return None


def first_difference(a: TreeDef, b: TreeDef, path: str = "") -> str | None:
    """Where and how two structures first differ; None when they are equal."""
    problem = _mismatch(a, b)
    if problem is not None:
        return f"at {path!r} {problem}"
    for key, mine, theirs in zip(a.keys, a.children, b.children, strict=True):
        problem = first_difference(mine, theirs, extend_path(path, key))
        if problem is not None:
            return problem
    return None


def _match(treedef: TreeDef, value: Any, path: str, found: list[Any], met: list[Any]) -> None:
    seen, children = _look(treedef, value, met)
    problem = None if treedef.kind == "leaf" else _mismatch(treedef, seen)
    if problem is not None:
        raise ValueError(f"flatten_up_to: at {path!r} {problem}; give a tree of this structure down to its leaves.")
    if treedef.kind not in ("static", "ref"):
        met.append(value)
    if treedef.kind == "leaf":
        found.append(value)
    for key, inner, child in zip(treedef.keys, treedef.children, children, strict=True):
        _match(inner, child, extend_path(path, key), found, met)


def _look(treedef: TreeDef, value: Any, met: list[Any]) -> tuple[TreeDef, list[Any]]:
    """A value as the kind of thing that is expected there, without its children, and these."""
    if treedef.kind in ("leaf", "static"):
        return TreeDef(treedef.kind, meta=value), []
    if treedef.kind == "ref":
        is_same = treedef.meta < len(met) and met[treedef.meta] is value
        return TreeDef("ref" if is_same else f"{type(value).__name__} of its own", meta=treedef.meta), []
    if not is_node(value):
        return TreeDef(type(value).__name__), []
    children, keys, meta, kind = open_node(value)
    return TreeDef(kind, (), tuple(keys), meta), children


def _leaf_paths(treedef: TreeDef, path: str) -> Iterator[str]:
    if treedef.kind == "leaf":
        yield path
    for key, child in zip(treedef.keys, treedef.children, strict=True):
        yield from _leaf_paths(child, extend_path(path, key))


# Rebuilding


def unflatten(treedef: TreeDef, leaves: Iterable[Any]) -> Any:
    """A fresh tree of a structure.

    Raises: ValueError for too few or too many leaves, a dangling ref or an unknown kind; TypeError for a node that
    cannot be rebuilt.
    """
    supply = iter(leaves)
    tree = _Builder(supply, treedef.num_leaves).build(treedef)
    if next(supply, _UNFINISHED) is not _UNFINISHED:
        raise ValueError(f"unflatten: too many leaves; {treedef.num_leaves} are needed.")
    return tree


class _Builder:
    """Rebuilds a structure; `made` holds leaves and nodes by the numbers that refs use."""

    def __init__(self, supply: Iterator[Any], expected: int) -> None:
        self.supply = supply
        self.expected = expected
        self.made: list[Any] = []

    def build(self, treedef: TreeDef) -> Any:
        make = _MAKERS.get(treedef.kind)
        if make is None:
            raise ValueError(f"unflatten: {treedef.kind!r} is no kind of node; known: {', '.join(_MAKERS)}.")
        return make(self, treedef)

    def make_leaf(self, treedef: TreeDef) -> Any:
        value = next(self.supply, _UNFINISHED)
        if value is _UNFINISHED:
            raise ValueError(f"unflatten: the leaves ran out; {self.expected} are needed.")
        self.made.append(value)
        return value

    def make_static(self, treedef: TreeDef) -> Any:
        return treedef.meta

    def make_ref(self, treedef: TreeDef) -> Any:
        number = treedef.meta
        if not isinstance(number, int) or not 0 <= number < len(self.made):
            raise ValueError(f"unflatten: ref {number!r} points at none of the {len(self.made)} objects before it.")
        if self.made[number] is _UNFINISHED:
            raise TypeError(
                "unflatten: a cycle closes through an object that is made after its children; define __tree_empty__."
            )
        return self.made[number]

    def make_list(self, treedef: TreeDef) -> list[Any]:
        made: list[Any] = []
        self.made.append(made)
        for child in treedef.children:
            made.append(self.build(child))
        return made

    def make_dict(self, treedef: TreeDef) -> Any:
        kind, factory = treedef.meta
        made = kind(factory) if kind is defaultdict else kind()
        self.made.append(made)
        for key, child in zip(treedef.keys, treedef.children, strict=True):
            made[key] = self.build(child)
        return made

    def make_tuple(self, treedef: TreeDef) -> Any:
        place, children = self._children(treedef)
        self.made[place] = tuple(children) if treedef.meta is None else treedef.meta._make(children)
        return self.made[place]

    def make_node(self, treedef: TreeDef) -> Any:
        kind, meta, named = treedef.meta
        if hasattr(kind, "__tree_empty__"):
            return self._fill(kind.__tree_empty__(meta), treedef)
        if not hasattr(kind, "__tree_unflatten__"):
            raise TypeError(f"unflatten: {kind.__name__} has no __tree_unflatten__ and no __tree_empty__; define one.")
        place, children = self._children(treedef)
        given = dict(zip(treedef.keys, children, strict=True)) if named else children
        self.made[place] = kind.__tree_unflatten__(meta, given)
        return self.made[place]

    def _children(self, treedef: TreeDef) -> tuple[int, list[Any]]:
        """The finished children, and the number reserved for the object they make."""
        place = len(self.made)
        self.made.append(_UNFINISHED)
        return place, [self.build(child) for child in treedef.children]

    def _fill(self, node: Any, treedef: TreeDef) -> Any:
        self.made.append(node)
        for key, child in zip(treedef.keys, treedef.children, strict=True):
            place_child(node, key, self.build(child))
        return node


_MAKERS: dict[str, Callable[[_Builder, TreeDef], Any]] = {
    "leaf": _Builder.make_leaf,
    "static": _Builder.make_static,
    "ref": _Builder.make_ref,
    "list": _Builder.make_list,
    "tuple": _Builder.make_tuple,
    "namedtuple": _Builder.make_tuple,
    "dict": _Builder.make_dict,
    "node": _Builder.make_node,
}
