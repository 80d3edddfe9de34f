"""GET /health (the process answers), /ready (the model does) and /version."""

from __future__ import annotations

from typing import Any

from sanic import Sanic
from sanic.request import Request
from sanic.response import HTTPResponse

from plait.serve.app import Serving, json_response
from plait.serve.errors import RETRY_AFTER_S


def add_to(app: Sanic[Any, Any]) -> None:
    app.add_route(health, "/health", methods=["GET"], name="health")
    app.add_route(health, "/v1/health", methods=["GET"], name="v1-health")
    app.add_route(ready, "/ready", methods=["GET"], name="ready")
    app.add_route(version, "/version", methods=["GET"], name="version")


async def health(request: Request) -> HTTPResponse:
    return json_response({"status": "ok"})


async def ready(request: Request) -> HTTPResponse:
    """200 and how many requests there are when they are served; 503 with what is still going on until then."""
    serving: Serving = request.app.ctx.serving
    if serving.is_ready:
        engine = serving.engine
        return json_response({"status": "ready", "running": engine.running, "waiting": engine.waiting})
    status = "draining" if serving.draining else serving.engine.state
    status = "loading" if status == "ready" else status  # the engine is, the tokenizer is not
    headers = {"Retry-After": str(RETRY_AFTER_S[503])}
    return json_response({"status": status, "progress": serving.progress}, 503, headers)


async def version(request: Request) -> HTTPResponse:
    serving: Serving = request.app.ctx.serving
    return json_response({"version": serving.settings.version})
