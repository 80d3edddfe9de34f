"""The eager executor: fusion counted in kernels, results that never depend on when a compile lands."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

import plait as pl
from plait.framework.config import override
from plait.jit.runner import Runner, runner


def _warm(function: Callable[[], pl.Tensor]) -> pl.Tensor:
    """Past the third sight, with every compile landed."""
    for _ in range(4):
        function().realize()
        runner.wait()
    return function().realize()


def _kernels(function: Callable[[], pl.Tensor]) -> int:
    _warm(function)
    before = runner.counters.kernels
    function().realize()
    return runner.counters.kernels - before


def _operands(*shape: int) -> list[pl.Tensor]:
    draws = np.random.default_rng(0)
    return [pl.asarray(draws.standard_normal(shape).astype(np.float32), copy=True).realize() for _ in range(3)]


@pytest.mark.system(103)
@pytest.mark.parametrize(
    "name,function",
    [
        ("chain", lambda x, w, b: pl.gelu(x * w + b, "tanh") * pl.sigmoid(x)),
        ("softmax", lambda x, w, b: pl.softmax(x)),
        ("log_softmax", lambda x, w, b: pl.log_softmax(x)),
        ("rms_norm", lambda x, w, b: pl.rms_norm(x, w[0])),
        ("layer_norm", lambda x, w, b: pl.layer_norm(x, w[0], b[0])),
        ("mean", lambda x, w, b: (x * w).mean(-1)),
        ("softmax over columns", lambda x, w, b: pl.softmax(x * w, axis=0)),
        ("variance over columns", lambda x, w, b: pl.var(x, axis=0)),
        ("column sum", lambda x, w, b: (x * w + b).sum(0)),
    ],
)
def test_is_one_kernel_and_equals_the_interpreter(name: str, function: Callable[..., pl.Tensor]) -> None:
    x, w, b = _operands(9, 100)
    assert _kernels(lambda: function(x, w, b)) == 1
    with override(jit=0):
        expected = function(x, w, b).numpy()
    np.testing.assert_allclose(_warm(lambda: function(x, w, b)).numpy(), expected, rtol=2e-6, atol=1e-6)


def test_bits_do_not_depend_on_when_a_compile_lands() -> None:
    x, w, b = _operands(33, 77)

    def compute() -> bytes:
        y = pl.gelu(x * w + b, "tanh") * pl.sigmoid(x)
        return pl.softmax(pl.rms_norm(y, w[0])).numpy().tobytes()

    fresh, seen = Runner(), set()
    with _installed(fresh):
        for _ in range(6):
            seen.add(compute())
            fresh.wait()
    assert len(seen) == 1
    assert fresh.counters.kernels > 0


class _installed:
    """An executor for the length of a block."""

    def __init__(self, executor: Runner) -> None:
        self.executor = executor

    def __enter__(self) -> None:
        from plait.framework import realize

        self.before = realize._installed
        realize.install_executor(self.executor)

    def __exit__(self, *_: object) -> None:
        from plait.framework import realize

        realize.install_executor(self.before)


def test_one_expression_over_200_shapes_and_50_scalars_makes_at_most_4_kernels() -> None:
    fresh = Runner()
    with _installed(fresh):
        for i in range(200):
            shape = [(i + 2,), (i % 13 + 2, i % 7 + 3), (2, i % 5 + 2, i % 11 + 2)][i % 3]
            x = pl.asarray(np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape), copy=True)
            scalar = float(i % 50) / 7
            y = (x * scalar + 1.5) * x
            with override(jit=0):
                expected = (x.numpy() * np.float32(scalar) + np.float32(1.5)) * x.numpy()
            np.testing.assert_array_equal(y.numpy(), expected)
            fresh.wait()
    fused = [
        key for key, entry in fresh._entries.items() if entry.address and "add" in repr(key) and "mul" in repr(key)
    ]
    assert 1 <= len(fused) <= 4, len(fused)


def test_an_intermediate_that_somebody_holds_is_stored() -> None:
    x, w, b = _operands(5, 40)
    for _ in range(5):
        y = x + w
        total = y.sum()
        total.realize()
        np.testing.assert_array_equal(y.numpy(), x.numpy() + w.numpy())
        runner.wait()


def test_writes_keep_program_order_with_reads() -> None:
    for _ in range(5):
        x = pl.arange(12, dtype="float32").reshape(3, 4).copy()
        before = x * 2
        x[1] = 100
        after = x * 2
        runner.wait()
        np.testing.assert_array_equal(before.numpy(), np.arange(12, dtype=np.float32).reshape(3, 4) * 2)
        assert after.numpy()[1].tolist() == [200.0] * 4


def test_several_threads_share_kernels() -> None:
    x, w, b = _operands(16, 64)
    expected = _warm(lambda: pl.softmax(x * w + b)).numpy().tobytes()
    wrong: list[int] = []

    def work() -> None:
        for i in range(50):
            if pl.softmax(x * w + b).numpy().tobytes() != expected:
                wrong.append(i)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not wrong and not any(thread.is_alive() for thread in threads)


def test_debug_2_prints_one_line_per_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    x, w, b = _operands(8, 32)
    _warm(lambda: pl.softmax(x * w))
    with override(debug=2):
        pl.softmax(x * w).realize()
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("kernel")]
    assert "mul_max_sub_exp_sum_div" in line and "(8, 32)" in line and "ms" in line and "GB/s" in line


def test_a_reshape_that_copies_a_pending_result_reads_it_whole() -> None:
    for _ in range(5):
        x = (pl.arange(6, dtype="float32").reshape(2, 3) + 1).T
        assert x.reshape(-1).tolist() == [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]
        assert (x.reshape(2, 3) * 2).tolist() == [[2.0, 8.0, 4.0], [10.0, 6.0, 12.0]]
        runner.wait()
    flat = pl.compile(lambda x: (x + 1).T.reshape(-1))(pl.TensorLayout("float32", ("T", 3)))
    assert flat(pl.arange(6, dtype="float32").reshape(2, 3)).tolist() == [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]
