"""The worker pool and the trampolines: every unit runs once, whatever sleeps, nests, forks or is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plait.framework.config import override
from plait.framework.errors import ConfigError
from plait.jit import cache
from plait.jit.builder import Builder, Value
from plait.jit.pool import Pool, shared_pool
from plait.jit.target import host_target
from plait.jit.threads import MAX_THREADS, default_threads, quota_cpus
from plait.jit.trampoline import MAX_SLOTS

HOST = host_target()


def counting_text() -> str:
    """`k` adds one to each unit's int64; `nested` launches `k` from native code; `status` gives slots 0 + 1."""
    b = Builder(HOST)
    with b.function("k") as (args, lo, hi):
        counts = b.slot(args, 0)

        def body(i: Value) -> None:
            place = b.gep("i64", counts, i)
            b.store(b.iadd(b.load("i64", place), 1), place)

        b.loop(lo, hi, 1, body)
    with b.function("nested") as (args, lo, hi):
        run, pool = b.slot(args, 1), b.slot(args, 2)
        kernel = Value("@k", "ptr")

        def launch(_i: Value) -> None:
            b.call("void", run, pool, kernel, args, b.index(0), b.index(1000), b.index(10))

        b.loop(lo, hi, 1, launch)
    with b.function("status", (("ptr", "block"),), result="i32") as (block,):
        b.ret(b.itrunc(b.iadd(b.slot(block, 0, "i64"), b.slot(block, 1, "i64")), "i32"))
    return b.text()


LIBRARY = cache.get("counting", counting_text(), HOST)
K, NESTED, STATUS = (LIBRARY.symbol(name) for name in ("k", "nested", "status"))


@pytest.fixture(scope="module")
def pool() -> object:
    made = Pool(3, spins=200)
    yield made
    made.stop()


def test_every_unit_runs_once_for_sizes_and_grains_of_all_kinds(pool: Pool) -> None:
    rng = np.random.default_rng(0)
    counts, expected = np.zeros(3000, np.int64), np.zeros(3000, np.int64)
    for number in range(20000):
        lo, hi = sorted(rng.integers(0, 3000, 2).tolist()) if number % 50 else (0, 3000)
        hi = min(hi, lo + 200) if number % 50 else hi
        pool.launch(K, lo, hi, int(rng.integers(1, 64)), counts.ctypes.data)
        expected[lo:hi] += 1
    assert np.array_equal(counts, expected)


def test_workers_wake_after_sleeping(pool: Pool) -> None:
    counts = np.zeros(500, np.int64)
    for _ in range(60):
        pool.launch(K, 0, 500, 7, counts.ctypes.data)
        time.sleep(0.003)
    assert (counts == 60).all()


def test_two_threads_launch_at_once(pool: Pool) -> None:
    arrays = [np.zeros(2000, np.int64) for _ in range(3)]

    def work(counts: np.ndarray[Any, Any]) -> None:
        for _ in range(1500):
            pool.launch(K, 0, 2000, 50, counts.ctypes.data)

    threads = [threading.Thread(target=work, args=(array,)) for array in arrays]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((array == 1500).all() for array in arrays)


def test_a_kernel_may_launch_from_native_code(pool: Pool) -> None:
    counts = np.zeros(1000, np.int64)
    pool.launch(NESTED, 0, 1, 1, counts.ctypes.data, pool.run_address, pool.address)  # one unit: the pool is free
    assert (counts == 1).all()
    several = np.zeros((4, 1000), np.int64)
    pool.launch(NESTED, 0, 1, 0, several[0].ctypes.data, pool.run_address, pool.address)
    assert (several[0] == 1).all() and (several[1:] == 0).all()


def test_a_nested_launch_inside_a_job_does_not_deadlock() -> None:
    # Without workers the outer job runs on this thread alone, so the units of the inner ones do not race.
    alone = Pool(1)
    counts = np.zeros(1000, np.int64)
    alone.launch(NESTED, 0, 8, 1, counts.ctypes.data, alone.run_address, alone.address)
    assert (counts == 8).all()


def test_empty_and_backward_ranges_do_nothing(pool: Pool) -> None:
    counts = np.zeros(10, np.int64)
    pool.launch(K, 5, 5, 1, counts.ctypes.data)
    pool.launch(K, 5, 2, 1, counts.ctypes.data)
    assert (counts == 0).all()


