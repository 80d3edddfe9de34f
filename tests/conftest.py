"""What every test gets: an environment without the caller's PLAIT_* settings, one throwaway compile cache, markers."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest_plugins = ["tests.coverage_table"]

# Before anything imports plait, which reads the environment once. The workers of one run inherit the controller's
# folder, so that a kernel is compiled once per run and never left behind.
IS_WORKER = "PYTEST_XDIST_WORKER" in os.environ
if not IS_WORKER:
    for name in [name for name in os.environ if name.startswith("PLAIT_")]:
        del os.environ[name]
    os.environ["PLAIT_CACHE"] = tempfile.mkdtemp(prefix="plait-tests-")

GPU_NODES = ("/dev/nvidiactl", "/dev/kfd")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not any(Path(node).exists() for node in GPU_NODES):
        pytest.skip(f"needs a GPU: none of {', '.join(GPU_NODES)} exists")


def pytest_unconfigure(config: pytest.Config) -> None:
    if "plait.jit.runner" in sys.modules:
        sys.modules["plait.jit.runner"].runner.wait()  # a background compile still writes to the cache
    if not IS_WORKER:
        shutil.rmtree(os.environ["PLAIT_CACHE"], ignore_errors=True)


@pytest.fixture(autouse=True)
def _settings_stay_as_found() -> Iterator[None]:
    """A test that sets a PLAIT_* variable by hand does not leak it into the next one."""
    before = {name: value for name, value in os.environ.items() if name.startswith("PLAIT_")}
    yield
    for name in [name for name in os.environ if name.startswith("PLAIT_")]:
        del os.environ[name]
    os.environ.update(before)
