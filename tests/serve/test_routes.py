"""The HTTP contract, route by route, on a scripted engine: shapes, statuses, headers, who may call."""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from plait.framework.errors import RequestError
from tests.serve.servers import ECHO, Engine, Info, Script, Served, serving, spelled

TEXT = "One, two. Gr\u00fc\u00dfe \N{LLAMA}!"
HELLO = [{"role": "user", "content": "Hi"}]
CHAT, LEGACY = "/v1/chat/completions", "/v1/completions"
CHAT_BODY: dict[str, Any] = {"model": "echo", "messages": HELLO}
LEGACY_BODY: dict[str, Any] = {"model": "echo", "prompt": "Hi", "max_tokens": 100}
BOTH = [(CHAT, CHAT_BODY), (LEGACY, LEGACY_BODY)]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(Engine(lambda stream: Script(spelled(TEXT))), version="1.2.3") as server:
        yield server


def post(served: Served, path: str, body: Any, **headers: str) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return httpx.post(served.url + path, content=content, headers={"Content-Type": "application/json"} | headers)


def events(response: httpx.Response) -> list[Any]:
    """A strict reading: comments, `data: ` lines and empty lines alone, [DONE] last."""
    assert response.headers["content-type"].startswith("text/event-stream")
    blocks = response.content.decode().split("\n\n")
    assert blocks.pop() == ""
    data = [block for block in blocks if not block.startswith(":")]
    assert all(block.startswith("data: ") and "\n" not in block for block in data)
    assert data.pop() == "data: [DONE]"
    return [json.loads(block.removeprefix("data: ")) for block in data]


def text_of(choice: Any) -> str:
    return choice["text"] if "text" in choice else (choice.get("message") or choice["delta"]).get("content", "")


def check_error(response: httpx.Response, status: int, code: str | None = None, param: str | None = None) -> str:
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error"} and set(body["error"]) == {"message", "type", "param", "code"}
    assert (body["error"]["code"], body["error"]["param"]) == (code, param)
    assert "Traceback" not in response.text
    return str(body["error"]["message"])


def test_one_answer_of_each_kind(served: Served) -> None:
    chat = post(served, CHAT, CHAT_BODY).json()
    assert set(chat) == {"id", "object", "created", "model", "choices", "usage"}
    assert chat["object"] == "chat.completion" and chat["model"] == "echo" and chat["id"].startswith("chatcmpl-")
    assert abs(chat["created"] - time.time()) < 60
    assert chat["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": TEXT, "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    new = len(TEXT.encode())
    assert chat["usage"] == {"prompt_tokens": 2, "completion_tokens": new, "total_tokens": new + 2}
    legacy = post(served, LEGACY, LEGACY_BODY).json()
    assert legacy["object"] == "text_completion" and legacy["id"].startswith("cmpl-")
    assert legacy["choices"] == [{"index": 0, "text": TEXT, "logprobs": None, "finish_reason": "stop"}]


@pytest.mark.case("S05")
@pytest.mark.system(77, 78)
@pytest.mark.parametrize(("path", "body"), BOTH)
def test_chunks_have_the_published_shape(served: Served, path: str, body: dict[str, Any]) -> None:
    response = post(served, path, body | {"stream": True})
    assert response.content.startswith(b": ping\n\n")
    chunks = events(response)
    heads = {tuple((key, chunk[key]) for key in ("id", "object", "created", "model")) for chunk in chunks}
    assert len(heads) == 1
    is_chat = path == CHAT
    assert chunks[0]["object"] == ("chat.completion.chunk" if is_chat else "text_completion")
    choices = [chunk["choices"][0] for chunk in chunks]
    assert all(len(chunk["choices"]) == 1 and "usage" not in chunk for chunk in chunks)
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(chunks) - 1) + ["stop"]
    if is_chat:
        assert choices[0]["delta"] == {"role": "assistant", "content": ""} and choices[-1]["delta"] == {}
    else:
        assert choices[-1]["text"] == ""
    assert "".join(map(text_of, choices)) == TEXT
    assert len(chunks) > 10


