"""Meshes and mappings: shapes and pieces against numpy.array_split, which cuts larger pieces first as well."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.framework.errors import ShapeError
from plait.framework.sharding import (
    DeviceMesh,
    NamedMapping,
    Partial,
    ReduceOp,
    Replicated,
    Sharded,
    current_mesh,
    mesh_context,
    shard_bounds,
)

GRID = DeviceMesh(tuple(range(6)), (2, 3), ("dp", "tp"))


@pytest.mark.parametrize(
    ("devices", "shape", "names", "said"),
    [
        ([], (), (), "devices is empty"),
        ([], (0,), ("a",), "expected integers >= 1"),
        (["a", "b"], (3,), ("x",), "has 3 slots; expected 2"),
        (["a", "b"], (2,), ("x", "y"), "one name per axis"),
        (["a", "b"], (1, 2), ("x", "x"), "repeats a name"),
        (["a", "a", "b", "b"], (4,), ("x",), "2 are distinct"),
        (["a", "b"], (-1, -2), ("x", "y"), "expected integers >= 1"),
        (["a"], (True,), ("x",), "expected integers >= 1"),
        (["a"], (1,), "x", "Write \\['x'\\]"),
        (["a"], (1,), ("",), "non-empty strings"),
    ],
)
def test_a_mesh_that_makes_no_sense_is_refused(devices: Any, shape: Any, names: Any, said: str) -> None:
    with pytest.raises(ShapeError, match=said):
        DeviceMesh(devices, shape, names)


def test_a_mesh_counts_row_major() -> None:
    grid = np.arange(6).reshape(2, 3)
    for slot in range(6):
        assert grid[GRID.coordinate(slot)] == slot
        assert (GRID.device_coord(slot, "dp"), GRID.device_coord(slot, 1)) == tuple(np.argwhere(grid == slot)[0])
    assert (GRID.ndim, GRID.num_devices) == (2, 6)
    assert [GRID.axis_size(axis) for axis in ("dp", "tp", 0, -1, ("dp", "tp"))] == [2, 3, 2, 3, 6]
    for wrong in (lambda: GRID.axis_size("pp"), lambda: GRID.axis_size(2), lambda: GRID.coordinate(6)):
        with pytest.raises(ShapeError):
            wrong()


def test_a_mesh_is_simulated_single_or_neither() -> None:
    simulated, single = DeviceMesh(("cpu",) * 4, (4,), ("tp",)), DeviceMesh.single("cpu")
    assert [mesh.is_simulated for mesh in (simulated, single, GRID)] == [True, False, False]
    assert [mesh.is_single for mesh in (simulated, single, GRID)] == [False, True, False]
    assert single.axis_names == ("_",)


def test_meshes_and_mappings_are_frozen_values() -> None:
    assert hash(DeviceMesh(list(range(6)), [2, 3], ["dp", "tp"])) == hash(GRID)  # type: ignore[arg-type]
    assert NamedMapping(["tp", None]) == NamedMapping(("tp", None))  # type: ignore[arg-type]
    for value, field in ((GRID, "devices"), (NamedMapping(), "spec"), (Sharded(0), "axis"), (Partial(), "reduce_op")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, field, ())


def test_placements_check_what_they_are_given() -> None:
    assert Partial("avg") == Partial(ReduceOp.AVG) != Partial()  # type: ignore[arg-type]
    assert Replicated() == Replicated()
    with pytest.raises(ShapeError, match="expected one of sum, avg, min, max"):
        Partial("prod")  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="axis is -1"):
        Sharded(-1)


@given(st.integers(0, 40), st.integers(1, 9))
def test_pieces_are_those_of_array_split(size: int, parts: int) -> None:
    pieces = [np.arange(*shard_bounds(size, parts, i)).tolist() for i in range(parts)]
    assert pieces == [piece.tolist() for piece in np.array_split(np.arange(size), parts)]


def test_a_mapping_gives_one_placement_per_mesh_axis() -> None:
    assert NamedMapping((None, "tp"), GRID).placements() == (Replicated(), Sharded(1))
    assert NamedMapping(("dp", "tp"), GRID).placements() == (Sharded(0), Sharded(1))
    assert NamedMapping((("dp", "tp"),), GRID).placements() == (Sharded(0), Sharded(0))
    assert NamedMapping(("dp",), GRID, ("tp",)).placements() == (Sharded(0), Partial(ReduceOp.SUM))
    assert NamedMapping(("pp", "ep"), GRID, ("cp",)).is_fully_replicated
    assert not NamedMapping(("tp",), GRID).is_fully_replicated


@given(st.integers(0, 20), st.integers(0, 20), st.sampled_from([None, "dp", "tp", "pp", ("dp", "tp"), ("tp", "dp")]))
def test_the_pieces_tile_the_tensor_and_have_the_local_shape(rows: int, columns: int, entry: Any) -> None:
    whole = np.arange(rows * columns).reshape(rows, columns)
    mapping = NamedMapping((None, entry), GRID)
    copies = GRID.num_devices
    for name in (entry,) if isinstance(entry, str) else entry or ():
        copies //= GRID.axis_size(name) if name in GRID.axis_names else 1
    seen = np.zeros_like(whole)
    for slot in range(GRID.num_devices):
        at = GRID.coordinate(slot)
        piece = mapping.bounds(whole.shape, at)
        assert whole[piece].shape == mapping.local_shape(whole.shape, at)
        seen[piece] += 1
    assert (seen == copies).all()


def test_several_axes_cut_one_after_the_other_major_first() -> None:
    mapping = NamedMapping((("dp", "tp"),), GRID)
    halves = np.array_split(np.arange(11), 2)
    for dp, half in enumerate(halves):
        for tp, piece in enumerate(np.array_split(half, 3)):
            assert np.arange(11)[mapping.bounds((11,), (dp, tp))].tolist() == piece.tolist()
    swapped = NamedMapping((["tp", "dp"],), GRID)  # type: ignore[arg-type]
    assert swapped.bounds((12,), {"tp": 1}) == (slice(4, 6),)
    with pytest.raises(ShapeError, match="expected the mesh's order"):
        swapped.placements()


def test_the_mesh_comes_from_the_enclosing_context_each_time() -> None:
    mapping = NamedMapping(("tp",))
    assert mapping.placements() == () and mapping.local_shape((7,)) == (7,) and mapping.is_fully_replicated
    assert mapping.resolve().mesh is None
    with mesh_context(GRID):
        assert mapping.local_shape((7, 2), (0, 0)) == (3, 2) and mapping.local_shape((7, 2), {"tp": 2}) == (2, 2)
        bound = mapping.resolve()
        with mesh_context(DeviceMesh.single("cpu")):
            assert mapping.placements() == (Replicated(),)
            assert bound.placements() == (Replicated(), Sharded(0))
        assert current_mesh() is GRID
    assert current_mesh() is None and bound.mesh is GRID


def test_resolve_prefers_the_mesh_it_is_given() -> None:
    other = DeviceMesh(("cpu",) * 2, (2,), ("tp",))
    with mesh_context(GRID):
        assert NamedMapping(("tp",), GRID).resolve(other).local_shape((4,), (1,)) == (2,)
        assert NamedMapping(("tp",)).resolve(other).mesh is other


def test_a_context_ends_on_error_and_stays_in_its_thread() -> None:
    seen = []
    with pytest.raises(KeyError), mesh_context(GRID):
        thread = threading.Thread(target=lambda: seen.append(current_mesh()))
        thread.start()
        thread.join()
        raise KeyError
    assert seen == [None] and current_mesh() is None


@pytest.mark.parametrize(
    ("spec", "unreduced"), [(("tp", "tp"), ()), ((("tp", "tp"),), ()), (("tp",), ("tp",)), ((), ("tp", "tp"))]
)
def test_naming_a_mesh_axis_twice_is_refused(spec: Any, unreduced: Any) -> None:
    with pytest.raises(ShapeError, match="'tp' is named twice"):
        NamedMapping(spec, unreduced=unreduced)


def test_mappings_refuse_what_does_not_fit() -> None:
    with pytest.raises(ShapeError, match="expected a sequence"):
        NamedMapping("tp")  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="expected names"):
        NamedMapping((0,))  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="2 entries; expected at most 1"):
        NamedMapping((None, "tp"), GRID).local_shape((4,), (0, 0))
    for coordinate in ((0,), (0, 3), (-1, 0), {"pp": 0}):
        with pytest.raises(ShapeError):
            NamedMapping(("tp",), GRID).local_shape((4,), coordinate)
    with pytest.raises(ShapeError, match="expected a known size"):
        NamedMapping(("tp",), GRID).local_shape(("rows",), (0, 0))  # type: ignore[arg-type]
