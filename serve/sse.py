"""Server-sent events: the bytes of a stream's chunks.

A chunk is built around its text from two ready halves, because a busy server makes thousands of them a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"

encode = msgspec.json.encode


def event(body: Mapping[str, Any]) -> bytes:
    """Return one event that carries a JSON body."""
    return b"data: %b\n\n" % encode(body)


class Chunks:
    """The chunks of one answer's stream; they share id, object, created and model.

    `is_chat` decides between a delta and plain text. With `with_usage` every chunk but the last says `usage: null`.
    """

    def __init__(self, head: Mapping[str, Any], is_chat: bool, with_usage: bool) -> None:
        self._head, self.is_chat, self._with_usage = dict(head), is_chat, with_usage
        self._before = b"data: %b" % encode(self._head)[:-1] + b',"choices":[{"index":%d,'
        self._before += b'"delta":{"content":' if is_chat else b'"text":'
        after = b'},"logprobs":null,"finish_reason":null}]' if is_chat else b',"logprobs":null,"finish_reason":null}]'
        self._after = after + (b',"usage":null}\n\n' if with_usage else b"}\n\n")
        self._starts: dict[int, bytes] = {}

    def text(self, index: int, text: str) -> bytes:
        """Return the chunk of a piece of a choice's text."""
        start = self._starts.get(index)
        if start is None:
            # NOTE: not by %, the model's name may hold one.
            start = self._starts[index] = self._before.replace(b'[{"index":%d,', b'[{"index":' + b"%d," % index)
        return start + encode(text) + self._after

    def piece(self, index: int, text: str, reason: str | None) -> bytes:
        """Return the chunks of a piece: its text if it has any, and the end if it is a choice's last."""
        data = self.text(index, text) if text else b""
        return data if reason is None else data + self.end(index, reason)

    def role(self, index: int) -> bytes:
        """Return a chat choice's first chunk."""
        return self._choice(index, {"role": "assistant", "content": ""}, None)

    def end(self, index: int, reason: str) -> bytes:
        """Return a choice's last chunk: no text, and why it ended."""
        return self._choice(index, {} if self.is_chat else "", reason)

    def usage(self, usage: Mapping[str, Any]) -> bytes:
        """Return the chunk without choices that carries the usage."""
        return event(self._head | {"choices": [], "usage": usage})

    def _choice(self, index: int, content: Any, reason: str | None) -> bytes:
        key = "delta" if self.is_chat else "text"
        choice = {"index": index, key: content, "logprobs": None, "finish_reason": reason}
        return event(self._head | {"choices": [choice]} | ({"usage": None} if self._with_usage else {}))
