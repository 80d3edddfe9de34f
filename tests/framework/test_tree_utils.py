"""Trees: round trips, aliases, cycles, writes by path, and every message a caller can meet."""

from __future__ import annotations

import gc
import pickle
import weakref
from collections import Counter, OrderedDict, defaultdict, namedtuple
from collections.abc import Callable, Iterator
from itertools import repeat
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.framework import tree_utils as tree
from plait.framework.tree_utils import TreeDef


class Weight:
    """A value that is no node."""

    def __init__(self, name: str = "") -> None:
        self.name = name


class Point(NamedTuple):
    x: Any
    y: Any


class OtherPoint(NamedTuple):
    x: Any
    y: Any


class Pair(tuple[Any, Any]):
    """A tuple by inheritance only."""


class Layer:
    """Named children that can be placed later."""

    w: Any
    b: Any
    next: Any
    up: Any
    body: Any
    blocks: Any
    head: Any

    def __init__(self, meta: Any = None, **children: Any) -> None:
        self.meta = meta
        self.order = list(children)
        self.set_calls: list[str] = []
        self.__dict__.update(children)

    def __tree_flatten__(self) -> tuple[Any, Any]:
        return {name: getattr(self, name) for name in self.order}, (self.meta, tuple(self.order))

    @classmethod
    def __tree_empty__(cls, meta: Any) -> Layer:
        made = cls(meta[0])
        made.order = list(meta[1])
        return made

    def __tree_setattr__(self, key: str, value: Any) -> None:
        self.set_calls.append(key)
        setattr(self, key, value)


class Frozen:
    """Positional children that must be finished first."""

    def __init__(self, *children: Any) -> None:
        self.children = list(children)

    def __tree_flatten__(self) -> tuple[Any, Any]:
        return self.children, None

    @classmethod
    def __tree_unflatten__(cls, meta: Any, children: list[Any]) -> Frozen:
        assert type(children) is list
        return cls(*children)


class Named(Frozen):
    """Named children that must be finished first, in a mapping that is no dict."""

    def __tree_flatten__(self) -> tuple[Any, Any]:
        return MappingProxyType(dict(zip("zya", self.children, strict=False))), "note"

    @classmethod
    def __tree_unflatten__(cls, meta: Any, children: Any) -> Named:
        assert meta == "note" and type(children) is dict
        return cls(*children.values())


class Plain:
    """Placed by setattr."""

    def __init__(self, **children: Any) -> None:
        self.__dict__.update(children)

    def __tree_flatten__(self) -> tuple[Any, Any]:
        return dict(self.__dict__), None

    @classmethod
    def __tree_empty__(cls, meta: Any) -> Plain:
        return cls()


class Rows(list[Any]):
    """A list that declares itself a node: numbered rows, and a title beside them."""

    title: Any = None

    def __tree_flatten__(self) -> tuple[Any, Any]:
        return {"title": self.title, **{str(i): value for i, value in enumerate(self)}}, len(self)

    @classmethod
    def __tree_empty__(cls, meta: int) -> Rows:
        return cls([None] * meta)

    def __tree_setattr__(self, key: str, value: Any) -> None:
        if key == "title":
            self.title = value
        else:
            self[int(key)] = value


class Ambiguous:
    def __eq__(self, other: object) -> Any:
        return np.array([True, True])


class Agreeing:
    def __eq__(self, other: object) -> Any:
        return "yes"


class Raising:
    def __eq__(self, other: object) -> bool:
        raise RuntimeError("compared")


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("printed")


class Noting:
    """A function that notes what it was called with."""

    def __init__(self, result: Callable[[Any], Any]) -> None:
        self.calls: list[Any] = []
        self.result = result

    def __call__(self, value: Any) -> Any:
        self.calls.append(value)
        return self.result(value)


def structure(value: Any, **knobs: Any) -> TreeDef:
    return tree.flatten(value, **knobs)[1]


def rebuild(value: Any, **knobs: Any) -> Any:
    leaves, treedef = tree.flatten(value, **knobs)
    return tree.unflatten(treedef, leaves)


