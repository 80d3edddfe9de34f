"""Linear algebra: products as compositions, factorisations by NumPy on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from plait.framework import functional as f
from plait.framework.conversion import asarray
from plait.framework.dim import product
from plait.framework.dtype import promote
from plait.framework.elementary import conj as _conj
from plait.framework.elementary import inexact as _inexact
from plait.framework.errors import ShapeError
from plait.framework.host import host as _host
from plait.framework.host import host_parts as _host_parts
from plait.framework.indexing import Axis, normalize_axes
from plait.framework.manipulation import diagonal as _diagonal
from plait.framework.manipulation import matrix_transpose, promoted
from plait.framework.record import matmul, operands
from plait.framework.tensor import Tensor

__all__ = [
    "cholesky",
    "cond",
    "cross",
    "det",
    "diagonal",
    "eig",
    "eigh",
    "eigvals",
    "eigvalsh",
    "inv",
    "lstsq",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "matrix_transpose",
    "multi_dot",
    "norm",
    "outer",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "svd",
    "svdvals",
    "tensordot",
    "trace",
    "vecdot",
    "vector_norm",
]


class EighResult(NamedTuple):
    """Eigenvalues, rising, and their vectors as columns."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class QRResult(NamedTuple):
    """An orthonormal and an upper triangular factor."""

    Q: Tensor
    R: Tensor


class SlogdetResult(NamedTuple):
    """Sign and logarithm of the absolute value of a determinant."""

    sign: Tensor
    logabsdet: Tensor


class SVDResult(NamedTuple):
    """Left vectors, singular values (falling) and right vectors."""

    U: Tensor
    S: Tensor
    Vh: Tensor


def _matrix(where: str, x: Any, square: bool = False) -> Tensor:
    tensor = _inexact(x)
    if tensor.ndim < 2 or square and tensor.shape[-1] != tensor.shape[-2]:
        raise ShapeError(f"{where}: shape {tensor.shape}; expected {'square ' if square else ''}matrices.")
    return tensor


def _parts(where: str, function: Callable[..., Any], *tensors: Tensor, **options: Any) -> tuple[Tensor, ...]:
    try:
        parts: tuple[Tensor, ...] = _host_parts(where, function, *tensors, **options)
    except np.linalg.LinAlgError as error:
        raise np.linalg.LinAlgError(f"{where}: {error} (shape {tensors[0].shape}).") from None
    return parts


def cholesky(x: Any, /, *, upper: bool = False) -> Tensor:
    """The triangular factor of a positive definite matrix."""
    return _parts("cholesky", np.linalg.cholesky, _matrix("cholesky", x, True), upper=upper)[0]


def det(x: Any, /) -> Tensor:
    """The determinant."""
    return _parts("det", np.linalg.det, _matrix("det", x, True))[0]


def inv(x: Any, /) -> Tensor:
    """The inverse of a matrix."""
    return _parts("inv", np.linalg.inv, _matrix("inv", x, True))[0]


def pinv(x: Any, /, *, rtol: Any = None) -> Tensor:
    """The pseudo-inverse; singular values below rtol times the largest count as zero."""
    tensors = [_matrix("pinv", x)] + ([] if rtol is None else [asarray(rtol)])
    return _parts("pinv", _pinv, *tensors)[0]


def _pinv(x: Any, rtol: Any = None) -> Any:
    return np.linalg.pinv(x, **({} if rtol is None else {"rcond": rtol}))


def solve(a: Any, b: Any, /) -> Tensor:
    """x with a @ x = b, for a vector b (one axis) or matrices."""
    left, right = operands(_matrix("solve", a, True), _inexact(b))
    return _parts("solve", np.linalg.solve, left, right)[0]


def lstsq(a: Any, b: Any, rcond: float | None = None) -> tuple[Tensor, ...]:
    """The least-squares solution, residuals, rank and singular values."""
    left, right = operands(_matrix("lstsq", a), _inexact(b))
    return _parts("lstsq", np.linalg.lstsq, left, right, rcond=rcond)


def eigh(x: Any, /) -> EighResult:
    """Eigenvalues and vectors of a symmetric or Hermitian matrix."""
    return EighResult(*_parts("eigh", _eigh, _matrix("eigh", x, True)))


def _eigh(x: Any) -> tuple[Any, ...]:
    return tuple(np.linalg.eigh(x))


def eigvalsh(x: Any, /) -> Tensor:
    """Eigenvalues of a symmetric or Hermitian matrix, rising."""
    return _parts("eigvalsh", np.linalg.eigvalsh, _matrix("eigvalsh", x, True))[0]


def eig(x: Any, /) -> EighResult:
    """Eigenvalues and vectors of a square matrix, complex where they must be."""
    return EighResult(*_parts("eig", _eig, _matrix("eig", x, True), by_value=True))


