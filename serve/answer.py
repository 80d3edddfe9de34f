"""From prompts to token ids, and from a request's token streams to text: choices, stop strings, usage.

Knows the model's tokenizer and the engine's streams. Does not know HTTP or JSON.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

from plait.framework.errors import RequestError
from plait.pipelines.chat_template import render_chat
from plait.pipelines.detokenizer import Detokenizer
from plait.pipelines.sampling import SamplingParams
from plait.pipelines.tokenizer import Tokenizer
from plait.serve.errors import shown

T = TypeVar("T")

# Longer texts are tokenised beside the event loop, which would stall every stream for milliseconds.
MAX_INLINE_CHARACTERS = 2_000


class TokenEvent(Protocol):
    """One token of one request."""

    @property
    def token(self) -> int: ...

    @property
    def finish_reason(self) -> str | None: ...


class TokenStream(Protocol):
    """The engine's answer to one request, in lists of what has arrived since the last look."""

    def __aiter__(self) -> AsyncIterator[list[Any]]: ...

    def close(self) -> None: ...


class Engine(Protocol):
    """Whoever makes tokens out of prompts."""

    @property
    def state(self) -> str: ...  # "loading", "ready" or "dead"

    @property
    def progress(self) -> str: ...

    @property
    def info(self) -> Any: ...

    @property
    def running(self) -> int: ...

    @property
    def waiting(self) -> int: ...

    def submit(self, prompt: Sequence[int], params: SamplingParams, request_id: str) -> Any: ...


@dataclass(frozen=True)
class Limits:
    """What the engine can take: see `check_prompt`."""

    max_length: int
    vocab_size: int
    max_requests: int

    def check_prompt(self, prompt: Sequence[int], param: str) -> None:
        """Refuse a prompt that cannot be served; `param` is the field it came from.

        Raises: RequestError naming both lengths, or the id that is no token.
        """
        if not prompt:
            raise RequestError(f"{param}: no tokens; expected at least one.", param=param)
        if len(prompt) >= self.max_length:
            raise RequestError(
                f"{param}: {len(prompt)} tokens; the context holds {self.max_length}, at least one of them for the "
                "answer. shorten the prompt.",
                code="context_length_exceeded",
                param=param,
            )
        if not 0 <= min(prompt) <= max(prompt) < self.vocab_size:
            bad = next(token for token in prompt if not 0 <= token < self.vocab_size)
            raise RequestError(
                f"{param}: {shown(bad)} is not a token; expected ids from 0 to {self.vocab_size - 1}.", param=param
            )


