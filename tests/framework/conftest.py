"""The two executors every operation is tried in: `jit` is 0 for the interpreter and 1 for kernels alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from plait.framework.config import override


@pytest.fixture(params=[0, 1], ids=["interpreter", "jit"])
def jit(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Runs the test once per executor. Kernels stand in for NumPy at first sight too, or a short test meets none."""
    if request.param:
        monkeypatch.setattr("plait.jit.runner.IEEE_FIXED", frozenset())
    with override(jit=request.param):
        yield request.param