def _eig(x: Any) -> tuple[Any, ...]:
    return tuple(np.linalg.eig(x))


def eigvals(x: Any, /) -> Tensor:
    """Eigenvalues of a square matrix, complex where they must be."""
    return _parts("eigvals", np.linalg.eigvals, _matrix("eigvals", x, True), by_value=True)[0]


def qr(x: Any, /, *, mode: str = "reduced") -> QRResult:
    """The QR factorisation; `mode` is "reduced" or "complete"."""
    if mode not in ("reduced", "complete"):
        raise ValueError(f"qr: mode={mode!r}; expected 'reduced' or 'complete'.")
    return QRResult(*_parts("qr", _qr, _matrix("qr", x), mode=mode))


def _qr(x: Any, mode: Any) -> tuple[Any, ...]:
    return tuple(np.linalg.qr(x, mode))


def slogdet(x: Any, /) -> SlogdetResult:
    """Sign and log of the absolute determinant."""
    return SlogdetResult(*_parts("slogdet", _slogdet, _matrix("slogdet", x, True)))


def _slogdet(x: Any) -> tuple[Any, ...]:
    return tuple(np.linalg.slogdet(x))


def svd(x: Any, /, *, full_matrices: bool = True) -> SVDResult:
    """The singular value decomposition."""
    return SVDResult(*_parts("svd", _svd, _matrix("svd", x), full_matrices=full_matrices))


def _svd(x: Any, full_matrices: bool) -> tuple[Any, ...]:
    return tuple(np.linalg.svd(x, full_matrices=full_matrices))


def svdvals(x: Any, /) -> Tensor:
    """Singular values, falling."""
    return _parts("svdvals", np.linalg.svdvals, _matrix("svdvals", x))[0]


def matrix_rank(x: Any, /, *, rtol: Any = None) -> Tensor:
    """How many singular values exceed rtol times the largest."""
    tensors = [_matrix("matrix_rank", x)] + ([] if rtol is None else [asarray(rtol)])
    return _parts("matrix_rank", _matrix_rank, *tensors)[0]


def _matrix_rank(x: Any, rtol: Any = None) -> Any:
    return np.linalg.matrix_rank(x, rtol=rtol)


def matrix_power(x: Any, n: int, /) -> Tensor:
    """A square matrix to an integer power."""
    tensor = _matrix("matrix_power", x, True)
    return _parts("matrix_power", np.linalg.matrix_power, tensor, n=n)[0]


def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Tensor:  # noqa: A002
    """A norm of matrices: "fro", "nuc", 1, -1, 2, -2, inf or -inf."""
    return _parts("matrix_norm", np.linalg.matrix_norm, _matrix("matrix_norm", x), keepdims=keepdims, ord=ord)[0]


def vector_norm(x: Any, /, *, axis: Axis = None, keepdims: bool = False, ord: float = 2) -> Tensor:  # noqa: A002
    """A norm over axes, of all elements by default."""
    fixed = axis if axis is None or isinstance(axis, int) else tuple(axis)
    tensor = _inexact(x)
    return _host("vector_norm", np.linalg.vector_norm, tensor, axis=fixed, keepdims=keepdims, ord=ord)


def norm(x: Any, ord: Any = None, axis: Axis = None, keepdims: bool = False) -> Tensor:  # noqa: A002
    """NumPy's norm of vectors and matrices."""
    fixed = axis if axis is None or isinstance(axis, int) else tuple(axis)
    return _parts("norm", np.linalg.norm, _inexact(x), ord=ord, axis=fixed, keepdims=keepdims)[0]


def cond(x: Any, p: Any = None) -> Tensor:
    """The condition number."""
    return _parts("cond", np.linalg.cond, _matrix("cond", x), p=p)[0]


def multi_dot(tensors: Sequence[Any]) -> Tensor:
    """The product of several matrices."""
    result = asarray(tensors[0])
    for tensor in tensors[1:]:
        result = matmul(result, tensor)
    return result


def diagonal(x: Any, /, *, offset: int = 0) -> Tensor:
    """The diagonal of the last two axes."""
    return _diagonal(x, offset, -2, -1)


def trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Tensor:
    """The sum of the diagonal of the last two axes."""
    return diagonal(x, offset=offset).sum(-1, dtype)


def outer(a: Any, b: Any, /) -> Tensor:
    """All products of the elements of two vectors."""
    left, right = operands(a, b)
    if left.ndim != 1 or right.ndim != 1:
        raise ShapeError(f"outer: shapes {left.shape} and {right.shape}; expected two vectors.")
    return left.expand_dims(1) * right


