"""Frames: what goes in comes out whatever the pieces; what is no message is refused before it is held."""

from __future__ import annotations

import json
import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.framework.errors import FormatError
from plait.pipelines.sampling import SamplingParams
from plait.serve import frames
from plait.serve.frames import (
    DOWN,
    UP,
    Abort,
    Failed,
    FrameReader,
    Message,
    ModelInfo,
    Progress,
    Ready,
    Refused,
    Step,
    Submit,
    TokenEvent,
    encode,
)

PARAMS = SamplingParams(max_tokens=7, temperature=0.5, top_k=3, top_p=0.9, seed=-(2**63), stop=("é", "\n"))
DOWN_MESSAGES: list[Message] = [Submit(0, [1, 2, 131071], PARAMS), Submit(1, [], SamplingParams()), Abort(2**40)]
UP_MESSAGES: list[Message] = [
    Progress("compiling", 3, 10),
    Ready(ModelInfo(512, 49152, 16)),
    Step([TokenEvent(0, 5, None), TokenEvent(7, 6, "stop")], [3, 4], 2),
    Refused(9, "prompt: ünfit", 400, "prompt", None),
    Failed("LoadError", "not found"),
]
NUMBERS = st.integers(0, 2**63 - 1)
STEPS = st.builds(
    Step,
    st.lists(st.builds(TokenEvent, NUMBERS, NUMBERS, st.sampled_from([None, "stop", "length"])), max_size=5),
    st.lists(NUMBERS, max_size=5),
    NUMBERS,
)


def framed(body: bytes) -> bytes:
    return struct.pack("<I", len(body)) + body


@pytest.mark.parametrize("size", [1, 2, 3, 5, 64, 10_000])
@pytest.mark.parametrize(("decoder", "messages"), [(DOWN, DOWN_MESSAGES), (UP, UP_MESSAGES)], ids=["down", "up"])
def test_messages_survive_any_cutting(decoder: Any, messages: list[Message], size: int) -> None:
    data = b"".join(map(encode, messages))
    reader: FrameReader[Any] = FrameReader(decoder)
    found = [message for at in range(0, len(data), size) for message in reader.feed(data[at : at + size])]
    assert found == messages


@given(st.lists(STEPS, max_size=4), st.data())
def test_any_steps_survive_any_cutting(steps: list[Step], data: st.DataObject) -> None:
    raw, reader, found = b"".join(map(encode, steps)), FrameReader(UP), []
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=6)))
    for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True):
        found += list(reader.feed(raw[start:end]))
    assert found == steps


def test_a_frame_is_its_length_and_msgpack() -> None:
    assert encode(Abort(5)) == b"\x08\x00\x00\x00" + b"\x92\xa5Abort\x05"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",  # the one byte that msgpack does not use
        b"\x92\xa5Abor",  # cut off
        msgspec.msgpack.encode(["Abort", 5]) + b"\x00",  # something behind it
        msgspec.msgpack.encode(["Abort"]),
        msgspec.msgpack.encode(["Abort", "5"]),
        msgspec.msgpack.encode(["Abort", True]),
        msgspec.msgpack.encode(["Shutdown", 5]),
        msgspec.msgpack.encode(["Step", [], [], 0]),  # the other direction
        msgspec.msgpack.encode(["Submit", 0, [1.5], {}]),
        msgspec.msgpack.encode(["Submit", 0, [2**64 - 1, None], {}]),
        msgspec.msgpack.encode(["Submit", 0, [1], {"temperature": 9}]),
        msgspec.msgpack.encode(["Submit", 0, [1], {"stop": [""]}]),
        msgspec.msgpack.encode({"type": "Abort", "number": 5}),
        b"\x92\xa5Abort\xa2\xff\xff",  # not UTF-8
        b"\x91" * 100_000,  # deeper than any message
        json.dumps(["Abort", 5]).encode(),
    ],
)
def test_what_is_no_message_is_a_format_error(body: bytes) -> None:
    with pytest.raises(FormatError, match=f"frame of {len(body)} bytes"):
        list(FrameReader(DOWN).feed(framed(body)))


@given(st.binary(max_size=200))
def test_bytes_are_messages_or_a_format_error(body: bytes) -> None:
    try:
        messages = list(FrameReader(DOWN).feed(framed(body)))
    except FormatError:
        return
    assert all(isinstance(message, Submit | Abort) for message in messages)


def test_messages_before_a_bad_frame_are_given_out() -> None:
    feed = FrameReader(DOWN).feed(encode(Abort(1)) + framed(b"\xc1"))
    assert next(feed) == Abort(1)
    with pytest.raises(FormatError):
        next(feed)


def test_a_frame_over_the_limit_is_refused_by_its_length_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FormatError, match=f"{frames.MAX_FRAME_BYTES + 1} bytes"):
        list(FrameReader(DOWN).feed(struct.pack("<I", frames.MAX_FRAME_BYTES + 1)))
    monkeypatch.setattr(frames, "MAX_FRAME_BYTES", 100)
    with pytest.raises(FormatError, match="expected at most 100"):
        encode(Submit(0, [1] * 100, SamplingParams()))
