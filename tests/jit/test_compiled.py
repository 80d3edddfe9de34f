"""Compiled callables against NumPy: one native call, symbolic sizes, stores, weights, errors, both executors."""

from __future__ import annotations

import os
import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from plait.framework import functional as F
from plait.framework.config import override
from plait.framework.conversion import asarray, from_numpy
from plait.framework.dim import symbol
from plait.framework.errors import CompileError, LoadError, ShapeError
from plait.framework.graph import Node
from plait.framework.ops import elementwise
from plait.framework.ops.movement import PAD
from plait.framework.tensor import Tensor
from plait.jit import host_calls
from plait.jit.compile import compile
from plait.jit.entry import Frame, call_natively
from plait.jit.layout import BufferLayout, TensorLayout
from plait.jit.packing import FLOAT_PACKING, pack
from plait.jit.program import ARENA_TOO_SMALL, Bound
from plait.jit.stage import external
from plait.jit.weights import Binding

ROWS = TensorLayout("float32", ("T", 8))
Array = np.ndarray[Any, Any]


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def norm_then_scale(x: Tensor, w: Tensor) -> dict[str, Tensor]:
    y = F.rms_norm(x, w, 1e-5)
    return {"norm": y, "twice": F.exp(y) * 2.0}


def expected_norm(x: Array, w: Array) -> Array:
    return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * w)


@pytest.fixture(scope="module")
def norm() -> Any:
    return compile(norm_then_scale)(ROWS, TensorLayout("float32", (8,)))


@pytest.mark.system(105)
@pytest.mark.parametrize("rows", [0, 1, 3, 17, 300])
def test_one_callable_serves_every_size(norm: Any, rows: int) -> None:
    x, w = numbers(rows, 8), numbers(8, seed=1)
    result = norm(asarray(x), asarray(w))
    assert result["norm"].shape == (rows, 8)
    np.testing.assert_allclose(result["norm"].numpy(), expected_norm(x, w), rtol=2e-6, atol=1e-6)
    np.testing.assert_allclose(result["twice"].numpy(), np.exp(expected_norm(x, w)) * 2, rtol=4e-6)


def c_calls(call: Any) -> list[Any]:
    found: list[Any] = []

    def profile(frame: Any, event: str, argument: Any) -> None:
        if event == "c_call":
            found.append(argument)

    sys.setprofile(profile)
    call()
    sys.setprofile(None)
    return found[:-1]  # the last one is setprofile itself


def test_a_call_enters_native_code_once_and_makes_no_other_builtin_call(norm: Any) -> None:
    x, w = asarray(numbers(5, 8)), asarray(numbers(8))
    norm(x, w)
    assert [found.__name__ for found in c_calls(lambda: norm(x, w))] == ["enter"]
    assert norm.host_calls == []


def test_nested_arguments_stores_and_statics_keep_to_one_call() -> None:
    def fn(batch: dict[str, Any], scale: float, cache: Tensor) -> tuple[Tensor, list[Tensor]]:
        F.kv_store(cache, batch["k"], batch["k"], batch["offsets"], batch["lengths"], batch["pages"], 0)
        return cache, [batch["k"] * scale]

    layouts = {
        "k": TensorLayout("float32", ("T", 1, 4)),
        "offsets": TensorLayout("int32", (symbol("S") + 1,)),
        "lengths": TensorLayout("int32", ("S",)),
        "pages": TensorLayout("int32", ("S", "P")),
    }
    compiled = compile(fn)(layouts, 3.0, BufferLayout("float32", ("N", 1, 2, 1, 128)))
    keys = numbers(3, 1, 4)
    batch = {
        "k": asarray(keys),
        "offsets": asarray(np.array([0, 1, 3], np.int32)),
        "lengths": asarray(np.array([33, 2], np.int32)),
        "pages": asarray(np.array([[2, 1], [3, 0]], np.int32)),
    }
    cache = asarray(np.zeros((4, 1, 2, 1, 128), np.float32))
    returned, (scaled,) = compiled(batch, 3.0, cache)
    assert returned is cache
    np.testing.assert_array_equal(scaled.numpy(), keys * 3)
    np.testing.assert_array_equal(cache.numpy()[1, 0, 1, 0].reshape(32, 4)[0], keys[0, 0])
    np.testing.assert_array_equal(cache.numpy()[3, 0, 0, 0].reshape(4, 32)[:, 1], keys[2, 0])
    if not compiled.host_calls:
        assert len(c_calls(lambda: compiled(batch, 3.0, cache))) == 1


