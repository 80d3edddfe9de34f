"""How a tensor lies on a mesh of devices: meshes, placements and mappings, and the shapes they give. Moves no data.

A device is any hashable value here. A mapping has one entry per tensor axis, placements one entry per mesh axis.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from enum import Enum

from plait.framework.errors import ShapeError

SpecEntry = str | tuple[str, ...] | None
Coordinate = Sequence[int] | Mapping[str, int]


class ReduceOp(Enum):
    """How the parts of a `Partial` combine into the whole."""

    SUM = "sum"
    AVG = "avg"
    MIN = "min"
    MAX = "max"


@dataclass(frozen=True)
class Replicated:
    """Every slot along the mesh axis holds the whole."""


@dataclass(frozen=True)
class Sharded:
    """The slots along the mesh axis hold consecutive pieces of tensor axis `axis`."""

    axis: int

    def __post_init__(self) -> None:
        if isinstance(self.axis, bool) or not isinstance(self.axis, int) or self.axis < 0:
            raise ShapeError(f"Sharded: axis is {self.axis!r}; expected an integer >= 0. Count axes from the front.")


@dataclass(frozen=True)
class Partial:
    """Every slot along the mesh axis holds a part that `reduce_op` combines. Takes the op's name too."""

    reduce_op: ReduceOp = ReduceOp.SUM

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "reduce_op", ReduceOp(self.reduce_op))
        except ValueError:
            known = ", ".join(op.value for op in ReduceOp)
            raise ShapeError(f"Partial: reduce_op is {self.reduce_op!r}; expected one of {known}.") from None


Placement = Replicated | Sharded | Partial


@dataclass(frozen=True)
class DeviceMesh:
    """Devices laid out row-major along named axes: all distinct, or all the same (a simulated mesh).

    Raises: ShapeError for no device, a shape that does not hold them all, repeated names, or devices partly the same.
    """

    devices: tuple[Hashable, ...]
    mesh_shape: tuple[int, ...]
    axis_names: tuple[str, ...]

    def __post_init__(self) -> None:
        for field in ("devices", "mesh_shape", "axis_names"):
            value = getattr(self, field)
            if isinstance(value, str):
                raise ShapeError(
                    f"DeviceMesh: {field} is the string {value!r}; expected a sequence. Write [{value!r}]."
                )
            object.__setattr__(self, field, tuple(value))
        self._check_axes()
        self._check_devices()

    def _check_axes(self) -> None:
        if len(self.mesh_shape) != len(self.axis_names):
            raise ShapeError(
                f"DeviceMesh: mesh_shape {self.mesh_shape} has {len(self.mesh_shape)} axes, axis_names "
                f"{self.axis_names} has {len(self.axis_names)}; expected one name per axis."
            )
        if any(not isinstance(name, str) or not name for name in self.axis_names):
            raise ShapeError(f"DeviceMesh: axis_names is {self.axis_names}; expected non-empty strings.")
        if len(set(self.axis_names)) != len(self.axis_names):
            raise ShapeError(f"DeviceMesh: axis_names {self.axis_names} repeats a name; expected unique names.")
        if any(isinstance(size, bool) or not isinstance(size, int) or size < 1 for size in self.mesh_shape):
            raise ShapeError(f"DeviceMesh: mesh_shape is {self.mesh_shape}; expected integers >= 1.")

    def _check_devices(self) -> None:
        count, slots, distinct = len(self.devices), math.prod(self.mesh_shape), len(set(self.devices))
        if not count:
            raise ShapeError("DeviceMesh: devices is empty; expected at least one device.")
        if count != slots:
            raise ShapeError(
                f"DeviceMesh: mesh_shape {self.mesh_shape} has {slots} slots; expected {count}, the devices."
            )
        if distinct not in (1, count):
            raise ShapeError(
                f"DeviceMesh: {count} devices of which {distinct} are distinct; expected all distinct, or all the same "
                f"for a simulated mesh."
            )

    @classmethod
    def single(cls, device: Hashable) -> DeviceMesh:
        """The mesh of one device; its axis is named `_`."""
        return cls((device,), (1,), ("_",))

    @property
    def ndim(self) -> int:
        return len(self.mesh_shape)

    @property
    def num_devices(self) -> int:
        return len(self.devices)

    @property
    def is_single(self) -> bool:
        return self.num_devices == 1

    @property
    def is_simulated(self) -> bool:
        """Whether several slots share one device."""
        return not self.is_single and len(set(self.devices)) == 1

    def axis_index(self, axis: str | int) -> int:
        """The position of a mesh axis given by name or by position.

        Raises: ShapeError when the mesh has no such axis.
        """
        if axis in self.axis_names:
            return self.axis_names.index(str(axis))
        if isinstance(axis, int) and -self.ndim <= axis < self.ndim:
            return axis % self.ndim
        raise ShapeError(f"DeviceMesh: axis {axis!r} is not on the mesh; expected one of {self.axis_names}.")

    def axis_size(self, axis: str | int | Sequence[str | int]) -> int:
        """The number of slots along one mesh axis, or along several together."""
        several = [axis] if isinstance(axis, str | int) else axis
        return math.prod(self.mesh_shape[self.axis_index(one)] for one in several)

    def device_coord(self, flat_index: int, axis: str | int) -> int:
        """Where the slot of that row-major number stands along one mesh axis.

        Raises: ShapeError for a number that is no slot.
        """
        return self.coordinate(flat_index)[self.axis_index(axis)]

    def coordinate(self, flat_index: int) -> tuple[int, ...]:
        """Where the slot of that row-major number stands along every mesh axis.

        Raises: ShapeError for a number that is no slot.
        """
        if not 0 <= flat_index < self.num_devices:
            raise ShapeError(
                f"DeviceMesh: slot {flat_index} of {self.num_devices}; expected 0..{self.num_devices - 1}."
            )
        found = []
        for size in reversed(self.mesh_shape):
            flat_index, at = divmod(flat_index, size)
            found.append(at)
        return tuple(reversed(found))

    def check_coordinate(self, coordinate: Coordinate) -> tuple[int, ...]:
        """A coordinate as one position per mesh axis; by name, an axis that is left out means 0.

        Raises: ShapeError for an unknown axis, a wrong count or a position outside its axis.
        """
        if isinstance(coordinate, Mapping):
            by_axis = {self.axis_index(name): at for name, at in coordinate.items()}
            coordinate = [by_axis.get(i, 0) for i in range(self.ndim)]
        found = tuple(coordinate)
        if len(found) != self.ndim or any(not 0 <= at < n for at, n in zip(found, self.mesh_shape, strict=False)):
            raise ShapeError(f"DeviceMesh: coordinate {found} is outside mesh_shape {self.mesh_shape}.")
        return found