ROUND_TRIPS: list[Any] = [
    *(3, 2.5, "a", b"a", None, True, 1j),
    *([], (), {}, OrderedDict(), defaultdict(int)),
    {"b": [1, (2, {"c": None})], "a": ((),)},
    Point(1, [Point(2, 3)]),
    Layer(meta="m", w=1, b=[2, Layer()]),
    Frozen(1, [2], Frozen()),
    Named(1, 2, Named(3)),
    OrderedDict([("z", 1), ("a", [2])]),
    defaultdict(list, {"k": [1]}),
]


@pytest.mark.parametrize("value", ROUND_TRIPS, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("shared", [False, True])
def test_a_rebuilt_tree_flattens_equal(value: Any, shared: bool) -> None:
    leaves, treedef = tree.flatten(value, shared=shared)
    twin = tree.unflatten(treedef, leaves)
    assert tree.flatten(twin, shared=shared) == (leaves, treedef)
    assert type(twin) is type(value) and len(leaves) == treedef.num_leaves == len(treedef.leaf_paths)


values = st.recursive(
    st.integers() | st.none() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text("abc", max_size=2), inner, max_size=3)
        | st.builds(Point, inner, inner)
    ),
    max_leaves=12,
)


@given(values)
def test_containers_come_back_equal_and_fresh(value: Any) -> None:
    twin = rebuild(value, shared=True)
    assert twin == value and rebuild(value) == value
    assert twin is not value or not isinstance(value, list | dict)


named_values = st.recursive(
    st.integers(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text("abc", min_size=1, max_size=2), inner, max_size=3)
        | st.builds(Point, inner, inner)
        | st.builds(lambda w, b: Layer(w=w, b=b), inner, inner)
    ),
    max_leaves=12,
)


@pytest.mark.system(106)
@given(named_values)
def test_writing_every_path_equals_mapping_every_leaf(value: Any) -> None:
    leaves, treedef = tree.flatten(value)
    named = tree.paths(value)
    assert list(named) == treedef.leaf_paths and list(named.values()) == leaves == tree.leaves(value)
    mapped = tree.map(lambda number: number + 1, value)
    assert tree.paths(value) == named  # map leaves its argument alone
    written = tree.update(rebuild(value), {path: number + 1 for path, number in named.items()})
    assert tree.flatten(written) == tree.flatten(mapped) == ([number + 1 for number in leaves], treedef)


def test_a_structure_as_deep_as_flatten_reaches_is_counted_compared_and_hashed() -> None:
    def chain(end: Any) -> Any:
        for _ in range(600):
            end = [end]
        return end

    treedef, same, longer = structure(chain(1)), structure(chain(2)), structure(chain([1]))
    assert treedef == same and hash(treedef) == hash(same) and treedef != longer
    assert treedef.num_leaves == longer.num_leaves == 1


def test_dicts_of_one_key_set_are_one_structure_whatever_the_insertion_order() -> None:
    one, other = {"b": 1, "a": 2}, {"a": 2, "b": 1}
    assert tree.flatten(one) == tree.flatten(other) == ([2, 1], structure(other))
    assert list(rebuild(one)) == ["a", "b"]
    assert structure(OrderedDict(one)) != structure(OrderedDict(other))
    assert structure(one) != structure(OrderedDict(one)) != structure(defaultdict(None, one))
    assert structure(defaultdict(int)) != structure(defaultdict(list))


def test_keys_that_cannot_be_sorted_are_refused_unless_ordered() -> None:
    with pytest.raises(TypeError, match="types int, str are not sortable"):
        tree.flatten({1: 0, "b": 1})
    assert tree.paths(OrderedDict([(1, 0), ("b", 1)])) == {"1": 0, "b": 1}


def test_a_mapping_names_children_in_its_order_and_a_sequence_numbers_them() -> None:
    assert list(tree.paths(Layer(z=1, a=2))) == ["z", "a"]
    assert tree.paths(Named(1, 2)) == {"z": 1, "y": 2}
    assert tree.paths(Frozen(1, 2)) == {"0": 1, "1": 2}


def test_namedtuple_fields_name_children_and_the_type_survives() -> None:
    point = Point(1, 2)
    assert tree.paths(point) == {"x": 1, "y": 2}
    assert structure(point) != structure((1, 2)) != structure(OtherPoint(1, 2))
    assert rebuild(point) == point and type(rebuild(point)) is Point
    after = tree.update(point, {"y": 5})
    assert after == Point(1, 5) and type(after) is Point and point == Point(1, 2)


