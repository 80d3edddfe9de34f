# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Tensors
# Arrays as NumPy users know them, computed by fused machine code. Run this file as a script or open it as a notebook.

# %%
from __future__ import annotations

import numpy as np

import plait as pl

# %% [markdown]
# ## Making tensors
# The default dtypes are float32 and int64. `from_numpy` shares memory with the array it is given.

# %%
zeros = pl.zeros((2, 3))
steps = pl.arange(6)
assert zeros.shape == (2, 3) and zeros.dtype == pl.float32
assert steps.dtype == pl.int64

array = np.linspace(-1.0, 1.0, 12, dtype=np.float32).reshape(3, 4)
x = pl.from_numpy(array)
array[0, 0] = 5.0
assert x[0, 0].item() == 5.0
print(x)

# %% [markdown]
# ## Arithmetic, broadcasting, dtypes
# Shapes align from the right. A Python number takes the tensor's dtype; two integers divide to a float.

# %%
scaled = x * 2 + pl.from_numpy(np.arange(4, dtype=np.float32))
assert scaled.shape == (3, 4)
np.testing.assert_array_equal(scaled.numpy(), array * 2 + np.arange(4, dtype=np.float32))
assert (x.astype(pl.float16) * 0.5).dtype == pl.float16
assert (steps / 2).dtype == pl.float32

# %% [markdown]
# A mistake is reported where it was made, with both shapes.

# %%
try:
    x + pl.ones((3,))
except ValueError as error:
    print(error)
    assert "(3, 4)" in str(error) and "(3,)" in str(error)
else:
    raise AssertionError("shapes (3, 4) and (3,) must not add")

# %% [markdown]
# ## Nothing is computed until someone looks
# An expression is recorded. Printing, `numpy()`, `item()`, `realize()` and the like compute what is missing, in one
# kernel here. The values are the same whether or not anything was compiled before.

# %%
y = pl.gelu(x * 2 + 1, approximate="tanh") * pl.sigmoid(x)
z = array * 2 + 1
gelu = 0.5 * z * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3)))
np.testing.assert_allclose(y.numpy(), gelu / (1 + np.exp(-array)), rtol=1e-5, atol=1e-6)

# %% [markdown]
# ## Views and writes
# Basic indexing gives a view, as in NumPy: a write through one is seen through all. A value that was read before the
# write keeps what it was.

# %%
table = pl.zeros((3, 4))
row = table[1]
doubled_before = table * 2
row[:] = 7.0
table[:, 0] = -1.0
assert table.numpy().tolist() == [[-1, 0, 0, 0], [-1, 7, 7, 7], [-1, 0, 0, 0]]
assert row.numpy().tolist() == [-1, 7, 7, 7]
assert doubled_before.numpy().tolist() == [[0] * 4] * 3

# %% [markdown]
# Integer arrays and boolean masks pick elements.

# %%
assert pl.arange(10)[pl.from_numpy(np.array([7, 1, 1]))].numpy().tolist() == [7, 1, 1]
assert steps[steps > 3].numpy().tolist() == [4, 5]

# %% [markdown]
# ## Reductions and products
# `axis` and `keepdims` as in NumPy.

# %%
np.testing.assert_allclose(x.sum(axis=0).numpy(), array.sum(axis=0), rtol=1e-6)
np.testing.assert_allclose(
    x.mean(axis=1, keepdims=True).numpy(), array.mean(axis=1, keepdims=True), rtol=1e-5, atol=1e-7
)
assert x.argmax().item() == array.argmax()
np.testing.assert_allclose((x @ x.T).numpy(), array @ array.T, rtol=1e-5, atol=1e-6)
probabilities = pl.softmax(x, axis=-1)
np.testing.assert_allclose(probabilities.sum(axis=-1).numpy(), np.ones(3), rtol=1e-6)

# %% [markdown]
# ## Back to NumPy
# `numpy()` and `np.asarray` share memory with the tensor, so every library that takes arrays takes tensors.

# %%
shared = pl.zeros((4,))
np.asarray(shared)[2] = 9.0
assert shared.numpy().tolist() == [0, 0, 9, 0]
print("done")
