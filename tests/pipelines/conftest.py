"""The demo model's file and its reference token ids, for tests of files, text and tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plait.pipelines.gguf import GGUFFile
from plait.pipelines.model_files import ALIASES
from plait.pipelines.tokenizer import Tokenizer

TOKENS = Path(__file__).parents[1] / "data" / "smollm2_tokens.json"


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    path = ALIASES["smollm2"].locate()
    if path is None:
        pytest.skip(f"the demo model is not installed; {ALIASES['smollm2'].install_command}")
    return path


@pytest.fixture(scope="session")
def smollm2_file(smollm2_path: Path) -> GGUFFile:
    return GGUFFile.open(smollm2_path)


@pytest.fixture(scope="session")
def smollm2_tokenizer(smollm2_file: GGUFFile) -> Tokenizer:
    return Tokenizer.from_gguf(smollm2_file.metadata)


@pytest.fixture(scope="session")
def smollm2_tokens() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(TOKENS.read_text(encoding="utf-8"))
    return loaded
