"""Several kernels over the same rows as one: each thread runs them one after the other on its own rows."""

from __future__ import annotations

import re

from plait.jit.kernel import Kernel, Launch
from plait.jit.target import Target

_DECLARE = re.compile(r"^declare .*$", re.MULTILINE)


def chain(first: Launch, second: Launch) -> Launch:
    """One launch that does what both do. Its argument block is the first's followed by the second's."""
    parts = (*_parts(first), (second.kernel, _slots(second)))
    kernel = Kernel(
        name=f"{first.kernel.name}+{second.kernel.name}",
        key=("chain", *((part.key, slots) for part, slots in parts)),
        emit=lambda target, symbol: _emit(parts, target, symbol),
    )
    merged = Launch(
        kernel=kernel,
        operands=[*first.operands, *second.operands],
        results=[*first.results, *second.results],
        ints=[*first.ints, *second.ints],
        scalars=[*first.scalars, *second.scalars],
        extent=first.extent,
        grain=max(1, min(first.grain, second.grain) // 2),
        unit="row",
        work_bytes=first.work_bytes + second.work_bytes,
        work_flops=first.work_flops + second.work_flops,
    )
    merged.parts = [*(first.parts or [first]), second]
    return merged


def _parts(launch: Launch) -> tuple[tuple[Kernel, int], ...]:
    return tuple((part.kernel, _slots(part)) for part in (launch.parts or [launch]))


def _slots(launch: Launch) -> int:
    return len(launch.operands) + len(launch.ints) + len(launch.scalars)


def _emit(parts: tuple[tuple[Kernel, int], ...], target: Target, symbol: str) -> str:
    texts = [kernel.emit(target, f"{symbol}_{i}") for i, (kernel, _) in enumerate(parts)]
    declares = sorted({line for text in texts for line in _DECLARE.findall(text)})
    bodies = [_DECLARE.sub("", text) for text in texts]
    lines = [f"define void @{symbol}(ptr %args, i64 %lo, i64 %hi) nounwind {{"]
    start = 0
    for i, (_, slots) in enumerate(parts):
        lines.append(f"  %a{i} = getelementptr i64, ptr %args, i64 {start}")
        lines.append(f"  call void @{symbol}_{i}(ptr %a{i}, i64 %lo, i64 %hi)")
        start += slots
    return "\n".join([*declares, *bodies, *lines, "  ret void", "}", ""])
