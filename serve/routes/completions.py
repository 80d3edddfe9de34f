"""POST /v1/completions."""

from __future__ import annotations

from typing import Any

from sanic import Sanic
from sanic.request import Request
from sanic.response import HTTPResponse

from plait.serve.app import Serving
from plait.serve.routes.generation import Shape, read_body, respond
from plait.serve.schema import CompletionRequest

_SHAPE = Shape("cmpl", "text_completion", "text_completion", prompt_field="prompt", is_chat=False)


def add_to(app: Sanic[Any, Any]) -> None:
    app.add_route(complete, "/v1/completions", methods=["POST"], name="completions")


async def complete(request: Request) -> HTTPResponse | None:
    """Continue texts or token ids. The choices of the first prompt come first."""
    serving: Serving = request.app.ctx.serving
    text = serving.ready_text()
    body = await read_body(request, CompletionRequest)
    serving.check_model(body.model)
    return await respond(request, body, await text.encode(body.prompt), text, _SHAPE)
