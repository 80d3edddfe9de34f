"""Pictures show every record, leaf, operand and result, with text that the formats can take."""

from __future__ import annotations

import re

import plait as pl
from plait.jit.stage import StagedGraph, stage


def _staged() -> StagedGraph:
    def scaled(x: pl.Tensor, cache: pl.Tensor) -> pl.Tensor:
        cache[0] = x[0]
        return pl.softmax(x) * 2

    return stage(scaled)(pl.TensorLayout("float32", ("T", 4)), pl.BufferLayout("float32", (3, 4)))


def _edges(staged: StagedGraph) -> int:
    graph = staged.graph
    return sum(len(node.srcs) for node in graph.nodes) + len(graph.outputs) + len(graph.stores)


def test_dot_has_a_box_per_record_and_an_arrow_per_operand() -> None:
    staged = _staged()
    text = staged.to_dot()
    boxes = dict(re.findall(r'^  (\w+) \[label="((?:[^"\\]|\\.)*)", shape=\w+\];$', text, re.MULTILINE))
    arrows = re.findall(r'^  (\w+) -> (\w+)(?: \[label="\w+"\])?;$', text, re.MULTILINE)
    assert text.startswith('digraph "scaled" {') and text.endswith("}")
    assert len(boxes) + len(arrows) + 3 == len(text.splitlines())
    assert len(arrows) == _edges(staged)
    assert {name for arrow in arrows for name in arrow} == set(boxes)
    for node in staged.graph.nodes:
        assert sum(label.startswith(f"{node.op.name}\\n") for label in boxes.values()) >= 1
    assert "input x\\nfloat32[T, 4]" in boxes.values() and "result 0" in boxes.values()
    assert staged.graph.to_dot() == text


def test_mermaid_has_the_same_boxes_and_arrows() -> None:
    staged = _staged()
    first, *lines = staged.to_mermaid().splitlines()
    arrows = [line for line in lines if re.fullmatch(r"  \w+ -->(\|\w+\|)? \w+", line)]
    boxes = [line for line in lines if re.fullmatch(r'  \w+[\[(]+"[^"]*"[\])]+', line)]
    assert first == "flowchart TD"
    assert len(boxes) + len(arrows) == len(lines)
    assert len(arrows) == _edges(staged)
    assert len(boxes) == staged.to_dot().count('", shape=')


def test_arrows_follow_the_operands() -> None:
    text = stage(lambda a, b: a - b)(pl.TensorLayout("float32", (2,)), pl.TensorLayout("float32", (2,))).to_dot()
    names = {label.split("\\n")[0]: name for name, label in re.findall(r'  (\w+) \[label="([^"]*)"', text)}
    assert f'{names["input a"]} -> {names["sub"]} [label="0"];' in text
    assert f'{names["input b"]} -> {names["sub"]} [label="1"];' in text


def test_quotes_in_names_are_escaped() -> None:
    staged = stage(lambda x: -x['a"b<\\'], name='say "hi"')({'a"b<\\': pl.TensorLayout("float32", (2,))})
    assert 'digraph "say \\"hi\\"" {' in staged.to_dot()
    assert 'a\\"b<\\\\' in staged.to_dot()
    assert "a#quot;b#lt;" in staged.to_mermaid()
