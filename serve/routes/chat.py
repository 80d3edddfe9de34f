"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import Any

from sanic import Sanic
from sanic.request import Request
from sanic.response import HTTPResponse

from plait.serve.app import Serving
from plait.serve.routes.generation import Shape, read_body, respond
from plait.serve.schema import ChatRequest

_SHAPE = Shape("chatcmpl", "chat.completion", "chat.completion.chunk", prompt_field="messages", is_chat=True)


def add_to(app: Sanic[Any, Any]) -> None:
    app.add_route(complete, "/v1/chat/completions", methods=["POST"], name="chat")


async def complete(request: Request) -> HTTPResponse | None:
    """Answer a conversation."""
    serving: Serving = request.app.ctx.serving
    text = serving.ready_text()
    body = await read_body(request, ChatRequest)
    serving.check_model(body.model)
    prompt = await text.encode_chat([message.for_template() for message in body.messages])
    return await respond(request, body, [prompt], text, _SHAPE)
