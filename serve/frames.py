"""What the HTTP process and the engine process say to each other: a table of messages, and how they cross a socket.

A frame is its length (u32, little-endian) and one msgpack message. Knows neither sockets nor processes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Generic, TypeVar

import msgspec

from plait.framework.errors import FormatError
from plait.pipelines.sampling import SamplingParams

MAX_FRAME_BYTES = 64 << 20
_LENGTH = struct.Struct("<I")


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """One message; on the wire a list that starts with the class's name."""


class Submit(Message, frozen=True):
    """Down: a request under a number that is used once in the engine's life."""

    number: int
    prompt: list[int]
    params: SamplingParams


class Abort(Message, frozen=True):
    """Down: nobody waits for this request any more. Answered by its number in `Step.dropped`."""

    number: int


class Progress(Message, frozen=True):
    """Up: how far loading has come; `total` 0 means unknown."""

    stage: str
    done: int
    total: int


class ModelInfo(msgspec.Struct, frozen=True, array_like=True):
    """What the engine can take: tokens of prompt and answer together, ids, sequences in one step."""

    max_length: int
    vocab_size: int
    max_batch_size: int


class Ready(Message, frozen=True):
    """Up: loaded, compiled and warmed."""

    info: ModelInfo


class Failed(Message, frozen=True):
    """Up, the last message: the model cannot be loaded. `kind` is the class of the error."""

    kind: str
    message: str


class TokenEvent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One token of one request. `finish_reason` is None until the last: "stop" or "length"."""

    number: int
    token: int
    finish_reason: str | None


class Step(Message, frozen=True):
    """Up, after each step: the tokens that came out, the requests dropped since, and how many are in the batch."""

    tokens: list[TokenEvent]
    dropped: list[int]
    num_running: int


class Refused(Message, frozen=True):
    """Up: a request ends with an error; the fields of RequestError."""

    number: int
    message: str
    status: int
    param: str | None
    code: str | None


Down = Submit | Abort
Up = Progress | Ready | Failed | Step | Refused
M = TypeVar("M")

_encoder = msgspec.msgpack.Encoder()
DOWN: msgspec.msgpack.Decoder[Down] = msgspec.msgpack.Decoder(Down)
UP: msgspec.msgpack.Decoder[Up] = msgspec.msgpack.Decoder(Up)


def encode(message: Message) -> bytes:
    """A message as a frame.

    Raises: FormatError for one that is over the limit.
    """
    frame = bytearray(_LENGTH.size)
    _encoder.encode_into(message, frame, _LENGTH.size)
    _check_size(len(frame) - _LENGTH.size)
    _LENGTH.pack_into(frame, 0, len(frame) - _LENGTH.size)
    return bytes(frame)


def _check_size(size: int) -> None:
    if size > MAX_FRAME_BYTES:
        raise FormatError(f"frame: {size} bytes; expected at most {MAX_FRAME_BYTES}.")


class FrameReader(Generic[M]):
    """Cuts bytes, in whatever pieces they come, into messages."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[M]) -> None:
        self._decoder = decoder
        self._held = bytearray()

    def feed(self, data: bytes) -> Iterator[M]:
        """The messages that are complete with this data.

        Raises: FormatError for a frame that is too long, as soon as its length is known, or is no such message. The
        reader is of no use afterwards: where the next frame starts is not known.
        """
        self._held += data
        start = 0
        try:
            while (end := self._end(start)) is not None:
                body = bytes(memoryview(self._held)[start + _LENGTH.size : end])
                start = end
                yield self._decode(body)
        finally:
            del self._held[:start]

    def _end(self, start: int) -> int | None:
        """Where the frame at `start` ends, if all of it is here."""
        if len(self._held) < start + _LENGTH.size:
            return None
        (size,) = _LENGTH.unpack_from(self._held, start)
        _check_size(size)
        end: int = start + _LENGTH.size + size
        return end if end <= len(self._held) else None

    def _decode(self, body: bytes) -> M:
        try:
            return self._decoder.decode(body)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise FormatError(f"frame of {len(body)} bytes: {error}; expected one of plait's messages.") from None