@pytest.mark.parametrize("jit", [0, 1])
def test_a_store_changes_the_callers_memory_and_earlier_reads_keep_their_values(jit: int) -> None:
    def fn(x: Tensor, cache: Tensor) -> Tensor:
        cache[1:3] = x * 2
        return cache[0] + 1

    compiled = compile(fn)(TensorLayout("float32", (2, 4)), BufferLayout("float32", (3, 4)))
    with override(jit=jit):
        cache, x = asarray(numbers(3, 4)), asarray(numbers(2, 4, seed=2))
        before = np.array(cache.numpy())
        lazy = cache + 0
        for _ in range(2):
            result = compiled(x, cache)
        np.testing.assert_array_equal(lazy.numpy(), before)
        np.testing.assert_array_equal(cache.numpy()[1:], x.numpy() * 2)
        np.testing.assert_array_equal(result.numpy(), before[0] + 1)


def test_a_pending_read_of_a_buffer_sees_the_value_before_the_store() -> None:
    def fn(x: Tensor, cache: Tensor) -> None:
        cache[:] = x

    compiled = compile(fn)(TensorLayout("float32", (4,)), BufferLayout("float32", (4,)))
    cache = asarray(np.arange(4, dtype=np.float32)) + 1
    pending = cache * 10
    assert compiled(asarray(np.zeros(4, np.float32)), cache) is None
    np.testing.assert_array_equal(pending.numpy(), [10, 20, 30, 40])
    np.testing.assert_array_equal(cache.numpy(), np.zeros(4))


def test_results_have_memory_of_their_own(norm: Any) -> None:
    x, w = asarray(numbers(4, 8)), asarray(numbers(8))
    first, second = norm(x, w)["norm"], norm(x + 1, w)["norm"]
    kept = np.array(first.numpy())
    second.numpy()[:] = 0
    norm(x * 3, w)
    np.testing.assert_array_equal(first.numpy(), kept)
    assert first.numpy().ctypes.data % 64 == 0


def test_views_and_pending_tensors_are_taken(norm: Any) -> None:
    x, w = numbers(8, 6), numbers(8)
    result = norm((asarray(x) + 0).T, asarray(w))
    np.testing.assert_allclose(result["norm"].numpy(), expected_norm(x.T, w), rtol=2e-6, atol=1e-6)


def test_calls_from_many_threads_do_not_share_an_arena(norm: Any) -> None:
    w = numbers(8)

    def work(seed: int) -> None:
        x = numbers(1 + seed * 7 % 40, 8, seed=seed)
        found = norm(asarray(x), asarray(w))["twice"].numpy()
        np.testing.assert_allclose(found, np.exp(expected_norm(x, w)) * 2, rtol=1e-5)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(200)))


