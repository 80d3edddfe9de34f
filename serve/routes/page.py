"""GET /: one page to chat on, without anything from elsewhere."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from sanic import Sanic
from sanic.request import Request
from sanic.response import HTTPResponse

# Everything is in the page itself, and it calls nobody but this server.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:"


def add_to(app: Sanic[Any, Any]) -> None:
    page = files("plait.serve").joinpath("static", "index.html").read_bytes()
    headers = {
        "Content-Security-Policy": _POLICY + "; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-cache",
    }

    async def show(request: Request) -> HTTPResponse:
        return HTTPResponse(page, 200, headers, "text/html; charset=utf-8")

    app.add_route(show, "/", methods=["GET"], name="page")