@pytest.mark.case("S06")
@pytest.mark.parametrize(("path", "body"), BOTH)
def test_usage_comes_only_when_asked_for_and_last(served: Served, path: str, body: dict[str, Any]) -> None:
    chunks = events(post(served, path, body | {"stream": True, "stream_options": {"include_usage": True}}))
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == post(served, path, body).json()["usage"]
    assert all(chunk["choices"] and chunk["usage"] is None for chunk in chunks[:-1])
    assert chunks[-1]["id"] == chunks[0]["id"]
    check_error(post(served, path, body | {"stream_options": {"include_usage": True}}), 400, None, "stream_options")


@pytest.mark.case("S03")
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_every_chunk_is_whole_characters(size: int) -> None:
    """The part of the case that needs no grammar: characters of several tokens, however they arrive."""
    text = "\N{LLAMA}\u9f9c\u00e9\u65e5\U0001f3f3\ufe0f\u200d\U0001f308"
    with serving(Engine(lambda stream: Script(spelled(text, size)))) as served:
        for path, body in BOTH:
            pieces = [text_of(c["choices"][0]) for c in events(post(served, path, body | {"stream": True}))]
            assert "".join(pieces) == text and "\ufffd" not in "".join(pieces)
            assert text_of(post(served, path, body).json()["choices"][0]) == text
    with serving(Engine(lambda stream: Script([[0xF0]]))) as served:
        assert text_of(post(served, CHAT, CHAT_BODY).json()["choices"][0]) == "\ufffd"


@pytest.mark.case("S01")
@pytest.mark.parametrize("size", [1, 4, 100])
@pytest.mark.parametrize("stop", ["two. G", ["two. G"], ["zzz", "two. G"]])
def test_a_stop_string_over_several_tokens_ends_the_answer(stop: Any, size: int) -> None:
    engine = Engine(lambda stream: Script(spelled(TEXT, size)))
    with serving(engine) as served:
        for path, body in BOTH:
            whole = post(served, path, body | {"stop": stop}).json()
            assert text_of(whole["choices"][0]) == "One, " and whole["choices"][0]["finish_reason"] == "stop"
            assert whole["usage"]["completion_tokens"] == len("One, two. G")
            chunks = events(post(served, path, body | {"stop": stop, "stream": True}))
            assert "".join(text_of(chunk["choices"][0]) for chunk in chunks) == "One, "
            assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert all(stream.closed for stream in engine.streams)


@pytest.mark.case("S01")
def test_sixteen_stop_strings_and_no_more(served: Served) -> None:
    assert post(served, CHAT, CHAT_BODY | {"stop": ["~"] * 16}).status_code == 200
    check_error(post(served, CHAT, CHAT_BODY | {"stop": ["~"] * 17}), 400, None, "stop")


@pytest.mark.case("S02")
@pytest.mark.parametrize("max_tokens", [8, 500])
def test_text_held_for_a_stop_string_is_not_lost_at_the_end(max_tokens: int) -> None:
    text = "ends on Z"
    with serving(Engine(lambda stream: Script(spelled(text)))) as served:
        for path, body in BOTH:
            limited = body | {"stop": [text[:max_tokens][-3:] + "~~never"], "max_tokens": max_tokens}
            whole = post(served, path, limited).json()
            reason = "length" if max_tokens < len(text) else "stop"
            assert text_of(whole["choices"][0]) == text[:max_tokens]
            assert whole["choices"][0]["finish_reason"] == reason
            chunks = events(post(served, path, limited | {"stream": True, "stream_options": {"include_usage": True}}))
            assert "".join(text_of(chunk["choices"][0]) for chunk in chunks[:-1]) == text[:max_tokens]
            assert chunks[-2]["choices"][0]["finish_reason"] == reason and chunks[-1]["usage"] == whole["usage"]


