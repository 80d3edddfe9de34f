"""Every PLAIT_* knob: name, type, default and help in one table. An unknown PLAIT_* variable is an error."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

from plait.framework.errors import ConfigError


def _int_in(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise ValueError(f"an integer from {low} to {high}")
        return value

    return parse


@dataclass(frozen=True)
class Knob:
    """One environment knob: how its text is read and what it does."""

    name: str
    parse: Callable[[str], Any]
    default: Any
    values: str
    help: str


KNOBS = {
    knob.name: knob
    for knob in (
        Knob(
            "DEBUG",
            _int_in(0, 6),
            0,
            "0..6",
            "to stderr: 1 compiles, 2 also a line per kernel, 3 fusion, 4 graphs, 5 LLVM IR, 6 asm of what is compiled",
        ),
        Knob("JIT", _int_in(0, 1), 1, "0 or 1", "0 runs every graph in the NumPy interpreter"),
        Knob(
            "CHECK",
            _int_in(0, 1),
            0,
            "0 or 1",
            "1 verifies records and graphs between compiler passes",
        ),
        Knob("NAN", _int_in(0, 1), 0, "0 or 1", "1 runs record by record in NumPy up to the first that makes a NaN"),
        Knob("POISON", _int_in(0, 1), 0, "0 or 1", "1 fills fresh memory with NaNs and refuses results that show them"),
        Knob("SYNC", _int_in(0, 1), 0, "0 or 1", "1 enters native code once per launch of a compiled graph"),
        Knob("TRACEBACKS", _int_in(0, 1), 0, "0 or 1", "1 keeps the user's line of each record for errors and graphs"),
        Knob("COMPILE", _int_in(0, 1), 1, "0 or 1", "0 forbids compiling: a cache miss is an error"),
        Knob("CACHE", str, "", "folder or 0", "where compiled kernels and repacked weights are kept; 0 keeps none"),
        Knob("THREADS", _int_in(1, 1024), 0, "1..1024", "CPU threads; default: the cores this process may use"),
        Knob("SEED", _int_in(0, 2**63 - 1), None, "integer", "seed of the default random generator"),
        Knob("MODELS", str, "", "folder", "where local models are looked up first"),
    )
}


class _Derived:
    """What several knobs mean together, kept as flags so that the hot paths test one.

    measured  a profiler is listening
    stepwise  launches run one by one through Python
    lines     new records keep the user's line
    """

    __slots__ = ("measured", "stepwise", "lines")
    measured: bool
    stepwise: bool
    lines: bool

    def __new__(cls, *_: Any, **__: Any) -> Self:
        self = super().__new__(cls)
        object.__setattr__(self, "measured", False)
        return self


@dataclass
class Config(_Derived):
    """The current value of every knob, in lower case."""

    debug: int = 0
    jit: int = 1
    check: int = 0
    nan: int = 0
    poison: int = 0
    sync: int = 0
    tracebacks: int = 0
    compile: int = 1
    cache: str = ""
    threads: int = 0
    seed: int | None = None
    models: str = ""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name not in ("stepwise", "lines"):
            self.stepwise = self.debug > 1 or bool(self.nan or self.poison or self.sync or self.measured)
            self.lines = bool(self.nan or self.tracebacks)


def read_environment(environ: Mapping[str, str]) -> Config:
    """Read every PLAIT_* variable.

    Raises: ConfigError for an unknown name (with the nearest known one) or a value the knob cannot take.
    """
    config = Config()
    for variable, text in environ.items():
        if not variable.startswith("PLAIT_"):
            continue
        knob = KNOBS.get(variable.removeprefix("PLAIT_"))
        if knob is None:
            near = difflib.get_close_matches(variable, [f"PLAIT_{name}" for name in KNOBS], n=1)
            hint = (
                f"did you mean {near[0]}?" if near else "known: " + ", ".join(f"PLAIT_{name}" for name in KNOBS) + "."
            )
            raise ConfigError(f"environment: {variable} is not a plait setting; {hint}")
        setattr(config, knob.name.lower(), _parse(knob, variable, text))
    return config


def _parse(knob: Knob, variable: str, text: str) -> Any:
    try:
        return knob.parse(text)
    except ValueError:
        raise ConfigError(
            f"environment: {variable}={text!r} is not valid; expected {knob.values} ({knob.help})."
        ) from None


config = Config()


@contextmanager
def override(**values: Any) -> Iterator[Config]:
    """Change knobs for the length of a block: `with override(debug=2): ...`."""
    unknown = [name for name in values if name not in vars(config)]
    if unknown:
        raise ConfigError(f"config: {unknown[0]!r} is not a knob; known: {', '.join(vars(config))}.")
    before = {name: getattr(config, name) for name in values}
    _assign(values)
    try:
        yield config
    finally:
        _assign(before)


def _assign(values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        setattr(config, name, value)


def load_environment() -> None:
    """Set the process-wide config from the environment; called once by `plait/__init__`."""
    _assign(vars(read_environment(os.environ)))
