"""Every knob is read from its variable; unknown names and impossible values fail by name."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from plait.framework.config import KNOBS, Config, config, override, read_environment
from plait.framework.errors import ConfigError


def test_every_knob_has_a_field_with_its_default() -> None:
    assert {name.lower() for name in KNOBS} == set(vars(Config()))
    for knob in KNOBS.values():
        assert getattr(Config(), knob.name.lower()) == knob.default


def test_values_are_read_and_other_variables_ignored() -> None:
    found = read_environment({"PLAIT_DEBUG": "2", "PLAIT_JIT": "0", "PLAIT_SEED": "7", "HOME": "/", "XPLAIT_JIT": "5"})
    assert (found.debug, found.jit, found.seed, found.check) == (2, 0, 7, 0)


@pytest.mark.parametrize(
    ("variable", "stepwise", "lines"),
    [("NAN", True, True), ("POISON", True, False), ("SYNC", True, False), ("TRACEBACKS", False, True)],
)
def test_watching_knobs_set_the_flags_that_hot_paths_test(variable: str, stepwise: bool, lines: bool) -> None:
    found = read_environment({f"PLAIT_{variable}": "1"})
    assert (found.stepwise, found.lines, found.measured) == (stepwise, lines, False)
    with override(**{variable.lower(): 1}):
        assert (config.stepwise, config.lines) == (stepwise, lines)
    assert (config.stepwise, config.lines) == (False, False)


def test_a_watching_knob_of_the_environment_reaches_the_first_record() -> None:
    environ = os.environ | {"PLAIT_NAN": "1", "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    code = "import plait as pl\nx = pl.zeros((2,))\ny = x / x\ny.realize()"
    run = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60)
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1].endswith("at <string>:3.") and "NaNError: nan: div[2]" in run.stderr


def test_override_reaches_knobs_only() -> None:
    with pytest.raises(ConfigError, match="'stepwise' is not a knob"), override(stepwise=True):
        pass


@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [("PLAIT_DEBGU", "PLAIT_DEBUG"), ("PLAIT_THREAD", "PLAIT_THREADS"), ("PLAIT_JITT", "PLAIT_JIT")],
)
def test_an_unknown_variable_names_the_nearest(wrong: str, nearest: str) -> None:
    with pytest.raises(ConfigError, match=f"{wrong} .*{nearest}"):
        read_environment({wrong: "1"})


def test_a_variable_like_no_other_lists_the_known() -> None:
    with pytest.raises(ConfigError, match="PLAIT_JIT.*PLAIT_MODELS"):
        read_environment({"PLAIT_ZZZZZZZZZZZZ": "1"})


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("PLAIT_DEBUG", "7"),
        ("PLAIT_DEBUG", "-1"),
        ("PLAIT_JIT", "yes"),
        ("PLAIT_JIT", ""),
        ("PLAIT_THREADS", "0"),
        ("PLAIT_SEED", "1.5"),
        ("PLAIT_SEED", "-1"),
        ("PLAIT_CHECK", "3"),
    ],
)
def test_an_impossible_value_names_variable_value_and_range(variable: str, text: str) -> None:
    values = KNOBS[variable.removeprefix("PLAIT_")].values
    with pytest.raises(ConfigError) as caught:
        read_environment({variable: text})
    assert variable in str(caught.value) and repr(text) in str(caught.value) and values in str(caught.value)


def test_override_restores_even_after_an_error() -> None:
    before = config.debug
    with pytest.raises(RuntimeError), override(debug=3):
        assert config.debug == 3
        raise RuntimeError
    assert config.debug == before


def test_override_refuses_an_unknown_knob() -> None:
    with pytest.raises(ConfigError, match="'speed'.*debug"), override(speed=1):
        pass


def test_importing_plait_with_an_unknown_variable_fails() -> None:
    environ = os.environ | {"PLAIT_DEBGU": "1", "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    run = subprocess.run(
        [sys.executable, "-c", "import plait"], env=environ, capture_output=True, text=True, timeout=60
    )
    assert run.returncode != 0
    assert "did you mean PLAIT_DEBUG?" in run.stderr