def test_a_namedtuple_with_its_own_constructor_is_rebuilt_from_fields() -> None:
    class Span(namedtuple("Span", "start stop")):
        def __new__(cls, size: int) -> Span:
            return super().__new__(cls, 0, size)

    assert rebuild(Span(4)) == (0, 4)


def test_structures_do_not_remember_the_knobs_that_made_them() -> None:
    value = {"a": Weight(), "b": [Weight()]}
    default = structure(value)
    assert (
        default
        == structure(value, leaf=Weight)
        == structure(value, leaf=(Weight, int))
        == structure(value, shared=True)
    )
    assert default == structure(value, leaf=Weight | int)
    first = structure(value, leaf=lambda v: isinstance(v, Weight))
    assert first == structure(value, leaf=lambda v: type(v) is Weight) == default
    assert hash(first) == hash(default)


def test_an_aliased_leaf_is_one_under_shared() -> None:
    weight = Weight()
    value = {"a": weight, "b": [weight], "c": Weight()}
    assert len(tree.leaves(value)) == 3
    leaves, treedef = tree.flatten(value, shared=True)
    assert leaves == [weight, value["c"]] and treedef.num_leaves == 2 and treedef.leaf_paths == ["a", "c"]
    assert treedef != structure(value)
    renew = Noting(lambda w: Weight())
    twin = tree.map(renew, value, shared=True)
    assert renew.calls == leaves and twin["a"] is twin["b"][0] is not twin["c"]
    apart = tree.map(lambda w: Weight(), value)
    assert apart["a"] is not apart["b"][0]


def test_aliases_come_back_whatever_kind_of_value_takes_the_leaves_place() -> None:
    first, second = Weight(), Weight()
    value = [first, second, "text", second]
    assert tree.map(lambda w: 7, value, leaf=Weight, shared=True) == [7, 7, "text", 7]
    twin = tree.map(lambda w: {} if w is second else w, value, shared=True)
    assert twin[1] is twin[3] == {} and twin[0] is first
    assert tree.unflatten(structure([1, [2], "x", first, first], shared=True), [[], [], None, 5]) == [
        [],
        [[]],
        None,
        5,
        5,
    ]


@pytest.mark.parametrize(
    "make", [lambda: [Weight()], lambda: {"k": Weight()}, lambda: Layer(w=Weight()), lambda: Frozen(1)]
)
def test_aliased_containers_and_nodes_are_one_under_shared(make: Callable[[], Any]) -> None:
    inner = make()
    value = {"a": inner, "b": (inner, [inner])}
    assert len(tree.leaves(value)) == 3 and len(tree.leaves(value, shared=True)) == 1
    twin = rebuild(value, shared=True)
    assert twin["a"] is twin["b"][0] is twin["b"][1][0] is not inner
    assert structure(value) != structure(value, shared=True) == structure(twin, shared=True)
    apart = rebuild(value)
    assert apart["a"] is not apart["b"][0]


@pytest.mark.parametrize("atom", [7, "word", None, True, 2.5, b"raw", 1j, (1, 2)], ids=repr)
def test_atoms_and_tuples_are_never_merged(atom: Any) -> None:
    assert structure([atom, atom], shared=True) == structure([atom, atom])


def test_a_list_inside_two_equal_tuples_is_shared() -> None:
    inner = [Weight()]
    pair = (inner,)
    twin = rebuild([pair, pair], shared=True)
    assert twin[0][0] is twin[1][0] and len(tree.leaves([pair, pair], shared=True)) == 1


def test_static_values_are_part_of_the_structure() -> None:
    array, weight = np.arange(3), Weight()
    leaves, treedef = tree.flatten({"w": weight, "n": 4, "a": array}, leaf=Weight)
    assert leaves == [weight] and treedef.leaf_paths == ["w"]
    assert tree.unflatten(treedef, [weight])["a"] is array
    assert treedef == structure({"w": Weight(), "n": 4, "a": array}, leaf=Weight)
    assert treedef != structure({"w": weight, "n": 5, "a": array}, leaf=Weight)


