"""A trace holds what ran, as Chrome's trace viewer reads it; outside one nothing is kept."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

import plait as pl
from plait.framework import profiler
from plait.framework.config import config, override
from plait.framework.errors import ConfigError
from plait.jit.runner import runner

Event = dict[str, Any]


def _spans(path: Path) -> list[Event]:
    document = json.loads(path.read_text())
    return [event for event in document["traceEvents"] if event["ph"] == "X"]


def _named(spans: list[Event], kind: str) -> list[str]:
    return [span["name"] for span in spans if span["cat"] == kind]


def _warm_chain(x: pl.Tensor) -> None:
    for _ in range(4):
        (pl.exp(x) * 2 + 1).realize()
        runner.wait()


def _is_inside(inner: Event, outer: Event) -> bool:
    end = outer["ts"] + outer["dur"]
    return inner["tid"] == outer["tid"] and outer["ts"] <= inner["ts"] and inner["ts"] + inner["dur"] <= end + 1e-3


def test_eager_kernels_stand_inside_their_realize_inside_the_scope(tmp_path: Path) -> None:
    x = pl.ones((8, 16)).realize()
    _warm_chain(x)
    with pl.profiler.trace(tmp_path / "t.json"), pl.profiler.profile_scope("mine"):
        (pl.exp(x) * 2 + 1).realize()
    spans = _spans(tmp_path / "t.json")
    by_kind = {span["cat"]: span for span in spans}
    assert _named(spans, "kernel") == ["exp_mul_add"]
    assert by_kind["kernel"]["args"]["shape"] == [8, 16] and by_kind["kernel"]["args"]["bytes"] >= 2 * 8 * 16 * 4
    assert _is_inside(by_kind["kernel"], by_kind["realize"]) and _is_inside(by_kind["realize"], by_kind["scope"])
    assert by_kind["scope"]["name"] == "mine"


def test_every_launch_of_a_compiled_graph_stands_inside_its_graph(tmp_path: Path) -> None:
    def block(x: pl.Tensor, w: pl.Tensor) -> pl.Tensor:
        return pl.softmax(pl.relu(x @ w) @ w)

    compiled = pl.compile(block)(pl.TensorLayout("float32", ("name", 32)), pl.TensorLayout("float32", (32, 32)))
    x, w = pl.ones((5, 32)), pl.ones((32, 32))
    expected = compiled(x, w).numpy()
    with pl.profiler.trace(tmp_path / "t.json"):
        traced = compiled(x, w)
    spans = _spans(tmp_path / "t.json")
    (graph,) = [span for span in spans if span["cat"] == "graph"]
    kernels = [span for span in spans if span["cat"] in ("kernel", "host") and _is_inside(span, graph)]
    assert [span["name"] for span in kernels] == compiled.launches
    assert graph["name"] == "block" and graph["args"] == {"name": 5}
    assert (traced.numpy() == expected).all()


def test_compiles_are_spans(tmp_path: Path) -> None:
    with override(cache="0"), pl.profiler.trace(tmp_path / "t.json"):
        pl.compile(lambda x: pl.tanh(x) * 4.75 - pl.sin(x) * 3)(pl.TensorLayout("float32", ("N",)))
    assert any("tanh" in name for name in _named(_spans(tmp_path / "t.json"), "compile"))


def test_the_interpreter_reports_records(tmp_path: Path) -> None:
    with override(jit=0), pl.profiler.trace(tmp_path / "t.json"):
        (pl.ones((3,)) + 1).realize()
    assert "add" in _named(_spans(tmp_path / "t.json"), "host")


def test_threads_are_named_and_apart(tmp_path: Path) -> None:
    @pl.profiler.profile_scope("work")
    def work() -> None:
        with pl.profiler.profile_scope("inside"):
            pass

    with pl.profiler.trace(tmp_path / "t.json"):
        work()
        thread = threading.Thread(target=work, name="other")
        thread.start()
        thread.join()
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    works = [event for event in events if event["name"] == "work"]
    assert sorted(names[event["tid"]] for event in works) == ["MainThread", "other"]
    assert len([event for event in events if event["name"] == "inside"]) == 2


def test_the_file_is_written_after_an_error_and_nothing_is_kept_later(tmp_path: Path) -> None:
    with pytest.raises(KeyError), pl.profiler.trace(tmp_path / "t.json"), pl.profiler.profile_scope("failing"):
        raise KeyError
    assert _named(_spans(tmp_path / "t.json"), "scope") == ["failing"]
    assert [path.name for path in tmp_path.iterdir()] == ["t.json"]
    assert profiler._active is None and not config.measured and not config.stepwise


def test_a_trace_in_a_trace_and_a_folder_that_is_not_there_are_refused(tmp_path: Path) -> None:
    with pl.profiler.trace(tmp_path / "t.json"):
        with pytest.raises(ConfigError, match=r"u\.json.*another"), pl.profiler.trace(tmp_path / "u.json"):
            pass
        with pl.profiler.profile_scope("still here"):
            pass
    assert _named(_spans(tmp_path / "t.json"), "scope") == ["still here"]
    with pytest.raises(FileNotFoundError, match="none"), pl.profiler.trace(tmp_path / "none" / "t.json"):
        pass