@pytest.mark.parametrize(("path", "body"), BOTH)
def test_several_choices_are_several_streams(path: str, body: dict[str, Any]) -> None:
    engine = Engine(lambda stream: Script(spelled("abc"[int(stream.request_id[-1]) :] + "!")))
    with serving(engine) as served:
        whole = post(served, path, body | {"n": 3, "seed": 5}).json()
        assert [(c["index"], text_of(c)) for c in whole["choices"]] == [(0, "abc!"), (1, "bc!"), (2, "c!")]
        assert whole["usage"]["completion_tokens"] == 4 + 3 + 2
        assert len({stream.params.seed for stream in engine.streams}) == 3 and engine.streams[0].params.seed == 5
        texts, ends = ["", "", ""], []
        for chunk in events(post(served, path, body | {"n": 3, "stream": True})):
            (choice,) = chunk["choices"]
            texts[choice["index"]] += text_of(choice)
            assert choice["index"] not in ends
            ends += [choice["index"]] if choice["finish_reason"] else []
        assert texts == ["abc!", "bc!", "c!"] and sorted(ends) == [0, 1, 2]
    assert engine.running == 0


def test_several_prompts_and_token_ids() -> None:
    with serving(Engine(lambda stream: Script([stream.prompt]))) as served:
        body = LEGACY_BODY | {"prompt": ["ab", "cd"], "n": 2}
        whole = post(served, LEGACY, body).json()
        assert [c["text"] for c in whole["choices"]] == ["ab", "ab", "cd", "cd"]
        assert whole["usage"] == {"prompt_tokens": 4, "completion_tokens": 8, "total_tokens": 12}
        assert post(served, LEGACY, LEGACY_BODY | {"prompt": [[104], [105, 33]]}).json()["choices"][1]["text"] == "i!"
        error = check_error(post(served, LEGACY, LEGACY_BODY | {"prompt": [ECHO.vocab_size]}), 400, None, "prompt")
        assert str(ECHO.vocab_size) in error
        check_error(post(served, LEGACY, LEGACY_BODY | {"prompt": [-1]}), 400, None, "prompt")
        check_error(post(served, LEGACY, LEGACY_BODY | {"prompt": ""}), 400, None, "prompt")


@pytest.mark.case("S42")
def test_limits_of_an_answer() -> None:
    engine = Engine(lambda stream: Script(spelled("12345678" * 100)))
    with serving(engine) as served:
        for field in ("max_tokens", "max_completion_tokens"):
            one = post(served, CHAT, CHAT_BODY | {field: 1}).json()
            assert one["usage"]["completion_tokens"] == 1 and one["choices"][0]["finish_reason"] == "length"
        assert post(served, LEGACY, {"model": "echo", "prompt": "Hi"}).json()["usage"]["completion_tokens"] == 16
        assert post(served, CHAT, CHAT_BODY | {"max_tokens": None}).json()["usage"]["completion_tokens"] == 510
        assert post(served, CHAT, CHAT_BODY | {"max_tokens": 10**30}).json()["choices"][0]["finish_reason"] == "length"
        started = len(engine.streams)
        none = post(served, LEGACY, LEGACY_BODY | {"max_tokens": 0}).json()
        assert none["choices"] == [{"index": 0, "text": "", "logprobs": None, "finish_reason": "length"}]
        assert none["usage"] == {"prompt_tokens": 2, "completion_tokens": 0, "total_tokens": 2}
        chunks = events(post(served, LEGACY, LEGACY_BODY | {"max_tokens": 0, "stream": True, "n": 2}))
        assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == ["length", "length"]
        assert len(engine.streams) == started
        check_error(post(served, CHAT, CHAT_BODY | {"max_tokens": 0}), 400, None, "max_tokens")


