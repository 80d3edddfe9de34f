"""LLM: a model by name, text in and text out. Joins tokenizer, chat template, engine and detokenizer.

Prompts are texts, lists of token ids, or chat messages (a list of {"role", "content"}).
"""

from __future__ import annotations

import difflib
import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from plait.framework.config import config
from plait.framework.errors import ConfigError, RequestError
from plait.nn.linear import checked_mode
from plait.pipelines.builtin import open_model
from plait.pipelines.chat_template import render
from plait.pipelines.detokenizer import Detokenizer
from plait.pipelines.engine import MAX_ROWS, EngineCore, Event, Request
from plait.pipelines.kv_cache import memory_bytes, num_pages_for
from plait.pipelines.model_runner import ModelRunner
from plait.pipelines.registry import LanguageModel, load_model
from plait.pipelines.sampling import SamplingParams
from plait.pipelines.tokenizer import Tokenizer

Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]]
Progress = Callable[[str, int, int], None]  # stage, how much is done, of how much (0: unknown)


@dataclass(frozen=True)
class Options:
    """What an LLM may be told besides its model.

    max_length             tokens of prompt and answer together; None: the model's context
    max_batch_size         sequences in one step
    max_batch_input_tokens rows in one step; longer prompts are cut into chunks
    kv_cache_page_size     positions per page of the cache, a multiple of 32
    activation_mode        "int8" or "exact"
    threads                CPU threads; None: what this process may use
    seed                   fixes the seeds of requests that bring none
    """

    max_length: int | None = None
    max_batch_size: int = 16
    max_batch_input_tokens: int = MAX_ROWS
    kv_cache_page_size: int = 32
    activation_mode: str = "int8"
    threads: int | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        checked_mode(self.activation_mode)
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if value is not None and (type(value) is not int or not low <= value <= high):
                raise ConfigError(f"{name}: {value!r} is not possible; expected an integer from {low} to {high}.")
        if self.kv_cache_page_size % 32:
            raise ConfigError(f"kv_cache_page_size: {self.kv_cache_page_size}; expected a multiple of 32.")


_RANGES = [
    ("max_length", 2, 1 << 30),
    ("max_batch_size", 1, 4096),
    ("max_batch_input_tokens", 1, 1 << 20),
    ("kv_cache_page_size", 32, 4096),
    ("threads", 1, 1024),
    ("seed", 0, 2**63 - 1),
]


def options_from(values: Mapping[str, Any]) -> Options:
    """Options by name.

    Raises: TypeError for an unknown name, with the nearest known one; ConfigError for an impossible value.
    """
    known = [option.name for option in fields(Options)]
    for name in values:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}."
            raise TypeError(f"LLM: {name!r} is not an option; {hint}")
    return Options(**values)


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
        if self.options.threads is not None:
            config.threads = self.options.threads
        note = progress or (lambda stage, done, total: None)
        start = time.perf_counter()
        note("loading", 0, 0)
        file = open_model(model)
        self.tokenizer = Tokenizer.from_gguf(file.metadata)
        module: Any = load_model(file, mode=self.options.activation_mode, page_size=self.options.kv_cache_page_size)
        loaded = time.perf_counter()
        self.max_length = self._checked_length(module)
        note("compiling", 0, 0)
        self.engine = self._create_engine(module, lambda done, total: note("compiling", done, total))
        self.timings = Timings(loaded - start, time.perf_counter() - loaded)

    def _checked_length(self, module: LanguageModel) -> int:
        length = self.options.max_length or module.context_length
        if length > module.context_length:
            raise ConfigError(f"max_length: {length} is over the model's context of {module.context_length} tokens.")
        return length

    def _create_engine(self, module: LanguageModel, progress: Callable[[int, int], None]) -> EngineCore:
        options = self.options
        pages = num_pages_for(module.cache_params, options.max_batch_size, self.max_length, memory_bytes())
        runner = ModelRunner(module, pages, progress)
        runner.warm_up()
        return EngineCore(
            runner,
            page_size=options.kv_cache_page_size,
            max_length=self.max_length,
            end_ids=self.tokenizer.eog_ids,
            max_batch_size=options.max_batch_size,
            max_rows=options.max_batch_input_tokens,
            seed=options.seed,
        )

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
        template = self.tokenizer.chat_template
        if template is None:
            raise RequestError("messages: the model has no chat template; give the prompt as text.", param="messages")
        names = {"bos_token": self.tokenizer.bos_id, "eos_token": self.tokenizer.eos_id}
        named: dict[str, Any] = {key: self.tokenizer.token_name(i) for key, i in names.items() if i is not None}
        return render(template, messages, **named)

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
