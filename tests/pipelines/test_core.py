"""Building an engine without a tokenizer: the same end ids, the same tokens, the same errors as LLM."""

from __future__ import annotations

from pathlib import Path

import pytest

from plait.framework.errors import ConfigError, FormatError
from plait.pipelines.builtin import open_model
from plait.pipelines.core import Options, build_core
from plait.pipelines.engine import Request
from plait.pipelines.llm import LLM
from plait.pipelines.sampling import SamplingParams
from plait.pipelines.tokenizer import Tokenizer, end_ids_of


def test_the_end_ids_are_the_tokenizers(smollm2_path: Path) -> None:
    for name in ("echo", smollm2_path):
        metadata = open_model(name).metadata
        assert end_ids_of(metadata) == Tokenizer.from_gguf(metadata).eog_ids != frozenset()


def test_an_end_id_outside_the_vocabulary_is_a_format_error() -> None:
    metadata = open_model("echo").metadata
    with pytest.raises(FormatError, match=r"eos_token_id.*5000"):
        end_ids_of(metadata | {"tokenizer.ggml.eos_token_id": 5000})


def test_a_core_answers_as_llm_does_and_tells_its_progress() -> None:
    stages: list[tuple[str, int, int]] = []
    core = build_core("echo", Options(max_length=64), lambda *stage: stages.append(stage))
    core.add(Request("one", [ord("3")], SamplingParams(temperature=0)))
    tokens = [event.token for _ in range(4) for event in core.step()]
    (answer,) = LLM("echo", max_length=64).generate([[ord("3")]], SamplingParams(temperature=0))
    assert tokens == answer.token_ids and not core.has_work
    assert stages[:2] == [("loading", 0, 0), ("compiling", 0, 0)]
    assert stages[-1][1] == stages[-1][2] > 0


def test_a_length_over_the_models_context_is_refused() -> None:
    with pytest.raises(ConfigError, match="over the model's context"):
        build_core("echo", Options(max_length=1 << 20), lambda *stage: None)
