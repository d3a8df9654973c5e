"""The facts that set one model apart from another: what the forward pass reads, and all that it reads."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rope:
    """How positions turn into angles: base frequencies and the stretch that makes a longer context of them."""

    theta: float
    dims: int  # how many of a head's dimensions turn, the first ones; even
    kind: str = "default"
    factor: float = 1.0
    original_length: int = 0  # the context before it was stretched
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    truncate: bool = True  # yarn: round the ramp's ends to whole dimensions
    magnitude: float = 1.0  # yarn, longrope: cosines and sines are multiplied by it
    short_factor: tuple[float, ...] = ()  # longrope, one for each pair of dimensions
    long_factor: tuple[float, ...] = ()


@dataclass(frozen=True)
class Norm:
    """How vectors are brought to one size: RMSNorm, or LayerNorm where the mean is taken off first."""

    eps: float
    centered: bool = False
    offset: float = 0.0  # it multiplies by weight + offset
    weight: bool = True
    bias: bool = False


@dataclass(frozen=True)
class Experts:
    """A layer's feed-forward as several small ones, of which each token uses a few."""

    count: int
    used: int  # by each token
    size: int  # the width of each
    shared_size: int = 0  # the width of the one that every token uses; 0: there is none
    scoring: str = "softmax"  # or "sigmoid": what makes shares of the router's scores
    normalized: bool = False  # the shares of those used are divided by their sum
    scale: float = 1.0  # and multiplied by this
    groups: int = 1  # experts come in groups of one size,
    used_groups: int = 1  # a token takes its experts from so many of them,
    group_judges: int = 1  # and so many of a group's best shares, added up, say how good it is
    correction: bool = False  # a learned bias on the choice, not on the shares
    bias: bool = False  # the router and the experts have biases


@dataclass(frozen=True)
class Latent:
    """Latent attention: keys and values of all heads are unpacked from one short vector, which is what is kept.

    A key is made of `plain` dimensions of its head's own and `rotary` ones, which turn and which all heads share.
    """

    rank: int  # the length of the vector that is kept, beside the rotary dimensions
    query_rank: int | None  # the same for queries; None: they come straight from x
    plain: int
    rotary: int
    value_dim: int
    norm: Norm  # of the short vectors


@dataclass(frozen=True)
class LayerConfig:
    """What may differ from one layer to the next."""

    rope: Rope | None  # None: nothing turns
    window: int | None = None  # a token sees itself and the window - 1 before it; None: all before it
    sparse: bool = False  # its feed-forward is a mixture of experts


BEFORE = ("attention_norm", "mlp_norm")
AFTER = ("attention_post_norm", "mlp_post_norm")


@dataclass(frozen=True)
class ModelConfig:
    """The facts that the forward pass reads."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int  # the width of the feed-forward
    num_heads: int
    num_kv_heads: int
    head_dim: int  # of queries and keys; of values too, unless they are latent
    max_positions: int  # the context the model was made for
    norm: Norm
    activation: str  # of the feed-forward, see `reference.activation`
    attention_scale: float  # scores are multiplied by it
    tied: bool  # the head is the embedding
    layers: tuple[LayerConfig, ...]
    eos_ids: tuple[int, ...] = ()

    # into and out of the layers
    embedding_scale: float = 1.0
    embedding_norm: bool = False
    position_offset: int | None = None  # the row of a learned table that belongs to position 0; None: no such table
    logit_scale: float = 1.0
    logit_softcap: float | None = None
    head_bias: bool = False

    # what a layer is made of
    layer_norms: tuple[str, ...] = BEFORE  # before attention and feed-forward, or after, or both
    parallel: bool = False  # both see the layer's input; without an "mlp_norm", both through the same norm
    residual_scale: float = 1.0  # what a layer adds is multiplied by it

    # attention
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: str | None = None  # "head": over each, one weight for all; "each head": a weight for each; "all heads"
    qkv_clip: float | None = None  # queries, keys and values are kept within +- this
    rope_interleaved: bool = False  # the checkpoint has the two dimensions that turn together side by side
    alibi: tuple[float, ...] = ()  # for each head, what a score loses with each position back
    sinks: bool = False  # each head may look at nothing, with a learned score
    attention_softcap: float | None = None
    latent: Latent | None = None

    # feed-forward
    gated: bool = True
    mlp_bias: bool = False
    gate_limit: float | None = None  # clamped: min(gate, limit) * sigmoid(slope * gate) * (1 + up within +- limit)
    gate_slope: float = 1.0
    experts: Experts | None = None  # of the sparse layers

    @property
    def num_layers(self) -> int:
        """How many layers there are."""
        return len(self.layers)

    @property
    def value_dim(self) -> int:
        """How many numbers a head tells."""
        return self.latent.value_dim if self.latent else self.head_dim

    @property
    def cache_shape(self) -> tuple[int, int]:
        """Heads and dimensions of what is kept of a token, as its key and as its value."""
        return (1, self.latent.rotary + self.latent.rank) if self.latent else (self.num_kv_heads, self.head_dim)

    @property
    def context(self) -> int:
        """Tokens that a text may have unless the caller says otherwise; dynamic scaling and yarn stretch what was."""
        stretched = [int(rope.original_length * rope.factor) for rope in self._ropes("dynamic", "yarn")]
        return max([self.max_positions, *stretched])

    @property
    def longest_context(self) -> int:
        """Tokens that a text may have at most; configs of linear scaling differ in whether max_positions has it in."""
        stretched = [int(self.max_positions * rope.factor) for rope in self._ropes("linear")]
        return max([self.context, *stretched])

    def _ropes(self, *kinds: str) -> list[Rope]:
        return [layer.rope for layer in self.layers if layer.rope and layer.rope.kind in kinds]
