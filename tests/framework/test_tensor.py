"""A Tensor behaves as NumPy's array: views and copies, sharing, laziness, conversion, printing, pickling, threads."""

from __future__ import annotations

import copy
import math
import operator
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import plait as pl
from plait.framework.errors import DTypeError, ShapeError

Array = np.ndarray[Any, Any]
NAMES = ("bool", "int8", "uint16", "int64", "float16", "bfloat16", "float32", "float64", "complex64", "float8_e4m3fn")


def _values(name: str, shape: tuple[int, ...] = (2, 3)) -> Array:
    kind = np.dtype(getattr(ml_dtypes, name, None) or name)
    return (np.arange(int(np.prod(shape))) % 2).reshape(shape).astype(kind)


# Laziness


def test_nothing_runs_until_a_value_is_observed(jit: int) -> None:
    x = pl.asarray([1.0, 2.0, 3.0]) * 2 + 1
    assert x.node().buffer is None
    assert x.shape == (3,) and x.dtype is pl.float32
    assert x.node().buffer is None
    assert x.tolist() == [3.0, 5.0, 7.0]
    assert x.node().buffer is not None


OBSERVERS: dict[str, Callable[[pl.Tensor], Any]] = {
    "numpy": lambda x: x.numpy(),
    "item": lambda x: x.item(),
    "bool": bool,
    "int": int,
    "float": float,
    "str": str,
    "repr": repr,
    "format": lambda x: f"{x:.1f}",
    "asarray": np.asarray,
    "dlpack": np.from_dlpack,
    "realize": lambda x: x.realize(),
    "tolist": lambda x: x.tolist(),
}


@pytest.mark.parametrize("name", OBSERVERS)
def test_observing_computes(name: str) -> None:
    x = pl.asarray([1.0]) + 1
    assert x.node().buffer is None
    OBSERVERS[name](x)
    assert x.node().buffer is not None


def test_a_read_keeps_the_value_of_its_moment(jit: int) -> None:
    x = pl.asarray([1.0, 2.0])
    y = x + 10
    x[0] = 100
    z = x + 10
    assert y.tolist() == [11.0, 12.0]
    assert z.tolist() == [110.0, 12.0]


def test_shape_and_dtype_errors_are_raised_at_the_call() -> None:
    a, b = pl.ones((2, 3)), pl.ones((4, 5))
    for function in (operator.add, operator.mul, operator.lt, operator.matmul, pl.maximum):
        with pytest.raises(ShapeError, match=r"\(2, 3\).*\(4, 5\)"):
            function(a, b)
    with pytest.raises(ShapeError, match=r"reshape: \(2, 3\) has 6 elements; \(4,\) has 4"):
        a.reshape(4)
    with pytest.raises(ShapeError, match=r"concat: shapes \(2, 3\) and \(4, 5\)"):
        pl.concat([a, b])
    with pytest.raises(ShapeError, match=r"\(2, 3\) does not broadcast|do not broadcast"):
        a.broadcast_to((2, 4))
    with pytest.raises(DTypeError, match="float32"):
        a << 1


def test_deep_chains_neither_recurse_nor_overflow(jit: int) -> None:
    x = pl.asarray([0.0, 1.0])
    for _ in range(3000):
        x = x + 1
    assert x.tolist() == [3000.0, 3001.0]


def test_long_chains_of_views_neither_recurse_nor_overflow() -> None:
    x = pl.arange(6).reshape(2, 3)
    for _ in range(3001):
        x = x.T
    assert (x + 0).tolist() == [[0, 3], [1, 4], [2, 5]]
    x[0, 0] = 9
    assert x.tolist()[0] == [9, 3]


def test_many_writes_to_one_storage(jit: int) -> None:
    x = pl.zeros((4,), dtype="int64")
    for i in range(1000):
        x[i % 4] += i
    assert x.tolist() == [sum(range(k, 1000, 4)) for k in range(4)]


# Views and copies


