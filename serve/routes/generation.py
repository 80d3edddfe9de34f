"""What the two text routes share: reading the body, submitting, and answering at once or as a stream."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

from sanic.request import Request
from sanic.response import HTTPResponse

from plait.framework.errors import RequestError
from plait.pipelines.sampling import SamplingParams
from plait.serve import schema, sse
from plait.serve.answer import Answer, Choice, Limits, TextSide, Wanted, submitted
from plait.serve.app import Serving, close_after, json_response
from plait.serve.errors import envelope, internal_error

log = logging.getLogger("plait.serve")

MAX_INLINE_BYTES = 64 * 1024  # larger bodies are parsed beside the event loop
_STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}

B = TypeVar("B", bound=schema.Body)


@dataclass(frozen=True)
class Shape:
    """How one route spells its answers."""

    id_prefix: str
    object: str
    chunk_object: str
    prompt_field: str
    is_chat: bool

    def choice(self, index: int, text: str, reason: str | None) -> dict[str, Any]:
        message = {"role": "assistant", "content": text, "refusal": None}
        content: dict[str, Any] = {"message": message} if self.is_chat else {"text": text}
        return {"index": index, **content, "logprobs": None, "finish_reason": reason}


async def read_body(request: Request, kind: type[B]) -> B:
    """The checked body of a request.

    Raises: RequestError for another content type, or a body that is not such a request.
    """
    declared = request.headers.getone("content-type", "")
    if declared.partition(";")[0].strip().lower() != "application/json":
        raise RequestError(f"header Content-Type: {declared!r}; expected 'application/json'.")
    body = request.body or b""
    if len(body) <= MAX_INLINE_BYTES:
        return schema.parse(kind, body)
    return await asyncio.to_thread(schema.parse, kind, body)


async def respond(
    request: Request,
    body: schema.ChatRequest | schema.CompletionRequest,
    prompts: Sequence[Sequence[int]],
    text: TextSide,
    shape: Shape,
) -> HTTPResponse | None:
    """Submit the prompts and answer; None when the answer went out as a stream."""
    serving: Serving = request.app.ctx.serving
    wanted = _wanted(body, prompts, serving.limits, shape.prompt_field)
    answer_id = f"{shape.id_prefix}-{uuid.uuid4().hex}"
    head: dict[str, Any] = {"id": answer_id, "object": shape.chunk_object if body.stream else shape.object}
    head |= {"created": int(time.time()), "model": serving.settings.served_name}
    with serving.serving_one(), submitted(serving.engine, text, wanted, answer_id) as answer:
        try:
            if body.stream:
                await _stream(request, answer, sse.Chunks(head, shape.is_chat, body.with_usage), body.with_usage)
                return None
            with serving.a_cut_is_an_error():
                texts = await answer.texts()
            choices = [shape.choice(c.index, texts[c.index], c.finish_reason) for c in answer.choices]
            return json_response(head | {"choices": choices, "usage": answer.usage})
        finally:
            _log_answer(request, answer)


def _wanted(
    body: schema.ChatRequest | schema.CompletionRequest, prompts: Sequence[Sequence[int]], limits: Limits, field: str
) -> list[Wanted]:
    """Each prompt with the parameters of its choices, all checked before any is submitted."""
    if len(prompts) * body.n > limits.max_requests:
        raise RequestError(
            f"n: {len(prompts)} prompts with {body.n} answers each; this server takes {limits.max_requests} at a time.",
            param="n",
        )
    wanted: list[Wanted] = []
    for prompt in prompts:
        limits.check_prompt(prompt, field)
        left = limits.max_length - len(prompt)
        max_tokens = left if body.limit is None else min(body.limit, left)
        each: list[SamplingParams | None] = [None] * body.n
        if max_tokens:
            each = [body.sampling(choice, max_tokens, limits.vocab_size) for choice in range(body.n)]
        wanted.append((prompt, each))
    return wanted


async def _stream(request: Request, answer: Answer, chunks: sse.Chunks, with_usage: bool) -> None:
    """Send the answer as events. What goes wrong now is an event too: the status has been sent."""
    serving: Serving = request.app.ctx.serving
    response = await request.respond(content_type="text/event-stream", headers=_STREAM_HEADERS)
    sender = _Sender(response)
    pings = asyncio.create_task(sender.ping(serving.settings.ping_s))
    try:
        with serving.a_cut_is_an_error():
            await _send_pieces(sender.send, answer, chunks)
        tail = chunks.usage(answer.usage) if with_usage else b""
        await sender.send(tail + sse.DONE)
    except RequestError as error:
        await _send_error(request, sender.send, error)
    except Exception:
        log.exception("id=%s failed in mid-stream", request.ctx.request_id)
        await _send_error(request, sender.send, internal_error(request.ctx.request_id))
    finally:
        pings.cancel()
    await response.eof()


async def _send_pieces(send: Any, answer: Answer, chunks: sse.Chunks) -> None:
    roles = [chunks.role(choice.index) for choice in answer.choices if chunks.is_chat]
    await send(sse.PING + b"".join(roles))
    if len(answer.choices) == 1 and answer.choices[0].finish_reason is None:
        return await _send_one(send, answer.choices[0], chunks)
    async with aclosing(answer.pieces()) as pieces:
        async for index, text, reason in pieces:
            if data := chunks.piece(index, text, reason):
                await send(data)


async def _send_one(send: Any, choice: Choice, chunks: sse.Chunks) -> None:
    """The pieces of an only choice, without a generator in between: this runs for every token."""
    async for events in choice.stream:
        text = choice.take(events)
        if data := chunks.piece(choice.index, text, choice.finish_reason):
            await send(data)
        if choice.finish_reason is not None:
            return
    raise RequestError("the engine ended the answer without a reason.", status=500)


async def _send_error(request: Request, send: Any, error: RequestError) -> None:
    close_after(request)
    await send(sse.event(envelope(error)))


class _Sender:
    """A streaming response that says when it was last used; while it is not, comments keep proxies from hanging up."""

    __slots__ = ("_loop", "last_s", "response")

    def __init__(self, response: Any) -> None:
        self.response = response
        self._loop = asyncio.get_running_loop()
        self.last_s = self._loop.time()

    def send(self, data: bytes) -> Awaitable[None]:
        """Awaited by the caller, without a coroutine of its own: this runs for every token of every stream."""
        self.last_s = self._loop.time()
        sent: Awaitable[None] = self.response.stream.send(data, False)  # what response.send awaits, without its checks
        return sent

    async def ping(self, every_s: float) -> None:
        while True:
            silent_s = self._loop.time() - self.last_s
            if silent_s >= every_s:
                await self.send(sse.PING)
                silent_s = 0
            await asyncio.sleep(every_s - silent_s)


def _log_answer(request: Request, answer: Answer) -> None:
    elapsed_s = time.perf_counter() - request.ctx.start
    reasons = ",".join(choice.finish_reason or "dropped" for choice in answer.choices)
    counts = (answer.num_prompt, answer.num_completion)
    log.info(
        "id=%s answered %d prompt + %d new tokens in %.2f s (%s)", request.ctx.request_id, *counts, elapsed_s, reasons
    )
