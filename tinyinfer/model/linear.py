"""A linear map over weights as they are stored: the only thing the model calls, whatever the weights' form."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..checkpoint.safetensors import to_float32
from ..kernels.matmul import matmul


class Linear:
    """y = x W^T + b, where W may be several matrices that read the same x: their results stand side by side.

    weights  [out_i, in] each, float32, float16 or bfloat16 records, kept as they are
    biases   [out_i] each, or None where there is none
    """

    def __init__(self, weights: Sequence[np.ndarray], biases: Sequence[np.ndarray | None] = ()):
        self.weights = [np.ascontiguousarray(weight) for weight in weights]
        given = [bias for bias in biases if bias is not None]
        if len(given) not in (0, len(self.weights)):
            raise ValueError("either every weight has a bias or none has")
        self.bias = np.concatenate([to_float32(bias) for bias in given]) if given else None

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Float32 [n, in] -> float32 [n, sum of out_i]."""
        y = matmul(x, self.weights)
        if self.bias is not None:
            y += self.bias
        return y