VIEWS: dict[str, tuple[Callable[[Any], Any], bool]] = {
    "slice": (lambda x: x[1:], True),
    "reversed": (lambda x: x[::-1, ::2], True),
    "row": (lambda x: x[1], True),
    "newaxis": (lambda x: x[:, None], True),
    "ellipsis": (lambda x: x[..., 0], True),
    "transpose": (lambda x: x.T, True),
    "reshape": (lambda x: x.reshape(4, 3), True),
    "reshape of a transpose": (lambda x: x.T.reshape(-1), False),
    "ravel": (lambda x: x.ravel(), True),
    "flatten": (lambda x: x.flatten(), False),
    "squeeze": (lambda x: x[:, :1].squeeze(), True),
    "copy": (lambda x: x.copy(), False),
    "list": (lambda x: x[[0, 2]], False),
    "mask": (lambda x: x[x > 3], False),
    "plus": (lambda x: +x, False),
    "same dtype": (lambda x: x.astype(x.dtype), False),
}


@pytest.mark.parametrize("name", VIEWS)
def test_which_results_are_views_is_numpys_table(name: str) -> None:
    view, is_view = VIEWS[name]
    array = np.arange(12, dtype=np.int64).reshape(3, 4)
    tensor = pl.asarray(array, copy=True)
    a, t = view(array), view(tensor)
    assert np.shares_memory(a, array) == is_view, "the table does not describe NumPy"
    a[...] = -1
    t[...] = -1
    assert tensor.tolist() == array.tolist()
    array[...] = 7
    tensor[...] = 7
    assert t.tolist() == a.tolist()


@pytest.mark.parametrize(
    "view",
    [
        lambda p, x: p.swapaxes(x, 0, 2),
        lambda p, x: p.moveaxis(x, 0, -1),
        lambda p, x: p.moveaxis(x, (0, 1), (2, 0)),
        lambda p, x: p.flip(x, 1),
        lambda p, x: p.flip(x),
        lambda p, x: p.expand_dims(x, (0, -1)),
        lambda p, x: p.transpose(x, (1, 2, 0)),
        lambda p, x: p.permute_dims(x, (2, 0, 1)),
        lambda p, x: p.stack([x, x + 1], axis=-1),
        lambda p, x: p.concat([x, x[:, :1]], axis=1),
        lambda p, x: p.concat([x, x], axis=None),
        lambda p, x: p.pad(x, ((0, 1), (2, 0), (1, 1))),
        lambda p, x: p.tril(x, 1),
        lambda p, x: p.triu(x, -1),
    ],
)
def test_shape_functions_equal_numpys(view: Callable[[Any, Any], Any], jit: int) -> None:
    array = np.arange(24.0, dtype=np.float32).reshape(2, 3, 4)
    found = view(pl, pl.asarray(array))
    np.testing.assert_array_equal(found.numpy(), view(np, array))


@pytest.mark.case("T13")
def test_a_broadcast_view_is_read_only(jit: int) -> None:
    source = pl.ones((1, 1))
    view = source.broadcast_to((3, 7))
    for write in (lambda: operator.iadd(view, 1), lambda: operator.imul(view, 2), lambda: view.fill(3)):
        with pytest.raises(ValueError, match="read-only"):
            write()
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 5
    with pytest.raises(ValueError, match="read-only"):
        view[0][[1, 2]] = 5
    assert not view.numpy().flags.writeable
    assert source.item() == 1.0
    assert view.sum().item() == 21.0
    fresh = view + 1
    fresh += 1
    assert fresh.tolist() == [[3.0] * 7] * 3


@pytest.mark.case("T06")
def test_shapes_are_tuples_of_python_ints() -> None:
    x = pl.ones((3, 8))
    assert type(x.shape) is tuple and all(type(size) is int for size in x.shape)
    assert x.shape[1] // 2 == 4 and x.shape[0] * x.shape[1] == 24 and x.shape[0] - x.shape[1] == -5
    assert list(range(x.shape[0])) == [0, 1, 2]
    assert x.reshape((x.shape[0] * 2, -1)).shape == (6, 4)
    assert (x.ndim, x.size, x.nbytes, str(x.device)) == (2, 24, 96, "cpu")
    y = (x @ x.T)[1:].sum(axis=0)
    assert all(type(size) is int for size in y.shape)