_mesh: ContextVar[DeviceMesh | None] = ContextVar("plait_mesh", default=None)


def current_mesh() -> DeviceMesh | None:
    """The mesh of the enclosing `mesh_context`, or None."""
    return _mesh.get()


@contextmanager
def mesh_context(mesh: DeviceMesh | None) -> Iterator[DeviceMesh | None]:
    """Give mappings that name no mesh this one, in the current thread or task."""
    token = _mesh.set(mesh)
    try:
        yield mesh
    finally:
        _mesh.reset(token)


def shard_bounds(size: int, parts: int, index: int) -> tuple[int, int]:
    """Where piece `index` of `parts` starts and stops: sizes differ by at most one, larger ones first."""
    small, larger = divmod(size, parts)
    start = index * small + min(index, larger)
    return start, start + small + (index < larger)


@dataclass(frozen=True)
class NamedMapping:
    """One entry per tensor axis: the mesh axis that shards it, several (major first), or None; missing ones are None.

    Without `mesh` the one of the enclosing `mesh_context` is taken, each time it is asked. A name that the mesh does
    not have means replicated, so one mapping serves every mesh. `unreduced` names mesh axes whose slots hold sums to
    be added up.
    Raises: ShapeError when a mesh axis is named twice.
    """

    spec: tuple[SpecEntry, ...] = ()
    mesh: DeviceMesh | None = None
    unreduced: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for field in ("spec", "unreduced"):
            if isinstance(getattr(self, field), str):
                found = getattr(self, field)
                raise ShapeError(
                    f"NamedMapping: {field} is the string {found!r}; expected a sequence. Write ({found!r},)."
                )
        spec = tuple(tuple(entry) if isinstance(entry, list) else entry for entry in self.spec)
        object.__setattr__(self, "spec", spec)
        object.__setattr__(self, "unreduced", tuple(self.unreduced))
        named = [name for entry in spec for name in _names(entry)] + list(self.unreduced)
        if any(not isinstance(name, str) for name in named):
            raise ShapeError(
                f"NamedMapping: spec {spec}, unreduced {self.unreduced}; expected names of mesh axes or None."
            )
        twice = sorted({name for name in named if named.count(name) > 1})
        if twice:
            raise ShapeError(
                f"NamedMapping: mesh axis {twice[0]!r} is named twice by spec {spec} and unreduced {self.unreduced}; "
                f"expected once at most. Shard one tensor axis by it."
            )

    def resolve(self, mesh: DeviceMesh | None = None) -> NamedMapping:
        """This mapping with its mesh filled in: `mesh`, else its own, else the enclosing one; None without any."""
        return replace(self, mesh=self._mesh() if mesh is None else mesh)

    def _mesh(self) -> DeviceMesh | None:
        return current_mesh() if self.mesh is None else self.mesh

    def placements(self) -> tuple[Placement, ...]:
        """One placement per mesh axis; none at all without a mesh.

        Raises: ShapeError for an entry of several axes in another order than the mesh's: placements cannot say that.
        """
        mesh = self._mesh()
        if mesh is None:
            return ()
        for entry in self.spec:
            at = [mesh.axis_index(name) for name in _names(entry) if name in mesh.axis_names]
            if at != sorted(at):
                raise ShapeError(
                    f"NamedMapping: entry {entry} against axis_names {mesh.axis_names}; expected the mesh's order. "
                    f"Reorder one of them."
                )
        return tuple(self._placement(name) for name in mesh.axis_names)

    def _placement(self, name: str) -> Placement:
        if name in self.unreduced:
            return Partial(ReduceOp.SUM)
        at = [axis for axis, entry in enumerate(self.spec) if name in _names(entry)]
        return Sharded(at[0]) if at else Replicated()

    @property
    def is_fully_replicated(self) -> bool:
        """Whether no mesh axis shards or leaves parts; one of a single slot still counts when it is named."""
        return all(isinstance(placement, Replicated) for placement in self.placements())

    def bounds(self, shape: Sequence[int], coordinate: Coordinate = ()) -> tuple[slice, ...]:
        """The part of a tensor of that shape that the slot at `coordinate` holds, one slice per tensor axis.

        Raises: ShapeError for a spec longer than the shape, or a coordinate outside the mesh.
        """
        if len(self.spec) > len(shape):
            raise ShapeError(
                f"NamedMapping: spec {self.spec} has {len(self.spec)} entries; expected at most {len(shape)}, "
                f"the axes of shape {tuple(shape)}."
            )
        mesh = self._mesh()
        if mesh is None:
            return tuple(slice(0, size) for size in shape)
        at = mesh.check_coordinate(coordinate)
        entries = [*self.spec, *[None] * (len(shape) - len(self.spec))]
        return tuple(slice(*_piece(size, entry, mesh, at)) for size, entry in zip(shape, entries, strict=True))

    def local_shape(self, shape: Sequence[int], coordinate: Coordinate = ()) -> tuple[int, ...]:
        """The shape that the slot at `coordinate` holds.

        Raises: ShapeError as `bounds`.
        """
        return tuple(piece.stop - piece.start for piece in self.bounds(shape, coordinate))


def _names(entry: SpecEntry) -> tuple[str, ...]:
    if entry is None:
        return ()
    return entry if isinstance(entry, tuple) else (entry,)


def _piece(size: int, entry: SpecEntry, mesh: DeviceMesh, at: tuple[int, ...]) -> tuple[int, int]:
    """Several mesh axes cut one after the other, each the piece the one before left."""
    start, stop = 0, size
    for name in _names(entry):
        if name in mesh.axis_names:
            if not isinstance(size, int):
                raise ShapeError(f"NamedMapping: axis of size {size!r} on mesh axis {name!r}; expected a known size.")
            axis = mesh.axis_index(name)
            low, high = shard_bounds(stop - start, mesh.mesh_shape[axis], at[axis])
            start, stop = start + low, start + high
    return start, stop