@pytest.mark.case("S25")
@pytest.mark.parametrize("length", [512, 513, 20_000])
def test_a_prompt_over_the_context_is_refused_with_both_numbers(served: Served, length: int) -> None:
    for path, body in (
        (CHAT, {"messages": [{"role": "user", "content": "x" * length}]}),
        (LEGACY, {"prompt": "x" * length}),
    ):
        message = check_error(
            post(served, path, {"model": "echo"} | body),
            400,
            "context_length_exceeded",
            "prompt" if path == LEGACY else "messages",
        )
        assert str(length) in message and "512" in message
    assert post(served, LEGACY, LEGACY_BODY | {"prompt": "x" * 500}).status_code == 200


@pytest.mark.case("S43")
@pytest.mark.system(83)
@pytest.mark.parametrize("path", [CHAT, LEGACY])
@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b'{"model":1,"model":2}', b'{"model":"\xff"}', b"[" * 100_000, b'{"top_p":NaN}']
)
def test_a_malformed_body_gets_the_envelope_and_the_connection_lives_on(served: Served, path: str, body: bytes) -> None:
    with httpx.Client(base_url=served.url, headers={"Content-Type": "application/json"}) as client:
        response = client.post(path, content=body)
        error = response.json()["error"]
        assert response.status_code == 400 and error["type"] == "invalid_request_error" and error["param"] is None
        assert client.post(path, json=CHAT_BODY if path == CHAT else LEGACY_BODY).status_code == 200


@pytest.mark.case("S43")
@pytest.mark.system(83)
def test_other_refusals_have_the_envelope_too(served: Served) -> None:
    for content_type in ("text/plain", "multipart/form-data", ""):
        check_error(httpx.post(served.url + CHAT, content=b"{}", headers={"Content-Type": content_type}), 400)
    assert post(served, CHAT, CHAT_BODY, **{"Content-Type": "application/json; charset=utf-8"}).status_code == 200
    response = httpx.get(served.url + CHAT)
    check_error(response, 405)
    assert response.headers["allow"] == "POST"
    assert "'/v1/nothing'" in check_error(httpx.get(served.url + "/v1/nothing"), 404)
    check_error(post(served, CHAT, CHAT_BODY | {"model": "gpt"}), 404, "model_not_found", "model")
    check_error(post(served, CHAT, {"messages": HELLO}), 400, None, "model")
    assert check_error(post(served, CHAT, CHAT_BODY | {"tools": [1]}), 400, "unsupported_parameter", "tools")


@pytest.mark.case("S43")
@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_over_the_limit_is_413(chunked: bool) -> None:
    with serving(Engine(lambda stream: Script(spelled("ok"))), max_body_bytes=20_000) as served:
        body = json.dumps(LEGACY_BODY | {"user": ""}).encode()
        fits = body.replace(b'"user": ""', b'"user": "' + b"x" * (20_000 - len(body)) + b'"')
        assert len(fits) == 20_000 and post(served, LEGACY, fits).status_code == 200
        content: Any = iter([fits[:9_000], fits[9_000:] + b" "]) if chunked else fits + b" "
        headers = {"Content-Type": "application/json"}
        check_error(httpx.post(served.url + LEGACY, content=content, headers=headers), 413, "request_too_large")
        assert post(served, LEGACY, LEGACY_BODY).status_code == 200


def test_bytes_that_are_no_request_get_the_envelope(served: Served) -> None:
    host, port = served.url.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=10)
    connection.connect()
    connection.sock.sendall(b"NONSENSE\r\n\r\n")
    answer = connection.sock.recv(65536)
    connection.close()
    assert answer.startswith(b"HTTP/1.1 400 ") and b'{"error":{' in answer


