"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from sanic import Sanic
from sanic.request import Request
from sanic.response import HTTPResponse

from plait.serve.app import Serving, json_response


def add_to(app: Sanic[Any, Any]) -> None:
    app.add_route(list_models, "/v1/models", methods=["GET"], name="models")
    app.add_route(show_model, "/v1/models/<name:path>", methods=["GET"], name="model")


async def list_models(request: Request) -> HTTPResponse:
    return json_response({"object": "list", "data": [_model(request.app.ctx.serving)]})


async def show_model(request: Request, name: str) -> HTTPResponse:
    serving: Serving = request.app.ctx.serving
    serving.check_model(unquote(name))
    return json_response(_model(serving))


def _model(serving: Serving) -> dict[str, Any]:
    body = {"id": serving.settings.served_name, "object": "model", "created": serving.created, "owned_by": "plait"}
    info = serving.engine.info
    return body | ({} if info is None else {"max_model_len": info.max_length})