def test_in_place_operators_write_through_views() -> None:
    array = np.arange(12, dtype=np.int64).reshape(3, 4)
    tensor = pl.asarray(array, copy=True)
    a, t = array[:, ::-2], tensor[:, ::-2]
    for update in ("iadd", "isub", "imul", "ifloordiv", "imod", "ipow", "ior", "iand", "ixor", "ilshift", "irshift"):
        a, t = getattr(operator, update)(a, 3), getattr(operator, update)(t, 3)
        assert tensor.tolist() == array.tolist(), update


def test_in_place_results_must_fit_shape_and_dtype() -> None:
    with pytest.raises(ValueError, match=r"\(2, 3\).*\(3,\)"):
        x = pl.ones((3,))
        x += pl.ones((2, 3))
    with pytest.raises(TypeError, match="float32.*int64"):
        y = pl.arange(3)
        y += 0.5


def test_a_complex_value_is_not_stored_as_its_real_part() -> None:
    x = pl.ones((2,))
    for key in (0, [0, 1]):
        with pytest.raises(DTypeError, match="complex value does not fit float32"):
            x[key] = 1j
    assert x.tolist() == [1.0, 1.0]


def test_numpy_integers_make_shapes_of_python_ints() -> None:
    size = np.int64(2)
    for x in (pl.zeros(size), pl.ones((size, 3)), pl.ones(4).reshape(size, 2), pl.ones((1,)).broadcast_to((size,))):
        assert all(type(side) is int for side in x.shape)


@pytest.mark.parametrize("widths", [((1, 1),), -1, ((0, 0), (1, -1))])
def test_impossible_pads_are_refused_at_the_call(widths: Any) -> None:
    with pytest.raises(ShapeError, match=r"pad: widths .* for shape \(2, 2\)"):
        pl.pad(pl.ones((2, 2)), widths)


# Sharing memory


@pytest.mark.parametrize("name", NAMES)
def test_from_numpy_and_numpy_share_memory_both_ways(name: str) -> None:
    array = _values(name)
    tensor = pl.from_numpy(array)
    assert np.shares_memory(tensor.numpy(), array)
    array[0, 0] = 1
    assert tensor.tolist()[0][0] == 1
    tensor[1, 1] = 0
    assert array[1, 1] == 0


SHARED: dict[str, Callable[[Array], Array]] = {
    "transposed": lambda a: a.T,
    "strided": lambda a: a[::2, 1:],
    "reversed": lambda a: a[::-1],
    "fortran": lambda a: np.asfortranarray(a),
    "fortran slice": lambda a: a.T[1:],
    "0-d": lambda a: a[1, 1, ...],
    "empty": lambda a: a[:0],
}


@pytest.mark.parametrize("name", SHARED)
def test_strided_arrays_are_shared_too(name: str) -> None:
    array = SHARED[name](np.arange(12.0).reshape(4, 3))
    tensor = pl.from_numpy(array)
    assert tensor.shape == array.shape
    array[...] = 5
    tensor[...] += 1
    assert tensor.tolist() == array.tolist()
    np.testing.assert_array_equal((tensor * 2).numpy(), array * 2)


def test_byte_swapped_and_broadcast_arrays_are_copied_with_their_values() -> None:
    swapped = np.arange(3, dtype=np.dtype(np.int32).newbyteorder())
    assert pl.from_numpy(swapped).tolist() == [0, 1, 2]
    wide = np.broadcast_to(np.arange(3), (2, 3))
    assert pl.from_numpy(wide).tolist() == wide.tolist()


