"""The whole of plait in a few seconds: run this first."""

from __future__ import annotations

import numpy as np
import pytest

import plait as pl
from plait import nn
from plait.framework.config import override


def test_add() -> None:
    assert (pl.asarray([1.0, 2.0]) + pl.asarray([10.0, 20.0])).tolist() == [11.0, 22.0]


def test_a_scalar_is_weak() -> None:
    assert (pl.arange(3) * 2).dtype is pl.int64
    assert (pl.ones((2,)) * 2).dtype is pl.float32


def test_broadcasting() -> None:
    assert (pl.arange(2)[:, None] + pl.arange(3)).tolist() == [[0, 1, 2], [1, 2, 3]]


def test_matmul() -> None:
    assert (pl.asarray([[1.0, 2.0], [3.0, 4.0]]) @ pl.asarray([1.0, 1.0])).tolist() == [3.0, 7.0]


def test_sum_and_argmax() -> None:
    x = pl.asarray([[1, 5, 2], [7, 0, 3]])
    assert x.sum(axis=0).tolist() == [8, 5, 5]
    assert x.argmax(axis=1).tolist() == [1, 0]


def test_softmax_adds_up_to_one() -> None:
    assert pl.softmax(pl.asarray([1.0, 2.0, 3.0])).sum().item() == pytest.approx(1.0)


def test_a_view_writes_into_its_base() -> None:
    x = pl.zeros((2, 3))
    x.T[0] = 5
    assert x.tolist() == [[5, 0, 0], [5, 0, 0]]


def test_indexing() -> None:
    x = pl.arange(6).reshape(2, 3)
    assert x[1, ::-1].tolist() == [5, 4, 3]
    assert x[x > 3].tolist() == [4, 5]
    assert x[[1, 0], 2].tolist() == [5, 2]


def test_in_place_update() -> None:
    x = pl.ones((3,))
    x += 2
    x[0] *= 10
    assert x.tolist() == [30.0, 3.0, 3.0]


def test_numpy_shares_memory() -> None:
    array = np.zeros(3)
    tensor = pl.from_numpy(array)
    array[1] = 4
    assert tensor.tolist() == [0, 4, 0]


def test_an_error_names_both_shapes() -> None:
    with pytest.raises(ValueError, match=r"\(2, 3\) and \(4, 5\)"):
        pl.ones((2, 3)) + pl.ones((4, 5))


def test_dtypes_promote() -> None:
    assert (pl.ones((1,), dtype="float16") + pl.ones((1,), dtype="bfloat16")).dtype is pl.float32


def test_printing() -> None:
    assert repr(pl.arange(3)) == "Tensor([0, 1, 2], dtype=int64, device=cpu)"


def test_seeded_draws_repeat() -> None:
    draws = [pl.random.Generator(3).normal((4,)).tolist() for _ in range(2)]
    assert draws[0] == draws[1]


def test_both_executors_agree() -> None:
    x = pl.asarray(np.linspace(-3, 3, 50, dtype=np.float32))
    found = []
    for jit in (0, 1):
        with override(jit=jit):
            found.append((x * x + 1).sum().item())
    assert found[0] == pytest.approx(found[1], rel=1e-6)


def test_a_module_has_parameters_and_runs() -> None:
    layer = nn.Linear(3, 2)
    assert sorted(layer.state_dict()) == ["bias", "weight"]
    layer.load_state_dict({"weight": np.eye(2, 3, dtype=np.float32), "bias": np.ones(2, np.float32)})
    assert layer(pl.asarray([1.0, 2.0, 3.0])).tolist() == [2.0, 3.0]


def test_modules_nest() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            self.first = nn.Linear(4, 4)
            self.norm = nn.RMSNorm(4)

        def forward(self, x: pl.Tensor) -> pl.Tensor:
            return self.norm(self.first(x))

    model = Model()
    assert sorted(model.state_dict()) == ["first.bias", "first.weight", "norm.weight"]
    assert model(pl.ones((2, 4))).shape == (2, 4)


def test_compile_a_function() -> None:
    square = pl.compile(lambda x: x * x + 1)
    assert square(pl.asarray([1.0, 2.0, 3.0])).tolist() == [2.0, 5.0, 10.0]


def test_compile_a_module_for_any_batch() -> None:
    layer = nn.Linear(3, 2)
    compiled = layer.compile(pl.TensorLayout("float32", ("batch", 3)))
    for batch in (1, 4):
        x = pl.asarray(np.arange(batch * 3, dtype=np.float32).reshape(batch, 3))
        np.testing.assert_allclose(compiled(x).numpy(), layer(x).numpy(), rtol=1e-5, atol=1e-6)


def test_every_device_that_opens_computes() -> None:
    for name in ("cpu", "cuda:0", "hip:0"):
        try:
            x = pl.ones((2,), device=name)
        except RuntimeError as error:
            assert name in str(error)
        else:
            assert (x + 1).tolist() == [2.0, 2.0]