@pytest.mark.system(50)
def test_a_full_queue_is_429_for_all_choices_or_none() -> None:
    engine = Engine(lambda stream: Script(spelled("ok")), max_requests=2)
    with serving(engine) as served:
        response = post(served, CHAT, CHAT_BODY | {"n": 3})
        check_error(response, 429, "queue_full")
        assert response.headers["retry-after"] == "1"
        assert engine.running == 0
        assert post(served, CHAT, CHAT_BODY | {"n": 2}).status_code == 200
        check_error(post(served, LEGACY, LEGACY_BODY | {"prompt": ["x"] * 300}), 400, None, "n")


@pytest.mark.parametrize(("state", "code"), [("loading", None), ("dead", "engine_dead")])
def test_503_until_the_engine_is_ready(state: str, code: str | None) -> None:
    with serving(Engine(lambda stream: Script([]), state=state, progress="compiling 7/10", info=None)) as served:
        response = post(served, CHAT, CHAT_BODY)
        message = check_error(response, 503, code)
        assert int(response.headers["retry-after"]) >= 1
        ready = httpx.get(served.url + "/ready")
        assert ready.status_code == 503 and ready.json()["status"] == state and ready.headers["retry-after"]
        assert state == "dead" or ("compiling 7/10" in message and ready.json()["progress"] == "compiling 7/10")
        assert httpx.get(served.url + "/health").status_code == 200
        assert httpx.get(served.url + "/v1/models").json()["data"][0]["id"] == "echo"


def test_503_while_draining() -> None:
    with serving(Engine(lambda stream: Script([]))) as served:
        served.app.ctx.serving.draining = True
        response = post(served, CHAT, CHAT_BODY)
        check_error(response, 503, "draining")
        assert response.headers["retry-after"] and response.headers["connection"] == "close"
        assert httpx.get(served.url + "/ready").json()["status"] == "draining"


def test_an_error_in_mid_stream_is_an_event_and_no_done() -> None:
    died = RequestError("engine: died.", status=503, code="engine_dead")
    with serving(Engine(lambda stream: Script(spelled("ab"), error=died))) as served:
        for path, body in BOTH:
            lines = post(served, path, body | {"stream": True}).text.strip().split("\n\n")
            assert json.loads(lines[-1].removeprefix("data: "))["error"]["code"] == "engine_dead"
            assert "[DONE]" not in "".join(lines)
            check_error(post(served, path, body), 503, "engine_dead")
        client = openai.OpenAI(base_url=served.url + "/v1", api_key="x", max_retries=0)
        with pytest.raises(openai.APIError, match="died"):
            list(client.chat.completions.create(model="echo", messages=HELLO, stream=True))  # type: ignore[call-overload]


def test_an_unexpected_exception_is_500_and_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    def broken(stream: Any) -> Script:
        raise ZeroDivisionError("secret detail")

    with serving(Engine(broken)) as served, caplog.at_level(logging.ERROR, "plait.serve"):
        response = post(served, CHAT, CHAT_BODY, **{"X-Request-ID": "mine-7"})
        message = check_error(response, 500)
        assert "mine-7" in message and "secret" not in response.text
        assert "mine-7" in caplog.text and "secret detail" in caplog.text
        stream = post(served, CHAT, CHAT_BODY | {"stream": True})
        assert '"type":"api_error"' in stream.text and "secret" not in stream.text and "[DONE]" not in stream.text


def test_a_silent_stream_sends_comments() -> None:
    gates: list[asyncio.Event] = []

    def gated(stream: Any) -> Script:
        gates.append(asyncio.Event())
        return Script(spelled("ab"), gate=gates[-1])

    with serving(Engine(gated), ping_s=0.02) as served:
        with httpx.stream("POST", served.url + CHAT, json=CHAT_BODY | {"stream": True}) as response:
            lines = response.iter_lines()
            pings = 0
            for line in lines:
                pings += line == ": ping"
                if pings == 4:
                    served.call(gates[0].set)
                    break
            rest = list(lines)
    assert rest[-2] == "data: [DONE]"


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_place(stream: bool) -> None:
    engine = Engine(lambda _: Script(spelled("ab"), gate=asyncio.Event()))
    with serving(engine) as served:
        host, port = served.url.removeprefix("http://").split(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=10)
        connection.request(
            "POST", CHAT, json.dumps(CHAT_BODY | {"stream": stream}), {"Content-Type": "application/json"}
        )
        wait_until(lambda: engine.running == 1)
        connection.close()
        wait_until(lambda: engine.running == 0)
        assert not served.app.ctx.serving.active


