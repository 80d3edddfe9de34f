"""The bridge and real engine processes: tokens, limits, and every way in which one of the two sides can go."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest
import uvloop

from plait.framework.errors import ConfigError, EngineDied, LoadError, PlaitError, RequestError
from plait.pipelines.sampling import SamplingParams
from plait.serve import bridge
from plait.serve.bridge import Engine, EngineSpec, Stream
from plait.serve.frames import ModelInfo, Progress, Ready, encode
from tests.serve.servers import needs_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]
ROOT = Path(__file__).parents[2]
GOLDEN = json.loads((ROOT / "tests" / "data" / "smollm2_golden.json").read_text(encoding="utf-8"))
LENGTH, BATCH, QUEUE = 512, 4, 4
OPTIONS = {"max_length": LENGTH, "max_batch_size": BATCH}
FIRST_NUMBER = 256  # the echo model's token of the number 0
SLOW = "echo?delay_ms=10"


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens)


def counted(start: str, count: int) -> list[int]:
    """What the echo model answers to one byte."""
    return [FIRST_NUMBER + (ord(start) + index) % 1000 for index in range(count)]


@contextlib.asynccontextmanager
async def running(model: str = "echo", queue: int = QUEUE, **options: Any) -> AsyncIterator[Engine]:
    engine = Engine(EngineSpec(model, OPTIONS | options, queue))
    await engine.start()
    try:
        await engine.wait_ready()
        yield engine
    finally:
        await engine.stop(5)
        assert engine.process is not None and engine.process.poll() is not None


async def read(stream: Stream) -> list[int]:
    return [event.token async for events in stream for event in events]


async def eventually(condition: Callable[[], Any], what: str, seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        await asyncio.sleep(0.005)


def kill(engine: Engine) -> None:
    assert engine.process is not None
    engine.process.kill()


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    uvloop.run(main())


# ---- tokens ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_request_is_answered_and_the_engine_says_what_it_can_take(runner: Any) -> None:
    async def main() -> None:
        async with running() as engine:
            assert (engine.state, engine.progress) == ("ready", "")
            assert engine.info is not None and (engine.info.max_length, engine.info.max_batch_size) == (LENGTH, BATCH)
            events = [event async for part in engine.submit([ord("a")], greedy(5), "one") for event in part]
            assert [event.token for event in events] == counted("a", 5)
            assert [event.finish_reason for event in events] == [None] * 4 + ["length"]
            assert (engine.running, engine.waiting) == (0, 0)

    runner(main())


def test_progress_is_told_while_the_model_loads() -> None:
    async def main() -> None:
        engine = Engine(EngineSpec("echo", OPTIONS))
        seen: list[str] = []
        on_progress = bridge._HANDLERS[Progress]

        def note(engine: Engine, message: Any) -> None:
            on_progress(engine, message)
            seen.append(engine.progress)

        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(bridge._HANDLERS, Progress, note)
            await engine.start()
            assert engine.state == "loading" and engine.info is None
            with pytest.raises(RequestError) as refused:
                engine.submit([1], greedy(1), "early")
            assert refused.value.status == 503
            await engine.wait_ready()
        await engine.stop(5)
        assert seen[:2] == ["loading", "compiling"]
        assert [word for word in seen if word.startswith("compiling ") and "/" in word]

    run(main)


def test_a_refusal_is_raised_by_the_stream_and_the_next_request_works() -> None:
    async def main() -> None:
        async with running() as engine:
            for prompt, code in [([], None), ([1] * LENGTH, "context_length_exceeded"), ([10**6], None)]:
                with pytest.raises(RequestError) as refused:
                    await read(engine.submit(prompt, greedy(4), "bad"))
                assert (refused.value.status, refused.value.param, refused.value.code) == (400, "prompt", code)
            assert engine.num_admitted == 0
            assert await read(engine.submit([ord("b")], greedy(3), "good")) == counted("b", 3)

    run(main)


def test_a_reader_that_is_late_gets_all_at_once_and_holds_nobody() -> None:
    async def main() -> None:
        async with running() as engine:
            late = engine.submit([ord("a")], greedy(300), "late")
            assert await read(engine.submit([ord("b")], greedy(300), "other")) == counted("b", 300)
            await eventually(lambda: engine.num_admitted == 0, "the end of both")
            parts = [part async for part in late]
            assert len(parts) == 1 and [event.token for event in parts[0]] == counted("a", 300)
            late.close()
            with pytest.raises(StopAsyncIteration):
                await anext(late)

    run(main)


def test_streams_that_come_and_go_do_not_mix() -> None:
    async def main() -> None:
        async with running(queue=64) as engine:

            async def one(index: int) -> None:
                await asyncio.sleep(index % 7 / 100)
                start, count = chr(ord("a") + index % 26), 1 + index * 3
                stream = engine.submit([ord(start)], greedy(count), "same id for all")
                if index % 5:
                    assert await read(stream) == counted(start, count)
                else:
                    some = [event.token for event in await anext(stream)]
                    assert some == counted(start, len(some))
                    stream.close()

            await asyncio.gather(*(one(index) for index in range(40)))
            await eventually(lambda: (engine.running, engine.waiting) == (0, 0), "an idle engine")

    run(main)


@needs_model
def test_eight_clients_get_what_each_gets_alone() -> None:
    prompts: list[list[int]] = [prompt["ids"] for prompt in GOLDEN["prompts"]]
    prompts = [prompt for prompt in prompts if 0 < len(prompt) < 100][:8]
    assert len(prompts) == 8

    async def later(engine: Engine, prompt: list[int], delay_s: float) -> list[int]:
        await asyncio.sleep(delay_s)
        return await read(engine.submit(prompt, greedy(24), "one of eight"))

    async def main() -> None:
        async with running("smollm2", max_batch_size=8, max_length=256) as engine:
            alone = [await read(engine.submit(prompt, greedy(24), "alone")) for prompt in prompts]
            together = (later(engine, prompt, index * 0.03) for index, prompt in enumerate(prompts))
            assert await asyncio.gather(*together) == alone
            backwards = (later(engine, prompt, 0) for prompt in reversed(prompts))
            assert (await asyncio.gather(*backwards))[::-1] == alone

    run(main)


# ---- places ------------------------------------------------------------------------------------------------------


def test_a_full_queue_refuses_and_a_closed_stream_makes_room() -> None:
    async def main() -> None:
        async with running(SLOW) as engine:
            streams = [engine.submit([ord("a")], greedy(500), "long") for _ in range(BATCH + QUEUE)]
            with pytest.raises(RequestError) as refused:
                engine.submit([1], greedy(1), "too many")
            assert (refused.value.status, refused.value.code) == (429, "queue_full")
            await eventually(lambda: (engine.running, engine.waiting) == (BATCH, QUEUE), "a full engine")
            streams[0].close()
            streams[0].close()
            await eventually(lambda: engine.num_admitted == BATCH + QUEUE - 1, "the free place")
            streams[-1].close()
            last = engine.submit([ord("z")], greedy(2), "fits")
            for stream in streams[1:-1]:
                stream.close()
            assert await read(last) == counted("z", 2)
            await eventually(lambda: (engine.running, engine.waiting) == (0, 0), "an idle engine")

    run(main)


def test_a_closed_stream_ends_for_its_reader() -> None:
    async def main() -> None:
        async with running("echo?delay_ms=1000") as engine:
            stream = engine.submit([1], greedy(5), "one")
            reading = asyncio.create_task(read(stream))
            await asyncio.sleep(0)
            stream.close()
            assert await reading == []

    run(main)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_two_hundred_requests_leave_nothing_behind() -> None:
    async def main() -> None:
        async with running(queue=16) as engine:
            assert engine.process is not None

            def descriptors() -> list[int]:
                return [len(os.listdir(f"/proc/{pid}/fd")) for pid in ("self", engine.process and engine.process.pid)]

            await read(engine.submit([1], greedy(1), "warm"))
            before = descriptors()
            for round_number in range(10):
                streams = [engine.submit([ord("a")], greedy(1 + index * 5), "many") for index in range(20)]
                await anext(streams[5])
                for stream in streams[round_number % 3 :: 3]:
                    stream.close()
                await asyncio.gather(*(read(stream) for stream in streams))
                await eventually(lambda: engine.num_admitted == 0 == engine.running, "an idle engine")
            assert descriptors() == before
            # The cache holds a full batch of full length and no page more.
            whole = [engine.submit([ord("b")], greedy(LENGTH), "whole") for _ in range(BATCH)]
            assert await asyncio.gather(*map(read, whole)) == [counted("b", LENGTH - 1)] * BATCH

    run(main)


# ---- deaths ------------------------------------------------------------------------------------------------------


def test_a_killed_engine_is_restarted_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "plait.serve")

    async def main() -> None:
        async with running(SLOW) as engine:
            streams = [engine.submit([ord("a")], greedy(500), "long") for _ in range(BATCH + 1)]
            first = await anext(streams[0])
            kill(engine)
            tokens = [event.token for event in first]
            with pytest.raises(RequestError) as died:
                async for part in streams[0]:
                    tokens += [event.token for event in part]
            assert tokens == counted("a", len(tokens))
            assert (died.value.status, died.value.code) == (503, "engine_dead")
            assert "signal 9" in str(died.value)
            for stream in streams[1:]:
                with pytest.raises(RequestError, match="signal 9"):
                    await read(stream)
                stream.close()
            assert engine.state == "dead" and (engine.running, engine.waiting) == (0, 0)
            with pytest.raises(RequestError) as refused:
                engine.submit([1], greedy(1), "too early")
            assert (refused.value.status, refused.value.code) == (503, "engine_dead")
            await engine.wait_ready()
            assert engine.state == "ready"
            assert await read(engine.submit([ord("c")], greedy(3), "again")) == counted("c", 3)
            failed = asyncio.create_task(engine.wait_failed())
            await asyncio.sleep(0)
            assert not failed.done()
            kill(engine)
            await asyncio.wait_for(failed, 10)
            with pytest.raises(EngineDied, match="signal 9, for the second time within 60 s"):
                await engine.wait_ready()
            assert engine.state == "dead"

    run(main)


def test_a_later_death_is_a_first_one_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge, "RESTART_WINDOW_S", 0.0)

    async def main() -> None:
        async with running() as engine:
            for _ in range(2):
                kill(engine)
                await eventually(lambda: engine.state == "dead", "the death was seen")
                await engine.wait_ready()
                assert await read(engine.submit([ord("c")], greedy(3), "again")) == counted("c", 3)

    run(main)


def test_signals_for_the_whole_group_do_not_end_the_engine() -> None:
    async def main() -> None:
        async with running(SLOW) as engine:
            stream = engine.submit([ord("a")], greedy(30), "one")
            first = await anext(stream)
            assert engine.process is not None
            for number in (signal.SIGINT, signal.SIGTERM):
                engine.process.send_signal(number)
            assert [event.token for event in first] + await read(stream) == counted("a", 30)
            assert os.getpgid(engine.process.pid) != os.getpgid(0)

    run(main)


@pytest.mark.parametrize(
    ("model", "options", "error", "words"),
    [
        ("no-such-model", {}, LoadError, "'no-such-model': not found"),
        ("echo?delay=3", {}, ConfigError, "'delay' is not known"),
        ("echo", {"max_length": 10**9}, ConfigError, "max_length"),
        ("echo", {"kv_cache_page_size": 33}, ConfigError, "multiple of 32"),
        ("echo", {"max_lenght": 3}, PlaitError, "did you mean 'max_length'"),
    ],
)
def test_a_model_that_cannot_be_loaded_is_told_and_not_tried_again(
    model: str, options: dict[str, Any], error: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spawned: list[subprocess.Popen[bytes]] = []
    spawn = bridge._spawn

    def counting_spawn(path: str, spec: EngineSpec) -> subprocess.Popen[bytes]:
        spawned.append(spawn(path, spec))
        return spawned[-1]

    monkeypatch.setattr(bridge, "_spawn", counting_spawn)

    async def main() -> None:
        with pytest.raises(error, match=words):
            async with running(model, **options):
                pass

    run(main)
    assert len(spawned) == 1


READY = encode(Ready(ModelInfo(10, 10, 1)))
CONNECT = "peer = socket.socket(socket.AF_UNIX); peer.connect(sys.argv[1])\n"


def stub(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Let the engine process be a script; its argument is the socket's path."""
    command = [sys.executable, "-c", "import socket, sys, time\n" + code]
    monkeypatch.setattr(bridge, "_spawn", lambda path, spec: subprocess.Popen([*command, path]))


