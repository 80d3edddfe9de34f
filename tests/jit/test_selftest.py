"""The self-test goes through every skeleton, passes here, and sees kernels that are wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from plait.framework.config import override
from plait.jit.kernels.table import LOWERINGS
from plait.jit.lower import _KINDS
from plait.jit.selftest import attempt, cases, selftest

CASES = {case.name: case for case in cases()}


def test_every_kind_of_group_and_every_lowering_has_a_case() -> None:
    covered = {name for case in CASES.values() for name in case.covers}
    assert covered == (set(_KINDS) | set(LOWERINGS)) - {"single"}


@pytest.mark.parametrize("name", CASES)
def test_a_case_goes_through_what_it_covers_and_passes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with override(debug=3):
        outcome = attempt(CASES[name])
    assert outcome.problem == "" and outcome.compile_ms > 0
    shown = capsys.readouterr().err
    for covered in CASES[name].covers:
        by_itself = any(kernel.startswith(covered) for kernel in outcome.kernels)
        assert f"is one {covered} kernel" in shown or (covered in LOWERINGS and by_itself)


def test_wrong_numbers_are_told_with_the_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    from plait.framework import interpreter

    inner = interpreter.compute

    def off_by_one(*arguments: Any) -> Any:
        value = inner(*arguments)
        return value + value.dtype.type(1) if np.issubdtype(value.dtype, np.floating) else value

    monkeypatch.setattr("plait.jit.host_calls.compute", off_by_one)
    assert attempt(CASES["rope"]).problem == "differs from NumPy by 1"


def test_a_kernel_that_does_not_compile_is_a_failure_and_the_rest_goes_on() -> None:
    with override(compile=0):
        outcomes = list(selftest())
    assert len(outcomes) == len(CASES)
    assert all("PLAIT_COMPILE=0 forbids" in outcome.problem for outcome in outcomes)
