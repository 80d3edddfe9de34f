"""Statistics, scans, differences, histograms and filters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from plait.framework import functional as f
from plait.framework.conversion import asarray
from plait.framework.dtype import accumulator, as_dtype, default_int, uint64
from plait.framework.elementary import inexact
from plait.framework.errors import ShapeError
from plait.framework.host import host, host_parts
from plait.framework.indexing import Axis, normalize_axes
from plait.framework.manipulation import promoted
from plait.framework.op import Op
from plait.framework.ops import reduce as r
from plait.framework.record import matmul, record
from plait.framework.tensor import Tensor


def _running(op: Op, x: Any, axis: int | None, dtype: Any, include_initial: bool) -> Tensor:
    tensor = asarray(x)
    if axis is None:
        if tensor.ndim != 1:
            raise ShapeError(f"{op.name}: shape {tensor.shape} has {tensor.ndim} axes; name one with axis.")
        axis = 0
    (place,) = normalize_axes(op.name, axis, tensor.ndim)
    natural = tensor.dtype
    if natural.kind in "biu":
        natural = uint64 if natural.kind == "u" else default_int
    target = natural if dtype is None else as_dtype(dtype)
    wide = tensor.astype(accumulator(target), copy=False)
    result = record(op, (wide,), (place,)).astype(target, copy=False)
    if not include_initial:
        return result
    start = f.take(result, asarray(np.zeros(0, np.int64)), place)
    shape = (*start.shape[:place], 1, *start.shape[place + 1 :])
    first = f.broadcast_to(asarray(int(op is r.CUMPROD)).astype(target), shape)
    return f.concat([first, result], place)


def cumulative_sum(x: Any, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Tensor:
    """Running sums along an axis, with a leading 0 if `include_initial`."""
    return _running(r.CUMSUM, x, axis, dtype, include_initial)


def cumulative_prod(x: Any, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Tensor:
    """Running products along an axis, with a leading 1 if `include_initial`."""
    return _running(r.CUMPROD, x, axis, dtype, include_initial)


def cumprod(x: Any, axis: int | None = None, dtype: Any = None) -> Tensor:
    """Running products along an axis; of the flattened array when it is None."""
    return _running(r.CUMPROD, asarray(x).reshape(-1) if axis is None else x, axis, dtype, False)


def diff(x: Any, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Tensor:
    """Differences of neighbours along an axis, n times over."""
    tensor = asarray(x)
    if n < 0:
        raise ShapeError(f"diff: n={n}; expected 0 or more.")
    (place,) = normalize_axes("diff", axis, tensor.ndim)
    parts = [_edge(edge, tensor, place) for edge in (prepend,) if edge is not None]
    parts += [tensor] + [_edge(edge, tensor, place) for edge in (append,) if edge is not None]
    tensor = f.concat(parts, place) if len(parts) > 1 else tensor
    lead = (slice(None),) * place
    for _ in range(n):
        later, earlier = tensor[(*lead, slice(1, None))], tensor[(*lead, slice(None, -1))]
        tensor = f.not_equal(later, earlier) if tensor.dtype.kind == "b" else later - earlier
    return tensor


def _edge(edge: Any, x: Tensor, axis: int) -> Tensor:
    value = asarray(edge)
    return value if value.ndim else value.broadcast_to((*x.shape[:axis], 1, *x.shape[axis + 1 :]))


def ediff1d(x: Any) -> Tensor:
    """Differences of neighbours of the flattened array."""
    return diff(asarray(x).reshape(-1))


def trapezoid(y: Any, x: Any = None, dx: float = 1.0, axis: int = -1) -> Tensor:
    """The integral by the trapezoidal rule."""
    values = inexact(y)
    (place,) = normalize_axes("trapezoid", axis, values.ndim)
    lead = (slice(None),) * place
    steps: Any = dx
    if x is not None:
        grid = inexact(x)
        steps = diff(grid, axis=place if grid.ndim > 1 else 0)
        if grid.ndim == 1:
            steps = steps.reshape((-1,) + (1,) * (values.ndim - place - 1))
    pairs = values[(*lead, slice(1, None))] + values[(*lead, slice(None, -1))]
    return f.sum(pairs * steps * 0.5, place)


def gradient(x: Any, *spacing: Any, axis: Axis = None, edge_order: int = 1) -> Any:
    """Central differences along axes, one array per axis."""
    tensor = inexact(x)
    steps = [step if isinstance(step, int | float) else asarray(step) for step in spacing]
    arrays = [step for step in steps if isinstance(step, Tensor)]
    plan = tuple(None if isinstance(step, Tensor) else step for step in steps)
    parts = host_parts("gradient", _gradient, tensor, *arrays, plan=plan, axis=axis, edge_order=edge_order)
    parts = tuple(part.astype(tensor.dtype, copy=False) for part in parts)
    return parts if len(parts) > 1 else parts[0]


def _gradient(x: Any, *arrays: Any, plan: Any, axis: Any, edge_order: int) -> Any:
    supply = iter(arrays)
    steps = [next(supply) if step is None else step for step in plan]
    function: Any = np.gradient
    return function(x, *steps, axis=axis, edge_order=edge_order)


def ptp(x: Any, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The largest less the smallest, over axes."""
    return f.max(x, axis, keepdims) - f.min(x, axis, keepdims)


