"""The one door to the elementwise and reduction skeletons. Knows which skeleton serves which kind of group."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from plait.framework.graph import Node
from plait.jit.kernel import Decline, Launch
from plait.jit.kernels.column import lower_column
from plait.jit.kernels.map import lower_map
from plait.jit.kernels.row import lower_row

Lowering = Callable[[Sequence[Node], Sequence[Node]], Launch]
SKELETONS: dict[str, Lowering] = {"map": lower_map, "row": lower_row, "column": lower_column}


def lower_group(kind: str, outputs: Sequence[Node], inside: Sequence[Node]) -> Launch:
    """One launch for a group: `outputs` are kept, `inside` (outputs included) are computed on the way.

    Raises: Decline, before any effect, for what the skeletons have no code for.
    """
    if kind not in SKELETONS:
        raise Decline(f"kind_{kind}")
    return SKELETONS[kind](outputs, inside)