def test_a_process_that_ends_before_it_says_anything_is_dead_twice(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stub(monkeypatch, "sys.exit(3)")

    async def main() -> None:
        with pytest.raises(EngineDied, match="exit code 3, for the second time"):
            async with running():
                pass

    run(main)
    assert [record.getMessage() for record in caplog.records] == ["engine process ended with exit code 3"] * 2


@pytest.mark.parametrize("raw", [b"\xff\xff\xff\xff", b"\x01\0\0\0\xc1"], ids=["oversized", "malformed"])
def test_an_engine_that_sends_what_is_no_message_is_dropped(monkeypatch: pytest.MonkeyPatch, raw: bytes) -> None:
    # The garbage comes with the first request, and the process would stay.
    stub(
        monkeypatch, f"{CONNECT}peer.sendall({READY!r}); peer.recv(1); peer.sendall({raw!r})\nwhile peer.recv(99): pass"
    )

    async def main() -> None:
        async with running() as engine:
            for _ in range(2):
                await engine.wait_ready()
                with pytest.raises(RequestError, match="sent what is no message") as died:
                    await read(engine.submit([1], greedy(1), "one"))
                assert died.value.code == "engine_dead"
            await asyncio.wait_for(engine.wait_failed(), 10)

    run(main)


@pytest.mark.parametrize("raw", [b"\xff\xff\xff\xff", b"\x01\0\0\0\xc1"], ids=["oversized", "malformed"])
def test_an_engine_that_gets_what_is_no_message_says_so_and_ends(capfd: pytest.CaptureFixture[str], raw: bytes) -> None:
    async def main() -> None:
        async with running() as engine:
            stream = engine.submit([ord("a")], greedy(500), "one")
            assert engine._channel is not None
            engine._channel.write(raw)
            with contextlib.suppress(RequestError):
                await read(stream)
            await eventually(lambda: engine.state == "dead", "the engine ended")
            await engine.wait_ready()
            assert await read(engine.submit([ord("a")], greedy(2), "again")) == counted("a", 2)

    run(main)
    said = capfd.readouterr().err
    assert "plait: engine: frame" in said and "Traceback" not in said


# ---- the end -----------------------------------------------------------------------------------------------------


def test_a_stop_ends_open_streams_and_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    async def main() -> None:
        async with running(SLOW) as engine:
            assert list(tmp_path.iterdir()) == []  # already: nothing has to survive to remove it
            stream = engine.submit([ord("a")], greedy(500), "one")
            await anext(stream)
            await engine.stop(5)
            with pytest.raises(RequestError) as stopped:
                await read(stream)
            assert stopped.value.status == 503
            with pytest.raises(RequestError):
                engine.submit([1], greedy(1), "late")

    run(main)


def test_the_socket_can_be_reached_by_this_user_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    long = tmp_path / ("a" * 90)
    long.mkdir()
    for folder in (str(tmp_path.parent.parent.parent), str(long)):
        monkeypatch.setattr(tempfile, "tempdir", folder)
        with bridge._socket_folder() as name:
            assert os.stat(name).st_mode & 0o777 == 0o700
            assert len(os.path.join(name, "engine")) <= 100
        assert not os.path.exists(name)


@pytest.mark.parametrize("moment_s", [0.0, 0.05, 0.3])
def test_a_stop_while_the_engine_starts_leaves_no_process(moment_s: float) -> None:
    async def main() -> None:
        engine = Engine(EngineSpec("echo", OPTIONS))
        await engine.start()
        waiting = asyncio.create_task(engine.wait_ready())
        await asyncio.sleep(moment_s)
        await engine.stop(5)
        with pytest.raises(EngineDied, match="stopped"):
            await waiting
        assert engine.process is None or engine.process.poll() is not None

    run(main)


def test_an_engine_that_does_not_react_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    stub(monkeypatch, f"{CONNECT}peer.sendall({READY!r}); time.sleep(60)")

    async def main() -> None:
        async with running() as engine:
            await engine.stop(0.1)
            assert engine.process is not None and engine.process.poll() == -signal.SIGKILL

    run(main)


PARENT = """
import asyncio, sys
from plait.pipelines.sampling import SamplingParams
from plait.serve.bridge import Engine, EngineSpec

async def main():
    engine = Engine(EngineSpec("echo?delay_ms=10", {"max_length": 512}))
    await engine.start()
    while engine.process is None:
        await asyncio.sleep(0.001)
    print(engine.process.pid, flush=True)
    await engine.wait_ready()
    engine.submit([97], SamplingParams(), "one")
    print("ready", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def lives(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
@pytest.mark.parametrize("at_start", [True, False], ids=["loading", "generating"])
def test_a_killed_parent_takes_the_engine_along(tmp_path: Path, at_start: bool) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    command: Sequence[str] = [sys.executable, "-c", PARENT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=tmp_path) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        if not at_start:
            assert parent.stdout.readline() == "ready\n"
            assert list(tmp_path.iterdir()) == []
        assert lives(pid)
        parent.kill()
    deadline = time.monotonic() + 5
    while lives(pid):
        assert time.monotonic() < deadline, "the engine outlives its parent"
        time.sleep(0.01)
    assert list(tmp_path.iterdir()) == []
