"""Turns one request's tokens into text as they arrive, and finds its stop strings.

Knows UTF-8 and stop strings. Does not know requests, batches or why a generation ends otherwise.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol

from plait.framework.errors import RequestError


class TokenBytes(Protocol):
    """The part of a tokenizer that a detokenizer reads."""

    def token_bytes(self, token_id: int) -> bytes: ...

    def is_special(self, token_id: int) -> bool: ...


class Detokenizer:
    """The text of one answer, token by token.

    The pieces from `push` and `finish` joined are the decoded answer, cut before the stop string that completes first
    (of two that complete on the same character, the longer). Bytes that are not UTF-8 become U+FFFD. No text follows a
    stop string or `finish`.
    """

    def __init__(
        self, tokenizer: TokenBytes, stop: Sequence[str] = (), include_stop: bool = False, skip_special: bool = True
    ) -> None:
        stop = (stop,) if isinstance(stop, str) else tuple(stop)
        if "" in stop:
            raise RequestError("stop: an empty stop string; expected at least one character.", param="stop")
        self._tokenizer, self._stop, self._include_stop = tokenizer, stop, include_stop
        self._skip_special = skip_special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._longest = max(map(len, stop), default=1)
        self._held = ""
        self._ended = False
        self.stopped: str | None = None

    def push(self, token_id: int) -> str:
        """Take one token and return the text that is certain now.

        Held back: an unfinished character, and an ending that may become a stop string.
        """
        if self._ended or (self._skip_special and self._tokenizer.is_special(token_id)):
            return ""
        return self._advance(self._decoder.decode(self._tokenizer.token_bytes(token_id)))

    def finish(self) -> str:
        """End the answer and return what was held back."""
        if self._ended:
            return ""
        text = self._advance(self._decoder.decode(b"", final=True)) + self._held
        self._held, self._ended = "", True
        return text

    def _advance(self, text: str) -> str:
        if not self._stop:
            return text
        text = self._held + text
        found = self._first_match(text)
        if found is not None:
            start, end = found
            self.stopped, self._held, self._ended = text[start:end], "", True
            return text[: end if self._include_stop else start]
        cut = len(text) - self._num_held(text)
        self._held = text[cut:]
        return text[:cut]

    def _first_match(self, text: str) -> tuple[int, int] | None:
        """Return where the stop string that completes first begins and ends."""
        spans = ((at, at + len(stop)) for stop in self._stop if (at := text.find(stop)) >= 0)
        return min(spans, key=lambda span: (span[1], span[0]), default=None)

    def _num_held(self, text: str) -> int:
        """Return the length of the longest ending that some stop string starts with."""
        for size in range(min(len(text), self._longest - 1), 0, -1):
            if any(stop.startswith(text[-size:]) for stop in self._stop):
                return size
        return 0
