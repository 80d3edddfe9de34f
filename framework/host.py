"""Functions that NumPy computes whole: at once on realised operands, or as a record of the graph being traced."""

from __future__ import annotations

from typing import Any

from plait.framework.conversion import private_copy
from plait.framework.errors import ShapeError
from plait.framework.graph import SYMBOLIC
from plait.framework.ops.host import HOST, Function, call, probe
from plait.framework.record import record
from plait.framework.tensor import Tensor


def host_parts(where: str, function: Function, *tensors: Tensor, by_value: bool = False, **options: Any) -> Any:
    """The results of function(*arrays, **options) as a tuple of tensors; `where` names it in errors.

    `by_value` says that shapes of the results depend on values.

    Raises: ShapeError while tracing, for shapes that depend on values or do not follow from symbolic sizes.
    """
    given = tuple(options.items())
    if all(tensor.node().depth < SYMBOLIC for tensor in tensors):
        return tuple(private_copy(part) for part in call(function, tuple(t._host() for t in tensors), given))
    if by_value:
        raise ShapeError(f"{where}: the result's shape depends on values, which are not known while tracing.")
    specs = probe(where, function, tuple(tensor.node().spec for tensor in tensors), given)
    attrs = ((function, given, part, spec.shape, spec.dtype) for part, spec in enumerate(specs))
    return tuple(record(HOST, tensors, attr) for attr in attrs)


def host(where: str, function: Function, *tensors: Tensor, by_value: bool = False, **options: Any) -> Tensor:
    """The only result of function(*arrays, **options)."""
    result: Tensor = host_parts(where, function, *tensors, by_value=by_value, **options)[0]
    return result
