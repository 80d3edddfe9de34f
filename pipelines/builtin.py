"""Opens a model by name: a file, or one of the models that need none and are described here.

Knows what such a model's file would say. Does not know modules or tensors, so opening one for its tokenizer is cheap.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from plait.framework.errors import ConfigError
from plait.pipelines.gguf import DEFAULT_ALIGNMENT, VERSIONS, GGUFFile
from plait.pipelines.model_files import find_model
from plait.pipelines.tokenizer import BYTE_NAMES

MAX_DELAY_MS = 60_000
ECHO_CONTEXT = 1 << 17
ECHO_NUMBERS = [f"Ġ{number}" for number in range(1000)]
ECHO_COUNTDOWN = ["Ġ" + word for word in "one two three four five six seven eight nine".split()]
ECHO_END = "<|end|>"
ECHO_TOKENS = [*BYTE_NAMES, *ECHO_NUMBERS, *ECHO_COUNTDOWN, ECHO_END]
_NORMAL, _CONTROL = 1, 3
# The messages one below the other and nothing after the last, so that its last character decides the answer.
_ECHO_TEMPLATE = "{% for message in messages %}{{ message.content }}{{ '\n' if not loop.last }}{% endfor %}"


def open_model(name: str | os.PathLike[str]) -> GGUFFile:
    """The metadata and tensors of the model that `name` means: built in ("echo", "echo?delay_ms=10"), or a file.

    Raises: LoadError, FormatError as `find_model` and `GGUFFile.open` do; ConfigError for an option of a built-in name
    that is unknown or impossible.
    """
    stem, _, query = os.fspath(name).partition("?")
    if stem not in BUILTIN:
        return GGUFFile.open(find_model(name))
    options = dict(parse_qsl(query, keep_blank_values=True))
    return GGUFFile(Path(os.fspath(name)), VERSIONS[-1], DEFAULT_ALIGNMENT, BUILTIN[stem](options), {})


def _echo(options: Mapping[str, str]) -> dict[str, Any]:
    types = [_CONTROL if token == ECHO_END else _NORMAL for token in ECHO_TOKENS]
    return {
        "general.architecture": "echo",
        "general.name": "echo",
        "echo.context_length": ECHO_CONTEXT,
        "echo.delay_ms": _delay_ms(options),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": ECHO_TOKENS,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.eos_token_id": len(ECHO_TOKENS) - 1,
        "tokenizer.chat_template": _ECHO_TEMPLATE,
    }


def _delay_ms(options: Mapping[str, str]) -> float:
    if unknown := sorted(set(options) - {"delay_ms"}):
        raise ConfigError(f"model 'echo': option {unknown[0]!r} is not known; expected 'delay_ms'.")
    text = options.get("delay_ms", "0")
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= MAX_DELAY_MS:
        raise ConfigError(f"model 'echo': delay_ms={text!r}; expected milliseconds from 0 to {MAX_DELAY_MS}.")
    return value


# Models that need no file: name -> options -> metadata.
BUILTIN: dict[str, Callable[[Mapping[str, str]], dict[str, Any]]] = {"echo": _echo}