@pytest.mark.parametrize("kind", [Ambiguous, Agreeing, Raising, Unprintable])
def test_a_payload_that_cannot_be_compared_equals_itself_only(kind: type) -> None:
    payload = kind()
    assert structure([payload], leaf=Weight) == structure([payload], leaf=Weight)
    assert structure([payload], leaf=Weight) != structure([kind()], leaf=Weight)
    assert structure(Layer(meta=payload)) == structure(Layer(meta=payload))
    assert structure(Layer(meta=payload)) != structure(Layer(meta=kind()))


def test_a_predicate_is_asked_once_about_each_value_outer_before_inner() -> None:
    inner = [Weight("deep")]
    value = {"a": inner, "b": 3}
    asked = Noting(lambda v: v == 3)
    tree.flatten(value, leaf=asked)
    assert asked.calls == [value, inner, inner[0], 3]


def test_a_node_chosen_as_leaf_is_not_entered() -> None:
    class Closed(Layer):
        def __tree_flatten__(self) -> tuple[Any, Any]:
            raise AssertionError("entered")

    closed = Closed()
    assert tree.leaves([closed, [2]], leaf=Layer) == [closed]
    assert tree.nodes([closed], Closed, leaf=Layer) == {"0": closed}


def ring(*names: str) -> list[Layer]:
    made = [Layer(w=Weight(name), next=None) for name in names]
    for layer, following in zip(made, [*made[1:], made[0]], strict=True):
        layer.next = following
    return made


def cyclic() -> Iterator[tuple[Any, Callable[[Any], Any]]]:
    mapping: dict[str, Any] = {"w": Weight()}
    mapping["me"] = mapping
    yield mapping, lambda v: v["me"]
    sequence: list[Any] = [Weight()]
    sequence.append(sequence)
    yield sequence, lambda v: v[1]
    yield ring("a")[0], lambda v: v.next
    yield ring("a", "b", "c")[0], lambda v: v.next.next.next
    deep: dict[str, Any] = {"a": {"b": [Layer(w=Weight(), up=None)]}}
    deep["a"]["b"][0].up = deep
    yield deep, lambda v: v["a"]["b"][0].up
    through: list[Any] = []
    through.append((Weight(), through))
    yield through, lambda v: v[0][1]


@pytest.mark.parametrize(("value", "back"), list(cyclic()), ids=["dict", "list", "node", "ring", "deep", "via tuple"])
def test_cycles_are_rebuilt_under_shared(value: Any, back: Callable[[Any], Any]) -> None:
    twin = rebuild(value, shared=True)
    assert back(twin) is twin is not value
    assert structure(twin, shared=True) == structure(value, shared=True)
    keep = Noting(lambda w: w)
    assert back(tree.map(keep, value, shared=True)) is not value
    assert len(keep.calls) == len(set(map(id, keep.calls))) == len(tree.leaves(value, shared=True))
    with pytest.raises(ValueError, match="cycle.*shared=True"):
        tree.flatten(value)
    with pytest.raises(ValueError, match="shared=True"):
        tree.nodes(value, Weight)


def test_nodes_reports_each_member_of_a_ring_once() -> None:
    members = ring("a", "b", "c")
    assert tree.nodes(members[0], Layer, shared=True) == dict(zip(["", "next", "next.next"], members, strict=True))


def test_cycles_that_cannot_be_told_name_their_path() -> None:
    inner: list[Any] = []
    closing = (inner,)
    inner.append(closing)
    with pytest.raises(ValueError, match="'0.0' is the object at ''.*closes through a tuple"):
        tree.flatten(closing, shared=True)
    layer = Layer(body=[1, None])
    layer.body[1] = layer.body
    with pytest.raises(ValueError, match="'m.body.1' is the object at 'm.body', which holds it; use shared=True"):
        tree.flatten({"m": layer})


def test_a_cycle_needs_an_object_that_exists_before_its_children() -> None:
    frozen = Frozen(1)
    frozen.children.append([frozen])
    leaves, treedef = tree.flatten(frozen, shared=True)
    with pytest.raises(TypeError, match="__tree_empty__"):
        tree.unflatten(treedef, leaves)


def test_paths_join_keys_and_refuse_collisions() -> None:
    assert tree.paths({"a": [5, {"": 6}], "": Layer(w=7)}) == {"w": 7, "a.0": 5, "a.1": 6}
    assert tree.paths(5) == {"": 5}
    with pytest.raises(ValueError, match="path 'a.b'"):
        tree.paths({"a": {"b": 1}, "a.b": 2})


