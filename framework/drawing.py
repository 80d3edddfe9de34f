"""Graphs as pictures: Graphviz and Mermaid text. Draws records and what they read; computes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from plait.framework.graph import CONST, INPUT, WEIGHT, Graph, Node

_KINDS = {INPUT: "input", WEIGHT: "weight", CONST: "const"}
_DOT_SHAPES = {"record": "box", "const": "plaintext", "result": "doublecircle"}
_MERMAID_BRACKETS = {"record": "[{}]", "const": "({})", "result": "(({}))"}


@dataclass
class _Picture:
    """Boxes (name, kind, lines of text) and arrows (from, to, label) in drawing order."""

    boxes: list[tuple[str, str, list[str]]] = field(default_factory=list)
    arrows: list[tuple[str, str, str]] = field(default_factory=list)


def _draw(graph: Graph) -> _Picture:
    picture, names = _Picture(), dict[int, str]()

    def name_of(node: Node) -> str:
        if id(node) not in names or node.op is CONST:  # every use of a scalar gets a box of its own
            names[id(node)] = f"n{len(picture.boxes)}"
            picture.boxes.append((names[id(node)], _kind(node), _words(node)))
        return names[id(node)]

    for node in (*graph.inputs, *graph.weights, *graph.nodes):
        sources = [name_of(src) for src in node.srcs]
        name = name_of(node)
        for place, source in enumerate(sources):
            picture.arrows.append((source, name, str(place) if len(sources) > 1 else ""))
    for number, node in enumerate(graph.outputs):
        source = name_of(node)
        picture.boxes.append((f"r{number}", "result", [f"result {number}"]))
        picture.arrows.append((source, f"r{number}", ""))
    for target, version in graph.stores:
        picture.arrows.append((name_of(version), name_of(target), "store"))
    return picture


def _kind(node: Node) -> str:
    return "constant" if node.buffer is not None else _KINDS.get(node.op, "record")


def _words(node: Node) -> list[str]:
    type_text = f"{node.dtype.name}[{', '.join(map(str, node.shape))}]"
    if node.buffer is not None:
        return ["constant", type_text]
    if node.op is CONST:
        return [f"{node.attrs[0]!r}"]
    if node.op in _KINDS:
        return [f"{_KINDS[node.op]} {node.attr('name')}", type_text]
    attrs = ", ".join(f"{name}={value!r}" for name, value in zip(node.op.attrs, node.attrs, strict=True))
    return [node.op.name, *([attrs] if attrs else []), type_text]


def to_dot(graph: Graph) -> str:
    """Graphviz text."""
    return "\n".join(_dot_lines(graph))


def _dot_lines(graph: Graph) -> Iterator[str]:
    picture = _draw(graph)
    yield f"digraph {_dot_text([graph.name])} {{"
    yield "  rankdir=TB;"
    for name, kind, words in picture.boxes:
        yield f"  {name} [label={_dot_text(words)}, shape={_DOT_SHAPES.get(kind, 'ellipse')}];"
    for source, target, label in picture.arrows:
        yield f"  {source} -> {target}" + (f" [label={_dot_text([label])}];" if label else ";")
    yield "}"


def _dot_text(words: list[str]) -> str:
    return '"' + "\\n".join(word.replace("\\", "\\\\").replace('"', '\\"') for word in words) + '"'


def to_mermaid(graph: Graph) -> str:
    """Mermaid flowchart text."""
    return "\n".join(_mermaid_lines(graph))


def _mermaid_lines(graph: Graph) -> Iterator[str]:
    picture = _draw(graph)
    yield "flowchart TD"
    for name, kind, words in picture.boxes:
        yield f"  {name}{_MERMAID_BRACKETS.get(kind, '([{}])').format(_mermaid_text(words))}"
    for source, target, label in picture.arrows:
        yield f"  {source} -->{f'|{label}|' if label else ''} {target}"


def _mermaid_text(words: list[str]) -> str:
    escapes = {"#": "#35;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "`": "#96;"}
    return '"' + "<br/>".join("".join(escapes.get(char, char) for char in word) for word in words) + '"'
