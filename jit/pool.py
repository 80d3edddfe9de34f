"""The worker pool: one job at a time, cut into chunks that whoever is free takes. Knows kernels only as addresses.

Workers are Python daemon threads parked in native code with the GIL released. Joining is dynamic: the caller opens a
job, takes chunks itself, closes the job and waits only for workers that joined, so a worker that is asleep or not
scheduled never holds a launch up. A launch that finds the pool taken (another thread, or a kernel that launches) runs
on its own thread alone.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
import time

from plait.framework.errors import CompileError
from plait.jit.cache import get_object
from plait.jit.compile_ir import Library, load_object
from plait.jit.target import Target, host_target
from plait.jit.threads import default_threads
from plait.jit.trampoline import python_callable, python_imports, trampolines_text

SPINS = 2000  # looks at the pool's word before a worker goes to sleep
_YIELD_AFTER = 4096  # looks before a waiting caller offers its core

# Words of the pool, as indices of int64; those that different threads write are a cache line apart.
GENERATION, OPEN, ACTIVE, NEXT, JOB, SLEEPERS, STOP, SPIN, TAKEN = 0, 8, 16, 24, 32, 40, 48, 56, 64
_WORDS = 72

_SYSTEM = {  # (futex, sched_yield) system call numbers
    "x86_64": (202, 24),
    "aarch64": (98, 124),
}
_PAUSE = {
    "x86_64": ("declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
    "aarch64": ("declare void @llvm.aarch64.hint(i32)", "call void @llvm.aarch64.hint(i32 1)"),
}

_TEXT = """
declare i64 @syscall(i64, ...)
DECLARE_PAUSE

define internal void @take_chunks(ptr %pool) nounwind {
entry:
  %job = getelementptr i64, ptr %pool, i64 32
  %function = load ptr, ptr %job, align 8
  %args_at = getelementptr i64, ptr %job, i64 1
  %args = load ptr, ptr %args_at, align 8
  %hi_at = getelementptr i64, ptr %job, i64 2
  %hi = load i64, ptr %hi_at, align 8
  %grain_at = getelementptr i64, ptr %job, i64 3
  %grain = load i64, ptr %grain_at, align 8
  %next = getelementptr i64, ptr %pool, i64 24
  br label %take
take:
  %from = atomicrmw add ptr %next, i64 %grain monotonic
  %left = icmp slt i64 %from, %hi
  br i1 %left, label %work, label %done
work:
  %end = add i64 %from, %grain
  %inside = icmp slt i64 %end, %hi
  %to = select i1 %inside, i64 %end, i64 %hi
  call void %function(ptr %args, i64 %from, i64 %to)
  br label %take
done:
  ret void
}

define void @pool_work(ptr %pool) nounwind {
entry:
  %open_at = getelementptr i64, ptr %pool, i64 8
  %active_at = getelementptr i64, ptr %pool, i64 16
  %sleepers_at = getelementptr i64, ptr %pool, i64 40
  %stop_at = getelementptr i64, ptr %pool, i64 48
  %spin_at = getelementptr i64, ptr %pool, i64 56
  br label %wait
wait:
  %seen = phi i32 [0, %entry], [%current, %leave]
  %spins = load i64, ptr %spin_at, align 8
  br label %look
look:
  %tries = phi i64 [0, %wait], [%tried, %pause]
  %now = load atomic i32, ptr %pool seq_cst, align 64
  %changed = icmp ne i32 %now, %seen
  br i1 %changed, label %wake, label %pause
pause:
  PAUSE
  %tried = add i64 %tries, 1
  %again = icmp slt i64 %tried, %spins
  br i1 %again, label %look, label %sleep
sleep:
  %asleep = atomicrmw add ptr %sleepers_at, i64 1 seq_cst
  %woken = call i64 (i64, ...) @syscall(i64 FUTEX, ptr %pool, i32 128, i32 %seen, ptr null, ptr null, i32 0)
  %awake = atomicrmw sub ptr %sleepers_at, i64 1 seq_cst
  br label %wake
wake:
  ; The generation is read before joining: a job opened later changes it, so it is never slept through.
  %current = load atomic i32, ptr %pool seq_cst, align 64
  %stop = load atomic i64, ptr %stop_at seq_cst, align 8
  %stopped = icmp ne i64 %stop, 0
  br i1 %stopped, label %done, label %join
join:
  %joined = atomicrmw add ptr %active_at, i64 1 seq_cst
  %open = load atomic i64, ptr %open_at seq_cst, align 8
  %is_open = icmp ne i64 %open, 0
  br i1 %is_open, label %work, label %leave
work:
  call void @take_chunks(ptr %pool)
  br label %leave
leave:
  %left = atomicrmw sub ptr %active_at, i64 1 seq_cst
  br label %wait
done:
  ret void
}