# ---- signature ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (lambda: (asarray(numbers(3, 7)), asarray(numbers(8))), ShapeError, "'x' has shape .* axis 1 is 7; expected 8"),
        (lambda: (asarray(numbers(8)), asarray(numbers(8))), ShapeError, "'x' has shape .* rank 1; expected rank 2"),
        (lambda: (asarray(numbers(3, 8)).astype("float64"), asarray(numbers(8))), ValueError, "'x' has dtype float64"),
        (lambda: (asarray(numbers(3, 8)), 3), TypeError, "'w': 3 is no tensor"),
        (lambda: (asarray(numbers(3, 8)),), ValueError, "found a tuple of 1; expected a tuple of 2"),
        (lambda: (asarray(numbers(3, 8)), [asarray(numbers(8))]), TypeError, "'w': a list is no tensor"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(norm: Any, arguments: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        norm(*arguments())


def test_a_repeated_symbol_and_an_expression_are_checked() -> None:
    compiled = compile(lambda x, y, n: x + y)(ROWS, ROWS, TensorLayout("int32", (symbol("T") + 1,)))
    good = asarray(np.zeros(4, np.int32))
    assert compiled(asarray(numbers(3, 8)), asarray(numbers(3, 8)), good).shape == (3, 8)
    with pytest.raises(ShapeError, match="'y' has shape .* so that T = 2; an argument before it has T = 3"):
        compiled(asarray(numbers(3, 8)), asarray(numbers(2, 8)), good)
    with pytest.raises(ShapeError, match=r"'n' has shape \(3,\): axis 0 is 3; expected 4 \(.*T.*\)"):
        compiled(asarray(numbers(3, 8)), asarray(numbers(3, 8)), asarray(np.zeros(3, np.int32)))


def test_a_changed_static_value_is_refused() -> None:
    compiled = compile(lambda x, scale: x * scale)(ROWS, 2.0)
    np.testing.assert_array_equal(compiled(asarray(numbers(2, 8)), 2.0).numpy(), numbers(2, 8) * 2)
    with pytest.raises(ValueError, match="argument 'scale': static value 3.0; .* compiled for 2.0"):
        compiled(asarray(numbers(2, 8)), 3.0)


def test_a_symbol_that_no_axis_gives_is_refused() -> None:
    with pytest.raises(ShapeError, match="symbol 'S' is the size of no axis by itself"):
        compile(lambda x: x + 1)(TensorLayout("float32", (symbol("S") + 1,)))


def test_a_buffer_given_twice_is_refused() -> None:
    def fn(x: Tensor, cache: Tensor) -> Tensor:
        cache[:] = x + 1
        return x * 2

    compiled = compile(fn)(TensorLayout("float32", (4,)), BufferLayout("float32", (4,)))
    x = asarray(numbers(4))
    for _ in range(2):
        with pytest.raises(ShapeError, match="'cache' and 'x' share memory"):
            compiled(x, x)


def test_a_read_only_buffer_is_refused() -> None:
    def fn(cache: Tensor) -> None:
        cache[:] = 1.0

    array = numbers(4)
    array.flags.writeable = False
    with pytest.raises(ShapeError, match="'cache' is stored into, and is read-only"):
        compile(fn)(BufferLayout("float32", (4,)))(from_numpy(array))


# ---- weights --------------------------------------------------------------------------------------------------------


def weighted(x: Tensor) -> Tensor:
    return x * external("scale", TensorLayout("float32", (8,)))


@pytest.mark.parametrize("jit", [0, 1])
def test_weights_bind_at_the_first_call_and_can_be_replaced(jit: int) -> None:
    compiled = compile(weighted, weights={"scale": asarray(numbers(8))})(ROWS)
    x = numbers(3, 8, seed=4)
    with override(jit=jit):
        np.testing.assert_array_equal(compiled(asarray(x)).numpy(), x * numbers(8))
        compiled.rebind({"scale": asarray(numbers(8, seed=9))})
        np.testing.assert_array_equal(compiled(asarray(x)).numpy(), x * numbers(8, seed=9))
        with pytest.raises(ShapeError, match=r"weight 'scale' has shape \(4,\); expected \(8,\)"):
            compiled.rebind({"scale": asarray(numbers(4))})
        np.testing.assert_array_equal(compiled(asarray(x)).numpy(), x * numbers(8, seed=9))
    with pytest.raises(TypeError):
        compiled.weights["scale"] = 1


def test_a_missing_weight_is_an_error_of_the_first_call() -> None:
    compiled = compile(weighted, weights={"other": asarray(numbers(8))})(ROWS)
    with pytest.raises(LoadError, match="weight 'scale' is missing; given: other"):
        compiled(asarray(numbers(2, 8)))


def test_a_weight_is_packed_once_per_layout() -> None:
    node = external("w", TensorLayout("float32", (20, 8))).node()
    tensor = asarray(numbers(20, 8))
    words = [Bound(node, FLOAT_PACKING), Bound(node, None), Bound(node, FLOAT_PACKING)]
    first, raw, again = Binding(words, {"w": tensor}).buffers
    assert first is again and first is Binding(words, {"w": tensor}).buffers[0]
    assert raw is tensor.node().buffer
    np.testing.assert_array_equal(np.asarray(first)[: first.num_bytes], pack(FLOAT_PACKING, numbers(20, 8)))


# ---- host calls, executors, debugging -------------------------------------------------------------------------------


def hosted(x: Tensor) -> Tensor:
    return F.exp(Tensor._of(fancy_record(x)))


def fancy_record(x: Tensor) -> Any:
    """A record that no kernel computes."""
    node = x.node()
    return Node(PAD, (node,), (((1, 0), (0, 0)), 0.5), (node.shape[0] + 1, 8), node.dtype, None, node.depth + 1)


def test_what_has_no_kernel_is_a_listed_host_call() -> None:
    compiled = compile(hosted)(ROWS)
    if not compiled.host_calls:
        pytest.skip("pad has a kernel now")
    assert compiled.host_calls[0].startswith("pad: ") and compiled.launches[0] == "host:pad"
    x = numbers(3, 8)
    padded = np.pad(x, ((1, 0), (0, 0)), constant_values=0.5)
    np.testing.assert_allclose(compiled(asarray(x)).numpy(), np.exp(padded), rtol=1e-6)
    with pytest.raises(CompileError, match="strict=True refuses them: pad"):
        compile(hosted, strict=True)(ROWS)


def test_an_error_in_a_host_call_is_raised_with_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = compile(hosted)(ROWS)
    if not compiled.host_calls:
        pytest.skip("pad has a kernel now")
    monkeypatch.setattr("plait.jit.host_calls.compute", lambda *arguments: 1 / 0)
    with pytest.raises(CompileError, match=r"step 0 \(pad\) failed") as caught:
        compiled(asarray(numbers(3, 8)))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    monkeypatch.undo()
    assert compiled(asarray(numbers(3, 8))).shape == (4, 8)


def test_without_the_jit_the_graph_is_interpreted(norm: Any) -> None:
    x, w = numbers(5, 8), numbers(8, seed=1)
    with override(jit=0):
        result = norm(asarray(x), asarray(w))
        fresh = compile(norm_then_scale)(ROWS, TensorLayout("float32", (8,)))
        assert fresh._native is None
        np.testing.assert_array_equal(fresh(asarray(x), asarray(w))["norm"].numpy(), result["norm"].numpy())
    np.testing.assert_allclose(result["norm"].numpy(), expected_norm(x, w), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(fresh(asarray(x), asarray(w))["twice"].numpy(), result["twice"].numpy(), rtol=1e-5)


def test_debugging_prints_one_line_per_kernel(norm: Any, capfd: pytest.CaptureFixture[str]) -> None:
    x, w = asarray(numbers(5, 8)), asarray(numbers(8))
    plain = norm(x, w)
    with override(debug=2):
        measured = norm(x, w)
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("kernel ")]
    assert [line.split()[1] for line in lines] == norm.launches
    assert all("ms" in line and "GB/s" in line and "(5, 8)" in line for line in lines)
    np.testing.assert_array_equal(measured["twice"].numpy(), plain["twice"].numpy())


def test_a_failed_allocation_is_a_memory_error_and_the_callable_lives_on() -> None:
    compiled = compile(lambda x, y: x.expand_dims(1) * y)(
        TensorLayout("float32", ("T",)), TensorLayout("float32", ("S",))
    )
    wide = asarray(np.zeros(1 << 23, np.float32))
    with pytest.raises(MemoryError):
        compiled(wide, wide)
    assert compiled(asarray(numbers(2)), asarray(numbers(3))).shape == (2, 3)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_gets_frames_of_its_own(norm: Any) -> None:
    x, w = numbers(300, 8), numbers(8)
    norm(asarray(x), asarray(w))
    child = os.fork()
    if child == 0:
        result = norm(asarray(x), asarray(w))["norm"].numpy()
        os._exit(0 if np.allclose(result, expected_norm(x, w), rtol=1e-5, atol=1e-5) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# ---- the native entry -----------------------------------------------------------------------------------------------


def test_the_native_plan_is_the_python_plan() -> None:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        a = (x * x).sum(1, keepdims=True)
        b = (y * 2).sum(0, keepdims=True)
        c = F.softmax(a @ b, axis=-1)
        return (c.reshape((c.shape[0] * c.shape[1],)) + 1).sum()

    compiled = compile(fn)(ROWS, TensorLayout("float32", (8, "S")))
    native = compiled._native
    assert native is not None and native.program.plan.slots
    rng = random.Random(1)
    for _ in range(20):
        sizes = {"T": rng.randrange(1, 200), "S": rng.randrange(1, 200)}
        frame = Frame(16, 0)
        frame.set("capacity", -1)
        assert call_natively(native.entry, frame, [0] * 3, [sizes["S"], sizes["T"]]) == ARENA_TOO_SMALL
        assert frame["needed"] == native.program.plan.offsets(sizes)[-1]


def test_elementwise_rows_fuse_into_one_kernel() -> None:
    def fn(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        y = x * w + b
        return F.gelu(y) * F.sigmoid(y)

    compiled = compile(fn, strict=True)(ROWS, TensorLayout("float32", (8,)), TensorLayout("float32", (8,)))
    assert len(compiled.launches) == 1
    assert elementwise.MUL.name in compiled.launches[0]


def test_threads_that_find_no_free_frame_get_their_own(norm: Any) -> None:
    """Calls that overlap in a host call each hold a frame."""
    barrier = threading.Barrier(3, timeout=20)
    compiled = compile(hosted)(ROWS)
    if not compiled.host_calls:
        pytest.skip("pad has a kernel now")
    compiled(asarray(numbers(2, 8)))
    real = host_calls.compute

    def meet(*arguments: Any) -> Any:
        barrier.wait()
        return real(*arguments)

    host_calls.compute = meet
    try:
        with ThreadPoolExecutor(3) as pool:
            shapes = [t.shape for t in pool.map(compiled, [asarray(numbers(n, 8)) for n in (1, 5, 9)])]
    finally:
        host_calls.compute = real
    assert shapes == [(2, 8), (6, 8), (10, 8)]
    assert len(compiled._native.frames) == 3


# ---- random programs -------------------------------------------------------------------------------------------------


def random_function(seed: int) -> Any:
    """A function of rows (T, 8), a row (8,) and a buffer (4, 8) that mixes views, broadcasts, reductions and writes."""

    def fn(x: Tensor, w: Tensor, cache: Tensor) -> list[Tensor]:
        rng = random.Random(seed)
        rows, single = [x, x * 0.5], [w]
        for _ in range(rng.randrange(4, 14)):
            a, b, r = rng.choice(rows), rng.choice(rows), rng.choice(single)
            match rng.randrange(9):
                case 0:
                    rows.append(a + b)
                case 1:
                    rows.append(F.tanh(a) * r)
                case 2:
                    single.append(a.sum(0) * 0.1)
                case 3:
                    rows.append(a - a.mean(-1, keepdims=True))
                case 4:
                    local = a.copy()
                    local[:, 2:6] = b[:, ::-1][:, 0:4]
                    rows.append(local)
                case 5:
                    cache[rng.randrange(4)] = F.tanh(r)
                case 6:
                    single.append(cache[rng.randrange(4)] + r)
                case 7:
                    rows[rng.randrange(len(rows))] = a.reshape((a.shape[0] * 2, 4)).reshape((a.shape[0], 8))
                case 8:
                    cache[1:3, 0:4] = cache[0:2, 4:8] * 0.5
        return [rows[-1], single[-1], rng.choice(rows), cache]

    return fn


@pytest.mark.parametrize("seed", range(16))
def test_random_programs_give_what_the_interpreter_gives(seed: int) -> None:
    layouts = (ROWS, TensorLayout("float32", (8,)), BufferLayout("float32", (4, 8)))
    compiled = compile(random_function(seed))(*layouts)
    for rows in (1, 6, 33):
        found = {}
        for jit in (0, 1):
            with override(jit=jit):
                cache = asarray(numbers(4, 8, seed=3))
                results = compiled(asarray(numbers(rows, 8)), asarray(numbers(8, seed=1)), cache)
                found[jit] = [np.array(tensor.numpy()) for tensor in (*results, cache)]
        for wanted, got in zip(found[0], found[1], strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