def average(x: Any, axis: Axis = None, weights: Any = None, keepdims: bool = False) -> Tensor:
    """The weighted mean over axes; weights may be one vector along the axis."""
    values = inexact(x)
    if weights is None:
        return values.mean(axis, keepdims=keepdims)
    scale = inexact(weights)
    if scale.shape != values.shape:
        if not isinstance(axis, int) or scale.ndim != 1:
            raise ShapeError(f"average: weights {scale.shape} for {values.shape}; give one per element of one axis.")
        (place,) = normalize_axes("average", axis, values.ndim)
        scale = scale.reshape((-1,) + (1,) * (values.ndim - place - 1))
    total = f.broadcast_to(scale, values.shape).sum(axis, keepdims=keepdims)
    return (values * scale).sum(axis, keepdims=keepdims) / total


def logsumexp(x: Any, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """log(sum(exp(x))) over axes, without overflow on the way."""
    values = inexact(x)
    top = values.max(axis, keepdims=True)
    top = f.where(f.isfinite(top), top, 0.0)
    result = f.log(f.exp(values - top).sum(axis, keepdims=True)) + top
    return result if keepdims else result.squeeze(normalize_axes("logsumexp", axis, values.ndim))


def _ordered(name: str, function: Callable[..., Any], x: Any, **options: Any) -> Tensor:
    values = inexact(x)
    return host(name, function, values, **options).astype(values.dtype, copy=False)


def _fixed(axis: Axis) -> int | tuple[int, ...] | None:
    return axis if axis is None or isinstance(axis, int) else tuple(axis)


def median(x: Any, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The middle value over axes; NaN propagates."""
    return _ordered("median", np.median, x, axis=_fixed(axis), keepdims=keepdims)


def quantile(x: Any, q: Any, axis: Axis = None, method: str = "linear", keepdims: bool = False) -> Tensor:
    """The value below which a share q of the elements lies."""
    return _quantile("quantile", np.quantile, x, q, axis, method, keepdims)


def percentile(x: Any, q: Any, axis: Axis = None, method: str = "linear", keepdims: bool = False) -> Tensor:
    """The value below which q percent of the elements lie."""
    return _quantile("percentile", np.percentile, x, q, axis, method, keepdims)


def nanquantile(x: Any, q: Any, axis: Axis = None, method: str = "linear", keepdims: bool = False) -> Tensor:
    """The quantile of the elements that are not NaN."""
    return _quantile("nanquantile", np.nanquantile, x, q, axis, method, keepdims)


def nanpercentile(x: Any, q: Any, axis: Axis = None, method: str = "linear", keepdims: bool = False) -> Tensor:
    """The percentile of the elements that are not NaN."""
    return _quantile("nanpercentile", np.nanpercentile, x, q, axis, method, keepdims)


def _quantile(
    name: str, function: Callable[..., Any], x: Any, q: Any, axis: Axis, method: str, keepdims: bool
) -> Tensor:
    values, shares = inexact(x), inexact(q).astype("float64")
    result = host(name, function, values, shares, axis=_fixed(axis), method=method, keepdims=keepdims)
    return result.astype(values.dtype, copy=False)


def nanmedian(x: Any, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The middle value of the elements that are not NaN."""
    return _ordered("nanmedian", np.nanmedian, x, axis=_fixed(axis), keepdims=keepdims)


def _without_nan(x: Any, fill: Any) -> Tensor:
    tensor = asarray(x)
    return f.where(f.isnan(tensor), fill, tensor) if tensor.dtype.kind in "fc" else tensor


def nansum(x: Any, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Tensor:
    """The sum of the elements that are not NaN."""
    return f.sum(_without_nan(x, 0), axis, dtype, keepdims)


def nanprod(x: Any, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Tensor:
    """The product of the elements that are not NaN."""
    return f.prod(_without_nan(x, 1), axis, dtype, keepdims)


def nancumsum(x: Any, axis: int | None = None) -> Tensor:
    """Running sums that take NaN for 0."""
    return f.cumsum(_without_nan(x, 0), axis)


def nancumprod(x: Any, axis: int | None = None) -> Tensor:
    """Running products that take NaN for 1."""
    return cumprod(_without_nan(x, 1), axis)


def nanmax(x: Any, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The largest element that is not NaN; NaN where there is none."""
    return _nan_extreme(x, f.max, -np.inf, axis, keepdims)


def nanmin(x: Any, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The smallest element that is not NaN; NaN where there is none."""
    return _nan_extreme(x, f.min, np.inf, axis, keepdims)


def _nan_extreme(x: Any, reduce: Callable[..., Tensor], fill: float, axis: Axis, keepdims: bool) -> Tensor:
    tensor = asarray(x)
    if not tensor.dtype.is_float:
        return reduce(tensor, axis, keepdims)
    result = reduce(_without_nan(tensor, fill), axis, keepdims)
    return f.where(f.all(f.isnan(tensor), axis, keepdims), np.nan, result)


def nanargmax(x: Any, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The index of the first largest element that is not NaN."""
    return f.argmax(_without_nan(x, -np.inf), axis, keepdims)


def nanargmin(x: Any, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The index of the first smallest element that is not NaN."""
    return f.argmin(_without_nan(x, np.inf), axis, keepdims)


def _count(x: Tensor, axis: Axis, keepdims: bool) -> Tensor:
    return f.logical_not(f.isnan(x)).sum(axis, keepdims=keepdims)


def nanmean(x: Any, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The mean of the elements that are not NaN."""
    values = inexact(x)
    return nansum(values, axis, None, keepdims) / _count(values, axis, keepdims).astype(values.dtype)


def nanvar(x: Any, axis: Axis = None, correction: float = 0, keepdims: bool = False) -> Tensor:
    """The variance of the elements that are not NaN."""
    values = inexact(x)
    centred = values - nanmean(values, axis, True)
    count = _count(values, axis, keepdims).astype(values.dtype) - correction
    total = nansum(centred * centred, axis, None, keepdims)
    return f.where(count > 0, total / count, np.nan)


def nanstd(x: Any, axis: Axis = None, correction: float = 0, keepdims: bool = False) -> Tensor:
    """The standard deviation of the elements that are not NaN."""
    return f.sqrt(nanvar(x, axis, correction, keepdims))


def _bins(bins: Any) -> list[Tensor]:
    return [] if isinstance(bins, int | str) else [asarray(bins)]


def histogram(
    x: Any, bins: Any = 10, range: Sequence[float] | None = None, density: bool = False, weights: Any = None
) -> tuple[Tensor, Tensor]:
    """How many elements lie in each bin, and the bins' edges; bins are half open but for the last."""
    arrays = _bins(bins)
    values = asarray(x)
    if weights is not None:
        arrays.append(asarray(weights))
    count = bins if isinstance(bins, int | str) else None
    limits = None if range is None else tuple(range)
    given = {"bins": count, "range": limits, "density": density, "weighted": weights is not None}
    counts, edges = host_parts("histogram", _histogram, values, *arrays, by_value=isinstance(bins, str), **given)
    return counts, edges.astype(inexact(values).dtype, copy=False)


def _histogram(x: Any, *arrays: Any, bins: Any, range: Any, density: bool, weighted: bool) -> Any:
    weights = arrays[-1] if weighted else None
    chosen = arrays[0] if bins is None else bins
    return np.histogram(x, chosen, range, density, weights)


def histogram_bin_edges(x: Any, bins: Any = 10, range: Sequence[float] | None = None) -> Tensor:
    """The edges that histogram uses."""
    return histogram(x, bins, range)[1]


def bincount(x: Any, weights: Any = None, minlength: int = 0) -> Tensor:
    """How often each of 0, 1, 2, ... appears, or the sum of its weights."""
    tensors = [asarray(x)] + ([] if weights is None else [asarray(weights)])
    result = host("bincount", np.bincount, *tensors, by_value=True, minlength=minlength)
    return result if weights is None else result.astype(inexact(tensors[1]).dtype, copy=False)


def interp(x: Any, points: Any, values: Any, left: float | None = None, right: float | None = None) -> Tensor:
    """Piecewise linear interpolation through (points, values)."""
    known = inexact(values)
    result = host("interp", np.interp, asarray(x), asarray(points), known, left=left, right=right)
    return result.astype(known.dtype, copy=False)


def convolve(a: Any, b: Any, mode: str = "full") -> Tensor:
    """The discrete convolution of two vectors."""
    return host("convolve", np.convolve, *promoted([a, b]), mode=mode)


def correlate(a: Any, b: Any, mode: str = "valid") -> Tensor:
    """The cross-correlation of two vectors."""
    return host("correlate", np.correlate, *promoted([a, b]), mode=mode)


def cov(x: Any, rowvar: bool = True, bias: bool = False, ddof: int | None = None) -> Tensor:
    """The covariance matrix; each row is a variable unless rowvar is False."""
    values = inexact(x)
    values = values.reshape((1, -1)) if values.ndim == 1 else values if rowvar else values.T
    correction = ddof if ddof is not None else int(not bias)
    centred = values - values.mean(-1, keepdims=True)
    result = f.divide(matmul(centred, _conj(centred).T), values.shape[-1] - correction)
    return result.reshape(()) if result.size == 1 else result


def _conj(x: Tensor) -> Tensor:
    return x.conj() if x.dtype.kind == "c" else x


def corrcoef(x: Any, rowvar: bool = True) -> Tensor:
    """The correlation matrix; each row is a variable unless rowvar is False."""
    matrix = cov(x, rowvar)
    if not matrix.ndim:
        return matrix / matrix
    rows = np.arange(matrix.shape[0])
    spread = f.sqrt(matrix[rows, rows])
    return matrix / spread.expand_dims(1) / spread.expand_dims(0)
