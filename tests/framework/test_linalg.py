"""Linear algebra, einsum and Fourier transforms against NumPy and against their definitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import plait as pl

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(3)
A = RNG.normal(size=(2, 4, 4))
R = RNG.normal(size=(3, 5, 4))
S = A @ A.swapaxes(-1, -2) + 4 * np.eye(4)
V = RNG.normal(size=(2, 4))
Z = A + 1j * A[::-1]

LINALG = {
    "cholesky": (S,),
    "det": (A,),
    "inv": (A,),
    "pinv": (R,),
    "eigvalsh": (S,),
    "svdvals": (R,),
    "matrix_rank": (R,),
    "slogdet": (A,),
    "cond": (A,),
    "matrix_norm": (R,),
    "trace": (A,),
    "diagonal": (R,),
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
@pytest.mark.parametrize("name", LINALG)
def test_a_factorisation_equals_numpys(name: str, dtype: str) -> None:
    arrays = [array.astype(dtype) for array in LINALG[name]]
    found = getattr(pl.linalg, name)(*(pl.asarray(array) for array in arrays))
    expected = getattr(np.linalg, name)(*arrays)
    pairs = zip(found, expected, strict=True) if isinstance(found, tuple) else [(found, expected)]
    for result, goal in pairs:
        assert np.asarray(result).dtype == goal.dtype
        np.testing.assert_allclose(np.asarray(result), goal, rtol=2e-4, atol=1e-4)


def test_factors_multiply_back() -> None:
    x = pl.asarray(R)
    u, s, vh = pl.linalg.svd(x, full_matrices=False)
    np.testing.assert_allclose(((u * s[:, None, :]) @ vh).numpy(), R, atol=1e-12)
    q, r = pl.linalg.qr(x)
    np.testing.assert_allclose((q @ r).numpy(), R, atol=1e-12)
    values, vectors = pl.linalg.eigh(pl.asarray(S))
    np.testing.assert_allclose((vectors * values[:, None, :] @ vectors.mT).numpy(), S, atol=1e-10)
    np.testing.assert_allclose(pl.linalg.matrix_power(pl.asarray(A), -2).numpy(), np.linalg.inv(A @ A), rtol=1e-8)


def test_solve_takes_a_vector_or_matrices() -> None:
    for b in (V[0], A):
        found = pl.linalg.solve(pl.asarray(A), pl.asarray(b))
        np.testing.assert_allclose(found.numpy(), np.linalg.solve(A, b), rtol=1e-9)


@pytest.mark.parametrize("order", [0, 1, 2, 3, np.inf, -np.inf])
def test_vector_norm(order: float) -> None:
    found = pl.linalg.vector_norm(pl.asarray(R), axis=(0, 2), ord=order, keepdims=True)
    np.testing.assert_allclose(found.numpy(), np.linalg.vector_norm(R, axis=(0, 2), ord=order, keepdims=True))


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: pl.linalg.inv(pl.ones((2, 3))), ValueError, r"inv: shape \(2, 3\); expected square"),
        (lambda: pl.linalg.inv(pl.zeros((2, 2))), np.linalg.LinAlgError, r"inv: Singular matrix \(shape \(2, 2\)\)"),
        (lambda: pl.linalg.outer(pl.ones((2, 2)), pl.ones(2)), ValueError, "outer: shapes"),
        (lambda: pl.linalg.cross(pl.ones(2), pl.ones(2)), ValueError, "cross: axis -1"),
        (lambda: pl.tensordot(pl.ones((2, 3)), pl.ones((2, 3)), 1), ValueError, "tensordot: shapes"),
        (lambda: pl.linalg.qr(pl.ones((2, 2)), mode="r"), ValueError, "qr: mode='r'"),
        (lambda: pl.einsum("ij,jk->ik", pl.ones((2, 3)), pl.ones((4, 5))), ValueError, "axis 'j'"),
        (lambda: pl.einsum("ij->ik", pl.ones((2, 3))), ValueError, "names an axis twice or one that no term has"),
        (lambda: pl.einsum("i,i", pl.ones(2)), ValueError, "2 terms for 1 arrays"),
        (lambda: pl.einsum("i", pl.ones((2, 2))), ValueError, r"term 'i' for an array of shape \(2, 2\)"),
        (lambda: pl.fft.rfft(pl.asarray([1j])), TypeError, "rfft: dtype complex64"),
    ],
)
def test_errors_name_the_function_and_what_was_found(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call()


EINSUMS = [
    ("ij,jk->ik", (3, 4), (4, 5)),
    ("ij,jk", (3, 4), (4, 5)),
    ("bij,bjk->bki", (2, 3, 4), (2, 4, 5)),
    ("bhqd,bhkd->bhqk", (2, 3, 4, 5), (2, 3, 6, 5)),
    ("ii", (4, 4)),
    ("ii->i", (4, 4)),
    ("iij->ji", (4, 4, 3)),
    ("ij->", (3, 4)),
    ("i,j->ji", (3,), (4,)),
    ("i,i", (3,), (3,)),
    ("ij,ij,jk->k", (3, 4), (3, 4), (4, 5)),
    ("ij,jk,kl,lm->im", (3, 4), (4, 5), (5, 2), (2, 3)),
    ("...ij,...jk->...ik", (2, 3, 4), (4, 5)),
    ("...i->...", (2, 3, 4)),
    ("i...,i...", (3, 2), (3, 1)),
    ("ij,j->ij", (3, 4), (1,)),
    ("ijk,jil->kl", (3, 4, 5), (4, 3, 2)),
    ("ab,cd->abcd", (2, 3), (4, 5)),
    ("ij,k->i", (3, 4), (5,)),
    ("ij,jk->ik", (0, 4), (4, 5)),
    ("ij,jk->ik", (3, 0), (0, 5)),
]


@pytest.mark.parametrize("case", EINSUMS, ids=[f"{expression} {shapes}" for expression, *shapes in EINSUMS])
@pytest.mark.parametrize("dtype", ["int64", "float64", "complex128"])
def test_einsum_equals_numpys(case: tuple[Any, ...], dtype: str, jit: int) -> None:
    expression, *shapes = case
    arrays = [RNG.integers(-4, 5, shape).astype(dtype) for shape in shapes]  # whole numbers: every order is exact
    found = pl.einsum(expression, *(pl.asarray(array) for array in arrays))
    np.testing.assert_array_equal(found.numpy(), np.einsum(expression, *arrays))


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_einsum_of_any_names_equals_numpys(data: st.DataObject) -> None:
    size = {name: data.draw(st.integers(0, 3)) for name in "abcd"}
    terms = data.draw(st.lists(st.text("abcd", max_size=3), min_size=1, max_size=3))
    result = "".join(data.draw(st.permutations(sorted({*"".join(terms)}))))
    result = result[: data.draw(st.integers(0, len(result)))]
    expression = ",".join(terms) + "->" + result
    arrays = [RNG.integers(-3, 4, tuple(size[name] for name in term)) for term in terms]
    found = pl.einsum(expression, *(pl.asarray(array) for array in arrays))
    np.testing.assert_array_equal(found.numpy(), np.einsum(expression, *arrays))


FFT = {
    "fft": ({"n": 6}, Z),
    "ifft": ({"axis": 0, "norm": "ortho"}, Z),
    "fftn": ({"s": (3, 5)}, Z),
    "ifftn": ({"axes": (0, 2)}, Z),
    "rfft": ({"n": 7, "norm": "forward"}, A),
    "irfft": ({}, Z),
    "rfftn": ({}, A),
    "irfftn": ({"axes": (0, 1)}, Z),
    "hfft": ({}, Z),
    "ihfft": ({}, A),
    "fft2": ({}, A),
    "fftshift": ({"axes": 1}, A),
    "ifftshift": ({}, A),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", FFT)
def test_a_transform_equals_numpys(name: str) -> None:
    options, array = FFT[name]
    expected_options = dict(options, axes=(1, 2)) if "s" in options else options
    for dtype in (array.dtype, np.dtype("complex64" if array.dtype.kind == "c" else "float32")):
        values = array.astype(dtype)
        found = getattr(pl.fft, name)(pl.asarray(values), **options).numpy()
        expected = getattr(np.fft, name)(values, **expected_options)
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_frequencies_are_the_default_float() -> None:
    assert pl.fft.fftfreq(5, d=0.5).dtype is pl.float32
    np.testing.assert_allclose(pl.fft.fftfreq(5, d=0.5, dtype=pl.float64).numpy(), np.fft.fftfreq(5, 0.5))
    np.testing.assert_allclose(pl.fft.rfftfreq(5).numpy(), np.fft.rfftfreq(5), rtol=1e-6)


def test_host_functions_run_in_a_compiled_function() -> None:
    def steps(x: pl.Tensor) -> pl.Tensor:
        q, _ = pl.linalg.qr(x + 1)
        return pl.fft.irfft(pl.fft.rfft(q)) * 2

    x = pl.asarray(A)
    expected = np.linalg.qr(A + 1)[0] * 2
    np.testing.assert_allclose(pl.compile(steps)(x).numpy(), expected, atol=1e-10)


def test_a_result_whose_shape_depends_on_values_cannot_be_traced() -> None:
    with pytest.raises(ValueError, match="nonzero: the result's shape depends on values"):
        pl.compile(lambda x: pl.nonzero(x)[0])(pl.asarray([1, 0, 2]))
