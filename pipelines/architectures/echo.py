"""A model without weights, for tests, demos and measurements of a server: a table names the token after each token.

It is compiled, batched, cached and sampled as any other model. What it answers:
- usually it counts without end, from the code of the prompt's last byte: "a" (97) gives " 97 98 99 ...", then " 999 0";
- a prompt that ends in a digit is counted down in words and the answer ends: "3" gives " three two one";
- a prompt that ends in "?" gives one emoji without end, each in four tokens that are no whole character alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from plait.framework import functional as F
from plait.framework.conversion import from_numpy
from plait.framework.errors import FormatError
from plait.framework.tensor import Tensor
from plait.nn.kv_cache import CacheParams
from plait.nn.module import Module
from plait.pipelines.builtin import ECHO_COUNTDOWN, ECHO_NUMBERS, ECHO_TOKENS
from plait.pipelines.registry import Blueprint, SupportedArchitecture

_NUM_BYTES = 256
_FIRST_NUMBER = _NUM_BYTES
_FIRST_WORD = _FIRST_NUMBER + len(ECHO_NUMBERS)
_END = _FIRST_WORD + len(ECHO_COUNTDOWN)
_EMOJI = "\N{GRINNING FACE}".encode()
# The probability of any other token than the next is at most exp of minus this over the temperature.
_MARGIN = 200.0


def successors() -> np.ndarray[Any, np.dtype[np.float32]]:
    """The token after each token. Shapes: -> (V,) float32, whole numbers."""
    after = np.arange(len(ECHO_TOKENS)) + _FIRST_NUMBER  # a byte: the number of its code
    after[_FIRST_NUMBER:_FIRST_WORD] = _FIRST_NUMBER + (np.arange(len(ECHO_NUMBERS)) + 1) % len(ECHO_NUMBERS)
    after[_FIRST_WORD:_END] = np.arange(_FIRST_WORD, _END) - 1
    after[_FIRST_WORD] = after[_END] = _END
    after[[ord("?"), *_EMOJI]] = [*_EMOJI, _EMOJI[0]]
    after[ord("0")] = _END
    after[[ord(digit) for digit in "123456789"]] = np.arange(_FIRST_WORD, _END)
    return after.astype(np.float32)


class Echo(Module):
    """Tokens of a step to each sequence's next-token logits, by the table. Takes what every language model takes.

    Shapes: tokens (T,) int32, row_offsets (S + 1,) int32 -> logits (S, V) float32.
    """

    def __init__(self, context_length: int, delay_s: float, page_size: int) -> None:
        self.context_length, self.delay_s, self.page_size = context_length, delay_s, page_size
        self.after = from_numpy(successors().reshape(-1, 1))
        self.ids = from_numpy(np.arange(self.vocab_size, dtype=np.float32))

    @property
    def vocab_size(self) -> int:
        return len(ECHO_TOKENS)

    @property
    def cache_params(self) -> CacheParams:
        """The least a cache may be: sequences hold pages, nothing is stored in them."""
        return CacheParams(num_layers=1, num_kv_heads=1, head_dim=1, page_size=self.page_size)

    def forward(
        self, tokens: Tensor, row_offsets: Tensor, lengths: Tensor, page_table: Tensor, cache: Tensor
    ) -> Tensor:
        after = F.take(self.after, F.take(tokens, row_offsets[1:] - 1))  # (S, 1)
        distance = self.ids - after  # (S, V)
        logits: Tensor = distance * distance * -_MARGIN
        return logits

    def compile(self, *layouts: Any, **options: Any) -> Callable[..., Any]:  # type: ignore[override]
        """As any module; with a delay, each step of the result takes at least that long."""
        compiled = super().compile(*layouts, **options)
        return compiled if not self.delay_s else _delayed(compiled, self.delay_s)


def _delayed(call: Callable[..., Any], delay_s: float) -> Callable[..., Any]:
    def slow(*args: Any) -> Any:
        time.sleep(delay_s)
        return call(*args)

    return slow


def _build(blueprint: Blueprint) -> Echo:
    length, delay_ms = (_number(blueprint.metadata, f"echo.{field}") for field in ("context_length", "delay_ms"))
    return Echo(int(length), delay_ms / 1e3, blueprint.page_size)


def _number(metadata: Mapping[str, Any], field: str) -> float:
    value = metadata.get(field)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1 << 31:
        raise FormatError(f"metadata {field!r}: {value!r}; expected a number from 0 to 2147483647.")
    return value


ARCHITECTURES = [SupportedArchitecture("echo", _build, lambda model: {"": []})]
