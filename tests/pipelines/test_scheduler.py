"""Scheduling over a fake model whose cache holds token ids, so that a wrong page or a lost row changes the answer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.pipelines.engine import EngineCore, Request
from plait.pipelines.model_runner import step_arrays
from plait.pipelines.sampling import SamplingParams
from plait.pipelines.scheduler import Batch

PAGE, VOCAB = 4, 97


def next_token(tokens: list[int]) -> int:
    return sum((i + 1) * token for i, token in enumerate(tokens)) % VOCAB


class PageReader:
    """Stores each row's token where the page table says, and predicts from what it reads back."""

    vocab_size = VOCAB

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self.memory = np.full((num_pages, PAGE), -1)
        self.batches: list[list[int]] = []

    def run(self, batch: Batch) -> np.ndarray[Any, Any]:
        tokens, offsets, lengths, table = step_arrays(batch)
        self.batches.append(np.diff(offsets).tolist())
        logits = np.zeros((len(batch), VOCAB), np.float32)
        for s, length in enumerate(lengths):
            rows = tokens[offsets[s] : offsets[s + 1]]
            for position, token in zip(range(length - len(rows), length), rows, strict=True):
                self.memory[table[s, position // PAGE], position % PAGE] = token
        for s, length in enumerate(lengths):
            seen = [int(self.memory[table[s, i // PAGE], i % PAGE]) for i in range(length)]
            logits[s, next_token(seen)] = 1
        return logits


def continuation(prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


def engine(num_pages: int = 64, **options: Any) -> tuple[EngineCore, PageReader]:
    reader = PageReader(num_pages)
    options = {"page_size": PAGE, "max_length": num_pages * PAGE, "max_batch_size": 8, "max_rows": 16} | options
    return EngineCore(reader, **options), reader


def greedy(count: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=count)


def drain(core: EngineCore) -> dict[str, list[int]]:
    answers: dict[str, list[int]] = {}
    while core.has_work:
        for event in core.step():
            answers.setdefault(event.request_id, []).append(event.token)
    return answers


requests = st.lists(
    st.tuples(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=30), st.integers(1, 20)), max_size=9
)


@pytest.mark.system(42)
@settings(max_examples=60, deadline=None)
@given(requests, st.integers(13, 40), st.integers(1, 8), st.integers(1, 20), st.integers(0, 5))
def test_every_request_gets_its_own_answer_whatever_shares_the_pool(jobs, pages, batch, rows, gap) -> None:
    """Also when pages run out and sequences are computed again; no page is lost."""
    core, _ = engine(pages, max_batch_size=batch, max_rows=rows)
    answers: dict[str, list[int]] = {}
    for number, (prompt, count) in enumerate(jobs):
        core.add(Request(str(number), prompt, greedy(count)))
        for _ in range(gap):
            for event in core.step():
                answers.setdefault(event.request_id, []).append(event.token)
    for request_id, tokens in drain(core).items():
        answers.setdefault(request_id, []).extend(tokens)
    assert answers == {str(i): continuation(prompt, count) for i, (prompt, count) in enumerate(jobs)}
    assert core.scheduler.pool.num_free == pages


def test_a_step_mixes_prompt_rows_and_generated_rows() -> None:
    core, reader = engine()
    core.add(Request("a", [1, 2, 3], greedy(10)))
    core.step()
    core.add(Request("b", [4] * 5, greedy(10)))
    core.step()
    assert reader.batches == [[3], [1, 5]]


def test_a_long_prompt_is_cut_into_chunks_and_generating_sequences_go_on() -> None:
    core, reader = engine(max_rows=10)
    core.add(Request("a", [1], greedy(10)))
    core.step()
    core.add(Request("long", [2] * 25, greedy(3)))
    events = [[event.request_id for event in core.step()] for _ in range(3)]
    assert reader.batches[1:] == [[1, 9], [1, 9], [1, 7]]
    assert events == [["a"], ["a"], ["a", "long"]]


def test_admission_stops_at_the_batch_size_and_at_the_pages() -> None:
    core, _ = engine(num_pages=6, max_length=24, max_batch_size=2)
    for name in "abc":
        core.add(Request(name, [1] * 8, greedy(1)))
    assert core.scheduler.can_admit()
    core.scheduler.next_batch()
    assert [s.request_id for s in core.scheduler.running] == ["a", "b"] and not core.scheduler.can_admit()

    core, _ = engine(num_pages=3, max_length=12, max_batch_size=8)
    for name in "abc":
        core.add(Request(name, [1] * 8, greedy(1)))
    core.scheduler.next_batch()
    assert [s.request_id for s in core.scheduler.running] == ["a"]


def test_the_latest_sequence_gives_way_when_pages_run_out() -> None:
    core, _ = engine(num_pages=4, max_length=16)
    core.add(Request("first", [1] * 7, greedy(9)))
    core.add(Request("second", [2] * 7, greedy(9)))
    assert drain(core) == {"first": continuation([1] * 7, 9), "second": continuation([2] * 7, 9)}
    assert core.counters.prompt_rows > 14  # the second one's prompt was computed again
