"""Chooses the next token of each row from its logits.

Knows sampling parameters and probability. Does not know requests, batches' history or models: a row's choice depends on
that row's logits, parameters, seed and position alone, so a seeded answer repeats whatever shares its batch.
Shape letters: S rows (sequences), V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from plait.framework.errors import PlaitError, RequestError, ShapeError

MAX_STOP_STRINGS = 16
# Below this a softmax in float32 has one token left anyway, and the division would overflow.
GREEDY_BELOW_TEMPERATURE = 1e-5

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


def _is_int(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return _is_int(value) or (isinstance(value, (float, np.floating)) and math.isfinite(value))


# field -> (is the value legal, what is legal)
_RANGES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "max_tokens": (lambda v: v is None or (_is_int(v) and v >= 1), "None or an integer of at least 1"),
    "temperature": (lambda v: _is_number(v) and 0 <= v <= 2, "a number from 0 (greedy) to 2"),
    "top_k": (lambda v: _is_int(v) and v >= -1, "an integer of at least 1, or 0 or -1 for no limit"),
    "top_p": (lambda v: _is_number(v) and 0 <= v <= 1, "a number from 0 (the most likely token) to 1 (no limit)"),
    "seed": (lambda v: v is None or (_is_int(v) and -(2**63) <= v < 2**63), "None or a signed 64-bit integer"),
    "ignore_eos": (lambda v: isinstance(v, bool), "a boolean"),
    "include_stop": (lambda v: isinstance(v, bool), "a boolean"),
    "skip_special": (lambda v: isinstance(v, bool), "a boolean"),
}


@dataclass(frozen=True)
class SamplingParams:
    """How one request's tokens are chosen and when it ends.

    `max_tokens` None means what the context leaves. `stop` takes one string or up to 16.
    Raises: RequestError whose `param` is the field, for a value outside its range.
    """

    max_tokens: int | None = None
    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    include_stop: bool = False
    skip_special: bool = True

    def __post_init__(self) -> None:
        for field, (is_legal, legal) in _RANGES.items():
            if not is_legal(getattr(self, field)):
                raise RequestError(f"{field}: {getattr(self, field)!r} is out of range; expected {legal}.", param=field)
        object.__setattr__(self, "stop", _stop_strings(self.stop))

    @property
    def is_greedy(self) -> bool:
        """Say whether only the most likely token can be chosen."""
        return self.temperature < GREEDY_BELOW_TEMPERATURE or self.top_k == 1 or self.top_p == 0


def _stop_strings(stop: Any) -> tuple[str, ...]:
    strings = (stop,) if isinstance(stop, str) else tuple(stop) if isinstance(stop, (list, tuple)) else (stop,)
    if not all(isinstance(text, str) and text for text in strings):
        raise RequestError(f"stop: {stop!r} is not valid; expected strings of at least one character.", param="stop")
    if len(strings) > MAX_STOP_STRINGS:
        raise RequestError(f"stop: {len(strings)} strings; expected at most {MAX_STOP_STRINGS}.", param="stop")
    return strings


def sample(logits: Floats, params: Sequence[SamplingParams], positions: Sequence[int], seeds: Sequence[int]) -> Ints:
    """Choose one token per row: the most likely one, or a draw after temperature, then top-k, then top-p.

    Ties count in order of id, so a greedy row takes the lowest. The random number of a row is Philox(seed, position).
    Shapes: logits (S, V) float32 -> ids (S,).
    Raises: ShapeError if the counts differ; PlaitError naming the row if a row has no finite best logit.
    """
    if logits.ndim != 2 or logits.shape[1] == 0 or not len(params) == len(positions) == len(seeds) == len(logits):
        raise ShapeError(f"sample: logits {logits.shape} with {len(params)} params, {len(positions)} positions and "
                         f"{len(seeds)} seeds; expected one of each per row of [S, V].")  # fmt: skip
    chosen: Ints = np.argmax(logits, axis=1).astype(np.int64)
    best = logits[np.arange(len(logits)), chosen]
    _check_finite(best)
    drawn = [row for row, param in enumerate(params) if not param.is_greedy]
    if drawn:
        randoms = uniforms([seeds[row] for row in drawn], [positions[row] for row in drawn])
        for row, uniform in zip(drawn, randoms.tolist(), strict=True):
            chosen[row] = _draw(logits[row], best[row], params[row], uniform)
    return chosen


def _check_finite(best: Floats) -> None:
    bad = np.flatnonzero(~np.isfinite(best))
    if len(bad):
        raise PlaitError(f"sample: the best logit of row {bad[0]} is {best[bad[0]]}; expected a finite number. "
                         "the model's output is broken, or a mask left no token.")  # fmt: skip


def _draw(row: Floats, best: np.float32, params: SamplingParams, uniform: float) -> int:
    with np.errstate(over="ignore"):  # to minus infinity, so the weight is 0
        weights = np.exp((row - best) * np.float32(1 / params.temperature))
    ids = _largest(row, params.top_k) if 0 < params.top_k < len(row) else None
    if params.top_p < 1:
        ids = _nucleus(row, weights, ids, params.top_p)
    return _invert(weights, uniform) if ids is None else int(ids[_invert(weights[ids], uniform)])


def _largest(values: Floats, count: int) -> Ints:
    """Return where the `count` largest values are, in ascending order; of equal ones the first are taken."""
    smallest = np.partition(values, len(values) - count)[len(values) - count]
    taken = values > smallest
    taken[np.flatnonzero(values == smallest)[: count - np.count_nonzero(taken)]] = True
    return np.flatnonzero(taken)


def _nucleus(row: Floats, weights: Floats, ids: Ints | None, top_p: float) -> Ints:
    """Return the ids of the fewest most likely tokens whose probabilities reach `top_p`.

    Tokens below (1 - top_p) / V of the mass hold less than 1 - top_p together, so they are not needed and not sorted.
    """
    total = np.sum(weights if ids is None else weights[ids], dtype=np.float64)
    if ids is None:
        ids = np.flatnonzero(weights >= total * (1 - top_p) / len(weights))
    reached = np.cumsum(np.sort(weights[ids])[::-1], dtype=np.float64)
    count = int(np.searchsorted(reached, top_p * total, side="left")) + 1
    return ids[_largest(row[ids], count)] if count < len(ids) else ids


def _invert(weights: Floats, uniform: float) -> int:
    """Return the index where the running sum of the weights passes `uniform` of their total."""
    reached = np.cumsum(weights, dtype=np.float64)
    # NOTE: at most 1 - 2**-53 times the total rounds to below the total, so the index exists.
    return int(np.searchsorted(reached, uniform * reached[-1], side="right"))


_MULTIPLIERS = np.array([0xD2511F53, 0xCD9E8D57], np.uint64)
_KEY_STEPS = np.array([0x9E3779B9, 0xBB67AE85], np.uint64)
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)


def philox(counters: npt.NDArray[np.uint64], keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Run Philox4x32-10 on each row; every word is 32 bits wide in a uint64.

    Shapes: counters (S, 4), keys (S, 2) -> (S, 4).
    Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011, section 3.3.
    """
    words, keys = counters.copy(), keys.copy()
    for _ in range(10):
        products = words[:, 0::2] * _MULTIPLIERS  # the full 64 bits of words 0 and 2
        high, low = products >> _SHIFT, products & _LOW
        words[:, 0] = high[:, 1] ^ words[:, 1] ^ keys[:, 0]
        words[:, 2] = high[:, 0] ^ words[:, 3] ^ keys[:, 1]
        words[:, 1], words[:, 3] = low[:, 1], low[:, 0]
        keys = (keys + _KEY_STEPS) & _LOW
    return words


def uniforms(seeds: Iterable[int], positions: Iterable[int]) -> npt.NDArray[np.float64]:
    """Return one number in [0, 1) with 53 random bits per (seed, position)."""
    keys = _halves(seeds)
    counters = np.zeros((len(keys), 4), np.uint64)
    counters[:, :2] = _halves(positions)
    words = philox(counters, keys)
    bits = (words[:, 0] >> np.uint64(5) << np.uint64(26)) + (words[:, 1] >> np.uint64(6))
    return bits.astype(np.float64) / 2**53


def _halves(values: Iterable[int]) -> npt.NDArray[np.uint64]:
    """Split 64-bit integers, negative ones in two's complement, into their low and high 32 bits."""
    whole = np.array([value % 2**64 for value in values], np.uint64)
    return np.stack([whole & _LOW, whole >> _SHIFT], axis=1)
