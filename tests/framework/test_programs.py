"""Random programs of views, writes and NumPy-side mutations equal NumPy's, whatever is pending when."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import plait as pl
from plait.framework.config import override

STEPS = 25


def _random_slice(rng: random.Random, size: int) -> slice:
    ends = [None, *range(-size - 1, size + 2)]
    return slice(rng.choice(ends), rng.choice(ends), rng.choice([None, 1, 2, -1, -2, 3]))


def _random_key(rng: random.Random, shape: tuple[int, ...]) -> Any:
    key: list[Any] = []
    for size in shape:
        key.append(rng.randrange(-size, size) if size and rng.random() < 0.25 else _random_slice(rng, size))
    if rng.random() < 0.3:
        key.insert(rng.randint(0, len(key)), None)
    return tuple(key)


class Program:
    """The same steps on NumPy arrays and on tensors, in pairs."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        first = np.arange(24, dtype=np.int64).reshape(2, 3, 4)
        self.pairs: list[tuple[np.ndarray[Any, Any], pl.Tensor]] = [(first.copy(), pl.asarray(first.copy(), copy=True))]
        self.log: list[str] = []

    def pick(self) -> tuple[np.ndarray[Any, Any], pl.Tensor]:
        return self.rng.choice(self.pairs)

    def step(self) -> None:
        action = self.rng.choice(
            [self.view, self.view, self.write, self.write, self.compute]
            + [self.update, self.outside, self.share, self.fancy, self.forget]
        )
        self.log.append(action.__name__)
        action()

    def view(self) -> None:
        a, t = self.pick()
        kind = self.rng.choice(["slice", "transpose", "reshape", "broadcast"])
        if kind == "slice":
            key = _random_key(self.rng, a.shape)
            self.pairs.append((np.asarray(a[key]), t[key]))  # all-integer keys copy, as NumPy's scalars
        elif kind == "transpose":
            order = self.rng.sample(range(a.ndim), a.ndim)
            self.pairs.append((a.transpose(order), t.transpose(order)))
        elif kind == "reshape":
            self.pairs.append((a.reshape(-1), t.reshape(-1)))
        else:
            shape = (2, *a.shape)
            self.pairs.append((np.broadcast_to(a, shape), t.broadcast_to(shape)))

    def write(self) -> None:
        a, t = self.pick()
        key = _random_key(self.rng, a.shape)
        if not a.flags.writeable:
            with pytest.raises(ValueError, match="read-only"):
                t[key] = 1
            return
        if self.rng.random() < 0.5:
            value = self.rng.randrange(100)
            a[key] = value
            t[key] = value
            return
        target = a[key]
        b, u = self.pick()
        try:
            np.broadcast_to(b, np.shape(target))
        except ValueError:
            return
        a[key] = b.copy()
        t[key] = u

    def compute(self) -> None:
        (a, t), (b, u) = self.pick(), self.pick()
        try:
            self.pairs.append((a * 2 + b, t * 2 + u))
        except ValueError:
            with pytest.raises(ValueError, match="broadcast"):
                t * 2 + u

    def update(self) -> None:
        a, t = self.pick()
        if a.flags.writeable:
            a += 1
            t += 1

    def outside(self) -> None:
        """NumPy writes into memory that it shares with a tensor."""
        a, t = self.pick()
        shared = t.numpy()
        if a.flags.writeable and a.size:
            assert shared.flags.writeable
            a[...] = a + 7
            shared[...] = shared + 7

    def share(self) -> None:
        a = np.arange(6, dtype=np.int64).reshape(2, 3)
        twin = a.copy()
        self.pairs.append((a, pl.from_numpy(twin)))

    def fancy(self) -> None:
        a, t = self.pick()
        if not a.ndim or not a.shape[0]:
            return
        ids = np.array([self.rng.randrange(a.shape[0]) for _ in range(3)])
        if self.rng.random() < 0.5 or not a.flags.writeable:
            self.pairs.append((a[ids], t[pl.asarray(ids)]))
        else:
            a[ids] = 5
            t[pl.asarray(ids)] = 5

    def forget(self) -> None:
        if len(self.pairs) > 4:
            self.pairs.pop(self.rng.randrange(len(self.pairs)))

    def check(self) -> None:
        for a, t in self.pairs:
            assert t.shape == a.shape, self.log
            np.testing.assert_array_equal(np.asarray(t.tolist(), np.int64).reshape(a.shape), a, err_msg=str(self.log))


@pytest.mark.parametrize("jit", [0, 1])
@pytest.mark.parametrize("block", range(10))
def test_random_programs_equal_numpys(block: int, jit: int) -> None:
    with override(jit=jit):
        for seed in range(block * 30, block * 30 + 30):
            program = Program(seed)
            for _ in range(STEPS):
                program.step()
                if program.rng.random() < 0.1:
                    program.check()
            program.check()


@pytest.mark.parametrize("jit", [0, 1])
@pytest.mark.parametrize("is_compiled", [False, True])
def test_a_write_into_a_result_that_numpy_would_lay_out_transposed(jit: int, is_compiled: bool) -> None:
    def halves(x: pl.Tensor) -> pl.Tensor:
        y = x.T * 2
        y[0] = 5
        return y

    function = pl.compile(halves)(pl.TensorLayout("int64", (2, 3))) if is_compiled else halves
    x = pl.arange(6).reshape(2, 3).copy()
    with override(jit=jit):
        assert function(x).tolist() == [[5, 5], [2, 8], [4, 10]]
