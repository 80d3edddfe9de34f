"""The web application: routes, who may call, request ids, and every error in one envelope.

Knows settings and an engine with the bridge's methods. Does not know sockets, signals or processes.
"""

from __future__ import annotations

import asyncio
import hmac
import itertools
import logging
import re
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from sanic import Sanic
from sanic.config import Config
from sanic.exceptions import SanicException
from sanic.handlers import ErrorHandler
from sanic.request import Request
from sanic.response import BaseHTTPResponse, HTTPResponse

from plait.framework.errors import RequestError
from plait.serve.answer import Engine, Limits, TextSide
from plait.serve.errors import envelope, error_headers, internal_error
from plait.serve.settings import ServeSettings, is_loopback
from plait.serve.sse import encode

log = logging.getLogger("plait.serve")

RESPONSE_TIMEOUT_S = 3600
KEEP_ALIVE_TIMEOUT_S = 120
OPEN_PATHS = frozenset({"/", "/health", "/ready"})  # answered without a key
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
_app_numbers = itertools.count()


class Serving:
    """What routes and life cycle share: the settings, the engine, the text side, and who is being served."""

    def __init__(self, settings: ServeSettings, engine: Engine, text: TextSide | None = None) -> None:
        self.settings, self.engine, self.text = settings, engine, text
        self.created = int(time.time())
        self.draining = self.cutting = False
        self.active: set[asyncio.Task[Any]] = set()
        self.idle = asyncio.Event()
        self.idle.set()

    @property
    def is_ready(self) -> bool:
        return self.engine.state == "ready" and self.text is not None and not self.draining

    @property
    def progress(self) -> str:
        """What a client that has to wait is told."""
        if self.draining:
            return "draining"
        return self.engine.state if self.engine.state == "dead" else self.engine.progress or self.engine.state

    def ready_text(self) -> TextSide:
        """The text side, once requests can be served.

        Raises: RequestError 503 until then, and while draining.
        """
        if self.is_ready and self.text is not None:
            return self.text
        if self.draining:
            raise RequestError("server: shutting down; ask another one.", status=503, code="draining")
        if self.engine.state == "dead":
            raise RequestError("engine: died and is being restarted; try again.", status=503, code="engine_dead")
        raise RequestError(f"model: not ready yet ({self.progress}); try again when /ready says 200.", status=503)

    @property
    def limits(self) -> Limits:
        info = self.engine.info
        return Limits(info.max_length, info.vocab_size, info.max_batch_size + self.settings.max_queue_size)

    def check_model(self, name: str) -> None:
        """Refuse a model that is not the one served here.

        Raises: RequestError 404.
        """
        served = self.settings.served_name
        if name != served:
            raise RequestError(
                f"model: {name!r} is not served here; expected {served!r}.",
                status=404,
                param="model",
                code="model_not_found",
            )

    @contextmanager
    def serving_one(self) -> Iterator[None]:
        """Count the current task among those that a drain waits for."""
        task = asyncio.current_task()
        assert task is not None
        self.active.add(task)
        self.idle.clear()
        try:
            yield
        finally:
            self.active.discard(task)
            if not self.active:
                self.idle.set()

    def cut(self) -> None:
        """End every running request with an error."""
        self.cutting = True
        for task in self.active:
            task.cancel()

    @contextmanager
    def a_cut_is_an_error(self) -> Iterator[None]:
        """Tell the cancellation by `cut` from the one by a client that left."""
        try:
            yield
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self.cutting or task is None:
                raise
            task.uncancel()
            message = "server: shut down before the answer was complete; ask again."
            raise RequestError(message, status=503, code="draining") from None


def create_app(settings: ServeSettings, engine: Engine, text: TextSide | None = None) -> Sanic[Any, Any]:
    """Build the application; `app.ctx.serving` is its `Serving`."""
    from plait.serve.routes import chat, completions, health, models, page

    config = Config(env_prefix=None)
    config.update(
        RESPONSE_TIMEOUT=RESPONSE_TIMEOUT_S,
        REQUEST_MAX_SIZE=settings.max_body_bytes,
        KEEP_ALIVE_TIMEOUT=KEEP_ALIVE_TIMEOUT_S,
        GRACEFUL_SHUTDOWN_TIMEOUT=settings.drain_timeout_s,
        ACCESS_LOG=False,
        MOTD=False,
        AUTO_EXTEND=False,
    )
    # Sanic keeps a registry of names, and a process may make several applications.
    name = f"plait-{next(_app_numbers)}"
    app: Sanic[Any, Any] = Sanic(name, config=config, error_handler=_Errors(), configure_logging=False)
    app.ctx.serving = Serving(settings, engine, text)
    app.register_middleware(_admit, "request")
    app.register_middleware(_finish, "response")
    for routes in (chat, completions, models, health, page):
        routes.add_to(app)
    return app