def test_work_on_shared_memory_runs_before_the_call_returns() -> None:
    array = np.ones(3)
    result = pl.from_numpy(array) * 2
    array[:] = 100
    assert result.tolist() == [2.0, 2.0, 2.0]


def test_a_value_from_shared_memory_is_written_before_the_call_returns() -> None:
    array = np.ones(3, np.float32)
    shared = pl.from_numpy(array)
    x, y, z = pl.zeros((3,)), pl.zeros((2, 3)), pl.zeros((3,))
    x[...] = shared[::-1]
    y[1] = shared
    z[[0, 2]] = shared[1:]
    array[:] = 100
    assert x.tolist() == [1.0, 1.0, 1.0]
    assert y.tolist() == [[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]]
    assert z.tolist() == [1.0, 0.0, 1.0]


def test_work_recorded_before_sharing_keeps_its_values() -> None:
    x = pl.asarray([1.0, 2.0])
    later = x * 10
    x.numpy()[:] = 7
    assert later.tolist() == [10.0, 20.0]
    assert x.tolist() == [7.0, 7.0]


def test_numpy_of_a_view_shares_with_its_base() -> None:
    x = pl.zeros((2, 3))
    x.T[1:].numpy()[...] = 4
    assert x.tolist() == [[0, 4, 4], [0, 4, 4]]
    assert np.shares_memory(x.numpy(), x[1].numpy())


def test_asarray_shares_and_copy_does_not() -> None:
    array = np.zeros(3)
    assert np.shares_memory(pl.asarray(array).numpy(), array)
    assert not np.shares_memory(pl.asarray(array, copy=True).numpy(), array)
    assert not np.shares_memory(pl.Tensor(array).numpy(), array)
    tensor = pl.zeros((3,))
    assert pl.asarray(tensor) is tensor
    assert pl.asarray(tensor, copy=True) is not tensor
    with pytest.raises(ValueError, match="copy=False"):
        pl.asarray(array, dtype="float32", copy=False)


def test_the_array_protocol() -> None:
    x = pl.asarray([1.5, 2.5])
    assert np.shares_memory(np.asarray(x), x.numpy())
    assert not np.shares_memory(np.array(x), x.numpy())
    assert np.asarray(x, dtype=np.float64).dtype == np.float64
    with pytest.raises(ValueError, match="copy"):
        np.asarray(x, dtype=np.float64, copy=False)
    assert float(np.sum(np.asarray(x))) == 4.0


def test_numpy_on_the_left_hands_over_to_the_tensor() -> None:
    result = np.array([1.0, 2.0], np.float32) * pl.asarray([3.0, 4.0])
    assert isinstance(result, pl.Tensor)
    assert result.tolist() == [3.0, 8.0]
    assert (np.ones((2, 2), np.float32) @ pl.ones((2, 1))).tolist() == [[2.0], [2.0]]


@pytest.mark.parametrize("name", ["bool", "int8", "uint16", "int64", "float16", "float32", "float64", "complex64"])
def test_dlpack_shares_memory_both_ways(name: str) -> None:
    x = pl.asarray(_values(name), copy=True)
    outside = np.from_dlpack(x)
    assert np.shares_memory(outside, x.numpy())
    outside_in = pl.asarray(outside)
    outside_in[0, 0] = 1
    assert x.tolist()[0][0] == 1

    class Foreign:
        """An array of another library."""

        def __init__(self, array: Array) -> None:
            self.array = array

        def __dlpack__(self, **options: Any) -> Any:
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self) -> Any:
            return self.array.__dlpack_device__()

    array = _values(name)
    shared = pl.asarray(Foreign(array))
    assert np.shares_memory(shared.numpy(), array)
    assert not np.shares_memory(pl.asarray(Foreign(array), copy=True).numpy(), array)


