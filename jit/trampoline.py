"""Python callables emitted as LLVM IR: how Python starts native code in a tenth of a microsecond. Knows no kernel.

A callable is `ptr f(ptr self, ptr arguments, i64 count)`, CPython's METH_FASTCALL. `self` is a Python int with the
pool's address. Each further argument is a Python int and becomes one 8-byte slot of a block on the stack.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

MAX_SLOTS = 512
_METH_FASTCALL = 0x0080

_API = (
    *("PyLong_AsLongLong", "PyLong_AsVoidPtr", "PyLong_FromLong", "PyErr_Occurred", "PyErr_SetString"),
    *("PyEval_SaveThread", "PyEval_RestoreThread", "Py_IncRef"),
)

_DECLARATIONS = """
declare i64 @PyLong_AsLongLong(ptr)
declare ptr @PyLong_AsVoidPtr(ptr)
declare ptr @PyLong_FromLong(i64)
declare ptr @PyErr_Occurred()
declare void @PyErr_SetString(ptr, ptr)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare void @Py_IncRef(ptr)
@_Py_NoneStruct = external global i64
@PyExc_TypeError = external global ptr
"""

# Fills values[0..count) from Python ints; false when an exception is set.
_READ_INTS = """
define internal i1 @read_ints(ptr %items, ptr %values, i64 %count) nounwind {
entry:
  br label %head
head:
  %i = phi i64 [0, %entry], [%next, %kept]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %body, label %done
body:
  %item_at = getelementptr ptr, ptr %items, i64 %i
  %item = load ptr, ptr %item_at, align 8
  %value = call i64 @PyLong_AsLongLong(ptr %item)
  %suspect = icmp eq i64 %value, -1
  br i1 %suspect, label %check, label %kept
check:
  %error = call ptr @PyErr_Occurred()
  %failed = icmp ne ptr %error, null
  br i1 %failed, label %fail, label %kept
kept:
  %value_at = getelementptr i64, ptr %values, i64 %i
  store i64 %value, ptr %value_at, align 8
  %next = add i64 %i, 1
  br label %head
done:
  ret i1 true
fail:
  ret i1 false
}
"""

# FEWEST leading ints before the slots; TAIL does the work with %values and ends in a ret.
_CALLABLE = """
@NAME.message = internal constant [LENGTH x i8] c"MESSAGE\\00"
define ptr @NAME(ptr %self, ptr %items, i64 %count) nounwind {
entry:
  %values = alloca [ROOM x i64], align 64
  %enough = icmp sge i64 %count, FEWEST
  %fits = icmp sle i64 %count, ROOM
  %good = and i1 %enough, %fits
  br i1 %good, label %read, label %refuse
refuse:
  %kind = load ptr, ptr @PyExc_TypeError, align 8
  call void @PyErr_SetString(ptr %kind, ptr @NAME.message)
  ret ptr null
read:
  %ok = call i1 @read_ints(ptr %items, ptr %values, i64 %count)
  br i1 %ok, label %start, label %stop
stop:
  ret ptr null
start:
TAIL
}
"""

_LAUNCH = """
  %kernel = load ptr, ptr %values, align 64
  %lo_at = getelementptr i64, ptr %values, i64 1
  %lo = load i64, ptr %lo_at, align 8
  %hi_at = getelementptr i64, ptr %values, i64 2
  %hi = load i64, ptr %hi_at, align 8
  %grain_at = getelementptr i64, ptr %values, i64 3
  %grain = load i64, ptr %grain_at, align 8
  %block = getelementptr i64, ptr %values, i64 4
  %units = sub i64 %hi, %lo
  %shared = icmp sgt i64 %units, %grain
  br i1 %shared, label %parallel, label %serial
serial:
  call void %kernel(ptr %block, i64 %lo, i64 %hi)
  br label %done
parallel:
  %pool = call ptr @PyLong_AsVoidPtr(ptr %self)
  %state = call ptr @PyEval_SaveThread()
  call void @pool_run(ptr %pool, ptr %kernel, ptr %block, i64 %lo, i64 %hi, i64 %grain)
  call void @PyEval_RestoreThread(ptr %state)
  br label %done
done:
  call void @Py_IncRef(ptr @_Py_NoneStruct)
  ret ptr @_Py_NoneStruct
"""

_CALL = """
  %function = load ptr, ptr %values, align 64
  %block = getelementptr i64, ptr %values, i64 1
  %state = call ptr @PyEval_SaveThread()
  %status = call i32 %function(ptr %block)
  call void @PyEval_RestoreThread(ptr %state)
  %wide = sext i32 %status to i64
  %result = call ptr @PyLong_FromLong(i64 %wide)
  ret ptr %result
"""

_WORKER = """
  %pool = load ptr, ptr %values, align 64
  %state = call ptr @PyEval_SaveThread()
  call void @pool_work(ptr %pool)
  call void @PyEval_RestoreThread(ptr %state)
  call void @Py_IncRef(ptr @_Py_NoneStruct)
  ret ptr @_Py_NoneStruct
"""


def _callable_text(name: str, fewest: int, most: int, expected: str, tail: str) -> str:
    message = f"{name}: wrong number of arguments; expected {expected}"
    text = _CALLABLE.replace("NAME", name).replace("FEWEST", str(fewest)).replace("ROOM", str(most))
    return text.replace("LENGTH", str(len(message) + 1)).replace("MESSAGE", message).replace("TAIL", tail)


def trampolines_text() -> str:
    """IR of `launch`, `call` and `worker`; `pool_run` and `pool_work` must be defined in the same module."""
    slots = f"and at most {MAX_SLOTS} slots"
    return "\n".join(
        [
            _DECLARATIONS,
            _READ_INTS,
            _callable_text("launch", 4, 4 + MAX_SLOTS, f"kernel, lo, hi, grain {slots}", _LAUNCH),
            _callable_text("call", 1, 1 + MAX_SLOTS, f"function {slots}", _CALL),
            _callable_text("worker", 1, 1, "pool", _WORKER),
        ]
    )


def python_imports() -> dict[str, int]:
    """Addresses of the parts of CPython's C API that the trampolines declare."""
    imports = {name: _address(getattr(ctypes.pythonapi, name)) for name in _API}
    imports["_Py_NoneStruct"] = id(None)
    imports["PyExc_TypeError"] = ctypes.addressof(ctypes.c_void_p.in_dll(ctypes.pythonapi, "PyExc_TypeError"))
    return imports


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


class _MethodDef(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("method", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]


_kept: list[_MethodDef] = []  # CPython keeps pointers into these


def python_callable(address: int, name: str, self_value: Any) -> Callable[..., Any]:
    """A builtin function that calls `address`. The code must stay loaded for good."""
    definition = _MethodDef(name.encode(), address, _METH_FASTCALL, None)
    _kept.append(definition)
    create = ctypes.pythonapi.PyCFunction_NewEx
    create.restype = ctypes.py_object
    create.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
    made: Callable[..., Any] = create(ctypes.addressof(definition), self_value, None)
    return made