define void @pool_run(ptr %pool, ptr %function, ptr %args, i64 %lo, i64 %hi, i64 %grain) nounwind {
entry:
  %units = sub i64 %hi, %lo
  %small = icmp sle i64 %units, %grain
  %senseless = icmp sle i64 %grain, 0
  %whole = or i1 %small, %senseless
  br i1 %whole, label %alone, label %try
try:
  %taken_at = getelementptr i64, ptr %pool, i64 64
  %taken = cmpxchg ptr %taken_at, i64 0, i64 1 acquire monotonic
  %free = extractvalue { i64, i1 } %taken, 1
  br i1 %free, label %open, label %alone
alone:
  call void %function(ptr %args, i64 %lo, i64 %hi)
  ret void
open:
  %open_at = getelementptr i64, ptr %pool, i64 8
  %active_at = getelementptr i64, ptr %pool, i64 16
  %next_at = getelementptr i64, ptr %pool, i64 24
  %job = getelementptr i64, ptr %pool, i64 32
  %args_at = getelementptr i64, ptr %job, i64 1
  %hi_at = getelementptr i64, ptr %job, i64 2
  %grain_at = getelementptr i64, ptr %job, i64 3
  %sleepers_at = getelementptr i64, ptr %pool, i64 40
  store ptr %function, ptr %job, align 8
  store ptr %args, ptr %args_at, align 8
  store i64 %hi, ptr %hi_at, align 8
  store i64 %grain, ptr %grain_at, align 8
  store atomic i64 %lo, ptr %next_at release, align 8
  store atomic i64 1, ptr %open_at seq_cst, align 8
  %before = atomicrmw add ptr %pool, i32 1 seq_cst
  %sleepers = load atomic i64, ptr %sleepers_at seq_cst, align 8
  %any = icmp sgt i64 %sleepers, 0
  br i1 %any, label %wake, label %work
wake:
  %woken = call i64 (i64, ...) @syscall(i64 FUTEX, ptr %pool, i32 129, i32 2147483647, ptr null, ptr null, i32 0)
  br label %work
work:
  call void @take_chunks(ptr %pool)
  store atomic i64 0, ptr %open_at seq_cst, align 8
  br label %wait
wait:
  %looks = phi i64 [0, %work], [%looked, %pause], [0, %yield]
  %active = load atomic i64, ptr %active_at seq_cst, align 8
  %all_left = icmp eq i64 %active, 0
  br i1 %all_left, label %done, label %linger
linger:
  PAUSE
  %looked = add i64 %looks, 1
  %long = icmp sgt i64 %looked, YIELD_AFTER
  br i1 %long, label %yield, label %pause
pause:
  br label %wait
yield:
  %yielded = call i64 (i64, ...) @syscall(i64 SCHED_YIELD)
  br label %wait
done:
  store atomic i64 0, ptr %taken_at release, align 8
  ret void
}
"""


def _module_text(target: Target) -> str:
    machine = target.triple.split("-")[0].replace("arm64", "aarch64")
    if machine not in _PAUSE:
        raise CompileError(f"pool: no worker pool for {target.triple}; expected x86_64 or aarch64. Set PLAIT_JIT=0.")
    futex, sched_yield = _SYSTEM[machine]
    declare_pause, pause = _PAUSE[machine]
    text = _TEXT.replace("DECLARE_PAUSE", declare_pause).replace("PAUSE", pause).replace("FUTEX", str(futex))
    text = text.replace("SCHED_YIELD", str(sched_yield)).replace("YIELD_AFTER", str(_YIELD_AFTER))
    return text + trampolines_text()


def _load_runtime() -> Library:
    target = host_target()
    data = get_object("runtime", _module_text(target), target)
    syscall = ctypes.cast(ctypes.CDLL(None).syscall, ctypes.c_void_p).value or 0
    symbols = ("launch", "call", "worker", "pool_run")
    return load_object(data, symbols, {**python_imports(), "syscall": syscall})


class Pool:
    """Worker threads and the ways into native code.

    launch(kernel, lo, hi, grain, *slots)   run `void kernel(ptr slots, i64 lo, i64 hi)`; with more than `grain` units
                                            on the pool and without the GIL, else here and now with the GIL held
    call(function, *slots) -> int           run `i32 function(ptr slots)` without the GIL
    address, run_address                    for native code that launches kernels: the pool, and
                                            `void run(ptr pool, ptr kernel, ptr slots, i64 lo, i64 hi, i64 grain)`

    Every argument is a Python int of 64 bits and sign; a pool works, serially, without workers.
    """

    def __init__(self, num_threads: int, spins: int = SPINS) -> None:
        self._library = _load_runtime()
        self._memory = ctypes.create_string_buffer(_WORDS * 8 + 63)
        self.address = (ctypes.addressof(self._memory) + 63) // 64 * 64
        self._words = (ctypes.c_int64 * _WORDS).from_address(self.address)
        self._words[SPIN] = spins
        self._workers: list[threading.Thread] = []
        self.run_address = self._library.symbol("pool_run")
        self.launch = python_callable(self._library.symbol("launch"), "launch", self.address)
        self.call = python_callable(self._library.symbol("call"), "call", self.address)
        self._worker = python_callable(self._library.symbol("worker"), "worker", None)
        self.start(num_threads)

    @property
    def num_threads(self) -> int:
        """Threads that take chunks, the caller included."""
        return len(self._workers) + 1

    def start(self, num_threads: int) -> None:
        """Have `num_threads - 1` workers, whatever there were."""
        if num_threads == self.num_threads:
            return
        self.stop()
        can_sleep = sys.platform.startswith("linux")  # elsewhere there is no futex and launches run serially
        for number in range(num_threads - 1 if can_sleep else 0):
            worker = threading.Thread(
                target=self._worker, args=(self.address,), name=f"plait-worker-{number}", daemon=True
            )
            worker.start()
            self._workers.append(worker)

    def stop(self, timeout_s: float = 60.0) -> None:
        """End the workers; launches run serially then. A worker still in a kernel after the time is left there."""
        deadline = time.monotonic() + timeout_s
        self._words[STOP] = 1
        while self._workers and time.monotonic() < deadline:
            self.launch(_NOTHING, 0, 2, 1)  # opening a job wakes them
            self._workers[0].join(0.001)
            self._workers = [worker for worker in self._workers if worker.is_alive()]
        if not self._workers:
            self._words[STOP] = 0

    def forget_workers(self) -> None:
        """In a forked child: the workers are not there, and whatever job was open is not ours."""
        self._workers = []
        spins = self._words[SPIN]
        ctypes.memset(self.address, 0, _WORDS * 8)
        self._words[SPIN] = spins


def _nothing(_args: int, _lo: int, _hi: int) -> None:
    """What `stop` launches to open a job."""


_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(_nothing)
_NOTHING = ctypes.cast(_CALLBACK, ctypes.c_void_p).value or 0
_lock = threading.Lock()
_shared: list[Pool] = []


def shared_pool() -> Pool:
    """The process's pool, with the threads the settings ask for now. Starts again after a fork."""
    wanted = default_threads()
    if _shared and _shared[0].num_threads == wanted:
        return _shared[0]
    with _lock:
        if not _shared:
            _shared.append(Pool(wanted))
        _shared[0].start(wanted)
        return _shared[0]


def _stop_at_exit() -> None:
    for pool in _shared:
        pool.stop(timeout_s=1.0)


def _after_fork_in_child() -> None:
    _lock.release()
    for pool in _shared:
        pool.forget_workers()


atexit.register(_stop_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_after_fork_in_child)
