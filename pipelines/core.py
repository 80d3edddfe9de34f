"""From a model's name and options to an EngineCore that is ready to step. Knows no text: tokenizers stay outside.

Scripts and the server's engine process build theirs here, so both run the same.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from plait.framework.config import config
from plait.framework.errors import ConfigError
from plait.nn.linear import checked_mode
from plait.pipelines.builtin import open_model
from plait.pipelines.engine import MAX_ROWS, EngineCore
from plait.pipelines.gguf import GGUFFile
from plait.pipelines.kv_cache import memory_bytes, num_pages_for
from plait.pipelines.model_runner import ModelRunner
from plait.pipelines.registry import LanguageModel, load_model
from plait.pipelines.tokenizer import end_ids_of

Progress = Callable[[str, int, int], None]  # stage, how much is done, of how much (0: unknown)


@dataclass(frozen=True)
class Options:
    """What an LLM may be told besides its model.

    max_length             tokens of prompt and answer together; None: the model's context
    max_batch_size         sequences in one step
    max_batch_input_tokens rows in one step; longer prompts are cut into chunks
    kv_cache_page_size     positions per page of the cache, a multiple of 32
    activation_mode        "int8" or "exact"
    threads                CPU threads; None: what this process may use
    seed                   fixes the seeds of requests that bring none
    """

    max_length: int | None = None
    max_batch_size: int = 16
    max_batch_input_tokens: int = MAX_ROWS
    kv_cache_page_size: int = 32
    activation_mode: str = "int8"
    threads: int | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        checked_mode(self.activation_mode)
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if value is not None and (type(value) is not int or not low <= value <= high):
                raise ConfigError(f"{name}: {value!r} is not possible; expected an integer from {low} to {high}.")
        if self.kv_cache_page_size % 32:
            raise ConfigError(f"kv_cache_page_size: {self.kv_cache_page_size}; expected a multiple of 32.")


_RANGES = [
    ("max_length", 2, 1 << 30),
    ("max_batch_size", 1, 4096),
    ("max_batch_input_tokens", 1, 1 << 20),
    ("kv_cache_page_size", 32, 4096),
    ("threads", 1, 1024),
    ("seed", 0, 2**63 - 1),
]


def options_from(values: Mapping[str, Any]) -> Options:
    """Options by name.

    Raises: TypeError for an unknown name, with the nearest known one; ConfigError for an impossible value.
    """
    known = [option.name for option in fields(Options)]
    for name in values:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}."
            raise TypeError(f"LLM: {name!r} is not an option; {hint}")
    return Options(**values)


def build_core(model: str | os.PathLike[str], options: Options, note: Progress) -> EngineCore:
    """Load, compile and warm the model that a name means.

    Raises: LoadError, FormatError, ConfigError naming what does not fit.
    """
    note("loading", 0, 0)
    file = open_model(model)
    return create_core(load_module(file, options), options, end_ids_of(file.metadata), note)


def load_module(file: GGUFFile, options: Options) -> LanguageModel:
    """The module of a file, its parameters filled; from here on this process computes with the threads asked for.

    Raises: LoadError, FormatError naming what does not fit.
    """
    if options.threads is not None:
        config.threads = options.threads
    module: Any = load_model(file, mode=options.activation_mode, page_size=options.kv_cache_page_size)
    return module  # type: ignore[no-any-return]


def create_core(module: LanguageModel, options: Options, end_ids: frozenset[int], note: Progress) -> EngineCore:
    """An engine for a module, compiled and warmed.

    Raises: ConfigError for a length that the model's context or the memory cannot hold.
    """
    max_length = _checked_length(module, options)
    note("compiling", 0, 0)
    pages = num_pages_for(module.cache_params, options.max_batch_size, max_length, memory_bytes())
    runner = ModelRunner(module, pages, lambda done, total: note("compiling", done, total))
    runner.warm_up()
    return EngineCore(
        runner,
        page_size=options.kv_cache_page_size,
        max_length=max_length,
        end_ids=end_ids,
        max_batch_size=options.max_batch_size,
        max_rows=options.max_batch_input_tokens,
        seed=options.seed,
    )


def _checked_length(module: LanguageModel, options: Options) -> int:
    length = options.max_length or module.context_length
    if length > module.context_length:
        raise ConfigError(f"max_length: {length} is over the model's context of {module.context_length} tokens.")
    return length
