"""LLM: a model by name, text in and text out. Joins tokenizer, chat template, engine and detokenizer.

Prompts are texts, lists of token ids, or chat messages (a list of {"role", "content"}).
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from plait.framework.errors import RequestError
from plait.pipelines.builtin import open_model
from plait.pipelines.chat_template import render_chat
from plait.pipelines.core import Progress, create_core, load_module, options_from
from plait.pipelines.detokenizer import Detokenizer
from plait.pipelines.engine import Event, Request
from plait.pipelines.sampling import SamplingParams
from plait.pipelines.tokenizer import Tokenizer

Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Usage:
    """Tokens of one request."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True)
class Completion:
    """One answer. `finish_reason` is "stop" (the model ended, or a stop string) or "length"."""

    text: str
    token_ids: list[int]
    finish_reason: str
    usage: Usage


@dataclass(frozen=True)
class Piece:
    """A part of a streamed answer: a token, the text that became certain with it, and the reason if it is the last."""

    text: str
    token: int
    finish_reason: str | None


@dataclass
class Timings:
    """Seconds that starting took."""

    load_s: float = 0.0
    compile_s: float = 0.0


@dataclass(eq=False)
class Answer:
    """One request's answer as it grows. Ends at the token that completes a stop string."""

    num_prompt: int
    detokenizer: Detokenizer
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: str | None = None

    def take(self, event: Event) -> Piece:
        """Add a token."""
        self.token_ids.append(event.token)
        new = self.detokenizer.push(event.token)
        self.finish_reason = event.finish_reason
        if self.detokenizer.stopped is not None:
            self.finish_reason = "stop"
        elif self.finish_reason is not None:
            new += self.detokenizer.finish()
            self.finish_reason = "stop" if self.detokenizer.stopped is not None else self.finish_reason
        self.text += new
        return Piece(new, event.token, self.finish_reason)

    def completion(self) -> Completion:
        assert self.finish_reason is not None
        return Completion(self.text, self.token_ids, self.finish_reason, Usage(self.num_prompt, len(self.token_ids)))


class LLM:
    """A language model ready to answer.

    `model` is an alias, a .gguf file, a folder, or "echo", which needs none. Options: see `Options`.
    Raises: TypeError for an unknown option; LoadError, FormatError, ConfigError naming what does not fit.

    Example:
        >>> llm = LLM("smollm2")  # doctest: +SKIP
        >>> llm.generate(["The capital of France is"], SamplingParams(max_tokens=4))[0].text  # doctest: +SKIP
    """

    def __init__(self, model: str | os.PathLike[str], *, progress: Progress | None = None, **options: Any) -> None:
        self.options = options_from(options)
        self.timings = Timings()
        self._ids = itertools.count()
        note = progress or (lambda stage, done, total: None)
        start = time.perf_counter()
        note("loading", 0, 0)
        file = open_model(model)
        self.tokenizer = Tokenizer.from_gguf(file.metadata)
        module = load_module(file, self.options)
        loaded = time.perf_counter()
        self.engine = create_core(module, self.options, self.tokenizer.eog_ids, note)
        self.max_length = self.engine.max_length
        self.timings = Timings(loaded - start, time.perf_counter() - loaded)

    def encode(self, prompt: Prompt) -> list[int]:
        """The token ids of a prompt. Chat messages go through the model's template.

        Raises: RequestError for chat messages when the model has no template, or a prompt of another kind.
        """
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt)
        if not isinstance(prompt, Sequence) or isinstance(prompt, bytes):
            kind = type(prompt).__name__
            raise RequestError(f"prompt: {kind}; expected a text, token ids or messages.", param="prompt")
        if prompt and isinstance(prompt[0], Mapping):
            return self.tokenizer.encode(self.render(prompt), parse_special=True)
        return list(prompt)  # type: ignore[arg-type]

    def render(self, messages: Sequence[Any]) -> str:
        """The text that the model's chat template makes of messages.

        Raises: RequestError when the model has no template, or it refuses the messages.
        """
        return render_chat(self.tokenizer, messages)

    def generate(
        self, prompts: Prompt | Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[Completion]:
        """Answer every prompt; the answers come in the prompts' order. `params` is one for all, or one each.

        Raises: RequestError for a prompt or parameters that cannot be served; none is answered then.
        """
        batch: list[Any] = [prompts] if _is_single(prompts) else list(prompts)
        each = list(params) if isinstance(params, Sequence) else [params or SamplingParams()] * len(batch)
        if len(each) != len(batch):
            raise RequestError(f"params: {len(each)} for {len(batch)} prompts; expected one for all, or one each.")
        answers = self._submit([(self.encode(prompt), one) for prompt, one in zip(batch, each, strict=True)])
        for _ in self._run(answers):
            pass
        return [answer.completion() for answer in answers.values()]

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[Piece]:
        """Answer one prompt piece by piece. Closing the iterator drops the request."""
        answers = self._submit([(self.encode(prompt), params or SamplingParams())])
        return self._run(answers)

    def _submit(self, requests: list[tuple[list[int], SamplingParams]]) -> dict[str, Answer]:
        answers: dict[str, Answer] = {}
        try:
            for prompt, params in requests:
                request_id = f"request-{next(self._ids)}"
                self.engine.add(Request(request_id, prompt, params))
                answers[request_id] = Answer(len(prompt), create_detokenizer(self.tokenizer, params))
        except BaseException:
            self._drop(answers)
            raise
        return answers

    def _run(self, answers: dict[str, Answer]) -> Iterator[Piece]:
        """Step until every answer is complete."""
        try:
            while any(answer.finish_reason is None for answer in answers.values()):
                for event in self.engine.step():
                    piece = answers[event.request_id].take(event)
                    if piece.finish_reason is not None and event.finish_reason is None:
                        self.engine.abort(event.request_id)
                    yield piece
        finally:
            self._drop(answers)

    def _drop(self, answers: dict[str, Answer]) -> None:
        for request_id, answer in answers.items():
            if answer.finish_reason is None:
                self.engine.abort(request_id)


def create_detokenizer(tokenizer: Tokenizer, params: SamplingParams) -> Detokenizer:
    """The detokenizer for a request's parameters."""
    return Detokenizer(tokenizer, params.stop, params.include_stop, params.skip_special)


def _is_single(prompts: Any) -> bool:
    """One text, one list of ids or one conversation, rather than a list of prompts."""
    return isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], int | Mapping))
