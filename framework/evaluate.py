"""Many tensors realised together: one schedule, so that what they share is computed once."""

from __future__ import annotations

from typing import Any

from plait.framework import tree_utils
from plait.framework.graph import Node
from plait.framework.realize import realize_nodes
from plait.framework.tensor import Tensor


def evaluate(*values: Any) -> None:
    """Compute tensors, or trees of them, in one schedule: what several share runs once.

    Raises: TypeError for a value that is no tensor and holds none.
    """
    nodes: list[Node] = []
    for number, value in enumerate(values):
        leaves, _ = tree_utils.flatten(value, leaf=Tensor)
        if not leaves and not isinstance(value, tuple | list | dict):
            raise TypeError(
                f"evaluate: argument {number} is {type(value).__name__}; a tensor or a tree of them is needed."
            )
        nodes.extend(t._root().version if t._parent is not None else t.node() for t in leaves)
    realize_nodes(nodes)
