"""A client of any OpenAI-compatible server, on httpx: answers as text, streamed or whole, and whether it is ready.

Knows the routes and the error envelope. Does not know models or engines.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import httpx

from plait.framework.errors import LoadError, RequestError

CONNECT_TIMEOUT_S = 10.0


class Client:
    """One server.

    Raises: RequestError with the server's message, param and code for what it refuses; LoadError when nobody answers.

    Example:
        >>> for text in Client("http://127.0.0.1:8000").chat("Hello"):  # doctest: +SKIP
        ...     print(text, end="")
    """

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        # An answer takes as long as it takes; only the connection itself has a limit.
        timeout = httpx.Timeout(None, connect=CONNECT_TIMEOUT_S)
        try:
            self._http = httpx.Client(base_url=self.url, headers=headers, timeout=timeout)
        except (httpx.InvalidURL, ValueError) as error:
            raise RequestError(
                f"url: {url!r} is not valid ({error}); expected such as http://127.0.0.1:8000."
            ) from None

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def models(self) -> list[str]:
        """The names that `model` may have."""
        return [str(model["id"]) for model in self._get("/v1/models").json()["data"]]

    def is_ready(self) -> bool:
        """Say whether the server would answer now; False too when nobody listens."""
        try:
            return self._http.get("/ready", timeout=CONNECT_TIMEOUT_S).status_code == 200
        except httpx.TransportError:
            return False

    def wait_ready(self, timeout_s: float, every_s: float = 0.1) -> None:
        """Wait for `is_ready`.

        Raises: LoadError when it takes longer than the timeout.
        """
        deadline = time.monotonic() + timeout_s
        while not self.is_ready():
            if time.monotonic() >= deadline:
                raise LoadError(f"{self.url}: not ready after {timeout_s:g} s. look at the server's log.")
            time.sleep(every_s)

    def chat(self, messages: str | Sequence[Mapping[str, Any]], **fields: Any) -> Iterator[str]:
        """Stream the answer to a conversation; `fields` go into the request, `model` by default is the first one."""
        said = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
        for chunk in self._events("/v1/chat/completions", {"messages": said} | fields):
            for choice in chunk["choices"]:
                if text := choice["delta"].get("content"):
                    yield text

    def complete(self, prompt: str | Sequence[int], **fields: Any) -> Iterator[str]:
        """Stream the continuation of a text or of token ids."""
        for chunk in self._events("/v1/completions", {"prompt": prompt} | fields):
            for choice in chunk["choices"]:
                if choice["text"]:
                    yield choice["text"]

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The JSON that a route answers with."""
        response = self._request("POST", path, json=dict(body))
        _check(response)
        return response.json()

    def _get(self, path: str) -> httpx.Response:
        response = self._request("GET", path)
        _check(response)
        return response

    def _request(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            return self._http.request(method, path, **options)
        except httpx.TransportError as error:
            raise self._nobody(error) from None

    def _events(self, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        request = {"model": body["model"] if "model" in body else self.models()[0]} | dict(body) | {"stream": True}
        try:
            with self._http.stream("POST", path, json=request) as response:
                if response.status_code != 200:
                    response.read()
                    _check(response)
                yield from _chunks(_lines(response.iter_bytes()))
        except httpx.TransportError as error:
            raise self._nobody(error) from None

    def _nobody(self, error: Exception) -> LoadError:
        return LoadError(f"{self.url}: no answer ({error or type(error).__name__}). is the server running there?")


def _lines(parts: Iterator[bytes]) -> Iterator[bytes]:
    """Lines as the event stream format has them. httpx's own end at U+2028 too, which a text may hold."""
    held = b""
    for part in parts:
        *lines, held = (held + part).split(b"\n")
        yield from (line.removesuffix(b"\r") for line in lines)
    if held:
        yield held


def _chunks(lines: Iterator[bytes]) -> Iterator[dict[str, Any]]:
    """The JSON of each event, up to [DONE].

    Raises: RequestError for an error event, or a stream that ends without [DONE].
    """
    for line in lines:
        name, _, data = line.partition(b": ")
        if name != b"data":
            continue
        if data == b"[DONE]":
            return
        chunk = json.loads(data)
        if "error" in chunk:
            raise _refusal(chunk, 500)
        yield chunk
    raise RequestError("stream: ended before it was complete. ask again.", status=502)


def _check(response: httpx.Response) -> None:
    if response.status_code >= 400:
        try:
            body = response.json()
        except ValueError:
            body = {}
        raise _refusal(body, response.status_code)


def _refusal(body: Any, status: int) -> RequestError:
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        return RequestError(f"server: status {status} without an explanation.", status=status)
    message = str(error.get("message") or f"server: status {status}.")
    return RequestError(message, status=status, param=error.get("param"), code=error.get("code"))