def cross(a: Any, b: Any, /, *, axis: int = -1) -> Tensor:
    """The cross product of vectors of three elements along an axis."""
    left, right = operands(a, b)
    x = f.moveaxis(left, axis, -1)
    y = f.moveaxis(right, axis, -1)
    if x.shape[-1] != 3 or y.shape[-1] != 3:
        raise ShapeError(f"cross: axis {axis} of {left.shape} and {right.shape}; expected 3 elements in both.")
    (x0, x1, x2), (y0, y1, y2) = [[v[..., i] for i in range(3)] for v in (x, y)]
    result = f.stack([x1 * y2 - x2 * y1, x2 * y0 - x0 * y2, x0 * y1 - x1 * y0], -1)
    return f.moveaxis(result, -1, axis)


def vecdot(a: Any, b: Any, /, *, axis: int = -1) -> Tensor:
    """The dot product along an axis, of the first operand's conjugate."""
    left, right = operands(a, b)
    (first,), (second,) = normalize_axes("vecdot", axis, left.ndim), normalize_axes("vecdot", axis, right.ndim)
    x, y = f.moveaxis(left, first, -1), f.moveaxis(right, second, -1)
    if x.shape[-1] != y.shape[-1]:
        raise ShapeError(f"vecdot: axis {axis} of {left.shape} and {right.shape}; expected equal sizes.")
    return (_conj(x) * y).sum(-1, dtype=x.dtype)


def tensordot(a: Any, b: Any, /, *, axes: Any = 2) -> Tensor:
    """Sums of products over the last axes of a and the first of b, or over listed pairs of axes."""
    left, right = operands(a, b)
    if isinstance(axes, int):
        over = tuple(range(left.ndim - axes, left.ndim)), tuple(range(axes))
    else:
        first, second = [(axis,) if isinstance(axis, int) else tuple(axis) for axis in axes]
        over = normalize_axes("tensordot", first, left.ndim), normalize_axes("tensordot", second, right.ndim)
    sizes = [tuple(x.shape[i] for i in chosen) for x, chosen in zip((left, right), over, strict=True)]
    if sizes[0] != sizes[1]:
        raise ShapeError(f"tensordot: shapes {left.shape} and {right.shape} over axes {over}; sizes differ.")
    rows = [i for i in range(left.ndim) if i not in over[0]]
    columns = [i for i in range(right.ndim) if i not in over[1]]
    shape = tuple(left.shape[i] for i in rows) + tuple(right.shape[i] for i in columns)
    inner = product(sizes[0])
    x = left.transpose([*rows, *over[0]]).reshape((product(tuple(left.shape[i] for i in rows)), inner))
    y = right.transpose([*over[1], *columns]).reshape((inner, product(tuple(right.shape[i] for i in columns))))
    return matmul(x, y).reshape(shape)


def dot(a: Any, b: Any) -> Tensor:
    """NumPy's dot: a product with a scalar, of vectors, or over a's last and b's second-to-last axis."""
    left, right = operands(a, b)
    if not left.ndim or not right.ndim:
        return left * right
    return tensordot(left, right, axes=((left.ndim - 1,), (max(right.ndim - 2, 0),)))


def inner(a: Any, b: Any) -> Tensor:
    """Sums of products over the last axes."""
    left, right = operands(a, b)
    return left * right if not left.ndim or not right.ndim else tensordot(left, right, axes=((-1,), (-1,)))


def vdot(a: Any, b: Any) -> Tensor:
    """The dot product of flattened arrays, of the first one's conjugate."""
    return vecdot(asarray(a).reshape(-1), asarray(b).reshape(-1))


def kron(a: Any, b: Any) -> Tensor:
    """The Kronecker product."""
    dtype = promote(asarray(a).dtype, asarray(b).dtype)
    x, y = promoted([a, b])
    rank = max(x.ndim, y.ndim)
    left = x.reshape((1,) * (rank - x.ndim) + tuple(x.shape))
    right = y.reshape((1,) * (rank - y.ndim) + tuple(y.shape))
    spread = left.reshape(tuple(size for pair in left.shape for size in (pair, 1)))
    others = right.reshape(tuple(size for pair in right.shape for size in (1, pair)))
    shape = tuple(p * q for p, q in zip(left.shape, right.shape, strict=True))
    return (spread * others).reshape(shape).astype(dtype, copy=False)


def matvec(a: Any, b: Any) -> Tensor:
    """Matrices times vectors. Shapes: (..., m, n), (..., n) -> (..., m)."""
    return (asarray(a) @ asarray(b).expand_dims(-1)).squeeze(-1)


def vecmat(a: Any, b: Any) -> Tensor:
    """Vectors (conjugated) times matrices. Shapes: (..., m), (..., m, n) -> (..., n)."""
    return (asarray(a).conj().expand_dims(-2) @ asarray(b)).squeeze(-2)
