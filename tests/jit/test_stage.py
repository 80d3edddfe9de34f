"""Staging: the graph a function records, its signature, and what tracing refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from plait.framework import creation
from plait.framework import functional as F
from plait.framework.conversion import asarray
from plait.framework.dim import symbol
from plait.framework.errors import CompileError, ShapeError
from plait.framework.tensor import Tensor
from plait.jit.layout import BufferLayout, TensorLayout
from plait.jit.stage import external, stage

ROWS = TensorLayout("float32", ("T", 4))


def ops(staged: Any) -> list[str]:
    return [node.op.name for node in staged.graph.nodes]


@pytest.mark.system(104)
def test_the_two_layouts_are_different_types_with_readable_text() -> None:
    assert repr(ROWS) == "TensorLayout(float32, ('T', 4))"
    assert repr(BufferLayout("int32", "S")) == "BufferLayout(int32, ('S',))"
    assert TensorLayout("int32", (symbol("S") + 1,)).shape == (symbol("S") + 1,)
    assert TensorLayout("float32", (2,)) == TensorLayout("float32", 2) != BufferLayout("float32", 2)
    with pytest.raises(ShapeError, match="size -1 in shape"):
        TensorLayout("float32", (-1, 2))


@pytest.mark.system(105)
def test_the_text_shows_every_record_with_symbolic_shapes() -> None:
    staged = stage(lambda x, y: (x + y) * 2, name="twice")(ROWS, y=ROWS)
    assert str(staged).splitlines() == [
        "graph @twice {",
        "  %0 = input 'x' float32[T, 4]",
        "  %1 = input 'y' float32[T, 4]",
        "  %2 = add(%0, %1) float32[T, 4]",
        "  %3 = mul(%2, 2:float32) float32[T, 4]",
        "  return %3",
        "}",
    ]
    assert staged.symbols == ["T"]
    assert staged.in_names == ["x", "y"]
    assert staged.out_layouts == [ROWS]


def test_arguments_are_found_in_any_nesting_and_the_rest_is_static() -> None:
    def fn(pair: list[Tensor], scale: float, *, named: dict[str, Tensor]) -> Tensor:
        return pair[0] * scale + named["bias"]

    staged = stage(fn)([ROWS, ROWS], 3.0, named={"bias": ROWS})
    assert staged.in_names == ["pair.0", "pair.1", "named.bias"]
    assert ops(staged) == ["mul", "add"]


def test_dead_records_are_dropped() -> None:
    def fn(x: Tensor) -> Tensor:
        F.exp(x)
        return x + 1

    assert ops(stage(fn)(ROWS)) == ["add"]


def test_what_depends_on_no_argument_is_computed_while_tracing() -> None:
    table = asarray(np.arange(4, dtype=np.float32))
    staged = stage(lambda x: x + F.exp(table * 2))(ROWS)
    assert ops(staged) == ["add"]
    (constant,) = staged.graph.constants
    np.testing.assert_allclose(constant.array(), np.exp(np.arange(4) * 2), rtol=1e-6)


def test_results_that_share_memory_or_are_arguments_are_copied() -> None:
    def fn(x: Tensor) -> tuple[Tensor, ...]:
        y = x + 1
        return y, y, x, y[0]

    assert ops(stage(fn)(ROWS)) == ["add", "slice", "reshape", "copy", "copy", "copy"]


def test_a_buffer_that_is_stored_into_has_a_store_and_may_be_returned() -> None:
    def fn(x: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
        cache[0] = x[0]
        return cache, x + 1

    staged = stage(fn)(ROWS, BufferLayout("float32", (3, 4)))
    ((target, version),) = staged.graph.stores
    assert target.attr("name") == "cache" and version.op.name == "write"
    assert staged.forwarded == {0: 1}
    assert "store %1 <- " in str(staged)


def test_storing_into_a_tensor_layout_names_the_argument() -> None:
    def fn(x: Tensor) -> Tensor:
        x[0] = 1.0
        return x + 1

    with pytest.raises(TypeError, match="stores into argument 'x'.*BufferLayout"):
        stage(fn)(ROWS)


def test_an_older_version_of_a_buffer_cannot_be_read_after_the_store() -> None:
    def fn(x: Tensor, cache: Tensor) -> Tensor:
        before = Tensor._of(cache.node())
        cache[0] = x[0]
        return before + 1

    with pytest.raises(CompileError, match="older value of argument 'cache' is read after write"):
        stage(fn)(ROWS, BufferLayout("float32", (3, 4)))


def test_a_constant_that_is_written_is_copied_first() -> None:
    def fn(x: Tensor) -> Tensor:
        total = creation.zeros((4,))
        total[0:2] = x[0, 0:2]
        return total * 2

    names = ops(stage(fn)(ROWS))
    assert names.index("copy") < names.index("write") < names.index("mul")


def test_weights_are_leaves_by_name() -> None:
    staged = stage(lambda x: x @ external("w", TensorLayout("float32", (4, 2))))(ROWS)
    assert [node.attr("name") for node in staged.graph.weights] == ["w"]
    assert "weight 'w' float32[4, 2]" in str(staged)


def test_one_weight_name_cannot_have_two_shapes() -> None:
    def fn(x: Tensor) -> Tensor:
        return x + external("w", TensorLayout("float32", (4,))) + external("w", TensorLayout("float32", (1,)))

    with pytest.raises(CompileError, match="weight 'w' is both"):
        stage(fn)(ROWS)


@pytest.mark.parametrize("result", [1.0, [None], "text", {"a": 2}])
def test_a_result_that_is_no_tensor_is_a_type_error(result: Any) -> None:
    with pytest.raises(TypeError, match="every result must be a Tensor"):
        stage(lambda x: result)(ROWS)


def test_a_live_tensor_is_no_layout() -> None:
    with pytest.raises(TypeError, match="argument 'y' is a tensor; expected a layout"):
        stage(lambda x, y: x + y)(ROWS, asarray(np.zeros(4, np.float32)))


def test_an_error_inside_propagates_and_leaves_nothing_behind() -> None:
    def fn(x: Tensor) -> Tensor:
        x + 1
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        stage(fn)(ROWS)
    assert ops(stage(lambda x: x + 1)(ROWS)) == ["add"]


def test_storing_into_a_captured_tensor_is_refused_and_leaves_it_as_it_was() -> None:
    captured = asarray(np.zeros(4, np.float32))

    def fn(x: Tensor) -> Tensor:
        captured[:] = x[0]
        return captured + 1

    with pytest.raises(CompileError, match="a tensor it closed over"):
        stage(fn)(ROWS)
    np.testing.assert_array_equal(captured.numpy(), np.zeros(4))


def test_an_error_after_a_store_leaves_captured_tensors_as_they_were() -> None:
    captured = asarray(np.zeros(4, np.float32))

    def fn(x: Tensor) -> Tensor:
        captured[:] = x[0]
        raise KeyError("mine")

    with pytest.raises(KeyError):
        stage(fn)(ROWS)
    np.testing.assert_array_equal((captured + 1).numpy(), np.ones(4))


def test_observing_a_value_while_tracing_is_refused() -> None:
    with pytest.raises(TypeError, match="while its function is traced"):
        stage(lambda x: x + x.sum().item())(ROWS)


def test_different_symbols_do_not_broadcast() -> None:
    with pytest.raises(ShapeError, match="do not broadcast"):
        stage(lambda x, y: x + y)(ROWS, TensorLayout("float32", ("S", 4)))