@pytest.mark.parametrize("name", NAMES)
def test_pickle_and_copies_keep_values_and_dtype(name: str) -> None:
    x = pl.asarray(_values(name, (3, 4)), copy=True)
    for twin in (pickle.loads(pickle.dumps(x.T)), copy.deepcopy(x.T), copy.copy(x.T)):
        assert twin.dtype is x.dtype and twin.shape == (4, 3)
        assert twin.tolist() == x.T.tolist()
        assert not np.shares_memory(twin.numpy(), x.numpy())


def test_deepcopy_keeps_one_tensor_one() -> None:
    x = pl.ones((2,))
    first, second = copy.deepcopy([x, x])
    assert first is second and first is not x


# Python protocols


def test_conversion_to_python_scalars() -> None:
    assert bool(pl.asarray([[0.5]])) is True and bool(pl.asarray(0)) is False
    assert int(pl.asarray(2.9)) == 2 and type(int(pl.asarray(2.9))) is int
    assert float(pl.asarray([3])) == 3.0
    assert complex(pl.asarray(1 + 2j)) == 1 + 2j
    assert [10, 20, 30][pl.asarray(1)] == 20
    assert list(range(pl.asarray(3))) == [0, 1, 2]
    assert type(pl.asarray(1.0).item()) is float and type(pl.asarray(1).item()) is int
    assert type(pl.asarray(True).item()) is bool
    assert pl.asarray(1.5, dtype="bfloat16").item() == 1.5


@pytest.mark.parametrize("convert", [bool, int, float, complex, operator.index, lambda x: x.item()])
def test_only_one_element_converts(convert: Callable[[Any], Any]) -> None:
    for shape in ((2,), (0,), (2, 2)):
        with pytest.raises((ValueError, TypeError), match=r"2 elements|0 elements|4 elements"):
            convert(pl.zeros(shape, dtype="int64"))


def test_a_float_is_no_index() -> None:
    with pytest.raises(TypeError, match="float32"):
        [1, 2][pl.asarray(1.0)]


def test_length_iteration_and_membership() -> None:
    x = pl.asarray([[1, 2], [3, 4]])
    assert len(x) == 2
    assert [row.tolist() for row in x] == [[1, 2], [3, 4]]
    assert 3 in x and 7 not in x
    first, second = x
    first += 10
    assert x.tolist() == [[11, 12], [3, 4]]
    for function in (len, iter, list):
        with pytest.raises(TypeError):
            function(pl.asarray(1.0))


def test_a_tensor_is_hashed_by_identity() -> None:
    x, y = pl.ones((2,)), pl.ones((2,))
    assert len({x: 1, y: 2}) == 2
    assert hash(x) == hash(x)


PRINTED: dict[str, Array] = {
    "floats": np.array([[1.0, -2.5], [math.nan, 1e10]], np.float32),
    "integers": np.arange(12).reshape(3, 4),
    "bools": np.array([True, False]),
    "scalar": np.array(2.5, np.float32),
    "many": np.arange(3000, dtype=np.float32),
    "wide": np.arange(60, dtype=np.float64) / 7,
    "cube": np.zeros((2, 2, 2), np.float16),
    "complex": np.array([1 + 2j], np.complex64),
    "empty": np.zeros((0,), np.float32),
}


@pytest.mark.parametrize("name", PRINTED)
def test_printing_is_numpys_text_plus_dtype_and_device(name: str) -> None:
    array = PRINTED[name]
    tensor = pl.asarray(array)
    assert str(tensor) == str(array)
    kind = f", dtype={array.dtype.name}, device=cpu)"
    text = repr(tensor)
    assert text.startswith("Tensor(") and text.endswith(kind)
    body = text.removeprefix("Tensor(").removesuffix(kind).removesuffix(f", shape={array.shape}")
    assert body.split() == np.array2string(array, separator=", ").split()


def test_printing_names_a_shape_that_the_values_do_not_show() -> None:
    assert repr(pl.zeros((0, 3))) == "Tensor([], shape=(0, 3), dtype=float32, device=cpu)"
    assert "shape=(3000,)" in repr(pl.arange(3000))
    assert "shape" not in repr(pl.arange(3))


