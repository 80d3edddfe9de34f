"""einsum: an expression over named axes as transposes, products and sums, two operands at a time."""

from __future__ import annotations

import string
from typing import Any

import numpy as np

from plait.framework import functional as f
from plait.framework.dim import product
from plait.framework.errors import ShapeError
from plait.framework.manipulation import diagonal, promoted
from plait.framework.record import matmul
from plait.framework.tensor import Tensor


def einsum(expression: str, *tensors: Any, optimize: Any = True) -> Tensor:
    """Sums of products over named axes, such as "ij,jk->ik"; "..." stands for axes that broadcast.

    Raises: ShapeError when names and axes, or two sizes of one name, do not fit.
    """
    if not tensors:
        raise ShapeError(f"einsum: {expression!r} without arrays; give one per term.")
    operands = promoted(tensors)
    terms, result = _names(expression.replace(" ", ""), operands)
    _check_sizes(expression, terms, operands)
    parts = [_distinct(x, names) for x, names in zip(operands, terms, strict=True)]
    for pair in _order(parts, result, optimize):
        chosen = [parts.pop(place) for place in sorted(pair, reverse=True)][::-1]
        needed = set(result).union(*(names for _, names in parts))
        parts.append(chosen[0] if len(chosen) == 1 else _contract(chosen[0], chosen[1], needed))
    (x, names) = parts[0]
    x, names = _summed(x, names, set(result))
    return x.transpose([names.index(name) for name in result]) if names else x


Part = tuple[Tensor, str]


def _names(expression: str, operands: list[Tensor]) -> tuple[list[str], str]:
    """Terms and result with every ellipsis spelled out in names that the expression does not use."""
    left, arrow, right = expression.partition("->")
    terms = left.split(",")
    if len(terms) != len(operands):
        raise ShapeError(f"einsum: {expression!r} has {len(terms)} terms for {len(operands)} arrays.")
    bare = left.replace("...", "") + right.replace("...", "")
    if not all(letter in string.ascii_letters or letter == "," for letter in bare):
        raise ValueError(f"einsum: {expression!r}; expected letters, commas, '...' and '->'.")
    free = [letter for letter in string.ascii_letters if letter not in expression]
    extra = [x.ndim - len(term.replace("...", "")) for x, term in zip(operands, terms, strict=True)]
    widest = max([count for count, term in zip(extra, terms, strict=True) if "..." in term], default=0)
    if not arrow:
        once = sorted(letter for letter in set(bare) - {","} if bare.count(letter) == 1)
        right = ("..." if "..." in left else "") + "".join(once)
    spelled = []
    for term, count, x in zip(terms, extra, operands, strict=True):
        if count < 0 or (count and "..." not in term):
            raise ShapeError(f"einsum: term {term!r} for an array of shape {x.shape}; name each axis once.")
        spelled.append(term.replace("...", "".join(free[widest - count : widest])))
    result = right.replace("...", "".join(free[:widest]))
    if len(set(result)) != len(result) or not set(result) <= set("".join(spelled)):
        raise ValueError(f"einsum: result {right!r} of {expression!r} names an axis twice or one that no term has.")
    return spelled, result


def _check_sizes(expression: str, terms: list[str], operands: list[Tensor]) -> None:
    sizes: dict[str, Any] = {}
    for term, x in zip(terms, operands, strict=True):
        for name, size in zip(term, x.shape, strict=True):
            known = sizes.setdefault(name, size)
            if known != size and 1 not in (known, size):
                raise ShapeError(f"einsum: axis {name!r} of {expression!r} has sizes {known} and {size}.")
            sizes[name] = size if known == 1 else known


def _distinct(x: Tensor, names: str) -> Part:
    """Repeated names of one operand become the diagonal of their axes."""
    for name in dict.fromkeys(names):
        while names.count(name) > 1:
            first = names.index(name)
            second = names.index(name, first + 1)
            x = diagonal(x, 0, first, second)
            names = names[:first] + names[first + 1 : second] + names[second + 1 :] + name
    return x, names


def _order(parts: list[Part], result: str, optimize: Any) -> list[tuple[int, ...]]:
    if len(parts) <= 2 or not optimize or not all(isinstance(size, int) for x, _ in parts for size in x.shape):
        return [(0, 1)] * (len(parts) - 1)
    shells = [np.broadcast_to(np.zeros((), np.float32), x.shape) for x, _ in parts]
    expression = ",".join(names for _, names in parts) + "->" + result
    path = np.einsum_path(expression, *shells, optimize="greedy")[0][1:]
    pairs: list[tuple[int, ...]] = []
    for step in path:  # one over more than two operands: two at a time from the left instead
        if len(step) > 2:
            return [(0, 1)] * (len(parts) - 1)
        pairs.append(tuple(step))
    return pairs


def _summed(x: Tensor, names: str, needed: set[str]) -> Part:
    axes = tuple(i for i, name in enumerate(names) if name not in needed)
    return (x.sum(axes, dtype=x.dtype), "".join(name for name in names if name in needed)) if axes else (x, names)


def _contract(a: Part, b: Part, needed: set[str]) -> Part:
    """Two operands into one: names of both that nobody needs are summed by a matrix product."""
    (x, left), (y, right) = _summed(*a, needed | set(b[1])), _summed(*b, needed | set(a[1]))
    shared = [name for name in left if name in right]
    ones = [name for name in shared if 1 in (x.shape[left.index(name)], y.shape[right.index(name)])]
    summed = [name for name in shared if name not in needed and name not in ones]
    if not summed or ones or x.dtype.kind == "b":
        return _summed(*_multiplied((x, left), (y, right)), needed)
    batch = [name for name in shared if name in needed]
    rows, columns = [name for name in left if name not in shared], [name for name in right if name not in shared]
    size = {**dict(zip(left, x.shape, strict=True)), **dict(zip(right, y.shape, strict=True))}
    first = _matrix((x, left), batch, rows, summed)
    second = _matrix((y, right), batch, summed, columns)
    names = "".join(batch + rows + columns)
    return matmul(first, second).reshape(tuple(size[name] for name in names)), names


def _matrix(part: Part, batch: list[str], rows: list[str], columns: list[str]) -> Tensor:
    x, names = part
    size = dict(zip(names, x.shape, strict=True))
    order = [names.index(name) for name in batch + rows + columns]
    shape = (*(size[n] for n in batch), product(tuple(size[n] for n in rows)), product(tuple(size[n] for n in columns)))
    return x.transpose(order).reshape(shape)


def _multiplied(a: Part, b: Part) -> Part:
    (x, left), (y, right) = a, b
    names = left + "".join(name for name in right if name not in left)
    product_of = f.logical_and if x.dtype.kind == "b" else f.multiply
    return product_of(_spread(x, left, names), _spread(y, right, names)), names


def _spread(x: Tensor, names: str, target: str) -> Tensor:
    order = [names.index(name) for name in target if name in names]
    sizes = iter(x.shape[i] for i in order)
    moved = x.transpose(order) if order else x
    return moved.reshape(tuple(next(sizes) if name in names else 1 for name in target))