@dataclass(frozen=True)
class TextSide:
    """The model's vocabulary and chat template: all of the model that the HTTP process holds."""

    tokenizer: Tokenizer

    async def encode(self, prompts: Sequence[str | list[int]]) -> list[list[int]]:
        """The token ids of texts; ids stay as they are."""
        size = sum(len(prompt) for prompt in prompts if isinstance(prompt, str))
        return await _beside(size, lambda: [self.tokenizer.encode(p) if isinstance(p, str) else p for p in prompts])

    async def encode_chat(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        """The token ids that the model's chat template makes of messages.

        Raises: RequestError when the model has no template, or it refuses the messages.
        """
        size = sum(len(message["content"]) for message in messages)
        return await _beside(
            size, lambda: self.tokenizer.encode(render_chat(self.tokenizer, messages), parse_special=True)
        )

    def detokenizer(self, params: SamplingParams) -> Detokenizer:
        return Detokenizer(self.tokenizer, params.stop, params.include_stop, params.skip_special)


async def _beside(size: int, encode: Callable[[], T]) -> T:
    return encode() if size <= MAX_INLINE_CHARACTERS else await asyncio.to_thread(encode)


class Piece(NamedTuple):
    """Text that became certain; a choice's last piece says why it ended."""

    choice: int
    text: str
    finish_reason: str | None


@dataclass(eq=False)
class Choice:
    """One of a request's answers as it grows. Ends at the token that completes a stop string."""

    index: int
    stream: TokenStream
    detokenizer: Detokenizer
    num_tokens: int = 0
    finish_reason: str | None = None

    def take(self, events: Sequence[TokenEvent]) -> str:
        """Add tokens and return the text that became certain."""
        text = ""
        for event in events:
            if self.finish_reason is not None:
                break
            self.num_tokens += 1
            text += self.detokenizer.push(event.token)
            if self.detokenizer.stopped is not None:
                self._end("stop")
            elif event.finish_reason is not None:
                text += self.detokenizer.finish()
                self._end("stop" if self.detokenizer.stopped is not None else event.finish_reason)
        return text

    def _end(self, reason: str) -> None:
        self.finish_reason = reason
        self.stream.close()

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """What `take` returns, until the choice has ended."""
        if self.finish_reason is not None:
            yield Piece(self.index, "", self.finish_reason)
            return
        async for events in self.stream:
            yield Piece(self.index, self.take(events), self.finish_reason)
            if self.finish_reason is not None:
                return
        raise RequestError("the engine ended the answer without a reason.", status=500)


@dataclass(eq=False)
class Answer:
    """All choices of a request."""

    num_prompt: int
    choices: list[Choice] = field(default_factory=list)

    @property
    def num_completion(self) -> int:
        return sum(choice.num_tokens for choice in self.choices)

    @property
    def usage(self) -> dict[str, int]:
        prompt, completion = self.num_prompt, self.num_completion
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}

    def close(self) -> None:
        """Drop what the engine still works on."""
        for choice in self.choices:
            choice.stream.close()

    def pieces(self) -> AsyncGenerator[Piece, None]:
        """Every choice's pieces as they come.

        Raises: RequestError when the engine refuses or dies.
        """
        return self.choices[0].pieces() if len(self.choices) == 1 else _merged(self.choices)

    async def texts(self) -> list[str]:
        """The whole text of each choice."""
        texts = [""] * len(self.choices)
        async with aclosing(self.pieces()) as pieces:
            async for piece in pieces:
                texts[piece.choice] += piece.text
        return texts


async def _merged(choices: Sequence[Choice]) -> AsyncGenerator[Piece, None]:
    # One place in the queue: a slow reader holds the pumps back, and the streams gather what comes meanwhile.
    queue: asyncio.Queue[Piece | Exception] = asyncio.Queue(1)

    async def pump(choice: Choice) -> None:
        try:
            async for piece in choice.pieces():
                await queue.put(piece)
        except Exception as error:
            await queue.put(error)

    tasks = [asyncio.create_task(pump(choice)) for choice in choices]
    num_open = len(choices)
    try:
        while num_open:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            num_open -= item.finish_reason is not None
            yield item
    finally:
        for task in tasks:
            task.cancel()


class _NoTokens:
    """The stream of an answer that may have no tokens."""

    async def __aiter__(self) -> AsyncGenerator[list[Any], None]:
        nothing: list[list[Any]] = []
        for events in nothing:
            yield events

    def close(self) -> None: ...


Wanted = tuple[Sequence[int], Sequence[SamplingParams | None]]  # a prompt; for each choice how, or None: no token


@contextmanager
def submitted(engine: Engine, text: TextSide, prompts: Sequence[Wanted], request_id: str) -> Iterator[Answer]:
    """Submit every prompt once for each of its choices; what is unfinished at the end is dropped.

    Raises: RequestError when one of them is refused; none is answered then.
    """
    answer = Answer(sum(len(prompt) for prompt, _ in prompts))
    try:
        for prompt, each in prompts:
            for params in each:
                index = len(answer.choices)
                if params is None:
                    choice = Choice(index, _NoTokens(), Detokenizer(text.tokenizer), finish_reason="length")
                else:
                    stream = engine.submit(prompt, params, f"{request_id}-{index}")
                    choice = Choice(index, stream, text.detokenizer(params))
                answer.choices.append(choice)
        yield answer
    finally:
        answer.close()
