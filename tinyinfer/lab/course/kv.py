"""What the cache of keys and values takes: the formula, the bytes really held, and what they mean for users."""

from __future__ import annotations

from ...cache import KV_DTYPES, KVCache
from ...config import ModelConfig
from ...model.footprint import kv_bytes, kv_bytes_per_token
from .finding import Drawing, Finding, Table
from .setting import Setting
from .shapes import COURSE_MODEL, DEEPSEEK_V2, SEVEN_B, with_kv_heads, with_latent

MB = 2**20
TOKENS = 65_536


def measure(setting: Setting) -> Finding:
    """Formula against arrays, one budget shared out among users, and heads of keys and values."""
    return Finding(
        [_shapes(setting.config), _users(), _heads(setting.config), _growth()],
        "A token costs layers x 2 x key-value heads x head size x bytes, whoever's it is: how tokens are shared out "
        "among users changes nothing. Sharing key-value heads among query heads divides it; a latent has a size of its "
        "own, which is little beside many heads and much beside few, and this engine keeps it twice, as key and value. "
        "Blocks hold up to one block more than a text fills.",
        [_growth_drawing()],
    )


def _shapes(config: ModelConfig) -> Table:
    rows = []
    for name, shape, course in (("this model", config, None), ("the course's model", COURSE_MODEL, 12_288)):
        for dtype in KV_DTYPES:
            rows.append((
                name, dtype, kv_bytes_per_token(shape, dtype), _held_per_token(shape, dtype),
                course if dtype == "float16" else None,
            ))  # fmt: skip
    rows.append((
        "the same with 14 key-value heads", "float16", kv_bytes_per_token(with_kv_heads(COURSE_MODEL, 14)),
        _held_per_token(with_kv_heads(COURSE_MODEL, 14), "float16"), 86_016,
    ))  # fmt: skip
    rows.append(("a 7B model, 8 key-value heads", "float16", kv_bytes_per_token(SEVEN_B), None, 128 * 1024))
    return Table("bytes a token", ("shape", "kept in", "formula", "held", "course"), rows, 2)


def _held_per_token(config: ModelConfig, dtype: str) -> float:
    """Of a cache that 256 tokens fill, in fact."""
    cache = KVCache(config, dtype=dtype)
    cache.sequence().reserve(256)
    return cache.nbytes / 256


def _users() -> Table:
    rows = [
        (users, TOKENS // users, users * kv_bytes(COURSE_MODEL, TOKENS // users) / MB, 768)
        for users in (1, 8, 64, 512, 4096)
    ]
    return Table(f"{TOKENS:,} tokens of the course's model", ("users", "tokens each", "MiB", "course"), rows)


def _heads(config: ModelConfig) -> Table:
    """Multi-head, grouped, multi-query and latent attention, for a model of few heads and for one of many."""
    both = config, DEEPSEEK_V2
    grouped = config.num_kv_heads if 1 < config.num_kv_heads < config.num_heads else max(config.num_heads // 4, 1)
    rows = []
    for name, heads in (
        ("full: a key and a value for each query head", [one.num_heads for one in both]),
        ("grouped", (grouped, DEEPSEEK_V2.num_heads // 8)),
        ("single", (1, 1)),
    ):
        sizes = (kv_bytes_per_token(with_kv_heads(one, count)) for one, count in zip(both, heads, strict=True))
        rows.append((name, *(cell for pair in zip(heads, sizes, strict=True) for cell in pair)))
    latents = [kv_bytes_per_token(with_latent(one)) for one in both]
    rows.append(("latent, 512 + 64 numbers a layer", None, latents[0] // 2, None, latents[1] // 2))
    rows.append(("the same as this engine keeps it", None, latents[0], None, latents[1]))
    columns = ("attention", "key-value heads", "this model, bytes a token", "heads", "DeepSeek-V2, bytes a token")
    return Table("the same model with other heads, float16", columns, rows)


def _growth() -> Table:
    rows = [(tokens, kv_bytes(SEVEN_B, tokens) / MB) for tokens in (1000, 4000, 16_000, 64_000, 128_000)]
    return Table("the cache of a 7B model", ("tokens", "MiB"), rows)


def _growth_drawing() -> Drawing:
    lengths = range(0, 128_001, 8000)
    lines = {
        f"{heads} key-value heads": [(n, kv_bytes(with_kv_heads(SEVEN_B, heads), n) / 2**30) for n in lengths]
        for heads in (32, 8, 1)
    }
    return Drawing("A 7B model's cache grows with every token", "tokens", "GiB", lines)
