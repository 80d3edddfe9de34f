"""Runs a compiled model on a batch: slices to input arrays, one call, logits. Knows arrays, not requests or text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from plait.framework.conversion import from_numpy
from plait.framework.tensor import Tensor
from plait.pipelines.kv_cache import create_cache, page_table
from plait.pipelines.registry import LanguageModel
from plait.pipelines.sampling import SamplingParams
from plait.pipelines.scheduler import Batch, Sequence, Slice

Array = np.ndarray[Any, Any]


class ModelRunner:
    """A model, compiled for any step, with its cache of `num_pages` pages."""

    def __init__(
        self, model: LanguageModel, num_pages: int, progress: Callable[[int, int], None] | None = None
    ) -> None:
        self.cache_params = model.cache_params
        self.vocab_size = model.vocab_size
        self.num_pages = num_pages
        self.model = model
        self.compiled: Callable[..., Any] = model.compile(*self.cache_params.layouts(), progress=progress)
        self.cache: Tensor = create_cache(self.cache_params, num_pages)

    def run(self, batch: Batch) -> Array:
        """The logits after each slice's last row. Shapes: -> (S, V) float32."""
        logits = self.compiled(*(from_numpy(array) for array in step_arrays(batch)), self.cache)
        return np.asarray(logits)

    def warm_up(self) -> None:
        """Run one row, so that weights are bound and memory is mapped before the first request."""
        blank = Sequence("warm-up", [0], SamplingParams(), 0, 1, 1, pages=[0])
        self.run([Slice(blank, 0, 1)])


def step_arrays(batch: Batch) -> tuple[Array, Array, Array, Array]:
    """A batch as the model takes it.

    Shapes: -> tokens (T,), row_offsets (S + 1,), lengths (S,), page_table (S, P), all int32.
    """
    tokens = np.array([token for part in batch for token in part.sequence.tokens[part.start : part.end]], np.int32)
    row_offsets = np.zeros(len(batch) + 1, np.int32)
    np.cumsum([part.end - part.start for part in batch], out=row_offsets[1:])
    lengths = np.array([part.end for part in batch], np.int32)
    return tokens, row_offsets, lengths, page_table([part.sequence.pages for part in batch])
