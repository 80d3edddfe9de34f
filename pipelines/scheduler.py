"""Decides which sequences take part in the next step and with how many rows. Knows pages and counts, never arrays.

A step mixes prompt rows and generated rows. Rows already computed are in the cache; the others are owed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from plait.pipelines.kv_cache import PagePool
from plait.pipelines.sampling import SamplingParams


@dataclass(eq=False)
class Sequence:
    """One request's tokens and where they stand.

    tokens        prompt, then generated tokens
    num_computed  how many of them are in the cache
    limit         tokens at which it ends
    """

    request_id: str
    tokens: list[int]
    params: SamplingParams
    seed: int
    num_prompt: int
    limit: int
    num_computed: int = 0
    pages: list[int] = field(default_factory=list)

    @property
    def num_owed(self) -> int:
        return len(self.tokens) - self.num_computed


@dataclass(frozen=True)
class Slice:
    """A sequence's part of a step: its rows `start` to `end`."""

    sequence: Sequence
    start: int
    end: int

    @property
    def is_last(self) -> bool:
        """Whether the step computes all that the sequence owes, so that its next token can be chosen."""
        return self.end == len(self.sequence.tokens)


Batch = list[Slice]


class Scheduler:
    """Waiting and running sequences over a pool of pages.

    A step has at most `max_rows` rows: first one for each generating sequence, then prompts in order of arrival.
    When pages run out the sequence that came last gives its own back and is computed again later; since a row's bits
    do not depend on its batch, its tokens stay the same.
    """

    def __init__(self, pool: PagePool, page_size: int, max_batch_size: int, max_rows: int) -> None:
        self.pool, self.page_size = pool, page_size
        self.max_batch_size, self.max_rows = max_batch_size, max(max_rows, max_batch_size)
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence, wherever it is, and free its pages."""
        if sequence in self.running:
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)
        self._release(sequence)

    def next_batch(self) -> Batch:
        """Admit what fits, give every chosen row its page, and return the step's slices in order of admission."""
        self._reserve_generating()
        while self.can_admit():
            self._admit()
        left = self.max_rows - sum(sequence.num_owed == 1 for sequence in self.running)
        batch = []
        for sequence in self.running:
            count = self._num_rows(sequence, left)
            left -= count if sequence.num_owed > 1 else 0
            if count:
                batch.append(Slice(sequence, sequence.num_computed, sequence.num_computed + count))
        return batch

    def can_admit(self) -> bool:
        """Whether the first waiting sequence fits beside the running ones: a place, and pages for all it holds."""
        if not self.waiting or len(self.running) >= self.max_batch_size:
            return False
        return self.pool.can_allocate(self._num_pages(len(self.waiting[0].tokens)))

    def _admit(self) -> None:
        sequence = self.waiting.popleft()
        sequence.pages = self.pool.allocate(self._num_pages(len(sequence.tokens)))
        self.running.append(sequence)

    def _reserve_generating(self) -> None:
        """Give a page to each running sequence whose newest token needs one, earliest first."""
        for sequence in list(self.running):
            if sequence not in self.running:
                continue
            missing = self._num_pages(len(sequence.tokens)) - len(sequence.pages)
            while not self.pool.can_allocate(missing) and sequence in self.running:
                self._preempt(self.running[-1])
            if sequence in self.running:
                sequence.pages += self.pool.allocate(missing)

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._release(sequence)
        self.waiting.appendleft(sequence)

    def _release(self, sequence: Sequence) -> None:
        self.pool.free(sequence.pages)
        sequence.pages = []
        sequence.num_computed = 0

    def _num_pages(self, num_tokens: int) -> int:
        return -(-num_tokens // self.page_size)

    @staticmethod
    def _num_rows(sequence: Sequence, left: int) -> int:
        return 1 if sequence.num_owed == 1 else min(sequence.num_owed, left)
