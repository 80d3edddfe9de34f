"""That the processor time read from outside is the time the process used. No speed is measured here."""

from __future__ import annotations

import os
import sys
import time

import pytest

from benchmarks.http import processor_seconds


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_processor_time_is_what_the_system_counts() -> None:
    deadline = time.process_time() + 0.1
    while time.process_time() < deadline:
        sum(range(1000))
    user, system = processor_seconds(os.getpid())
    times = os.times()
    assert 0.08 <= user + system  # of the tenth of a second above, less two ticks of the clock
    assert user == pytest.approx(times.user, abs=0.05) and system == pytest.approx(times.system, abs=0.05)