def wait_until(is_true: Any, timeout_s: float = 10) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.system(86)
def test_a_request_that_is_cut_is_told_so(stream: bool) -> None:
    engine = Engine(lambda _: Script(spelled("ab"), gate=asyncio.Event()))
    with serving(engine) as served:
        state = served.app.ctx.serving
        with httpx.Client(base_url=served.url) as client:
            if stream:
                with client.stream("POST", CHAT, json=CHAT_BODY | {"stream": True}) as response:
                    lines = response.iter_lines()
                    next(line for line in lines if '"a"' in line)
                    served.call(state.cut)
                    rest = [line for line in lines if line]
                assert len(rest) == 1 and '"code":"draining"' in rest[0]
            else:

                def cut() -> None:
                    wait_until(lambda: engine.running == 1)
                    served.call(state.cut)

                thread = threading.Thread(target=cut)
                thread.start()
                check_error(client.post(CHAT, json=CHAT_BODY), 503, "draining")
                thread.join()
        assert engine.running == 0


def test_keys() -> None:
    with serving(Engine(lambda stream: Script(spelled("ok"))), api_keys=("first", "second")) as served:
        for header in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": "Basic first"},
            {"Authorization": "first"},
        ):
            for response in (
                post(served, CHAT, CHAT_BODY, **header),
                httpx.get(served.url + "/v1/models", headers=header),
            ):
                check_error(response, 401, "invalid_api_key")
                assert response.headers["www-authenticate"] == "Bearer"
        for key in ("first", "second"):
            assert post(served, CHAT, CHAT_BODY, Authorization=f"Bearer {key}").status_code == 200
        for path in ("/", "/health", "/ready"):
            assert httpx.get(served.url + path).status_code == 200
        for path in ("/version", "/v1/health"):
            assert httpx.get(served.url + path).status_code == 401


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("localhost:1234", 200),
        ("127.0.0.1:1", 200),
        ("[::1]:80", 200),
        ("my.box:8000", 200),
        ("MY.BOX", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("0.0.0.0", 403),
        ("", 403),
        ("[", 403),
    ],
)
def test_a_foreign_host_name_is_refused(host: str, status: int) -> None:
    with serving(Engine(lambda stream: Script([])), allowed_hosts=("my.box",)) as served:
        response = httpx.get(served.url + "/version", headers={"Host": host})
        assert response.status_code == status
        if status == 403:
            check_error(response, 403)


def test_a_foreign_origin_is_refused_unless_it_is_named() -> None:
    friend, foe = "https://friend.example", "https://foe.example"
    with serving(Engine(lambda stream: Script(spelled("ok"))), cors_origins=(friend,)) as served:
        check_error(post(served, CHAT, CHAT_BODY, Origin=foe), 403)
        check_error(post(served, CHAT, CHAT_BODY, Origin="null"), 403)
        assert post(served, CHAT, CHAT_BODY, Origin=served.url).status_code == 200
        response = post(served, CHAT, CHAT_BODY | {"stream": True}, Origin=friend)
        assert response.headers["access-control-allow-origin"] == friend and response.headers["vary"] == "Origin"
        asked = httpx.options(served.url + CHAT, headers={"Origin": friend, "Access-Control-Request-Method": "POST"})
        assert asked.status_code == 204 and "POST" in asked.headers["access-control-allow-methods"]
        assert asked.headers["access-control-allow-origin"] == friend
        check_error(httpx.options(served.url + CHAT, headers={"Origin": foe}), 403)


