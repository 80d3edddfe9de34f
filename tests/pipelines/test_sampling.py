"""Sampling against sorted float64 probabilities, published random numbers, and chi-square."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.framework.errors import PlaitError, RequestError, ShapeError
from plait.pipelines import sampling
from plait.pipelines.sampling import SamplingParams, philox, sample, uniforms

# 99.99 % points of chi-square by degrees of freedom, from published tables.
CHI_SQUARE_9999 = {1: 15.14, 2: 18.42, 3: 21.11, 7: 29.88, 15: 44.26}


def oracle(logits: np.ndarray[Any, Any], params: SamplingParams) -> np.ndarray[Any, Any]:
    """Return the probability of every id, by full sorting in float64."""
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    scaled = logits.astype(np.float64) / params.temperature
    weights = np.exp(scaled - scaled.max())
    kept = order[: params.top_k] if params.top_k > 0 else order
    total, reached, nucleus = sum(weights[i] for i in kept), 0.0, []
    for i in kept:
        nucleus.append(i)
        reached += weights[i] / total
        if params.top_p < 1 and reached >= params.top_p:
            break
    probabilities = np.zeros(len(logits))
    probabilities[nucleus] = weights[nucleus]
    return probabilities / probabilities.sum()


def draw_many(logits: Sequence[float], params: SamplingParams, count: int, seed: int = 7) -> np.ndarray[Any, Any]:
    rows = np.tile(np.asarray(logits, np.float32), (count, 1))
    return np.bincount(sample(rows, [params] * count, range(count), [seed] * count), minlength=len(logits))


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)  # fmt: skip
def test_philox_gives_the_published_words(counter: list[int], key: list[int], expected: list[int]) -> None:
    words = philox(np.array([counter, [1] * 4], np.uint64), np.array([key, [2] * 2], np.uint64))
    assert words[0].tolist() == expected


def test_uniforms_are_uniform_and_unlike_for_every_seed_and_position() -> None:
    numbers = uniforms([3] * 4096, range(4096))
    counts = np.bincount((numbers * 16).astype(int), minlength=16)
    assert ((counts - 256) ** 2 / 256).sum() < CHI_SQUARE_9999[15]
    assert 0 <= numbers.min() and numbers.max() < 1
    others = uniforms([3, 4, -3, 2**32 + 3], [2**32, 0, 0, 0])
    assert len({*numbers[:10].tolist(), *others.tolist()}) == 14


@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"top_k": 1}, {"top_p": 0.0}, {"temperature": 1e-6}])
def test_greedy_takes_the_first_of_the_largest(params: dict[str, Any]) -> None:
    logits = np.array([[0, 5, 5, 1], [-1e30, -3e38, -1, -1], [3e38, 0, 0, 0]], np.float32)
    assert sample(logits, [SamplingParams(**params)] * 3, [0, 1, 2], [9, 9, 9]).tolist() == [1, 2, 0]


def test_greedy_rows_compute_no_probabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "_draw", lambda *_: pytest.fail("a greedy row was drawn"))
    monkeypatch.setattr(sampling, "uniforms", lambda *_: pytest.fail("a random number was made"))
    assert sample(np.eye(3, dtype=np.float32), [SamplingParams(temperature=0)] * 3, [0] * 3, [0] * 3).tolist() == [
        0,
        1,
        2,
    ]


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 2.0},
        {"top_k": 4},
        {"top_p": 0.8},
        {"temperature": 1.5, "top_k": 5, "top_p": 0.9},
    ],
    ids=str,
)
def test_draws_follow_the_probabilities(params: dict[str, Any]) -> None:
    logits = np.array([0.3, 2.0, -1.0, 1.2, 1.9, -0.5, 0.0, 0.8], np.float32)
    sampling_params = SamplingParams(**params)
    expected = 4000 * oracle(logits, sampling_params)
    counts = draw_many(logits.tolist(), sampling_params, 4000)
    possible = expected > 0
    assert counts[~possible].sum() == 0
    freedom = int(possible.sum()) - 1
    limit = CHI_SQUARE_9999[next(known for known in sorted(CHI_SQUARE_9999) if known >= freedom)]
    assert ((counts - expected)[possible] ** 2 / expected[possible]).sum() < limit


LOGITS = st.lists(
    st.sampled_from([-np.inf, -50.0, -3.0, -1.0, -0.5, 0.0, 0.25, 1.0, 2.5, 40.0]), min_size=1, max_size=30
)


@settings(max_examples=200, deadline=None)
@given(
    values=LOGITS.filter(lambda row: max(row) > -np.inf),
    temperature=st.sampled_from([0.1, 0.7, 1.0, 2.0]),
    top_k=st.sampled_from([-1, 0, 2, 3, 5, 1000]),
    top_p=st.sampled_from([0.05, 0.3, 0.77, 0.95, 1.0]),
)
def test_even_steps_of_the_random_number_give_the_exact_shares(
    values: list[float], temperature: float, top_k: int, top_p: float
) -> None:
    logits = np.array(values, np.float32)
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p)
    best = logits.max()
    grid = (np.arange(500) + 0.5) / 500
    counts = np.bincount([sampling._draw(logits, best, params, u) for u in grid.tolist()], minlength=len(logits))
    # One step at each end of a token's share, and a nucleus that ends on a tie of float32 and float64 sums.
    assert np.abs(counts / 500 - oracle(logits, params)).max() <= 2 / 500


def choose(rows: Sequence[Any]) -> list[int]:
    logits, params, positions, seeds = zip(*rows, strict=True)
    chosen: list[int] = sample(np.stack(logits), params, positions, seeds).tolist()
    return chosen


@settings(max_examples=60, deadline=None)
@given(data=st.data(), num_rows=st.integers(1, 6), width=st.sampled_from([3, 17, 100, 1001]))
def test_a_row_is_the_same_alone_and_in_any_company(data: st.DataObject, num_rows: int, width: int) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    logits = rng.normal(0, 3, (num_rows, width)).astype(np.float32)
    choice = st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.0, 0.8, 1.3]),
        top_k=st.sampled_from([-1, 5]),
        top_p=st.sampled_from([0.9, 1.0]),
    )
    params = [data.draw(choice) for _ in range(num_rows)]
    positions = rng.integers(0, 10**6, num_rows).tolist()
    seeds = rng.integers(-(2**63), 2**63, num_rows).tolist()
    rows = list(zip(logits, params, positions, seeds, strict=True))
    together = choose(rows)
    assert [choose([row])[0] for row in rows] == together
    order = rng.permutation(num_rows)
    assert choose([rows[i] for i in order]) == [together[i] for i in order]


def test_extreme_numbers_do_not_overflow() -> None:
    logits = np.array([[3e38, -3e38, -np.inf, 0]], np.float32)
    for temperature in (1e-5, 1e-4, 1.0, 2.0):
        assert sample(logits, [SamplingParams(temperature=temperature, top_p=0.9)], [0], [1]).tolist() == [0]
    masked = np.full((1, 9), -np.inf, np.float32)
    masked[0, 4] = -7
    assert sample(masked, [SamplingParams(top_k=3)], [5], [5]).tolist() == [4]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_without_a_finite_best_logit_is_named(value: float, temperature: float) -> None:
    logits = np.zeros((3, 4), np.float32)
    logits[1] = value
    with pytest.raises(PlaitError, match="row 1"):
        sample(logits, [SamplingParams(temperature=temperature)] * 3, [0] * 3, [0] * 3)


@pytest.mark.parametrize("params", [{}, {"top_k": 3}, {"top_p": 0.999}], ids=str)
def test_the_ends_of_the_random_number_never_choose_a_masked_token(params: dict[str, Any]) -> None:
    row = np.array([-np.inf, 1, 0, -np.inf], np.float32)
    first, last = (sampling._draw(row, row.max(), SamplingParams(**params), u) for u in (0.0, 1 - 2**-53))
    assert (first, last) == (1, 2)


def test_counts_must_fit() -> None:
    with pytest.raises(ShapeError, match=r"\(2, 4\).* 1 params"):
        sample(np.zeros((2, 4), np.float32), [SamplingParams()], [0, 0], [0, 0])
    with pytest.raises(ShapeError):
        sample(np.zeros((1, 0), np.float32), [SamplingParams()], [0], [0])
    assert sample(np.zeros((0, 4), np.float32), [], [], []).tolist() == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1), ("temperature", 2.1), ("temperature", 1e12), ("temperature", float("nan")),
        ("temperature", "hot"), ("temperature", True), ("temperature", None), ("top_p", -0.1), ("top_p", 1.1),
        ("top_k", -2), ("top_k", 1.0), ("top_k", True), ("max_tokens", 0), ("max_tokens", -1), ("max_tokens", 1.5),
        ("max_tokens", "5"), ("seed", 2**63), ("seed", 1.0), ("stop", ""), ("stop", ["a", ""]), ("stop", [1]),
        ("stop", None), ("stop", ["x"] * 17), ("ignore_eos", 1),
    ],
)  # fmt: skip
def test_a_value_out_of_range_names_the_field(field: str, value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{field: value})
    assert caught.value.param == field and str(caught.value).startswith(f"{field}: ")


def test_legal_edges_are_taken() -> None:
    for legal in (
        {"temperature": 2},
        {"top_k": 10**6},
        {"top_p": 1},
        {"seed": 0},
        {"seed": -(2**63)},
        {"max_tokens": 1},
    ):
        SamplingParams(**legal)  # type: ignore[arg-type]
    assert SamplingParams(stop="a").stop == ("a",)  # type: ignore[arg-type]
    assert SamplingParams(stop=["a"] * 16).stop == ("a",) * 16  # type: ignore[arg-type]
    assert sample(np.eye(4, dtype=np.float32)[:1], [SamplingParams(top_k=10**6)], [0], [0]).shape == (1,)
