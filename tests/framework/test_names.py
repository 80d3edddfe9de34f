"""NumPy's names: each function against NumPy's of the same name, on floats, integers and odd layouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import plait as pl

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(7)
F = RNG.normal(0, 2, (3, 4, 5)).astype(np.float32)
M = RNG.normal(0, 2, (4, 5)).astype(np.float32)
V = RNG.normal(0, 2, 6).astype(np.float32)
HOLES = np.where(RNG.random((4, 5)) < 0.3, np.nan, M).astype(np.float32)
WHOLE = RNG.integers(-5, 6, (4, 5))
N = RNG.integers(0, 6, 12)
C = (M + 1j * M[::-1]).astype(np.complex64)
SPECIAL = np.array([0.0, -0.0, 1.5, -2.5, np.inf, -np.inf, np.nan, 3e38, 1e-40], np.float32)
B = M > 0

# Each case is called with (namespace, to_array): once with plait, once with NumPy.
CASES: dict[str, Callable[[Any, Callable[[Array], Any]], Any]] = {
    "abs complex": lambda p, a: p.abs(a(C)),
    "real": lambda p, a: p.real(a(C)),
    "imag": lambda p, a: p.imag(a(C)),
    "imag of reals": lambda p, a: p.imag(a(M)),
    "conj": lambda p, a: p.conj(a(C)),
    "angle": lambda p, a: p.angle(a(C)),
    "angle of reals": lambda p, a: p.angle(a(SPECIAL)),
    "exp complex": lambda p, a: p.exp(a(C)),
    "sin complex": lambda p, a: p.sin(a(C)),
    "expm1 complex": lambda p, a: p.expm1(a(C / 8)),
    "tanh complex": lambda p, a: p.tanh(a(C)),
    "power complex": lambda p, a: p.power(a(C), a(C)),
    "complex product": lambda p, a: a(C) * a(C) + 1j,
    "complex matmul": lambda p, a: p.matmul(a(C), a(C.T)),
    "signbit": lambda p, a: p.signbit(a(SPECIAL)),
    "nextafter": lambda p, a: p.nextafter(a(SPECIAL), a(SPECIAL[::-1])),
    "hypot": lambda p, a: p.hypot(a(SPECIAL), a(SPECIAL[::-1])),
    "logaddexp": lambda p, a: p.logaddexp(a(SPECIAL), a(SPECIAL[::-1])),
    "logaddexp2": lambda p, a: p.logaddexp2(a(M), a(M[::-1])),
    "gcd": lambda p, a: p.gcd(a(WHOLE), a(WHOLE[::-1])),
    "lcm": lambda p, a: p.lcm(a(WHOLE), a(WHOLE[::-1])),
    "fmod": lambda p, a: p.fmod(a(M), 1.5),
    "fmod of integers": lambda p, a: p.fmod(a(WHOLE), 3),
    "divmod": lambda p, a: p.divmod(a(WHOLE), 3),
    "modf": lambda p, a: p.modf(a(SPECIAL)),
    "frexp": lambda p, a: p.frexp(a(M)),
    "ldexp": lambda p, a: p.ldexp(a(M), a(WHOLE)),
    "fmax": lambda p, a: p.fmax(a(HOLES), a(M[::-1])),
    "fmin": lambda p, a: p.fmin(a(HOLES), a(M[::-1])),
    "fmax of integers": lambda p, a: p.fmax(a(WHOLE), a(WHOLE[::-1])),
    "fabs": lambda p, a: p.fabs(a(M)),
    "cbrt": lambda p, a: p.cbrt(a(M)),
    "deg2rad": lambda p, a: p.deg2rad(a(M)),
    "degrees": lambda p, a: p.degrees(a(M)),
    "sinc": lambda p, a: p.sinc(a(np.array([0, 0.25, -1.5], np.float32))),
    "heaviside": lambda p, a: p.heaviside(a(SPECIAL), 0.5),
    "i0": lambda p, a: p.i0(a(M)),
    "isposinf": lambda p, a: p.isposinf(a(SPECIAL)),
    "isneginf": lambda p, a: p.isneginf(a(SPECIAL)),
    "nan_to_num": lambda p, a: p.nan_to_num(a(SPECIAL)),
    "nan_to_num given": lambda p, a: p.nan_to_num(a(SPECIAL), nan=1.0, posinf=2.0, neginf=3.0),
    "isclose": lambda p, a: p.isclose(a(SPECIAL), a(SPECIAL * np.float32(1.000001))),
    "isclose nan": lambda p, a: p.isclose(a(SPECIAL), a(SPECIAL), equal_nan=True),
    "rint": lambda p, a: p.rint(a(SPECIAL)),
    "round decimals": lambda p, a: p.round(a(M), 1),
    "spacing": lambda p, a: p.spacing(a(M)),
    "unwrap": lambda p, a: p.unwrap(a(V * 3)),
    "bitwise_count": lambda p, a: p.bitwise_count(a(WHOLE)),
    "invert": lambda p, a: p.invert(a(WHOLE)),
    "clip": lambda p, a: p.clip(a(M), -1, 1),
    "clip by arrays": lambda p, a: p.clip(a(M), a(-np.abs(M[0])), a(np.abs(M[1]))),
    "broadcast_arrays": lambda p, a: p.broadcast_arrays(a(M), a(V[:5]), a(F)),
    "unstack": lambda p, a: p.unstack(a(F), axis=1),
    "matrix_transpose": lambda p, a: p.matrix_transpose(a(F)),
    "roll": lambda p, a: p.roll(a(M), 7),
    "roll axes": lambda p, a: p.roll(a(M), (1, -2), (0, 1)),
    "roll one shift": lambda p, a: p.roll(a(M), 3, axis=(0, 1)),
    "repeat": lambda p, a: p.repeat(a(M), 3),
    "repeat axis": lambda p, a: p.repeat(a(M), 2, axis=1),
    "repeat counts": lambda p, a: p.repeat(a(M), a(np.array([0, 2, 1, 3])), axis=0),
    "tile": lambda p, a: p.tile(a(M), (2, 1, 3)),
    "tile short": lambda p, a: p.tile(a(F), 2),
    "meshgrid": lambda p, a: p.meshgrid(a(V), a(M[0]), a(N)),
    "meshgrid ij": lambda p, a: p.meshgrid(a(V), a(M[0]), indexing="ij"),
    "meshgrid sparse": lambda p, a: p.meshgrid(a(V), a(M[0]), sparse=True),
    "atleast_1d": lambda p, a: p.atleast_1d(a(V), a(V[0:1].reshape(()))),
    "atleast_2d": lambda p, a: p.atleast_2d(a(V)),
    "atleast_3d": lambda p, a: p.atleast_3d(a(V), a(M), a(F)),
    "vstack": lambda p, a: p.vstack([a(V), a(V)]),
    "hstack": lambda p, a: p.hstack([a(M), a(M)]),
    "hstack of vectors": lambda p, a: p.hstack([a(V), a(V)]),
    "dstack": lambda p, a: p.dstack([a(M), a(M)]),
    "column_stack": lambda p, a: p.column_stack([a(V), a(V)]),
    "block": lambda p, a: p.block([[a(M), a(M)], [a(M), a(-M)]]),
    "array_split": lambda p, a: p.array_split(a(V), 4),
    "array_split indices": lambda p, a: p.array_split(a(M), [1, 3], axis=1),
    "hsplit": lambda p, a: p.hsplit(a(M), 5),
    "vsplit": lambda p, a: p.vsplit(a(M), 2),
    "dsplit": lambda p, a: p.dsplit(a(F), [2]),
    "rot90": lambda p, a: p.rot90(a(M)),
    "rot90 thrice": lambda p, a: p.rot90(a(F), 3, (0, 2)),
    "rollaxis": lambda p, a: p.rollaxis(a(F), 2),
    "append": lambda p, a: p.append(a(M), a(M), 0),
    "delete": lambda p, a: p.delete(a(M), [0, 2], 1),
    "delete slice": lambda p, a: p.delete(a(V), slice(1, 3)),
    "insert": lambda p, a: p.insert(a(M), 1, a(V[:5]), 0),
    "insert several": lambda p, a: p.insert(a(V), [1, 3], 9.0),
    "resize": lambda p, a: p.resize(a(V), (3, 5)),
    "trim_zeros": lambda p, a: p.trim_zeros(a(np.array([0, 0, 1, 0, 2, 0]))),
    "diagonal": lambda p, a: p.diagonal(a(F), 1, 0, 2),
    "diagonal below": lambda p, a: p.diagonal(a(M), -2),
    "diag of a vector": lambda p, a: p.diag(a(V), -1),
    "diag of a matrix": lambda p, a: p.diag(a(M), 2),
    "diagflat": lambda p, a: p.diagflat(a(M), 1),
    "trace": lambda p, a: p.trace(a(F)),
    "pad edge": lambda p, a: p.pad(a(M), ((1, 2), (3, 0)), mode="edge"),
    "pad reflect": lambda p, a: p.pad(a(M), ((6, 2), (3, 9)), mode="reflect"),
    "pad symmetric": lambda p, a: p.pad(a(M), 3, mode="symmetric"),
    "pad wrap": lambda p, a: p.pad(a(M), (7, 1), mode="wrap"),
    "tri": lambda p, a: p.tri(3, 5, 1),
    "vander": lambda p, a: p.vander(a(V), 4),
    "logspace": lambda p, a: p.logspace(0, 2, 5),
    "geomspace": lambda p, a: p.geomspace(1, 100, 5),
    "indices": lambda p, a: p.indices((2, 3)),
    "tril_indices": lambda p, a: p.tril_indices(4, 1),
    "hanning": lambda p, a: p.hanning(7),
    "sort": lambda p, a: p.sort(a(HOLES), axis=0),
    "argsort": lambda p, a: p.argsort(a(WHOLE), axis=0, stable=True),
    "lexsort": lambda p, a: p.lexsort((a(N), a(N % 3))),
    "unique": lambda p, a: p.unique(a(WHOLE), return_index=True, return_inverse=True, return_counts=True),
    "unique_values": lambda p, a: p.unique_values(a(SPECIAL)),
    "unique_counts": lambda p, a: p.unique_counts(a(WHOLE)),
    "unique_inverse": lambda p, a: p.unique_inverse(a(WHOLE)),
    "unique_all": lambda p, a: p.unique_all(a(HOLES)),
    "nonzero": lambda p, a: p.nonzero(a(WHOLE)),
    "argwhere": lambda p, a: p.argwhere(a(WHOLE)),
    "flatnonzero": lambda p, a: p.flatnonzero(a(WHOLE)),
    "count_nonzero": lambda p, a: p.count_nonzero(a(WHOLE), axis=1),
    "searchsorted": lambda p, a: p.searchsorted(a(np.sort(V)), a(M), side="right"),
    "searchsorted sorter": lambda p, a: p.searchsorted(a(V), a(M), sorter=a(np.argsort(V))),
    "digitize": lambda p, a: p.digitize(a(M), a(np.array([-1, 0, 1], np.float32))),
    "take_along_axis": lambda p, a: p.take_along_axis(a(M), a(np.abs(WHOLE) % 4)[:2], axis=0),
    "extract": lambda p, a: p.extract(a(B), a(M)),
    "compress": lambda p, a: p.compress([0, 1, 1], a(M), axis=1),
    "select": lambda p, a: p.select([a(M) > 1, a(M) > 0], [a(M), -a(M)], 7),
    "choose": lambda p, a: p.choose(a(N % 3), [a(N), a(-N), a(N * 2)]),
    "isin": lambda p, a: p.isin(a(WHOLE), [1, 2]),
    "intersect1d": lambda p, a: p.intersect1d(a(WHOLE), a(N)),
    "union1d": lambda p, a: p.union1d(a(WHOLE), a(N)),
    "setdiff1d": lambda p, a: p.setdiff1d(a(WHOLE), a(N)),
    "setxor1d": lambda p, a: p.setxor1d(a(WHOLE), a(N)),
    "unravel_index": lambda p, a: p.unravel_index(a(N), (3, 4)),
    "ravel_multi_index": lambda p, a: p.ravel_multi_index((a(N % 3), a(N % 4)), (3, 4)),
    "cumulative_sum": lambda p, a: p.cumulative_sum(a(WHOLE), axis=1, include_initial=True),
    "cumulative_prod": lambda p, a: p.cumulative_prod(a(M), axis=0, include_initial=True),
    "cumprod": lambda p, a: p.cumprod(a(WHOLE)),
    "diff": lambda p, a: p.diff(a(M), 2, 0),
    "diff edges": lambda p, a: p.diff(a(M), axis=1, prepend=0.0, append=a(M[:, :2])),
    "diff of bools": lambda p, a: p.diff(a(B)),
    "trapezoid": lambda p, a: p.trapezoid(a(M), axis=0),
    "trapezoid over x": lambda p, a: p.trapezoid(a(M), a(np.cumsum(np.abs(M[0])))),
    "gradient": lambda p, a: p.gradient(a(M)),
    "gradient spaced": lambda p, a: p.gradient(a(M), 2.0, axis=1),
    "ptp": lambda p, a: p.ptp(a(M), axis=0),
    "average": lambda p, a: p.average(a(M), axis=0, weights=a(np.array([1, 2, 3, 4], np.float32))),
    "median": lambda p, a: p.median(a(M), axis=1),
    "quantile": lambda p, a: p.quantile(a(M), [0.1, 0.5], axis=0),
    "percentile": lambda p, a: p.percentile(a(M), 30, method="nearest"),
    "nanmedian": lambda p, a: p.nanmedian(a(HOLES), axis=0),
    "nanquantile": lambda p, a: p.nanquantile(a(HOLES), 0.3, axis=0),
    "nansum": lambda p, a: p.nansum(a(HOLES), axis=0),
    "nanprod": lambda p, a: p.nanprod(a(HOLES), axis=1),
    "nanmean": lambda p, a: p.nanmean(a(HOLES), axis=0),
    "nanmax": lambda p, a: p.nanmax(a(HOLES), axis=0),
    "nanmin": lambda p, a: p.nanmin(a(HOLES)),
    "nanargmax": lambda p, a: p.nanargmax(a(HOLES), axis=1),
    "nancumsum": lambda p, a: p.nancumsum(a(HOLES), axis=1),
    "nanstd": lambda p, a: p.nanstd(a(HOLES), axis=0),
    "histogram": lambda p, a: p.histogram(a(M), 5),
    "histogram edges": lambda p, a: p.histogram(a(M), a(np.array([-2, 0, 1, 2], np.float32))),
    "histogram density": lambda p, a: p.histogram(a(M), 4, (-1, 1), density=True),
    "bincount": lambda p, a: p.bincount(a(N), minlength=9),
    "bincount weights": lambda p, a: p.bincount(a(N), a(np.linspace(0, 1, 12).astype(np.float32))),
    "interp": lambda p, a: p.interp(a(M), a(np.sort(V)), a(V)),
    "convolve": lambda p, a: p.convolve(a(V), a(M[0]), "same"),
    "correlate": lambda p, a: p.correlate(a(V), a(M[0])),
    "cov": lambda p, a: p.cov(a(M)),
    "cov of a vector": lambda p, a: p.cov(a(V)),
    "corrcoef": lambda p, a: p.corrcoef(a(M)),
    "dot": lambda p, a: p.dot(a(F), a(M[0])),
    "dot matrices": lambda p, a: p.dot(a(M.T), a(F)),
    "inner": lambda p, a: p.inner(a(F), a(M)),
    "vdot": lambda p, a: p.vdot(a(C), a(C[::-1])),
    "vecdot": lambda p, a: p.vecdot(a(C), a(C[::-1]), axis=0),
    "outer": lambda p, a: p.outer(a(M), a(V)),
    "kron": lambda p, a: p.kron(a(M), a(V)),
    "cross": lambda p, a: p.cross(a(M[:, :3]), a(M[:, 1:4])),
    "tensordot": lambda p, a: p.tensordot(a(F), a(M), axes=((1, 2), (0, 1))),
    "tensordot none": lambda p, a: p.tensordot(a(V), a(V), axes=0),
    "sliding_window_view": lambda p, a: (
        p.lib.stride_tricks.sliding_window_view(a(V), 3) if p is np else p.sliding_window_view(a(V), 3)
    ),
}


def _parts(value: Any) -> list[Array]:
    return [np.asarray(part) for part in (value if isinstance(value, tuple | list) else (value,))]


def _agree(found: Any, expected: Any, name: str) -> None:
    assert isinstance(found, tuple | list) == isinstance(expected, tuple | list), name
    results, goals = _parts(found), _parts(expected)
    assert len(results) == len(goals)
    for result, goal in zip(results, goals, strict=True):
        assert result.shape == goal.shape
        assert result.dtype.kind == goal.dtype.kind
        if goal.dtype.kind in "fc":  # plait stays in the operand's precision; sums differ in their order
            np.testing.assert_allclose(result, goal, rtol=2e-5, atol=2e-5)
        else:
            np.testing.assert_array_equal(result, goal)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", CASES)
def test_a_function_equals_numpys(name: str, jit: int) -> None:
    case = CASES[name]
    expected = case(np, lambda x: x)
    _agree(case(pl, lambda x: pl.asarray(x, copy=True)), expected, name)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", CASES)
def test_a_function_reads_strided_operands(name: str) -> None:
    def spread(x: Array) -> pl.Tensor:
        if not x.ndim:
            return pl.asarray(x, copy=True)
        return pl.asarray(np.repeat(x, 2, axis=-1)[..., ::-1], copy=True)[..., ::-2]

    _agree(CASES[name](pl, spread), CASES[name](np, lambda x: x), name)


@pytest.mark.parametrize("dtype", [pl.float16, pl.bfloat16])
def test_host_functions_give_the_16_bit_dtype_back(dtype: pl.DType) -> None:
    x = pl.asarray([1.0, 8.0, 27.0]).astype(dtype)
    assert pl.cbrt(x).dtype is dtype and pl.median(x).dtype is dtype
    assert pl.cbrt(x).astype(pl.float32).tolist() == [1.0, 2.0, 3.0]


def test_integers_become_the_default_float_where_numpy_says_float64() -> None:
    x = pl.arange(5)
    for result in (pl.median(x), pl.cbrt(x), pl.quantile(x, 0.5), pl.cov(x), pl.hypot(x, x), pl.trapezoid(x)):
        assert result.dtype is pl.float32


def test_expm1_of_complex_infinities_is_the_standards() -> None:
    inf, nan = np.inf, np.nan
    given = [complex(inf, 0), complex(-inf, inf), complex(inf, inf), complex(-inf, nan), complex(nan, 0)]
    expected = [complex(inf, 0), -1, complex(inf, nan), -1, complex(nan, 0)]
    found = pl.expm1(pl.asarray(given)).numpy()
    np.testing.assert_array_equal(found.real, np.real(expected))
    np.testing.assert_array_equal(found.imag, np.imag(expected))


def test_descending_sorts_are_stable() -> None:
    keys = pl.asarray([1, 3, 1, 3, 2])
    assert pl.argsort(keys, descending=True).tolist() == [1, 3, 4, 0, 2]
    assert pl.sort(keys, descending=True).tolist() == [3, 3, 2, 1, 1]


def test_top_k_and_bottom_k_give_values_and_indices() -> None:
    values, places = pl.top_k(pl.asarray([[1, 9, 3], [7, 2, 7]]), 2)
    assert values.tolist() == [[9, 3], [7, 7]] and places.tolist() == [[1, 2], [0, 2]]
    assert pl.bottom_k(pl.asarray([4, 1, 2]), 1)[1].tolist() == [1]


def test_put_along_axis_writes_in_place() -> None:
    x = pl.asarray([[1, 2, 3], [4, 5, 6]])
    pl.put_along_axis(x, pl.asarray([[2], [0]]), 0, axis=1)
    assert x.tolist() == [[1, 2, 0], [0, 5, 6]]


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: pl.nonzero(pl.asarray(1)), ValueError, "nonzero: a 0-d array"),
        (lambda: pl.repeat(pl.ones(3), pl.asarray([1, 2])), ValueError, r"repeat: \(2,\) counts for axis 0 of 3"),
        (lambda: pl.repeat(pl.ones(3), -1), ValueError, "repeat: a count is -1"),
        (lambda: pl.roll(pl.ones((2, 2)), (1, 2, 3), (0, 1)), ValueError, "roll: 3 shifts for 2 axes"),
        (lambda: pl.meshgrid(pl.ones(2), indexing="yx"), ValueError, "meshgrid: indexing='yx'"),
        (lambda: pl.cumulative_sum(pl.ones((2, 2))), ValueError, r"cumsum: shape \(2, 2\) has 2 axes"),
        (lambda: pl.take_along_axis(pl.ones(3), pl.ones(3)), TypeError, "take_along_axis: indices are float32"),
        (lambda: pl.top_k(pl.ones(3), 4), ValueError, "top_k: k=4"),
        (lambda: pl.searchsorted(pl.ones((2, 2)), 1.0), ValueError, r"searchsorted: the sorted array has shape"),
        (lambda: pl.hsplit(pl.ones((2, 3)), 2), ValueError, "hsplit: axis 1"),
        (lambda: pl.pad(pl.ones(3), 1, mode="mirror"), ValueError, "pad: mode='mirror'"),
        (lambda: pl.choose(pl.asarray([3]), [pl.ones(1)]), IndexError, "choose: indices reach 3"),
        (lambda: pl.reshape(pl.ones((2, 3)).T, (6,), copy=False), ValueError, "reshape: .* needs a copy"),
    ],
)
def test_errors_name_the_function_and_what_was_found(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call()


def test_allclose_and_array_equal() -> None:
    x = pl.asarray([1.0, np.nan])
    assert not pl.allclose(x, x) and pl.allclose(x, x, equal_nan=True)
    assert not pl.array_equal(x, x) and pl.array_equal(x, x, equal_nan=True)
    assert not pl.array_equal(x, pl.ones(3)) and pl.array_equiv(pl.ones(3), pl.ones((2, 3)))


METHODS: dict[str, Callable[[Any], Any]] = {
    "var": lambda x: x.var(0),
    "std": lambda x: x.std(),
    "clip": lambda x: x.clip(-1, 1),
    "round": lambda x: x.round(1),
    "cumsum": lambda x: x.cumsum(1),
    "cumprod": lambda x: x.cumprod(),
    "argsort": lambda x: x.argsort(0),
    "swapaxes": lambda x: x.swapaxes(0, 1),
    "take": lambda x: x.take([3, -1]),
    "take axis": lambda x: x.take([1, 0], 1),
    "repeat": lambda x: x.repeat(2, 1),
    "diagonal": lambda x: x.diagonal(1),
    "trace": lambda x: x.trace(),
    "dot": lambda x: x.dot(x[0]),
    "conjugate": lambda x: x.conjugate(),
    "nonzero": lambda x: x.nonzero(),
    "searchsorted": lambda x: x[0].cumsum().searchsorted(x[1]),
    "compress": lambda x: x.compress([True, False, True], axis=0),
    "choose": lambda x: (x > 0).astype("int64").choose([x, -x]),
}


@pytest.mark.parametrize("name", METHODS)
def test_a_method_equals_numpys(name: str) -> None:
    square = np.abs(M[:, :4]) if name == "searchsorted" else M[:, :4]
    _agree(METHODS[name](pl.asarray(square, copy=True)), METHODS[name](square), name)


def test_methods_that_write_and_that_describe() -> None:
    x, y = M.copy(), pl.asarray(M, copy=True)
    x.sort(0)
    y.sort(0)
    x.put([0, 3], 5.0)
    y.put([0, 3], 5.0)
    np.testing.assert_array_equal(y.numpy(), x)
    assert y.tobytes() == x.tobytes() and y.itemsize == 4
    assert y.strides == x.strides and y.T[::2].strides == x.T[::2].strides


def test_a_pending_transposed_value_is_flattened() -> None:
    x = (pl.ones((2, 3)) + pl.arange(3)).T.reshape(-1)
    assert x.tolist() == [1, 1, 2, 2, 3, 3]
    assert (pl.ones((2, 3, 4)) + 1).transpose(0, 2, 1).reshape((8, 3)).sum().item() == 48