def test_printing_follows_numpys_options() -> None:
    array = np.array([1 / 3, 2 / 3])
    with np.printoptions(precision=2):
        assert str(pl.asarray(array)) == str(array) == "[0.33 0.67]"


def test_bfloat16_prints_its_values() -> None:
    assert str(pl.asarray([1.5, 2.0], dtype="bfloat16")) == "[1.5 2. ]"


def test_format() -> None:
    assert f"{pl.asarray(math.pi):.2f}" == "3.14"
    assert f"{pl.asarray([1, 2])}" == "[1 2]"
    assert f"{pl.asarray(7):>4d}" == "   7"


# Creation


CREATED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "zeros": (lambda p: p.zeros((2, 3)), "float32"),
    "full": (lambda p: p.full((2,), 7), "int64"),
    "arange": (lambda p: p.arange(5), "int64"),
    "arange down": (lambda p: p.arange(5, -3, -2), "int64"),
    "arange nothing": (lambda p: p.arange(3, 3), "int64"),
    "arange floats": (lambda p: p.arange(0.0, 1.0, 0.25), "float32"),
    "linspace": (lambda p: p.linspace(0, 1, 5), "float32"),
    "eye": (lambda p: p.eye(3, 4, k=1), "float32"),
    "scalar": (lambda p: p.asarray(1.5), "float32"),
    "list": (lambda p: p.asarray([[1, 2], [3, 4]]), "int64"),
    "bools": (lambda p: p.asarray([True, False]), "bool"),
    "complex": (lambda p: p.asarray([1j]), "complex64"),
    "mixed": (lambda p: p.asarray([1, 2.5]), "float32"),
}


@pytest.mark.parametrize("name", CREATED)
def test_creation_equals_numpys_with_plaits_defaults(name: str, jit: int) -> None:
    create, dtype = CREATED[name]
    found = create(pl)
    assert found.dtype.name == dtype
    np.testing.assert_array_equal(found.numpy(), create(np).astype(dtype))


