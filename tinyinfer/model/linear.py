"""A linear map over weights as they are stored: the only thing the model calls, whatever the weights' form."""

from __future__ import annotations

import numpy as np

from ..checkpoint.safetensors import to_float32
from ..kernels.matmul import matmul


class Linear:
    """y = x W^T + b. The weight is [out, in], float32, float16 or bfloat16 records, and stays as it is."""

    def __init__(self, weight: np.ndarray, bias: np.ndarray | None = None):
        self.weight = weight
        self.bias = None if bias is None else to_float32(bias)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Float32 [n, in] -> float32 [n, out]."""
        y = matmul(x, self.weight)
        if self.bias is not None:
            y += self.bias
        return y
