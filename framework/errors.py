"""The exception tree. Each class derives from the built-in that NumPy users already catch.

PlaitError
 +- ShapeError (ValueError)        shapes, axes, counts that do not fit
 +- DTypeError (TypeError)         dtypes that do not fit
 +- IndexingError (IndexError)     an index outside its axis
 +- DeviceError (RuntimeError)     a device that is absent or failed
 +- NaNError (FloatingPointError)  a record that made a NaN while PLAIT_NAN is on
 +- CompileError (RuntimeError)    the JIT could not lower, compile or load
 +- FormatError (ValueError)       a file that is not what it claims: names file, field and bound
 +- LoadError (LookupError)        a model, tensor or weight that was not found
 +- ConfigError (ValueError)       a setting, flag or environment variable with an impossible value
 +- RequestError (ValueError)      a request the engine refuses; carries status, param and code
 +- EngineDied (RuntimeError)      the server's engine process ended, and is not started again
"""

from __future__ import annotations


class PlaitError(Exception):
    """Base of every error plait raises on purpose."""


class ShapeError(PlaitError, ValueError):
    """Shapes, axes or counts that do not fit."""


class DTypeError(PlaitError, TypeError):
    """Dtypes that do not fit."""


class IndexingError(PlaitError, IndexError):
    """An index outside its axis."""


class DeviceError(PlaitError, RuntimeError):
    """A device that is absent, or that failed."""


class NaNError(PlaitError, FloatingPointError):
    """A record that made a NaN of operands without one."""


class CompileError(PlaitError, RuntimeError):
    """The JIT could not lower, compile or load a kernel."""


class FormatError(PlaitError, ValueError):
    """A file or stream that is not what it claims to be."""


class LoadError(PlaitError, LookupError):
    """A model, tensor or weight that was not found."""


class ConfigError(PlaitError, ValueError):
    """A setting with an impossible value."""


class RequestError(PlaitError, ValueError):
    """A request that the engine refuses.

    `status` is the HTTP status that fits, `param` the dotted request field or None, `code` a short machine-readable
    word or None.
    """

    def __init__(self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code


class EngineDied(PlaitError, RuntimeError):
    """The engine process ended and is not started again."""