def test_nodes_reports_matches_by_path() -> None:
    inner, weight = Layer(w=Weight()), Weight()
    outer = Layer(a=inner, b=[inner, weight])
    assert tree.nodes(outer, Layer) == {"": outer, "a": inner, "b.0": inner}
    assert tree.nodes(outer, Layer, shared=True) == {"": outer, "a": inner}
    assert tree.nodes(outer, (Weight, list)) == {"a.w": inner.w, "b": outer.b, "b.0.w": inner.w, "b.1": weight}
    assert tree.nodes(outer, Layer, leaf=list) == {"": outer, "a": inner}
    with pytest.raises(ValueError, match="share the path ''"):
        tree.nodes({"": {}}, dict)


def test_map_walks_trees_together() -> None:
    assert tree.map(lambda a, b, c: a + b + c, {"x": [1]}, {"x": [20]}, {"x": [300]}) == {"x": [321]}
    assert tree.map(lambda v: v, [1, (2,)], leaf=tuple) == [1, (2,)]


def test_map_names_the_tree_that_differs_and_where() -> None:
    first = {"a": [1, 2], "b": 3}
    with pytest.raises(ValueError, match="tree 3 differs from the first at 'a' .*keys.*'a.0', 'a.1', 'b'.*'a.0', 'b'"):
        tree.map(print, first, first, {"a": [1], "b": 3})
    with pytest.raises(ValueError, match="tree 2 .* at 'b' expected a leaf, found a list"):
        tree.map(print, first, {"a": [1, 2], "b": []})
    weight = Weight()
    with pytest.raises(ValueError, match="tree 2 .* at '1' expected a ref, found a leaf"):
        tree.map(print, [weight, weight], [Weight(), Weight()], shared=True)


def test_update_writes_in_place_and_calls_setters_for_what_changed() -> None:
    body = [Layer(w=1, b=2), 3]
    root = Layer(body=body, extra=4)
    assert tree.update(root, {"body.0.b": 20, "extra": 40}) is root
    assert root.body is body and tree.paths(root) == {"body.0.w": 1, "body.0.b": 20, "body.1": 3, "extra": 40}
    assert body[0].set_calls == ["b"] and root.set_calls == ["extra"]
    assert tree.update(root, {}) is root and root.set_calls == ["extra"]
    plain = Plain(w=1, deep=Plain(v=2))
    assert tree.update(plain, {"deep.v": 5}) is plain and plain.deep.v == 5
    assert tree.update(7, {"": 8}) == 8


def test_update_lists_every_name_that_is_no_leaf() -> None:
    value: dict[str, Any] = {"a": [Weight()], "n": 3, "hidden": Layer(w=Weight())}
    for names, leaf in [(["a", "x"], None), (["n"], Weight), (["hidden.w"], (Weight, Layer))]:
        with pytest.raises(ValueError, match=f"{names}".replace("[", r"\[")):
            tree.update(value, dict.fromkeys([*names, "a.0"], 0), leaf=leaf)
    assert isinstance(value["a"][0], Weight)  # nothing was written


def test_update_rebuilds_tuples_in_their_parent() -> None:
    root = (1, [2, (3, 4)])
    after = tree.update(root, {"0": 10})
    assert after == (10, [2, (3, 4)]) and after is not root and after[1] is root[1]
    holder: dict[str, Any] = {"in": {"t": (1, (2, Point(3, 4)))}, "other": (5,)}
    inner, other = holder["in"], holder["other"]
    assert tree.update(holder, {"in.t.1.1.y": 40}) is holder
    assert holder["in"] is inner and inner["t"] == (1, (2, Point(3, 40))) and holder["other"] is other
    assert type(inner["t"][1][1]) is Point


def test_a_positional_child_needs_a_setter_to_be_placed() -> None:
    with pytest.raises(TypeError, match="Frozen has a positional child 0; define __tree_setattr__"):
        tree.update(Frozen(1), {"0": 2})


