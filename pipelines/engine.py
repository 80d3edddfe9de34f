"""The engine: requests in, events out, one step at a time. Token ids only; text is somebody else's.

The same EngineCore runs in a script, behind the command line and in the server's engine process.
"""

from __future__ import annotations

from collections.abc import Sequence as Tokens
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from plait.framework.errors import RequestError
from plait.framework.profiler import profile_scope
from plait.pipelines.kv_cache import PagePool
from plait.pipelines.sampling import SamplingParams, sample
from plait.pipelines.scheduler import Batch, Scheduler, Sequence

MAX_ROWS = 512  # rows of a step, so that a long prompt delays the others' next token by little


@dataclass(frozen=True)
class Request:
    """One prompt and how to continue it."""

    request_id: str
    prompt: Tokens[int]
    params: SamplingParams


@dataclass(frozen=True)
class Event:
    """One token of one request. `finish_reason` is None until the last: "stop" or "length"."""

    request_id: str
    token: int
    finish_reason: str | None


@dataclass
class Counters:
    """What the engine has done."""

    steps: int = 0
    prompt_rows: int = 0
    tokens: int = 0


class Runner(Protocol):
    """Whoever computes a batch's logits."""

    vocab_size: int
    num_pages: int

    def run(self, batch: Batch) -> np.ndarray[Any, Any]: ...


class EngineCore:
    """Continuous batching: sequences join and leave between steps.

    `max_length` bounds prompt and answer together. `seed` fixes the seeds of requests that bring none.
    """

    def __init__(
        self,
        runner: Runner,
        *,
        page_size: int,
        max_length: int,
        end_ids: frozenset[int] = frozenset(),
        max_batch_size: int = 16,
        max_rows: int = MAX_ROWS,
        seed: int | None = None,
    ) -> None:
        self.runner, self.max_length, self.end_ids = runner, max_length, end_ids
        self.scheduler = Scheduler(PagePool(runner.num_pages), page_size, max_batch_size, max_rows)
        self.counters = Counters()
        self._sequences: dict[str, Sequence] = {}
        self._seeds = np.random.default_rng(seed)

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises: RequestError for a prompt that is empty, too long or holds ids outside the vocabulary.
        """
        self._check(request)
        prompt, params = list(request.prompt), request.params
        limit = min(len(prompt) + (params.max_tokens or self.max_length), self.max_length)
        seed = params.seed if params.seed is not None else int(self._seeds.integers(2**63))
        sequence = Sequence(request.request_id, prompt, params, seed, len(prompt), limit)
        self._sequences[request.request_id] = sequence
        self.scheduler.add(sequence)

    def abort(self, request_id: str) -> bool:
        """Drop a request and free what it holds; False when it is not here (any more)."""
        sequence = self._sequences.pop(request_id, None)
        if sequence is not None:
            self.scheduler.remove(sequence)
        return sequence is not None

    def step(self) -> list[Event]:
        """Advance every sequence of the next batch by its rows; return the tokens that came out."""
        batch = self.scheduler.next_batch()
        if not batch:
            return []
        with profile_scope("engine step", "engine"):
            with profile_scope("run", "engine"):
                logits = self.runner.run(batch)
            with profile_scope("sample", "engine"):
                tokens = self._sample(batch, logits)
            return self._emit(batch, tokens)

    def _sample(self, batch: Batch, logits: np.ndarray[Any, Any]) -> dict[int, int]:
        """The next token of each slice that computed all its sequence owed, by slice."""
        rows = [row for row, part in enumerate(batch) if part.is_last]
        if not rows:
            return {}
        chosen = [batch[row].sequence for row in rows]
        positions = [len(sequence.tokens) for sequence in chosen]
        picked = logits if len(rows) == len(batch) else logits[rows]
        tokens = sample(picked, [s.params for s in chosen], positions, [s.seed for s in chosen])
        return dict(zip(rows, tokens.tolist(), strict=True))

    def _emit(self, batch: Batch, tokens: dict[int, int]) -> list[Event]:
        events = []
        for row, part in enumerate(batch):
            part.sequence.num_computed = part.end
            if row in tokens:
                events.append(self._advance(part.sequence, tokens[row]))
        self.counters.steps += 1
        self.counters.tokens += len(tokens)
        self.counters.prompt_rows += sum(max(0, min(p.end, p.sequence.num_prompt) - p.start) for p in batch)
        return events

    def _advance(self, sequence: Sequence, token: int) -> Event:
        sequence.tokens.append(token)
        reason = None
        if token in self.end_ids and not sequence.params.ignore_eos:
            reason = "stop"
        elif len(sequence.tokens) >= sequence.limit:
            reason = "length"
        if reason is not None:
            self.abort(sequence.request_id)
        return Event(sequence.request_id, token, reason)

    def _check(self, request: Request) -> None:
        prompt = request.prompt
        if request.request_id in self._sequences:
            raise RequestError(f"request: id {request.request_id!r} is running already; give each request its own.")
        if not len(prompt):
            raise RequestError("prompt: no tokens; expected at least one.", param="prompt")
        if len(prompt) >= self.max_length:
            raise RequestError(
                f"prompt: {len(prompt)} tokens; the context holds {self.max_length}, at least one of them for the "
                f"answer. shorten the prompt, or raise max_length if the model allows.",
                param="prompt",
                code="context_length_exceeded",
            )
        last = self.runner.vocab_size - 1
        for token in prompt:
            if isinstance(token, bool) or not isinstance(token, int | np.integer) or not 0 <= token <= last:
                raise RequestError(f"prompt: {token!r} is not a token; expected ids from 0 to {last}.", param="prompt")
