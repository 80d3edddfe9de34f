"""From checkpoint and text to tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plait.pipelines.llm import LLM, Completion
    from plait.pipelines.sampling import SamplingParams

__all__ = ["LLM", "Completion", "SamplingParams"]

_HOMES = {
    "LLM": "plait.pipelines.llm",
    "Completion": "plait.pipelines.llm",
    "SamplingParams": "plait.pipelines.sampling",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that reading a file does not load the compiler."""
    if name not in _HOMES:
        raise AttributeError(f"module 'plait.pipelines' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
