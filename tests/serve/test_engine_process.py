"""The engine's loop over one socket, turn by turn: what it frees, what it sends, whom it does not wait for."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from plait.framework.errors import FormatError, PlaitError
from plait.pipelines.engine import EngineCore
from plait.pipelines.sampling import SamplingParams
from plait.pipelines.scheduler import Batch
from plait.serve.engine_process import Channel, EngineLoop
from plait.serve.frames import UP, Abort, FrameReader, Message, Refused, Step, Submit, TokenEvent, encode

VOCAB, PAGES, PAGE_SIZE, LENGTH = 50, 8, 4, 16
GREEDY = SamplingParams(temperature=0)


class Counting:
    """A runner whose next token is one more than the last. `error` is raised once, when there is one."""

    vocab_size, num_pages = VOCAB, PAGES
    error: Exception | None = None

    def run(self, batch: Batch) -> np.ndarray[Any, Any]:
        error, self.error = self.error, None
        if error is not None:
            raise error
        last = np.array([part.sequence.tokens[part.end - 1] for part in batch])
        logits: np.ndarray[Any, Any] = np.eye(VOCAB, dtype=np.float32)[(last + 1) % VOCAB]
        return logits


@dataclass
class Peer:
    """Both ends of a socket with a loop at one of them; the other one is read by hand."""

    loop: EngineLoop
    near: socket.socket
    reader: FrameReader[Any]

    @property
    def core(self) -> EngineCore:
        return self.loop.core

    def send(self, *messages: Message) -> None:
        self.near.sendall(b"".join(map(encode, messages)))

    def received(self) -> list[Message]:
        found: list[Message] = []
        self.near.setblocking(False)
        try:
            while data := self.near.recv(1 << 16):
                found += self.reader.feed(data)
        except BlockingIOError:
            pass
        self.near.setblocking(True)
        return found

    def is_free(self) -> bool:
        return not self.core.has_work and self.core.scheduler.pool.num_free == PAGES


@pytest.fixture
def peer() -> Iterator[Peer]:
    near, far = socket.socketpair()
    core = EngineCore(Counting(), page_size=PAGE_SIZE, max_length=LENGTH, max_batch_size=2)
    channel = Channel(far)
    with near:
        yield Peer(EngineLoop(core, channel), near, FrameReader(UP))
    channel.close()


def test_a_step_is_reported_once_it_is_done(peer: Peer) -> None:
    peer.send(Submit(7, [3], SamplingParams(temperature=0, max_tokens=2)), Submit(8, [30], GREEDY))
    peer.loop.turn()
    assert peer.received() == [Step([TokenEvent(7, 4, None), TokenEvent(8, 31, None)], [], 2)]
    peer.loop.turn()
    assert peer.received() == [Step([TokenEvent(7, 5, "length"), TokenEvent(8, 32, None)], [], 1)]


def test_an_abort_frees_slot_and_pages_within_one_step(peer: Peer) -> None:
    peer.send(*(Submit(number, [number], GREEDY) for number in range(3)))  # two run, one waits
    peer.loop.turn()
    peer.send(Abort(0), Abort(2))
    peer.loop.turn()
    assert [sequence.request_id for sequence in peer.core.scheduler.running] == ["1"]
    assert not peer.core.scheduler.waiting and peer.core.scheduler.pool.num_free == PAGES - 1
    first, second = peer.received()
    assert isinstance(first, Step) and first.num_running == 2
    assert second == Step([TokenEvent(1, 3, None)], [0, 2], 1)
    peer.send(Abort(1))
    peer.loop.turn()
    assert peer.received() == [Step([], [1], 0)] and peer.is_free()


def test_an_abort_that_comes_after_the_end_is_answered_too(peer: Peer) -> None:
    peer.send(Submit(1, [1], SamplingParams(temperature=0, max_tokens=1)))
    peer.loop.turn()
    peer.send(Abort(1))
    peer.loop.turn()
    assert peer.received() == [Step([TokenEvent(1, 2, "length")], [], 0), Step([], [1], 0)]


@pytest.mark.parametrize(
    ("prompt", "words", "code"),
    [
        ([], "no tokens", None),
        ([1] * LENGTH, f"{LENGTH} tokens; the context holds {LENGTH}", "context_length_exceeded"),
        ([VOCAB], f"{VOCAB} is not a token", None),
        ([-1], "-1 is not a token", None),
    ],
)
def test_a_prompt_that_cannot_be_served_is_refused(peer: Peer, prompt: list[int], words: str, code: str | None) -> None:
    peer.send(Submit(4, prompt, GREEDY))
    peer.loop.turn()
    (refusal,) = peer.received()
    assert isinstance(refusal, Refused) and words in refusal.message
    assert (refusal.number, refusal.status, refusal.param, refusal.code) == (4, 400, "prompt", code)
    assert peer.is_free()


def test_a_peer_that_does_not_read_holds_nobody_and_misses_nothing() -> None:
    near, far = socket.socketpair()
    for end in (near, far):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the least there is
    length = 4000
    core = EngineCore(Counting(), page_size=length, max_length=length, max_batch_size=2)
    channel = Channel(far)
    loop, peer_reader = EngineLoop(core, channel), FrameReader(UP)
    with near:
        near.sendall(encode(Submit(0, [0], GREEDY)) + encode(Submit(1, [10], GREEDY)))
        loop.turn()
        while core.has_work:
            loop.turn()
        near.setblocking(False)
        found: list[Any] = []
        while not found or not found[-1].tokens or found[-1].tokens[-1].finish_reason is None:
            channel.poll(0)  # sends on what was kept
            found += peer_reader.feed(near.recv(1 << 12))
    tokens = {number: [e.token for step in found for e in step.tokens if e.number == number] for number in (0, 1)}
    assert tokens == {at: [(start + i) % VOCAB for i in range(1, length)] for at, start in enumerate((0, 10))}
    channel.close()


def test_an_error_of_a_step_ends_its_requests_and_no_others(peer: Peer, capsys: pytest.CaptureFixture[str]) -> None:
    peer.core.runner.error = PlaitError("logits of row 0 are nan")  # type: ignore[attr-defined]
    peer.send(*(Submit(number, [number], GREEDY) for number in range(3)))
    peer.loop.turn()
    refusals = peer.received()
    assert [(one.number, one.status) for one in refusals if isinstance(one, Refused)] == [(0, 500), (1, 500)]
    assert len(refusals) == 2 and not peer.core.scheduler.running and peer.core.scheduler.pool.num_free == PAGES
    assert "logits of row 0 are nan" in capsys.readouterr().err
    peer.loop.turn()
    assert peer.received() == [Step([TokenEvent(2, 3, None)], [], 1)]


def test_an_error_nobody_expected_ends_the_loop(peer: Peer) -> None:
    peer.core.runner.error = ZeroDivisionError()  # type: ignore[attr-defined]
    peer.send(Submit(0, [1], GREEDY))
    with pytest.raises(ZeroDivisionError):
        peer.loop.run()


@pytest.mark.parametrize("raw", [struct.pack("<I", 1 << 31), struct.pack("<I", 1) + b"\xc1"], ids=["long", "malformed"])
def test_what_is_no_message_ends_the_loop(peer: Peer, raw: bytes) -> None:
    peer.near.sendall(raw)
    with pytest.raises(FormatError, match="frame"):
        peer.loop.run()


def test_the_loop_ends_when_the_peer_hangs_up(peer: Peer) -> None:
    peer.send(Submit(0, [1], GREEDY))
    peer.near.shutdown(socket.SHUT_WR)
    peer.loop.run()
    peer.near.close()
