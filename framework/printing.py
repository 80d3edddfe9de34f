"""How tensors print: NumPy's layout, plus dtype and device, from one host copy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from plait.framework.graph import SYMBOLIC

if TYPE_CHECKING:
    from plait.framework.tensor import Tensor


def text(tensor: Tensor, name: str) -> str:
    """The printed form; a tensor that is being traced prints its type."""
    kind = f"dtype={tensor.dtype.name}"
    if tensor.node().depth >= SYMBOLIC:
        return f"Tensor(<traced>, shape={tensor.shape}, {kind})"
    values = tensor._host()
    if values.dtype.kind not in "biufc":
        values = values.astype(np.float32)
    prefix = f"{name}(" if name else ""
    body = np.array2string(values, separator=", " if name else " ", prefix=prefix)
    summarised = values.size > np.get_printoptions()["threshold"]
    shape = f", shape={values.shape}" if summarised or (not values.size and values.shape != (0,)) else ""
    return f"{prefix}{body}{shape}, {kind}, device={tensor.device})" if name else body
