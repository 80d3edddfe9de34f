"""Which lowering computes which record that has a kernel of its own. Products and skeletons are asked elsewhere."""

from __future__ import annotations

from collections.abc import Callable

from plait.jit.kernel import Launch
from plait.jit.kernels.attention import lower_attention
from plait.jit.kernels.gather import lower_qtake, lower_take
from plait.jit.kernels.quantize import lower_quantize_rows
from plait.jit.kernels.ragged import lower_kv_store, lower_rope
from plait.jit.kernels.store import lower_write

# Each is called as lowering(node); paged_attention also takes quantized=, the quantize_rows record it stores instead.
LOWERINGS: dict[str, Callable[..., Launch]] = {
    "paged_attention": lower_attention,
    "quantize_rows": lower_quantize_rows,
    "rope": lower_rope,
    "kv_store": lower_kv_store,
    "take": lower_take,
    "qtake": lower_qtake,
    "write": lower_write,
}