def test_call_gives_back_the_status(pool: Pool) -> None:
    assert pool.call(STATUS, 40, 2) == 42
    assert pool.call(STATUS, -50, 8) == -42


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((), TypeError),
        ((1, 2, 3), TypeError),
        ((K, 0, 1, 1, 1.5), TypeError),
        ((K, 0, 1, 1, None), TypeError),
        ((K, 0, 1, 1, 2**64), OverflowError),
        ((K, 0, 1, 1, *[0] * (MAX_SLOTS + 1)), TypeError),
    ],
)
def test_wrong_arguments_raise_before_anything_runs(
    pool: Pool, arguments: tuple[object, ...], error: type[Exception]
) -> None:
    with pytest.raises(error):
        pool.launch(*arguments)


def test_as_many_slots_as_promised_arrive(pool: Pool) -> None:
    b = Builder(HOST)
    with b.function("last") as (args, _lo, _hi):
        b.store(b.slot(args, MAX_SLOTS - 1, "i64"), b.slot(args, 0))
    result = np.zeros(1, np.int64)
    library = cache.get("last", b.text(), HOST)
    pool.launch(library.symbol("last"), 0, 1, 1, result.ctypes.data, *range(1, MAX_SLOTS))
    assert result[0] == MAX_SLOTS - 1


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="None is immortal")
def test_references_to_none_are_counted(pool: Pool) -> None:
    before = sys.getrefcount(None)
    results = [pool.launch(K, 0, 0, 1, 0) for _ in range(1000)]
    assert results[-1] is None and sys.getrefcount(None) - before >= 1000


def test_the_number_of_threads_follows_the_setting() -> None:
    with override(threads=3):
        assert shared_pool().num_threads == 3
        counts = np.zeros(1000, np.int64)
        shared_pool().launch(K, 0, 1000, 10, counts.ctypes.data)
        assert (counts == 1).all()
    with override(threads=1):
        assert shared_pool().num_threads == 1
    assert shared_pool().num_threads == default_threads()


@pytest.mark.parametrize("threads", [-1, MAX_THREADS + 1])
def test_an_impossible_number_of_threads_names_the_maximum(threads: int) -> None:
    with override(threads=threads), pytest.raises(ConfigError, match=f"{threads}.*1 to {MAX_THREADS}"):
        default_threads()


@pytest.mark.parametrize(
    ("files", "membership", "expected"),
    [
        ({"cpu.max": "max 100000\n"}, "0::/\n", None),
        ({"cpu.max": "150000 100000\n"}, "0::/\n", 2),
        ({"a/b/cpu.max": "max 100000", "a/cpu.max": "50000 100000"}, "0::/a/b\n", 1),
        ({"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, "4:cpu,cpuacct:/\n", 3),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, "4:cpu,cpuacct:/\n", None),
        ({}, "", None),
    ],
)
def test_the_quota_of_the_control_group_is_rounded_up(
    tmp_path: Path, files: dict[str, str], membership: str, expected: int | None
) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    (tmp_path / "membership").write_text(membership)
    assert quota_cpus(tmp_path, tmp_path / "membership") == expected


FORK = """
import os, sys, threading, time
import numpy as np
from plait.framework.config import config
config.threads = 3
from plait.jit.pool import shared_pool
from tests.jit.test_pool import K
counts = np.zeros(5000, np.int64)
shared_pool().launch(K, 0, 5000, 10, counts.ctypes.data)
busy = threading.Thread(target=lambda: [shared_pool().launch(K, 0, 5000, 10, other.ctypes.data) for _ in range(3000)])
other = np.zeros(5000, np.int64)
busy.start()
for _ in range(10):
    child = os.fork()
    if child == 0:
        assert len([t for t in threading.enumerate() if t.name.startswith("plait")]) == 0
        shared_pool().launch(K, 0, 5000, 10, counts.ctypes.data)
        workers = len([t for t in threading.enumerate() if t.name.startswith("plait")])
        os._exit(0 if (counts == 2).all() and workers == 2 else 1)
    assert os.waitpid(child, 0)[1] == 0
busy.join()
shared_pool().launch(K, 0, 5000, 10, counts.ctypes.data)
assert (counts == 2).all() and (other == 3000).all()
print("done")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_starts_its_own_workers_and_the_interpreter_exits() -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", FORK], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"


def test_the_interpreter_exits_while_a_daemon_thread_launches() -> None:
    script = (
        "import threading, numpy as np\nfrom plait.jit.pool import shared_pool\nfrom tests.jit.test_pool import K\n"
        "x = np.zeros(5000, np.int64)\n"
        "def work():\n    while True: shared_pool().launch(K, 0, 5000, 10, x.ctypes.data)\n"
        "threading.Thread(target=work, daemon=True).start()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