def json_response(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> HTTPResponse:
    return HTTPResponse(encode(body), status, headers, "application/json")


def error_response(error: RequestError) -> HTTPResponse:
    return json_response(envelope(error), error.status, error_headers(error))


def close_after(request: Request) -> None:
    """Close the connection after this request's response."""
    stream: Any = request.stream
    if stream is not None:
        stream.keep_alive = False


class _Errors(ErrorHandler):
    """Every exception as the envelope; only unexpected ones go to the log with their traceback."""

    def response(self, request: Request, exception: Exception) -> HTTPResponse:
        if isinstance(exception, RequestError):
            return error_response(exception)
        if isinstance(exception, SanicException) and exception.status_code < 500:
            response = error_response(_from_sanic(request, exception))
            response.headers.update(exception.headers or {})
            return response
        if isinstance(exception, SanicException) and exception.status_code == 503:
            return error_response(RequestError("server: the answer took too long.", status=503))
        request_id = _request_id(request)
        log.error("id=%s failed", request_id, exc_info=exception)
        return error_response(internal_error(request_id))


def _from_sanic(request: Request, error: SanicException) -> RequestError:
    path = getattr(request, "path", "")
    messages = {
        404: f"path: {path!r} is no route; expected one such as /v1/chat/completions.",
        405: f"method: {request.method} does not fit {path!r}; the Allow header says what does.",
        413: f"body: over the limit of {request.app.config.REQUEST_MAX_SIZE} bytes, or headers too long.",
    }
    codes = {413: "request_too_large"}
    status = error.status_code
    return RequestError(messages.get(status, f"request: {error}."), status=status, code=codes.get(status))


def _request_id(request: Request) -> str:
    """The id that the client gave, if it is fit to be printed, or one of ours."""
    known = getattr(request.ctx, "request_id", None)
    if known is None:
        given = request.headers.getone("x-request-id", "")
        known = given if _REQUEST_ID.fullmatch(given) else f"req-{uuid.uuid4().hex}"
        request.ctx.request_id = known
    return str(known)


async def _admit(request: Request) -> HTTPResponse | None:
    """Refuse those who may not call, before anything is read from the body."""
    request.ctx.start = time.perf_counter()
    _request_id(request)
    serving: Serving = request.app.ctx.serving
    if serving.draining:
        close_after(request)
    if request.method == "NONE":  # not even a request line; the error is on its way
        return None
    _check_host(request, serving.settings)
    allowed = _check_origin(request, serving.settings)
    if allowed and request.method == "OPTIONS":
        return HTTPResponse(status=204, headers=_PREFLIGHT)
    _check_key(request, serving.settings)
    return None


_PREFLIGHT = {
    "Access-Control-Allow-Methods": "GET, POST, OPTIONS",
    "Access-Control-Allow-Headers": "Authorization, Content-Type, X-Request-ID",
    "Access-Control-Max-Age": "600",
}


def _check_host(request: Request, settings: ServeSettings) -> None:
    """A web page can point its own name at 127.0.0.1; then the Host header still says that name."""
    header = request.headers.getone("host", "")
    try:
        name = (urlsplit(f"//{header}").hostname or "").lower()
    except ValueError:
        name = ""
    accepted = settings.accepted_hosts
    if not is_loopback(name) and name not in accepted and "*" not in accepted:
        raise RequestError(
            f"header Host: {header!r} is not this server; expected a loopback name. "
            "start the server with --allowed-hosts to accept it.",
            status=403,
        )


def _check_origin(request: Request, settings: ServeSettings) -> str | None:
    """The foreign origin that may read the answer, if there is one."""
    origin = request.headers.getone("origin", None)
    if origin is None or origin == f"{request.scheme}://{request.headers.getone('host', '')}":
        return None
    if origin in settings.cors_origins or "*" in settings.cors_origins:
        request.ctx.origin = origin
        return str(origin)
    raise RequestError(
        f"header Origin: {origin!r} is another site; start the server with --cors-origin to let it call.", status=403
    )


def _check_key(request: Request, settings: ServeSettings) -> None:
    if not settings.api_keys or request.path in OPEN_PATHS or request.path.startswith("/static/"):
        return
    scheme, _, given = request.headers.getone("authorization", "").partition(" ")
    token = given.strip().encode(errors="surrogateescape") if scheme.lower() == "bearer" else b""
    # All keys are compared, each in constant time, so that the time says nothing about them.
    fits = [hmac.compare_digest(token, key.encode()) for key in settings.api_keys]
    if not any(fits):
        found = "a key that is not known here" if token else "no key"
        raise RequestError(
            f"header Authorization: {found}; expected 'Bearer' and a key of this server.",
            status=401,
            code="invalid_api_key",
        )


async def _finish(request: Request, response: BaseHTTPResponse) -> None:
    """Name the request in its answer and in the log."""
    request_id = _request_id(request)
    response.headers["X-Request-ID"] = request_id
    if origin := getattr(request.ctx, "origin", None):
        response.headers.update({"Access-Control-Allow-Origin": origin, "Vary": "Origin"})
    if response.status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    elapsed_ms = (time.perf_counter() - getattr(request.ctx, "start", time.perf_counter())) * 1e3
    level = logging.DEBUG if request.path in ("/health", "/ready", "/v1/health") else logging.INFO
    log.log(level, "id=%s %s %r %d in %.1f ms", request_id, request.method, request.path, response.status, elapsed_ms)
