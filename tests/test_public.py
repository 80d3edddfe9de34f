"""`plait.__all__` is exactly what plait shows: every name is there, none is missing, nothing else leaks."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import types

import pytest

import plait

SUBPACKAGES = {"framework", "jit", "nn", "pipelines", "serve", "cli", "doctor"}


def _run(code: str) -> str:
    """What a fresh interpreter prints."""
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    run = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_names_are_listed_once() -> None:
    assert len(plait.__all__) == len(set(plait.__all__))


@pytest.mark.parametrize("name", plait.__all__)
def test_every_listed_name_is_there(name: str) -> None:
    assert not name.startswith("_")
    assert getattr(plait, name) is not None or name == "newaxis"


def test_nothing_public_is_unlisted() -> None:
    code = "import plait; print(*(n for n in vars(plait) if not n.startswith('_')))"
    shown = set(_run(code).split()) - {"annotations"}
    assert shown - SUBPACKAGES <= set(plait.__all__)


def test_every_public_function_has_a_sentence() -> None:
    silent = []
    for name in plait.__all__:
        value = getattr(plait, name)
        if inspect.isfunction(value) or inspect.isclass(value) or inspect.ismodule(value):
            text = inspect.getdoc(value) or ""
            if not text.strip().split("\n")[0].endswith((".", ":")):
                silent.append(name)
    assert silent == []


def test_a_star_import_brings_the_listed_names() -> None:
    names = _run("from plait import *; print(*sorted(n for n in dir() if not n.startswith('__')))").split()
    assert set(names) == set(plait.__all__)


def test_public_classes_and_functions_are_addressed_through_plait() -> None:
    for name in plait.__all__:
        value = getattr(plait, name)
        if isinstance(value, types.FunctionType | type):
            assert value.__module__.split(".")[0] in ("plait", "builtins"), name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        plait.no_such_name  # noqa: B018


def test_importing_plait_leaves_the_heavy_packages_out() -> None:
    heavy = ("llvmlite", "numba", "sanic", "tokenizers", "cuda", "hip", "jinja2", "pydantic", "httpx")
    code = f"import sys, plait; print(*(name for name in {heavy} if name in sys.modules))"
    assert _run(code) == ""


def test_the_version_is_the_packages() -> None:
    from importlib.metadata import version

    assert plait.__version__ == version("plait")
