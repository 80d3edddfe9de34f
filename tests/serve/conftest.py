"""Real servers, one for each test file that asks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.serve.servers import ServeProcess, plait_serve


@pytest.fixture(scope="module")
def smollm2() -> Iterator[ServeProcess]:
    with plait_serve("smollm2", "--max-length", "512", "--max-batch-size", "8") as served:
        yield served


@pytest.fixture(scope="module")
def echo() -> Iterator[ServeProcess]:
    with plait_serve("echo", "--max-length", "512", "--max-batch-size", "4") as served:
        yield served
