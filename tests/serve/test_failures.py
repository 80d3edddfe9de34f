"""The server when clients, the engine, the HTTP process or the operator do what they should not: nothing is left over.

Everything runs against `plait serve` as a process of its own, with the model that needs no file.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection

import pytest

from tests.serve.server_process import HOST, EventStream, ServerProcess, counting, eventually

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc"),
    pytest.mark.slow,
    pytest.mark.timeout(60),
]

BATCH, QUEUE, LENGTH = 4, 4, 512
BODY_LIMIT = 1 << 20
ENDLESS = 100_000


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    """One server for the tests that do not end it."""
    flags = ["--max-batch-size", str(BATCH), "--max-queue-size", str(QUEUE), "--max-length", str(LENGTH)]
    flags += ["--max-request-bytes", str(BODY_LIMIT)]
    with ServerProcess(*flags, model="echo?delay_ms=4") as running:
        yield running


@pytest.fixture
def fast_server() -> Iterator[ServerProcess]:
    """One that computes as fast as it can, with room for long answers."""
    with ServerProcess(model="echo") as running:
        yield running


def load(server: ServerProcess) -> tuple[int, int]:
    state = server.get("/ready")
    return state["running"], state["waiting"]


def wait_idle(server: ServerProcess) -> None:
    eventually(lambda: load(server) == (0, 0), f"an idle server; running and waiting are {load(server)}", 3)


def open_descriptors(server: ServerProcess) -> list[int]:
    """What each process has open, once what was closed a moment ago is gone."""
    seen: list[list[int]] = []

    def is_steady() -> bool:
        seen.append([len(os.listdir(f"/proc/{pid}/fd")) for pid in sorted(server.pids())])
        return len(seen) > 10 and seen[-10:] == [seen[-1]] * 10

    eventually(is_steady, f"a steady number of descriptors, not {seen[-10:]}")
    return seen[-1]


def start(server: ServerProcess, prompt: str = "a", **fields: object) -> HTTPConnection:
    """Send a request for a whole answer and do not wait for it."""
    connection = server.connect()
    server.send(connection, prompt, **fields)
    return connection


# ---- clients -----------------------------------------------------------------------------------------------------


def leave_streams(server: ServerProcess) -> None:
    for stream in [server.stream(max_tokens=500) for _ in range(BATCH)]:
        stream.close()


def leave_whole_answers(server: ServerProcess) -> None:
    waiting = [start(server, max_tokens=500) for _ in range(BATCH)]
    eventually(lambda: load(server) == (BATCH, 0), "every request runs")
    for connection in waiting:
        connection.close()


def leave_the_queue(server: ServerProcess) -> None:
    running = [server.stream(max_tokens=500) for _ in range(BATCH)]
    waiting = [start(server, max_tokens=500) for _ in range(QUEUE)]
    eventually(lambda: load(server) == (BATCH, QUEUE), "a full batch and a full queue")
    for connection in waiting:
        connection.close()
    eventually(lambda: load(server) == (BATCH, 0), "an empty queue beside a full batch", 3)
    for stream in running:
        stream.close()


@pytest.mark.case("S24")
@pytest.mark.parametrize(
    ("leave", "rounds"), [(leave_streams, 8), (leave_whole_answers, 5), (leave_the_queue, 3)],
    ids=["stream", "whole answer", "queue"],
)  # fmt: skip
def test_a_client_that_leaves_takes_nothing_with_it(
    server: ServerProcess, leave: Callable[[ServerProcess], None], rounds: int
) -> None:
    assert server.complete()[0] == 200
    wait_idle(server)
    before = open_descriptors(server)
    for _ in range(rounds):
        leave(server)
        wait_idle(server)
    # The cache holds a full batch of full length and no page more: with one page lost each time these cannot all end.
    whole = [start(server, "b", max_tokens=LENGTH) for _ in range(BATCH)]
    for connection in whole:
        answer = json.loads(connection.getresponse().read())
        connection.close()
        assert answer["choices"][0] == {
            "index": 0, "text": counting("b", LENGTH - 1), "logprobs": None, "finish_reason": "length"
        }  # fmt: skip
    assert open_descriptors(server) == before


def test_a_client_that_leaves_frees_its_slot_while_the_others_run_on(server: ServerProcess) -> None:
    staying = [server.stream("z", max_tokens=200) for _ in range(BATCH - 1)]
    server.stream(max_tokens=500).close()
    eventually(lambda: load(server)[0] < BATCH, "a free slot", 3)
    assert server.complete("3")[1]["choices"][0]["text"] == " three two one"
    for stream in staying:
        assert stream.read_rest().text == counting("z", 200) and stream.is_done


def test_a_connection_that_is_reset_is_a_client_that_left(server: ServerProcess) -> None:
    stream = server.stream(max_tokens=500)
    linger_for_no_time = struct.pack("ii", 1, 0)
    stream.connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger_for_no_time)
    stream.close()
    wait_idle(server)


def narrow_stream(server: ServerProcess, max_tokens: int) -> socket.socket:
    """Ask for a stream on a socket that takes little, and read nothing."""
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    peer.settimeout(20)
    peer.connect((HOST, server.port))
    body = {"model": server.model, "prompt": "a", "max_tokens": max_tokens, "temperature": 0, "stream": True}
    payload = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\nContent-Type: application/json\r\n"
    peer.sendall(head.encode() + b"Content-Length: %d\r\n\r\n" % len(payload) + payload)
    return peer


def test_a_slow_reader_holds_nobody_and_misses_nothing(fast_server: ServerProcess) -> None:
    tokens = 10_000
    with narrow_stream(fast_server, tokens) as peer:
        eventually(lambda: load(fast_server) == (1, 0), "the request runs")
        assert fast_server.complete("3")[1]["choices"][0]["text"] == " three two one"
        # The engine ends the answer although nobody has read it.
        eventually(lambda: load(fast_server) == (0, 0), "the whole answer computed", 20)
        raw = b"".join(iter(lambda: peer.recv(65536), b""))
    events = [json.loads(line[6:]) for line in raw.split(b"\n") if line.startswith(b"data: {")]
    assert b"data: [DONE]" in raw
    assert "".join(event["choices"][0]["text"] for event in events) == counting("a", tokens)
    assert len(events) < tokens, "text that waits for its reader is sent in fewer, larger pieces"


def test_a_client_that_never_reads_is_freed_when_it_goes(fast_server: ServerProcess) -> None:
    with narrow_stream(fast_server, ENDLESS):
        eventually(lambda: load(fast_server) == (1, 0), "the request runs")
        time.sleep(0.5)  # until the socket has filled
        assert load(fast_server) == (1, 0)
    wait_idle(fast_server)


def test_a_full_queue_refuses_and_serves_again(server: ServerProcess) -> None:
    wait_idle(server)
    admitted = [start(server, "b", max_tokens=100) for _ in range(BATCH + QUEUE)]
    eventually(lambda: sum(load(server)) == BATCH + QUEUE, "everything admitted")
    for is_stream in (False, True):
        status, body, headers = server.complete(stream=is_stream)
        assert (status, body["error"]["code"], body["error"]["type"]) == (429, "queue_full", "rate_limit_error")
        assert int(headers["Retry-After"]) >= 1
    for connection in admitted:
        response = connection.getresponse()
        assert response.status == 200 and json.loads(response.read())["usage"]["completion_tokens"] == 100
        connection.close()
    assert server.complete()[0] == 200


def test_whoever_asks_again_is_served(server: ServerProcess) -> None:
    def insist(number: int) -> str:
        while True:
            status, body, _ = server.complete(chr(ord("a") + number), max_tokens=60)
            if status == 200:
                return str(body["choices"][0]["text"])
            assert status == 429, body
            time.sleep(0.02)

    with ThreadPoolExecutor(14) as clients:
        texts = list(clients.map(insist, range(14)))
    assert texts == [counting(chr(ord("a") + number), 60) for number in range(14)]


@pytest.mark.parametrize("is_chunked", [False, True], ids=["with its length", "chunked"])
def test_a_body_over_the_limit_is_refused(server: ServerProcess, is_chunked: bool) -> None:
    payload = b'{"prompt": "' + b"a" * (BODY_LIMIT + BODY_LIMIT // 2) + b'"}'
    parts = (payload[at : at + 65536] for at in range(0, len(payload), 65536))
    connection = server.connect()
    try:
        connection.request(
            "POST", "/v1/completions", parts if is_chunked else payload,
            {"Content-Type": "application/json"}, encode_chunked=is_chunked,
        )  # fmt: skip
    except (BrokenPipeError, ConnectionResetError):
        pass  # the answer came before the whole body was sent
    response = connection.getresponse()
    assert response.status == 413
    assert json.loads(response.read())["error"]["code"] == "request_too_large"
    connection.close()
    assert server.complete()[0] == 200


# ---- processes that die ------------------------------------------------------------------------------------------


def test_the_engine_dies_and_comes_back_and_a_second_death_ends_the_server() -> None:
    with ServerProcess() as server:
        before = open_descriptors(server)[0]
        stream, whole = server.stream(max_tokens=ENDLESS), start(server, max_tokens=ENDLESS)
        first = server.engine_pid()
        os.kill(first, signal.SIGKILL)
        assert stream.read_rest().error["code"] == "engine_dead"
        assert not stream.is_done and stream.finish_reason is None
        response = whole.getresponse()
        assert response.status == 503 and json.loads(response.read())["error"]["code"] == "engine_dead"
        whole.close()
        assert server.status("/health") == 200
        status, body, headers = server.complete()
        if status != 200:  # the restart may be that quick
            assert status == 503 and "Retry-After" in headers, body
        eventually(lambda: server.status("/ready") == 200, "ready again", 20)
        assert server.complete()[1]["choices"][0]["text"] == counting("a", 16)
        assert open_descriptors(server)[0] == before
        os.kill(server.engine_pid(), signal.SIGKILL)
        assert server.exit_code() == 1
        eventually(lambda: not server.pids(), "no process left")


def test_the_http_process_dies_and_takes_the_engine_along() -> None:
    with ServerProcess() as server:
        stream = server.stream(max_tokens=ENDLESS)
        server.signal(signal.SIGKILL)
        server.process.wait(5)
        eventually(lambda: not server.pids(), "the end of the engine", 3)
        assert not stream.read_rest().is_done


# ---- the operator ------------------------------------------------------------------------------------------------


def is_draining(server: ServerProcess) -> bool:
    """New requests are refused, by whoever answers or by nobody."""
    return server.status("/ready") in (503, None)


@pytest.mark.parametrize("is_ctrl_c", [False, True], ids=["SIGTERM", "Ctrl-C"])
def test_a_drain_completes_what_runs(is_ctrl_c: bool) -> None:
    with ServerProcess() as server:
        idle = server.connect()
        idle.request("GET", "/health")
        idle.getresponse().read()
        whole, stream = start(server, "b", max_tokens=100), server.stream("c", max_tokens=120)
        server.interrupt_group() if is_ctrl_c else server.signal(signal.SIGTERM)
        eventually(lambda: is_draining(server), "draining", 3)
        answer = json.loads(whole.getresponse().read())
        whole.close()
        assert answer["choices"][0]["text"] == counting("b", 100)
        assert stream.read_rest().text == counting("c", 120)
        assert stream.is_done and stream.finish_reason == "length"
        assert server.exit_code() == 0  # although a client still holds an idle connection
        assert not server.pids()
        idle.close()


def test_a_drain_over_its_limit_is_cut() -> None:
    with ServerProcess("--drain-timeout", "0.5") as server:
        whole, stream = start(server, max_tokens=ENDLESS), server.stream(max_tokens=ENDLESS)
        server.signal(signal.SIGTERM)
        assert stream.read_rest().error["code"] == "draining" and not stream.is_done
        response = whole.getresponse()
        assert response.status == 503 and json.loads(response.read())["error"]["code"] == "draining"
        whole.close()
        assert server.exit_code() == 0
        assert not server.pids()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_does_not_wait(number: signal.Signals) -> None:
    with ServerProcess() as server:
        stream = server.stream(max_tokens=ENDLESS)
        server.signal(number)
        eventually(lambda: is_draining(server), "draining", 3)
        assert server.process.poll() is None
        server.signal(number)
        assert server.exit_code(5) == 130
        eventually(lambda: not server.pids(), "no process left", 3)
        assert not stream.read_rest().is_done


def is_born(server: ServerProcess) -> bool:
    return bool(server.pids())


def has_children(server: ServerProcess) -> bool:
    return len(server.pids()) > 1


def is_listening(server: ServerProcess) -> bool:
    return server.status("/health") == 200


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL], ids=lambda number: number.name)
def test_a_signal_during_the_start_leaves_nobody(number: signal.Signals) -> None:
    for moment in (is_born, has_children, is_listening):
        with ServerProcess(is_awaited=False) as server:
            eventually(lambda here=server, at=moment: at(here), moment.__name__)  # type: ignore[misc]
            server.signal(number)
            server.exit_code(5)
            eventually(lambda here=server: not here.pids(), f"no process left after {number.name} {moment.__name__}", 3)  # type: ignore[misc]


def test_streams_of_one_server_do_not_mix(server: ServerProcess) -> None:
    streams: list[EventStream] = [server.stream(prompt, max_tokens=50) for prompt in "abcd"]
    assert [stream.read_rest().text for stream in streams] == [counting(prompt, 50) for prompt in "abcd"]
