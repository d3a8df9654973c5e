"""The small operations between the products, compiled: each over a few rows, arrays in, caller-owned `out`.

Sums and exponentials run in float32. What makes these loops fast: rows are sliced before they are looped over (LLVM
can't vectorise through Numba's wraparound indexing), and the exponential is a polynomial, which vectorises.
"""

from __future__ import annotations

import numpy as np
from numba import types

from . import simd
from .jit import jit
from .memory import float_bits

SILU, GELU, GELU_TANH, RELU, RELU2 = range(5)

f32 = types.float32


@jit
def exp(x):
    """e^x in float32, to about 1e-7 of the value; e^-87.3, which is 1e-38, below that, and e^88 above 88.

    x = n ln 2 + r, and e^r by a polynomial (Cephes, expf).
    """
    given, x = x, min(max(x, f32(-87.3)), f32(88.0))
    n = np.floor(x * f32(1.44269504088896341) + f32(0.5))
    r = x - n * f32(0.693359375) + n * f32(2.12194440e-4)
    y = f32(1.9875691500e-4)
    y = y * r + f32(1.3981999507e-3)
    y = y * r + f32(8.3334519073e-3)
    y = y * r + f32(4.1665795894e-2)
    y = y * r + f32(1.6666665459e-1)
    y = y * r + f32(5.0000001201e-1)
    y = y * r * r + r + f32(1)
    power = y * float_bits(types.int32((types.int32(n) + types.int32(127)) << types.int32(23)))
    return power if given == given else given  # a NaN stays one


@jit
def rms_norm(x, weight, eps, out):
    """x float32 [n] scaled to length sqrt(n), times weight [n] -> out [n]; out may be x."""
    total = f32(0)
    for i in range(x.size):
        total += x[i] * x[i]
    scale = f32(1) / np.sqrt(total / f32(x.size) + eps)
    for i in range(x.size):
        out[i] = x[i] * scale * weight[i]


@jit
def layer_norm(x, weight, bias, eps, out):
    """x float32 [n] less its mean, as `rms_norm`, plus bias [n], or of size 0 where there is none; out may be x."""
    mean = f32(0)
    for i in range(x.size):
        mean += x[i]
    mean /= f32(x.size)
    for i in range(x.size):
        out[i] = x[i] - mean
    rms_norm(out, weight, eps, out)
    if bias.size:
        add(out, bias)


@jit
def clip(x, limit):
    """x within -limit and limit, float32 [n]."""
    for i in range(x.size):
        x[i] = min(max(x[i], -limit), limit)


@jit
def copy(x, out):
    """out = x, float32 [n]. An assignment of slices does the same, and takes a second to compile."""
    for i in range(x.size):
        out[i] = x[i]


@jit
def fill(x, value):
    """x = value everywhere, [n]."""
    for i in range(x.size):
        x[i] = value


@jit
def add(x, y):
    """x += y, float32 [n]."""
    for i in range(x.size):
        x[i] += y[i]


@jit
def rotate(head, cos, sin):
    """Turn the first dimensions of a head, float32 [D], by their angles: cos and sin float32 [R / 2]."""
    half = cos.size
    a, b = head[:half], head[half : 2 * half]
    for i in range(half):
        turned = a[i] * cos[i] - b[i] * sin[i]
        b[i] = b[i] * cos[i] + a[i] * sin[i]
        a[i] = turned


@jit
def gated(gate, up, kind, out):
    """activation(gate) * up, float32 [n] each; `kind` is SILU, GELU, GELU_TANH, RELU or RELU2. out may be up."""
    if kind == SILU:
        whole = gate.size // 8 * 8
        for i in range(0, whole, 8):
            x = simd.load_floats(gate, i)
            below = simd.add(simd.spread(f32(1)), simd.exponential(simd.subtract(simd.no_floats(0), x)))
            simd.store_floats(out, i, simd.multiply(simd.quotient(x, below), simd.load_floats(up, i)))
        for i in range(whole, gate.size):
            out[i] = gate[i] / (f32(1) + exp(-gate[i])) * up[i]
    elif kind == GELU_TANH:
        for i in range(gate.size):
            x = gate[i]
            inner = f32(0.7978845608) * (x + f32(0.044715) * x * x * x)
            # tanh(z) = 1 - 2 / (e^2z + 1), so half of 1 + tanh(z) is 1 - 1 / (e^2z + 1)
            out[i] = x * (f32(1) - f32(1) / (exp(f32(2) * inner) + f32(1))) * up[i]
    elif kind == RELU:
        for i in range(gate.size):
            out[i] = max(gate[i], f32(0)) * up[i]
    elif kind == RELU2:
        for i in range(gate.size):
            above = max(gate[i], f32(0))
            out[i] = above * above * up[i]
    else:
        for i in range(gate.size):
            out[i] = f32(0.5) * gate[i] * (f32(1) + erf(gate[i] * f32(0.70710678))) * up[i]


@jit
def clamped(gate, up, limit, slope, out):
    """min(gate, limit) * sigmoid(slope * gate) * (1 + up within +- limit), float32 [n] each."""
    for i in range(gate.size):
        x = min(gate[i], limit)
        out[i] = x / (f32(1) + exp(-slope * x)) * (f32(1) + min(max(up[i], -limit), limit))


@jit
def erf(x):
    """The error function in float32, to 5e-7 (Abramowitz and Stegun 7.1.26 has 1.5e-7; the rest is rounding)."""
    a = abs(x)
    t = f32(1) / (f32(1) + f32(0.3275911) * a)
    y = t * (
        f32(0.254829592)
        + t * (f32(-0.284496736) + t * (f32(1.421413741) + t * (f32(-1.453152027) + t * f32(1.061405429))))
    )
    value = f32(1) - y * exp(-a * a)
    return value if x >= 0 else -value