def test_request_ids_come_back_and_into_the_log(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "plait.serve"):
        for body in (CHAT_BODY, CHAT_BODY | {"stream": True}, {}):
            assert post(served, CHAT, body, **{"X-Request-ID": "abc-1"}).headers["x-request-id"] == "abc-1"
        assert caplog.text.count("id=abc-1 ") == 5
    assert httpx.get(served.url + "/nowhere", headers={"X-Request-ID": "n"}).headers["x-request-id"] == "n"
    given = post(served, CHAT, CHAT_BODY).headers["x-request-id"]
    assert given != post(served, CHAT, CHAT_BODY, **{"X-Request-ID": "x" * 129}).headers["x-request-id"] != "x" * 129


@pytest.mark.system(21)
def test_a_request_names_the_served_model_and_no_other() -> None:
    with serving(Engine(lambda stream: Script(spelled(TEXT))), model_name="house-model") as served:
        named = post(served, CHAT, CHAT_BODY | {"model": "house-model"})
        assert named.status_code == 200 and named.json()["model"] == "house-model"
        for other in ("echo", "house-model2", ""):
            check_error(post(served, CHAT, CHAT_BODY | {"model": other}), 404, "model_not_found", "model")
        assert [model["id"] for model in httpx.get(served.url + "/v1/models").json()["data"]] == ["house-model"]


@pytest.mark.system(78)
def test_models_version_health_and_page(served: Served) -> None:
    (model,) = httpx.get(served.url + "/v1/models").json()["data"]
    assert model["id"] == "echo" and model["object"] == "model" and model["max_model_len"] == Info().max_length
    assert httpx.get(served.url + "/v1/models/echo").json() == model
    check_error(httpx.get(served.url + "/v1/models/some/echo"), 404, "model_not_found", "model")
    check_error(httpx.get(served.url + "/v1/models/other"), 404, "model_not_found", "model")
    assert httpx.get(served.url + "/version").json() == {"version": "1.2.3"}
    for path in ("/health", "/v1/health", "/ready"):
        assert httpx.get(served.url + path).status_code == 200
    page = httpx.get(served.url + "/")
    assert page.headers["content-type"].startswith("text/html") and "<html" in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "http" not in page.text.replace("http://127.0.0.1", "") or 'src="http' not in page.text


def test_the_openai_client_reads_everything() -> None:
    full = Engine(lambda stream: Script(spelled(TEXT)), max_requests=0)
    with serving(Engine(lambda stream: Script(spelled(TEXT))), api_keys=("k",)) as served, serving(full) as busy:
        client = openai.OpenAI(base_url=served.url + "/v1", api_key="k", max_retries=0)
        ask: Any = client.chat.completions.create
        assert ask(model="echo", messages=HELLO).choices[0].message.content == TEXT
        chunks = list(ask(model="echo", messages=HELLO, stream=True, stream_options={"include_usage": True}))
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == TEXT
        assert chunks[-1].usage.completion_tokens == len(TEXT.encode())
        assert client.completions.create(model="echo", prompt="x", max_tokens=99).choices[0].text == TEXT
        assert [model.id for model in client.models.list()] == ["echo"]
        with pytest.raises(openai.BadRequestError) as bad:
            ask(model="echo", messages=HELLO, temperature=9)
        assert bad.value.param == "temperature"
        with pytest.raises(openai.NotFoundError) as missing:
            ask(model="other", messages=HELLO)
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=served.url + "/v1", api_key="no", max_retries=0).models.list()
        other: Any = openai.OpenAI(base_url=busy.url + "/v1", api_key="k", max_retries=0).chat.completions.create
        with pytest.raises(openai.RateLimitError):
            other(model="echo", messages=HELLO)
        busy.app.ctx.serving.draining = True
        with pytest.raises(openai.InternalServerError) as draining:
            other(model="echo", messages=HELLO)
        assert draining.value.status_code == 503 and draining.value.code == "draining"
