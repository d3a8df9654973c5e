"""What one step of attention costs, when all queries are computed anew and when only the new one is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...kernels.plain import attend
from ...reference import attention
from ..timing import in_turn, seconds
from .finding import Drawing, Finding, Table
from .setting import Setting
from .shapes import shape

DIM = 64
LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096)
ONE_HEAD = shape(1, 1, 1, DIM, DIM, DIM, 1)
FLOAT = 4  # bytes
COURSE = {4096: (67e6, 16 * 1024)}  # bytes of scores, recomputed and cached


def measure(setting: Setting) -> Finding:
    """One head of 64, texts of 64 to 4,096 tokens; the same last vector both ways."""
    rows, drawn = [], {"recomputed": [], "cached": []}
    for n in LENGTHS:
        setting.say(f"{n:,} tokens")
        anew, cached = (way(n) for way in (recomputed_step, cached_step))
        apart = float(np.abs(anew() - cached()).max())
        slow, fast = in_turn([lambda: seconds(anew), lambda: seconds(cached)], 9 if setting.full else 3)  # noqa: B023
        full, row = n * n * FLOAT, n * FLOAT
        rows.append((n, 1000 * slow.median, 1000 * fast.median, full, row, *COURSE.get(n, (None, None)), apart))
        drawn["recomputed"].append((n, 1000 * slow.median))
        drawn["cached"].append((n, 1000 * fast.median))
    columns = (
        "tokens", "recomputed, ms", "cached, ms", "bytes of scores, recomputed", "cached", "course", "course, cached",
        "largest difference",
    )  # fmt: skip
    return Finding(
        [Table(f"one step of one head, d = {DIM}, float32", columns, rows)],
        _says(*rows[-2:]),
        [Drawing("A cached step is one row of the square", "tokens", "milliseconds", drawn, log_x=True, log_y=True)],
    )


def _says(shorter: tuple, longer: tuple) -> str:
    """Of the two longest texts, the second twice as long as the first."""
    slow, fast = longer[1] / shorter[1], longer[2] / shorter[2]
    hidden = "" if fast > 1.7 else ", as NumPy's calls take most of so short a time"
    return (
        f"A step needs the last row of the square of scores alone: what it gives that way differs by {longer[-1]:.0e} "
        "at most. Twice the tokens are four times the scores when all queries are computed anew, and twice when only "
        f"the new one is, to the byte as in the course. From {shorter[0]:,} to {longer[0]:,} tokens the first takes "
        f"{slow:.2g} times as long, and the second {fast:.2g} times{hidden}."
    )


def recomputed_step(n: int) -> Callable[[], np.ndarray]:
    """What the last of n tokens sees, float32 [DIM], as the last row of everybody's attention."""
    query, key, value = _head(n)
    return lambda: attention(ONE_HEAD, ONE_HEAD.layers[0], {}, query, key, value)[-1, 0]


def cached_step(n: int) -> Callable[[], np.ndarray]:
    """The same from its own query alone, and the keys and values that were kept."""
    query, key, value = _head(n)
    return lambda: attend(query[-1:], key, value, ONE_HEAD.attention_scale)[0, 0]


def _head(n: int) -> np.ndarray:
    """Queries, keys and values, float32 [3, n, 1, DIM]."""
    return np.random.default_rng(n).standard_normal((3, n, 1, DIM), np.float32)
