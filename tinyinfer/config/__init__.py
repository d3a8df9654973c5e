"""config.json -> a frozen `ModelConfig`: the one place that knows Hugging Face's key names.

Architectures are data. What sets a family apart is a handful of facts; the model reads the facts and never asks which
family it is. To add a family: an entry in `FAMILIES`, and its tensor names in `model/names.py`.

facts.py       what there is to know of a model: read this first
families.py    the table: what each family leaves unsaid, and its own names for keys; family.py: what an entry is
keys.py        values from config.json, each checked
rotary.py      its rotary settings
reading.py     all of it put together

config.json comes in two forms. transformers 4 wrote `rope_theta` and `rope_scaling` at the top level; transformers 5
writes `rope_parameters`, and one such block per kind of layer where kinds differ. Both load to the same `ModelConfig`.
"""

from .facts import AFTER, BEFORE, Experts, Latent, LayerConfig, ModelConfig, Norm, Rope
from .families import FAMILIES
from .family import Family
from .keys import token_ids
from .reading import ACTIVATIONS, MAX_HEADS, MAX_LAYERS, read_config
from .rotary import ROPE_KINDS

__all__ = [
    "ACTIVATIONS", "AFTER", "BEFORE", "FAMILIES", "MAX_HEADS", "MAX_LAYERS", "ROPE_KINDS", "Experts", "Family",
    "Latent", "LayerConfig", "ModelConfig", "Norm", "Rope", "read_config", "token_ids",
]  # fmt: skip
