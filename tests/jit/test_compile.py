"""compile() with tensors: what makes a new entry, guards, the decorator, mixes of layouts and tensors."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np
import pytest

from plait.framework.conversion import asarray
from plait.framework.tensor import Tensor
from plait.jit.compile import MAX_ENTRIES, compile
from plait.jit.compiled import CompiledCallable
from plait.jit.layout import TensorLayout


def ones(*shape: int, dtype: str = "float32") -> Tensor:
    return asarray(np.ones(shape, dtype))


def test_tensors_call_at_once_and_sizes_are_symbols() -> None:
    @compile
    def scaled(x: Tensor, w: Tensor) -> Tensor:
        """Doc."""
        return x * w

    for rows in (2, 3, 77):
        assert scaled(ones(rows, 5), ones(5)).shape == (rows, 5)
    assert scaled.__name__ == "scaled" and scaled.__doc__ == "Doc."
    (entry,) = scaled.entries.values()
    assert [str(size) for layout in entry.staged.in_layouts for size in layout.shape] == ["s0", "s1", "s1"]


@pytest.mark.parametrize(
    ("arguments", "entries"),
    [
        ([ones(3, 4), ones(5, 6)], 1),
        ([ones(3, 4), ones(1, 4)], 2),
        ([ones(3, 4), ones(3, 3)], 2),
        ([ones(3, 4), ones(4)], 2),
        ([ones(3, 4), ones(3, 4, dtype="int32")], 2),
        ([ones(3, 4), ones(0, 4)], 2),
    ],
)  # fmt: skip
def test_what_makes_a_new_entry(arguments: list[Tensor], entries: int) -> None:
    compiled = compile(lambda x: x + x)
    for x in arguments:
        np.testing.assert_array_equal(compiled(x).numpy(), np.asarray(x) * 2)
    assert len(compiled.entries) == entries


def test_static_values_and_trees_are_part_of_the_key() -> None:
    compiled = compile(lambda pair, scale: pair[0] * scale + pair[1])
    results = [compiled([ones(2), ones(2)], scale).numpy()[0] for scale in (2, 3, 2)]
    assert results == [3.0, 4.0, 3.0] and len(compiled.entries) == 2
    compiled((ones(2), ones(2)), 2)
    assert len(compiled.entries) == 3


def test_true_and_one_are_different_static_values() -> None:
    compiled = compile(lambda x, flag: x * (5 if flag is True else 2))
    assert [compiled(ones(2), flag).numpy()[0] for flag in (True, 1)] == [5.0, 2.0]


def test_layouts_give_a_callable() -> None:
    assert isinstance(compile(lambda x: x + 1)(TensorLayout("float32", ("T",))), CompiledCallable)


@pytest.mark.system(105)
def test_a_mix_of_layouts_and_tensors_names_both() -> None:
    with pytest.raises(TypeError, match=r"argument 'y\.0' is a tensor and argument 'x' a layout"):
        compile(lambda x, y: x + y[0])(TensorLayout("float32", ("T",)), [ones(2)])


def test_a_decorated_method_keeps_its_instance_static() -> None:
    class Scaler:
        def __init__(self, factor: float) -> None:
            self.factor = factor

        @compile(strict=True)
        def run(self, x: Tensor) -> Tensor:
            return x * self.factor

    assert [Scaler(f).run(ones(2)).numpy()[0] for f in (2.0, 3.0)] == [2.0, 3.0]


def test_too_many_entries_warn_once_and_name_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    def many(x: Tensor, scale: int) -> Tensor:
        return x * scale

    class Cheap:
        def __init__(self, *arguments: Any, **options: Any) -> None:
            pass

        def __call__(self, *args: Any) -> None:
            return None

    monkeypatch.setattr(sys.modules[compile.__module__], "CompiledCallable", Cheap)
    compiled = compile(many)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for scale in range(MAX_ENTRIES + 5):
            compiled(ones(2), scale)
    assert len(caught) == 1 and "many was compiled for more than 64 kinds" in str(caught[0].message)
    assert len(compiled.entries) == MAX_ENTRIES
