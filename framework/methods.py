"""NumPy's array methods that are functions too. The functions build on tensors, so they are imported at the call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from plait.framework.indexing import Axis
from plait.framework.storage import Stored

if TYPE_CHECKING:
    from plait.framework.tensor import Tensor


class Methods(Stored):
    """A tensor's methods by the functions of the same names."""

    __slots__ = ()

    def var(self, axis: Axis = None, correction: float = 0, keepdims: bool = False) -> Tensor:
        from plait.framework import functional as f

        return f.var(self, axis, correction, keepdims)

    def std(self, axis: Axis = None, correction: float = 0, keepdims: bool = False) -> Tensor:
        from plait.framework import functional as f

        return f.std(self, axis, correction, keepdims)

    def clip(self, min: Any = None, max: Any = None) -> Tensor:  # noqa: A002
        from plait.framework import functional as f

        return f.clip(self, min, max)

    def round(self, decimals: int = 0) -> Tensor:
        from plait.framework import functional as f

        return f.round(self, decimals)

    def cumsum(self, axis: int | None = None, dtype: Any = None) -> Tensor:
        from plait.framework import functional as f

        return f.cumsum(self, axis, dtype)

    def cumprod(self, axis: int | None = None, dtype: Any = None) -> Tensor:
        from plait.framework import statistics

        return statistics.cumprod(self, axis, dtype)

    def argsort(self, axis: int = -1) -> Tensor:
        from plait.framework import functional as f

        return f.argsort(self, axis)

    def sort(self, axis: int = -1) -> None:
        """Sort in place, as NumPy's method does; `plait.sort` gives a sorted copy."""
        from plait.framework import functional as f

        cast("Tensor", self)[...] = f.sort(self, axis)

    def swapaxes(self, a: int, b: int) -> Tensor:
        from plait.framework import functional as f

        return f.swapaxes(self, a, b)

    def take(self, indices: Any, axis: int | None = None) -> Tensor:
        """self[indices] along an axis; of the flattened array when it is None."""
        from plait.framework import functional as f

        return f.take(f.reshape(self, -1), indices, 0) if axis is None else f.take(self, indices, axis)

    def repeat(self, repeats: Any, axis: int | None = None) -> Tensor:
        from plait.framework import manipulation

        return manipulation.repeat(self, repeats, axis)

    def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
        from plait.framework import manipulation

        return manipulation.diagonal(self, offset, axis1, axis2)

    def trace(self, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None) -> Tensor:
        return self.diagonal(offset, axis1, axis2).sum(-1, dtype)

    def dot(self, other: Any) -> Tensor:
        from plait.framework import linalg

        return linalg.dot(self, other)

    def conjugate(self) -> Tensor:
        return cast("Tensor", self).conj()

    def nonzero(self) -> tuple[Tensor, ...]:
        from plait.framework import searching

        return searching.nonzero(self)

    def searchsorted(self, values: Any, side: str = "left", sorter: Any = None) -> Tensor:
        from plait.framework import searching

        return searching.searchsorted(self, values, side, sorter)

    def compress(self, condition: Any, axis: int | None = None) -> Tensor:
        from plait.framework import searching

        return searching.compress(condition, self, axis)

    def choose(self, choices: Sequence[Any]) -> Tensor:
        from plait.framework import searching

        return searching.choose(self, choices)

    def put(self, indices: Any, values: Any) -> None:
        from plait.framework import scatter

        scatter.put(cast("Tensor", self), indices, values)

    def tobytes(self) -> bytes:
        """The elements' bytes in C order."""
        return self._host().tobytes()

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes to the next element of each axis, in the storage."""
        return tuple(int(stride) * self.itemsize for stride in self._layout()[1])
