"""The HTTP client against the application: text, refusals, readiness."""

from __future__ import annotations

import threading
import time

import httpx
import pytest

from plait.framework.errors import LoadError, RequestError
from plait.serve.client import Client
from plait.serve.listener import address, listen
from tests.serve.servers import Engine, Script, serving, spelled

TEXT = "data: Gr\u00fc\u00dfe\n\n\u2028 [DONE] \N{LLAMA}"


def test_chat_and_complete_stream_the_text() -> None:
    with serving(Engine(lambda stream: Script(spelled(TEXT, 3)))) as served, Client(served.url + "/v1/") as client:
        pieces = list(client.chat("Hi"))
        assert "".join(pieces) == TEXT and len(pieces) > 5
        assert "".join(client.chat([{"role": "user", "content": "Hi"}], max_tokens=4)) == TEXT[:4]
        assert "".join(client.complete("Hi", max_tokens=99)) == TEXT
        assert "".join(client.complete([72, 105], max_tokens=99, model="echo")) == TEXT
        assert client.models() == ["echo"]
        body = {"model": "echo", "prompt": "x", "max_tokens": 1}
        assert client.post("/v1/completions", body)["usage"]["total_tokens"] == 2


def test_refusals_carry_what_the_server_said() -> None:
    died = RequestError("engine: died.", status=503, code="engine_dead")
    engine = Engine(lambda stream: Script(spelled("ab"), error=died))
    with serving(engine, api_keys=("k",)) as served, Client(served.url, api_key="k") as client:
        with pytest.raises(RequestError) as refused:
            list(client.chat("Hi", temperature=9))
        assert (refused.value.status, refused.value.param) == (400, "temperature")
        text = []
        with pytest.raises(RequestError, match="died") as broken:
            for piece in client.chat("Hi"):
                text.append(piece)
        assert broken.value.code == "engine_dead" and "".join(text) == "ab"
        with Client(served.url) as stranger, pytest.raises(RequestError) as denied:
            stranger.models()
        assert (denied.value.status, denied.value.code) == (401, "invalid_api_key")


def test_a_stream_that_breaks_off_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=b'data: {"choices":[]}\n\n')

    client = Client("http://127.0.0.1:1")
    monkeypatch.setattr(client, "_http", httpx.Client(base_url=client.url, transport=httpx.MockTransport(answer)))
    with pytest.raises(RequestError, match="ended before"):
        list(client.chat("Hi", model="m"))


def test_readiness() -> None:
    listener = listen("127.0.0.1", 0)
    nobody = f"http://{address(listener)}"
    listener.close()
    with Client(nobody) as client:
        assert not client.is_ready()
        with pytest.raises(LoadError, match="not ready after"):
            client.wait_ready(0.05, every_s=0.01)
        with pytest.raises(LoadError, match="no answer"):
            client.models()
    engine = Engine(lambda stream: Script([]), state="loading")
    with serving(engine) as served, Client(served.url) as client:
        assert not client.is_ready()

        def finish() -> None:
            time.sleep(0.05)
            engine.state = "ready"

        thread = threading.Thread(target=finish)
        thread.start()
        client.wait_ready(10, every_s=0.01)
        thread.join()
        assert client.is_ready()


@pytest.mark.parametrize("url", ["http://[", "not a url", "ftp://127.0.0.1"])
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises((RequestError, LoadError)):
        Client(url).models()
