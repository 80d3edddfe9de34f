"""The import order serve -> pipelines -> nn -> jit -> framework, read from the source: file, line and import named."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LAYERS = ("framework", "jit", "nn", "pipelines", "serve")


def imports(tree: ast.AST) -> list[tuple[int, str]]:
    """Every imported dotted name with its line, wherever in the file it stands; relative ones keep their dots."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            found += [(node.lineno, f"{module}.{alias.name}") for alias in node.names]
    return found


def offences(layer: str, path: str, source: str) -> list[str]:
    allowed = LAYERS[: LAYERS.index(layer) + 1]
    complaints = []
    for line, name in imports(ast.parse(source, path)):
        first, second = (name.split(".") + [""])[:2]
        if name.startswith(".") or first in LAYERS:
            complaints.append(f"{path}:{line}: import of {name}; write plait.<package>")
        elif first == "plait" and second not in allowed:
            complaints.append(f"{path}:{line}: import of {name}; {layer} may import {', '.join(allowed)}")
    return complaints


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_imports_only_itself_and_those_below(layer: str) -> None:
    files = sorted((ROOT / layer).rglob("*.py"))
    assert files
    complaints = [text for f in files for text in offences(layer, str(f.relative_to(ROOT)), f.read_text())]
    assert complaints == []


@pytest.mark.parametrize("layer", LAYERS)
def test_the_face_reaches_each_layer_through_a_relative_link(layer: str) -> None:
    link = ROOT / "plait" / layer
    assert link.is_symlink() and link.readlink() == Path("..") / layer


@pytest.mark.parametrize(
    ("layer", "source", "named"),
    [
        (
            "framework",
            "x = 1\ndef f():\n    from plait.jit.cache import Cache\n",
            "a.py:3: import of plait.jit.cache.Cache",
        ),
        ("jit", "from plait import nn\n", "a.py:1: import of plait.nn"),
        ("nn", "import plait.serve.app\n", "a.py:1: import of plait.serve.app"),
        ("nn", "import plait\n", "a.py:1: import of plait;"),
        ("serve", "from .routes import chat\n", "a.py:1: import of .routes.chat"),
        ("pipelines", "import framework\n", "a.py:1: import of framework"),
    ],
)
def test_a_slip_is_named_by_file_line_and_import(layer: str, source: str, named: str) -> None:
    (complaint,) = offences(layer, "a.py", source)
    assert complaint.startswith(named)


def test_imports_that_keep_the_order_pass() -> None:
    source = (
        "import numpy\nimport plait.framework.tensor\nfrom plait.jit import cache\nfrom plait.nn.linear import Linear\n"
    )
    assert offences("nn", "a.py", source) == []


def test_every_folder_of_modules_is_a_package() -> None:
    """Without its __init__.py a folder works in the checkout and is missing from the wheel."""
    folders = {path.parent for layer in LAYERS for path in (ROOT / layer).rglob("*.py")}
    assert sorted(str(folder.relative_to(ROOT)) for folder in folders if not (folder / "__init__.py").is_file()) == []