def test_nested_tensors_become_one() -> None:
    assert pl.asarray([pl.asarray([1, 2]), [3, 4]]).tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: pl.asarray([[1, 2], [3]]), ValueError, "ragged"),
        (lambda: pl.asarray(["a"]), TypeError, "str"),
        (lambda: pl.asarray([None]), TypeError, "NoneType"),
        (lambda: pl.asarray([300], dtype="uint8"), OverflowError, "300.*uint8"),
        (lambda: pl.asarray([2**70]), (OverflowError, TypeError), "int"),
        (lambda: pl.zeros((-1,)), ValueError, r"\(-1,\) has a negative size"),
        (lambda: pl.zeros((1 << 40, 1 << 40)), MemoryError, "does not fit"),
        (lambda: pl.arange(0, 5, 0), ValueError, "step of 0"),
        (lambda: pl.ones((2,), device="cuda:0"), RuntimeError, "cuda:0 is not available"),
        (lambda: pl.ones((2,), device="tpu"), RuntimeError, "'tpu' is not a device"),
        (lambda: pl.ones((2,)).to("cuda:1"), RuntimeError, "cuda:1"),
        (lambda: pl.ones((2,), dtype="float33"), TypeError, "float33"),
    ],
)
def test_impossible_tensors_are_refused(call: Callable[[], Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_seeded_draws_repeat() -> None:
    from plait.framework.random import Generator

    first, second = Generator(7).normal((100,)).tolist(), Generator(7).normal((100,)).tolist()
    assert first == second != Generator(8).normal((100,)).tolist()
    values = Generator(1).uniform((1000,), 2.0, 3.0).numpy()
    assert values.min() >= 2.0 and values.max() < 3.0
    whole = Generator(1).integers(-2, 3, (500,))
    assert set(whole.tolist()) == {-2, -1, 0, 1, 2} and whole.dtype is pl.int64


# Composed functions


def test_composites_equal_their_definitions(jit: int) -> None:
    rng = np.random.default_rng(0)
    x, w, b = rng.normal(size=(5, 64)), rng.normal(size=64), rng.normal(size=64)
    t, u, v = (pl.asarray(array.astype(np.float32)) for array in (x, w, b))
    shifted = np.exp(x - x.max(-1, keepdims=True))
    softmax = shifted / shifted.sum(-1, keepdims=True)
    cdf = 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
    centred = x - x.mean(-1, keepdims=True)
    tanh_gelu = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    cases = {
        "softmax": (pl.softmax(t), softmax),
        "log_softmax": (pl.log_softmax(t), np.log(softmax)),
        "silu": (pl.silu(t), x / (1 + np.exp(-x))),
        "gelu": (pl.gelu(t), x * cdf),
        "gelu tanh": (pl.gelu(t, "tanh"), tanh_gelu),
        "gelu quick": (pl.gelu(t, "quick"), x / (1 + np.exp(-1.702 * x))),
        "rms_norm": (pl.rms_norm(t, u, 1e-5), x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * w),
        "layer_norm": (pl.layer_norm(t, u, v, 1e-5), centred / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * w + b),
        "relu": (pl.relu(t), np.maximum(x, 0)),
        "clip": (pl.clip(t, -0.5, 0.5), np.clip(x, -0.5, 0.5)),
        "square": (pl.square(t), x * x),
        "linear": (pl.linear(t, t, None), x @ x.T),
    }
    for name, (found, expected) in cases.items():
        np.testing.assert_allclose(found.numpy(), expected, rtol=2e-5, atol=2e-5, err_msg=name)


# Memory and threads


LOOPS = """
import gc, sys
import plait as pl

def resident_bytes():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096

def read(times):
    for _ in range(times):
        kept = (pl.ones((3, 5)) * 2).numpy()

def never_read(times):
    for _ in range(times):
        kept = pl.ones((3, 5)) * 2

x = pl.ones((500,))

def rebind(times):
    global x
    for _ in range(times):
        x = x * 0.5 + 1

loop = {"read": read, "never read": never_read, "rebind": rebind}[sys.argv[1]]
loop(2000)
gc.collect()
before, live = resident_bytes(), sum(isinstance(o, pl.Tensor) for o in gc.get_objects())
loop(20_000)
grown = resident_bytes() - before
gc.collect()
assert grown < 5 << 20, grown
assert sum(isinstance(o, pl.Tensor) for o in gc.get_objects()) <= live
assert sys.argv[1] != "rebind" or x.tolist() == [2.0] * 500
"""


@pytest.mark.case("T22")
@pytest.mark.parametrize("loop", ["read", "never read", "rebind"])
def test_long_loops_stay_flat_in_memory(loop: str) -> None:
    """In a process of its own: what other tests leave running would count."""
    command = [sys.executable, "-c", LOOPS, loop]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.case("T23")
def test_threads_compute_their_own_values() -> None:
    rng = np.random.default_rng(0)
    data = [rng.normal(size=(2, 32, 32)).astype(np.float32) for _ in range(4)]
    alone = [(pl.asarray(a) @ pl.asarray(b)).sum().item() for a, b in data]
    start, failures = threading.Barrier(4), []

    def work(index: int) -> None:
        a, b = data[index]
        start.wait()
        for turn in range(300):
            found = (pl.asarray(a) @ pl.asarray(b)).sum().item()
            if found != alone[index]:
                failures.append((index, turn, found))

    threads = [threading.Thread(target=work, args=(index,), daemon=True) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert failures == []


@pytest.mark.case("T23")
def test_any_thread_may_compute_any_tensor() -> None:
    shared = pl.asarray(np.arange(1000, dtype=np.float32)) * 2
    chain = [shared + index for index in range(8)]
    sums: list[float] = [0.0] * 8

    def work(index: int) -> None:
        sums[index] = chain[index].sum().item()

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sums == [999_000.0 + 1000 * index for index in range(8)]
