"""What the knobs show after import: NaNs by op and line, unwritten memory, single launches, user lines, levels."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import plait as pl
from plait.framework.config import config, override
from plait.framework.errors import CompileError, NaNError
from plait.framework.graph import Node
from plait.jit.fuse import Fuser
from plait.jit.kernel import Launch
from plait.jit.lower import lower
from plait.jit.runner import runner
from plait.jit.stage import stage


def here() -> int:
    """The caller's line."""
    return sys._getframe(1).f_lineno


def _floats(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


# NaN


@pytest.mark.parametrize("jit", [0, 1])
def test_the_first_record_that_makes_a_nan_is_named_with_the_users_line(jit: int) -> None:
    x = pl.asarray(np.array([[1.0, -1.0, 4.0]], np.float32), copy=True).realize()
    with override(nan=1, jit=jit):
        y, line = pl.sqrt(x), here()
        with pytest.raises(NaNError, match=rf"sqrt\[1, 3\].*element \(0, 1\).*{re.escape(__file__)}:{line}\.$"):
            (pl.exp(y) + 1).realize()
    assert np.isnan((pl.exp(pl.sqrt(x)) + 1).numpy()).any()


def test_a_nan_that_came_in_is_handed_on() -> None:
    x = pl.asarray(np.array([1.0, np.nan], np.float32))
    with override(nan=1):
        assert np.isnan((x * 2).numpy()).tolist() == [False, True]
        with pytest.raises(NaNError, match="div"):
            (pl.zeros((2,)) / pl.zeros((2,))).realize()


def test_a_compiled_graph_names_the_op_and_the_line_it_was_traced_from() -> None:
    lines = []

    def normalized(x: pl.Tensor) -> pl.Tensor:
        lines.append(here() + 1)
        shares = x / x.sum(-1, keepdims=True)
        return shares * 2

    layout = pl.TensorLayout("float32", ("T", 4))
    blind = pl.compile(normalized)(layout)
    with override(tracebacks=1):
        compiled = pl.compile(normalized)(layout)
    assert np.isnan(compiled(pl.zeros((2, 4))).numpy()).all()
    with override(nan=1):
        with pytest.raises(NaNError, match=rf"div\[T, 4\].*test_watching\.py:{lines[-1]}\."):
            compiled(pl.zeros((2, 4)))
        with pytest.raises(NaNError, match=r"div\[T, 4\].*recorded before PLAIT_NAN or PLAIT_TRACEBACKS"):
            blind(pl.zeros((2, 4)))
        np.testing.assert_allclose(compiled(pl.ones((2, 4))).numpy(), 0.5)


# Memory that nothing wrote


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_poison_names_the_kernel_that_leaves_part_of_its_result(dtype: str) -> None:
    x = pl.ones((4096,), dtype=dtype).realize()
    node = (x * 3).node()
    launch = _short(node)
    with override(poison=1), pytest.raises(CompileError, match=r"kernel mul left \d+ of 4096 elements.*unwritten"):
        runner._launch(launch, runner._compile(launch.kernel))
    assert node.buffer is None
    assert (x * 3).tolist() == [3.0] * 4096


def _short(node: Node) -> Launch:
    """A launch that lacks its last unit."""
    (group,) = Fuser([node], [node], lambda _: False).groups()
    launch = lower(group)
    assert isinstance(launch.extent, int)
    return replace(launch, extent=launch.extent - 1)


def test_whole_kernels_pass_under_poison_eager_and_compiled() -> None:
    x, w = _floats(7, 40), _floats(40)

    def block(x: pl.Tensor, w: pl.Tensor) -> tuple[pl.Tensor, pl.Tensor]:
        y = pl.softmax(pl.rms_norm(x, w) * 2)
        return y, y.sum(0)

    compiled = pl.compile(block)(pl.TensorLayout("float32", ("T", 40)), pl.TensorLayout("float32", (40,)))
    expected = [result.numpy() for result in compiled(pl.asarray(x), pl.asarray(w))]
    with override(poison=1):
        for results in (compiled(pl.asarray(x), pl.asarray(w)), block(pl.asarray(x), pl.asarray(w))):
            for result, wanted in zip(results, expected, strict=True):
                np.testing.assert_allclose(result.numpy(), wanted, rtol=1e-5)


def test_poison_finds_a_compiled_kernel_that_stores_too_little() -> None:
    compiled = pl.compile(lambda x: x * 3)(pl.TensorLayout("float32", (4096,)))
    x = pl.ones((4096,)).realize()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("plait.jit.stepwise.call_natively", lambda *arguments: 0)
        with override(poison=1), pytest.raises(CompileError, match="kernel mul left 4096 of 4096"):
            compiled(x)
    with override(poison=1):
        assert (compiled(x).numpy() == 3).all()


# One by one


def test_sync_enters_native_code_once_per_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    from plait.jit import stepwise

    entered: list[int] = []
    inner = stepwise.call_natively

    def count(entry: int, frame: Any, *rest: Any) -> int:
        entered.append(frame["begin"])
        return inner(entry, frame, *rest)

    monkeypatch.setattr("plait.jit.stepwise.call_natively", count)
    compiled = pl.compile(lambda x: pl.softmax((x @ x).sum(0) + x))(pl.TensorLayout("float32", (24, 24)))
    x = pl.asarray(_floats(24, 24))
    expected = compiled(x).numpy()
    assert entered == []
    with override(sync=1):
        np.testing.assert_array_equal(compiled(x).numpy(), expected)
    assert set(entered) == set(range(len(compiled.launches))) and len(compiled.launches) > 1


# The user's lines


def test_graphs_show_the_users_lines_while_switched_on_after_import() -> None:
    lines = []

    def shifted(x: pl.Tensor) -> pl.Tensor:
        lines.append(here() + 1)
        return pl.exp(x) + 1

    layout = pl.TensorLayout("float32", ("T",))
    with override(tracebacks=1):
        shown = str(stage(shifted)(layout))
    hidden = str(stage(shifted)(layout))
    assert shown.count(f"# {__file__}:{lines[0]}") == 2
    assert "#" not in hidden
    assert [line.split("  #")[0] for line in shown.splitlines()] == hidden.splitlines()


def test_a_failing_host_call_names_the_users_line(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = []

    def ordered(x: pl.Tensor) -> pl.Tensor:
        lines.append(here() + 1)
        return pl.sort(x * 2)

    with override(tracebacks=1):
        compiled = pl.compile(ordered)(pl.TensorLayout("float32", ("T",)))
        with pytest.raises(CompileError, match=rf"sort\[T\].* at .*test_watching\.py:{lines[0]} "):
            pl.compile(ordered, strict=True)(pl.TensorLayout("float32", ("T",)))
    assert compiled.host_calls
    monkeypatch.setattr("plait.jit.host_calls.compute", lambda *arguments: 1 / 0)
    with pytest.raises(CompileError, match=rf"\(sort\) failed at {re.escape(__file__)}:{lines[0]}\.$"):
        compiled(pl.ones((3,)))


def test_the_line_is_the_innermost_that_is_not_a_layers() -> None:
    from plait import nn

    norm = nn.RMSNorm(4)
    with override(tracebacks=1):
        result, line = norm(pl.ones((2, 4)) * 2), here()
        assert result.node().line == f"{__file__}:{line}"
    assert (pl.ones((2,)) + 1).node().line is None


# Levels

_MARKS = {
    1: r"^compile \S+: [\d.]+ ms, \d+ bytes",
    2: r"^kernel \S+ +\(.*\) +[\d.]+ ms +[\d.]+ GB/s",
    3: r"^fuse: \S+ is one map kernel",
    4: r"^graph @\S+ \{$",
    5: r"^define .*@k_",
    6: r"^\t\.section|^\t\.text",
}


@pytest.mark.parametrize("level", range(7))
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_each_debug_level_adds_its_lines_to_stderr(
    level: int, compiled: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def curve(x: pl.Tensor) -> pl.Tensor:
        return pl.exp2(x) * (2.5 + level + compiled)

    x = pl.ones((1 << 4,)).realize()
    monkeypatch.setattr("plait.jit.cache._loaded", {})  # every kernel is compiled again
    with override(debug=level, cache="0"):
        if compiled:
            pl.compile(curve)(pl.TensorLayout("float32", (16,)))(x).realize()
        else:
            runner._entries.clear()
            runner._plans._plans.clear()
            curve(x).realize()
    shown = capsys.readouterr()
    assert shown.out == ""
    found = {number for number, mark in _MARKS.items() if re.search(mark, shown.err, re.MULTILINE)}
    assert found == set(range(1, level + 1)), shown.err


def test_a_refused_fusion_names_its_rule(capsys: pytest.CaptureFixture[str]) -> None:
    with override(debug=3):
        pl.sort(pl.ones((4,)).realize() * 2).realize()
    assert re.search(r"^fuse: sort declined: \w+", capsys.readouterr().err, re.MULTILINE)


# Switches


def test_flags_follow_the_knobs_however_they_are_set() -> None:
    assert not config.stepwise and not config.lines
    for knobs in ({"debug": 2}, {"nan": 1}, {"poison": 1}, {"sync": 1}):
        with override(**knobs):
            assert config.stepwise, knobs
    with override(debug=1, tracebacks=1):
        assert not config.stepwise and config.lines
    try:
        config.debug = 2
        assert config.stepwise
    finally:
        config.debug = 0
    assert not config.stepwise and not config.lines


# Many results


def test_evaluate_is_one_schedule_for_all_results(tmp_path: Path) -> None:
    x = pl.asarray(_floats(9, 16), copy=True).realize()
    shared = pl.exp(x) * 2
    first, second = shared + 1, shared * 3
    with pl.profiler.trace(tmp_path / "t.json"):
        pl.evaluate(first, {"second": [second, first]})
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    (span,) = [event for event in events if event.get("cat") == "realize"]
    assert span["args"] == {"records": 4, "results": 3}
    assert sum(event["name"].startswith("exp") for event in events if event.get("cat") == "kernel") == 1
    assert first.node().buffer is not None and second.node().buffer is not None
    np.testing.assert_allclose(first.numpy(), np.exp(x.numpy()) * 2 + 1, rtol=1e-6)
    np.testing.assert_allclose(second.numpy(), np.exp(x.numpy()) * 6, rtol=1e-6)


def test_evaluate_takes_views_and_refuses_what_holds_no_tensor() -> None:
    x = pl.ones((3, 4)) * 2
    pl.evaluate(x.T, x[1], [])
    assert (x.T.numpy() == 2).all()
    with pytest.raises(TypeError, match="argument 1 is int"):
        pl.evaluate(x, 3)
