"""Eager tensor work beside NumPy (in this process) and PyTorch (in its own): one fused chain, softmax, rmsnorm.

Times include allocating the result and, for plait, recording, flushing and launching.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import plait as pl
from benchmarks.peer import Peer, PeerMissing
from benchmarks.report import Row, Side, alternate, num_threads, print_rows, time_row

# A round is this long where one call is shorter.
ROUND_S = 0.05
# name -> extents
CASES = {
    "chain": ((1_000,), (100_000,), (10_000_000,)),
    "softmax": ((4096, 4096), (32, 49152)),
    "rmsnorm": ((4096, 4096),),
}
GELU_SCALE, GELU_CUBE = np.float32(0.7978845608028654), np.float32(0.044715)


def _numpy_chain(x: Any, w: Any, b: Any) -> Any:
    y = x * w + b
    return np.float32(0.5) * y * (1 + np.tanh(GELU_SCALE * (y + GELU_CUBE * y * y * y))) * (1 / (1 + np.exp(-x)))


def _numpy_softmax(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _numpy_rmsnorm(x: Any, w: Any) -> Any:
    return x * (1 / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(1e-6))) * w


def _plait_chain(x: Any, w: Any, b: Any) -> Any:
    return (pl.gelu(x * w + b, approximate="tanh") * pl.sigmoid(x)).realize()


def _plait_softmax(x: Any) -> Any:
    return pl.softmax(x, axis=-1).realize()


def _plait_rmsnorm(x: Any, w: Any) -> Any:
    return pl.rms_norm(x, w, 1e-6).realize()


NUMPY: dict[str, Callable[..., Any]] = {"chain": _numpy_chain, "softmax": _numpy_softmax, "rmsnorm": _numpy_rmsnorm}
PLAIT: dict[str, Callable[..., Any]] = {"chain": _plait_chain, "softmax": _plait_softmax, "rmsnorm": _plait_rmsnorm}


def operands(name: str, shape: tuple[int, ...]) -> list[np.ndarray[Any, np.dtype[np.float32]]]:
    """Return the float32 operands of a case."""
    shapes = {"chain": (shape,) * 3, "softmax": (shape,), "rmsnorm": (shape, shape[-1:])}[name]
    random = np.random.default_rng(0)
    return [random.standard_normal(each, dtype=np.float32) for each in shapes]


def _calls_per_round(work: Callable[[], object]) -> int:
    work()
    start = time.perf_counter()
    work()
    return max(1, round(ROUND_S / max(time.perf_counter() - start, 1e-7)))


def _side(work: Callable[[], object]) -> Side:
    """A side that returns the microseconds of one call, averaged over a round."""
    calls = _calls_per_round(work)

    def run() -> float:
        start = time.perf_counter()
        for _ in range(calls):
            work()
        return (time.perf_counter() - start) / calls * 1e6

    return run


def _peer_side(peer: Peer, case: str) -> Side:
    peer.ask(f"{case} 2")
    calls = max(1, round(ROUND_S / float(peer.ask(f"{case} 1")["seconds"])))
    return lambda: float(peer.ask(f"{case} {calls}")["seconds"]) * 1e6


def _check(name: str, ours: Any, theirs: Any) -> None:
    """A speed of a wrong answer is worth nothing."""
    np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-4, atol=1e-5, err_msg=f"{name}: plait and NumPy differ")


def _case_rows(name: str, shape: tuple[int, ...], peer: Peer | None) -> list[Row]:
    arrays = operands(name, shape)
    tensors = [pl.asarray(array, copy=True) for array in arrays]  # memory of their own, as the peer's tensors have
    _check(name, PLAIT[name](*tensors), NUMPY[name](*arrays))
    extents = "x".join(str(extent) for extent in shape)
    sides = [_side(lambda: PLAIT[name](*tensors)), _side(lambda: NUMPY[name](*arrays))]
    if peer:
        sides.append(_peer_side(peer, f"{name}:{extents}"))
    plait, numpy, *torch = alternate(sides)
    label = f"{name} [{extents}]"
    return [
        time_row(label, plait, numpy, "us", "NumPy"),
        time_row(label, plait, torch[0] if torch else None, "us", "PyTorch"),
    ]


def run() -> list[Row]:
    """Measure every case, print the table and return its rows."""
    peer, line = None, ""
    try:
        peer = Peer("torch", "torch_tensor.py", [str(num_threads())])
        line = f"PyTorch {peer.description['version']}, {peer.description['threads']} threads"
    except PeerMissing as missing:
        line = f"{missing}: not measured"
    rows = [row for name, shapes in CASES.items() for shape in shapes for row in _case_rows(name, shape, peer)]
    if peer:
        peer.close()
    print_rows("tensors, float32 (chain = gelu(x*w+b)*sigmoid(x))", rows, [f"NumPy {np.__version__}", line])
    return rows