def test_subclasses_of_containers_are_leaves_unless_they_declare_themselves() -> None:
    rows = Rows([1, [2]])
    rows.title = "t"
    twin = rebuild(rows)
    assert type(twin) is Rows and twin == [1, [2]] and twin.title == "t" and twin[1] is not rows[1]
    assert tree.update(rows, {"title": "new", "1.0": 5}) is rows and rows == [1, [5]] and rows.title == "new"
    for leaf in (type("Mine", (list,), {})([1]), Counter("aa"), Pair((1, 2)), {1}, range(3)):
        assert tree.leaves([leaf])[0] is leaf and not tree.is_node(leaf)
    for factory in (None, int):
        twin = rebuild(defaultdict(factory, {"a": 1}))
        assert type(twin) is defaultdict and twin.default_factory is factory and twin == {"a": 1}


def test_update_under_shared_writes_every_alias_by_the_first_path() -> None:
    weight = Weight()
    value: dict[str, Any] = {"a": weight, "b": (weight,), "c": [weight]}
    new = Weight("new")
    with pytest.raises(ValueError, match="'c.0'"):
        tree.update(value, {"c.0": new}, shared=True)
    tree.update(value, {"a": new}, shared=True)
    assert value["a"] is value["b"][0] is value["c"][0] is new
    tree.update(value, {"c.0": Weight("other")})
    assert value["c"][0].name == "other" and value["a"] is value["b"][0] is new
    first, second = ring("a", "b")
    assert tree.update(first, {"next.w": 5}, shared=True) is first and second.w == 5 and second.next is first


def test_unflatten_refuses_what_does_not_fit() -> None:
    treedef = structure([1, (2,)])
    with pytest.raises(ValueError, match="ran out; 2 are needed"):
        tree.unflatten(treedef, [1])
    with pytest.raises(ValueError, match="too many leaves; 2 are needed"):
        tree.unflatten(treedef, repeat(0))
    with pytest.raises(ValueError, match="'heap' is no kind of node"):
        tree.unflatten(TreeDef("heap"), [])
    for number in (1, -1, "0"):
        with pytest.raises(ValueError, match=f"ref {number!r} points at none of the 1 objects"):
            tree.unflatten(TreeDef("list", (TreeDef("ref", meta=number),), (0,)), [])

    class Half:
        def __tree_flatten__(self) -> tuple[Any, Any]:
            return [], None

    with pytest.raises(TypeError, match="Half has no __tree_unflatten__ and no __tree_empty__"):
        rebuild(Half())


def test_is_node_looks_at_the_type_only() -> None:
    class Loud:
        def __tree_flatten__(self) -> tuple[Any, Any]:
            raise AssertionError("called")

    assert tree.is_node(Loud()) and not tree.is_node(Loud)
    assert tree.leaves([Loud, Layer, list]) == [Loud, Layer, list]
    by_instance = Weight()
    by_instance.__tree_flatten__ = lambda: ([], None)  # type: ignore[attr-defined]
    assert not tree.is_node(by_instance)
    is_nodes: list[Any] = [[], (), {}, OrderedDict(), defaultdict(), Point(1, 2), Layer()]
    assert all(map(tree.is_node, is_nodes))
    assert not any(tree.is_node(v) for v in (None, 1, "ab", {1}, np.zeros(2)))


def test_flatten_one_level_opens_one_node() -> None:
    assert tree.flatten_one_level({"b": [1], "a": 2})[:2] == ([2, [1]], ["a", "b"])
    assert tree.flatten_one_level(Named(1, 2)) == ([1, 2], ["z", "y"], (Named, "note", True))
    with pytest.raises(TypeError, match="int is no node"):
        tree.flatten_one_level(3)


@pytest.mark.parametrize(
    ("path", "key", "expected"),
    [
        ("blocks.3", "bias", "blocks.3.bias"),
        ("", "blocks", "blocks"),
        ("blocks.3", "", "blocks.3"),
        ("", "", ""),
        ("blocks", 3, "blocks.3"),
        ("", 0, "0"),
    ],
)
def test_extend_path(path: str, key: Any, expected: str) -> None:
    assert tree.extend_path(path, key) == expected


