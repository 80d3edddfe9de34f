"""Records that one kernel computes: what the fuser hands to the lowerings."""

from __future__ import annotations

from dataclasses import dataclass, field

from plait.framework.graph import Node
from plait.framework.op import Shape


@dataclass(eq=False)
class Group:
    """Records that one kernel computes. `outputs` are those whose values are kept.

    kind   map, row, column, product, or single for a record with a lowering of its own
    space  the shape the kernel iterates over; axes that it reduces included
    """

    kind: str
    space: Shape
    nodes: list[Node]
    outputs: list[Node]
    reduced: tuple[int, ...] = ()
    quantized: Node | None = None
    seq: int = 0
    refusals: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return "_".join(node.op.name for node in sorted(self.nodes, key=lambda node: node.seq))