def test_as_predicate_reads_every_selector() -> None:
    never = lambda value: False  # noqa: E731
    assert tree.as_predicate(None, never) is never and tree.as_predicate(callable, never) is callable
    for selector in (int, (int, str), int | str):
        chosen = tree.as_predicate(selector, never)
        assert chosen(3) and not chosen(2.5)
    for wrong in (3, (3,)):
        with pytest.raises(TypeError):
            tree.as_predicate(wrong, never)  # type: ignore[arg-type]


def test_a_structure_keys_a_cache_without_hashing_payloads() -> None:
    class Unhashable:
        __hash__ = None  # type: ignore[assignment]

    payload = Unhashable()
    key = structure({"w": Weight(), "s": payload}, leaf=Weight)
    again = structure({"s": payload, "w": Weight()}, leaf=Weight)
    other = structure({"s": Unhashable(), "w": Weight()}, leaf=Weight)
    assert {key: "hit"}[again] == "hit" and other not in {key: "hit"} and hash(key) == hash(other)
    assert structure({1: 0}) == structure({1.0: 0}) and hash(structure({1: 0})) == hash(structure({1.0: 0}))
    with pytest.raises(AttributeError):
        key.kind = "leaf"  # type: ignore[misc]
    assert key != "text" and pickle.loads(pickle.dumps(structure([1, {"a": 2}]))) == structure([1, {"a": 2}])


def test_a_model_is_named_loaded_and_hollowed_out() -> None:
    block = Layer(w=Weight("w"), b=Weight("b"))
    model = Layer(blocks=[block], head=Weight("head"))
    names = tree.paths(model, leaf=Weight)
    assert list(names) == ["blocks.0.w", "blocks.0.b", "head"]
    checkpoint = {name: Weight(f"loaded {name}") for name in names}
    assert tree.update(model, checkpoint, leaf=Weight) is model and model.blocks[0] is block
    assert block.w.name == "loaded blocks.0.w"
    hollow = tree.map(lambda w: None, model, leaf=Weight)
    assert type(hollow) is Layer and hollow.blocks[0] is not block and hollow.head is None
    assert block.w.name == "loaded blocks.0.w"


def test_a_node_leaves_its_parent_out_by_itself() -> None:
    class Child(Layer):
        parent: Any = None

    child = Child(w=1)
    child.parent = Layer(child=child)
    assert tree.paths(child.parent) == {"child.w": 1}


def test_flatten_up_to_stops_where_the_structure_has_leaves() -> None:
    treedef = structure({"a": 0, "b": (1, Layer(meta="m", w=2))})
    full: dict[str, Any] = {"a": [1, 2], "b": ({}, Layer(meta="m", w=(3,)))}
    assert treedef.flatten_up_to(full) == [[1, 2], {}, (3,)]
    for wrong, said in [
        ({"a": 0}, "at '' expected keys"),
        ({"a": 0, "b": 1}, "at 'b' expected a tuple, found a int"),
        ({"a": 0, "b": (1, Layer(meta="other", w=2))}, "at 'b.1' .*'m'.*'other'"),
        ({"a": 0, "b": (1, Frozen(2))}, "at 'b.1' expected keys"),
    ]:
        with pytest.raises(ValueError, match=said):
            treedef.flatten_up_to(wrong)
    weight = Weight()
    static = structure([weight, 3, weight], leaf=Weight, shared=True)
    assert static.flatten_up_to([full, 3, full]) == [full]
    with pytest.raises(ValueError, match="at '1' .*3.*4"):
        static.flatten_up_to([full, 4, full])
    with pytest.raises(ValueError, match="at '2' expected a ref, found a list of its own"):
        static.flatten_up_to([[], 3, []])
    loop = ring("a", "b")
    assert structure(loop[0], shared=True).flatten_up_to(loop[0]) == [loop[0].w, loop[1].w]


def test_leaves_are_freed_when_the_last_reference_goes() -> None:
    gc.disable()
    try:
        value = {"a": [Weight()], "b": Layer(w=Weight())}
        watched = [weakref.ref(leaf) for leaf in tree.leaves(value, shared=True)]
        twin = rebuild(value, shared=True)
        tree.paths(value), tree.nodes(value, Weight, shared=True), tree.map(lambda w: w, value)
        tree.update(value, {"a.0": 0}, shared=True)
        del value
        assert watched[1]() is twin["b"].w
        del twin
        assert [ref() for ref in watched] == [None, None]
    finally:
        gc.enable()
