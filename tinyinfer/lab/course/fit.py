"""How much context, for how many users: what memory leaves when the weights are in it."""

from __future__ import annotations

from ...model.footprint import kv_bytes_per_token, parameters, tokens_that_fit
from ..machine import free_memory
from .finding import Drawing, Finding, Table
from .setting import Setting
from .shapes import SEVEN_B, SEVENTY_B, THIRTEEN_B

GIB = 2**30
SET_ASIDE = 1.5 * GIB  # for work space and the system, as the course has it
BITS = {"float16": 16, "int8": 8, "int4": 4.125}  # of a weight; int4 in groups of 128 with a scale of 16 bits
MODELS = {"7B": (7e9, SEVEN_B), "13B": (13e9, THIRTEEN_B), "70B": (70e9, SEVENTY_B)}  # numbers, as the course has them
MEMORIES = (8, 16, 24, 80)
COURSE = {("13B", "int4", 8): 337, ("7B", "int8", 16): 65_378, ("13B", "int8", 16): 3136}


def measure(setting: Setting) -> Finding:
    """The course's models in the course's memories, on one device and several; and this model on this machine."""
    return Finding(
        [_one_device(), _several_devices(), _here(setting)],
        "That a model fits says little: what counts is how many tokens of context fit beside it, for all users. "
        "13B at int4 fits into 8 GB, and then holds one short page. Split over devices by tensors or by layers, each "
        "holds its part of the weights and of the cache, and what is set aside is set aside on each.",
        [_drawing()],
    )


def tokens_beside(weights: float, token_bytes: float, memory: float, devices: int = 1) -> int:
    """Tokens of cache that fit beside weights of so many bytes, split evenly over `devices` of so much memory each."""
    left = devices * (memory - SET_ASIDE) - weights
    return max(int(left // token_bytes), 0)


def _tokens(model: str, form: str, gigabytes: int, devices: int = 1) -> int:
    numbers, shape = MODELS[model]
    return tokens_beside(numbers * BITS[form] / 8, kv_bytes_per_token(shape), gigabytes * GIB, devices)


def _one_device() -> Table:
    rows = [
        (model, form, gigabytes, _tokens(model, form, gigabytes), COURSE.get((model, form, gigabytes)))
        for model in MODELS
        for form in BITS
        for gigabytes in MEMORIES
    ]
    return Table("tokens of context, for all users together", ("model", "weights", "GiB", "tokens", "course"), rows, 2)


def _several_devices() -> Table:
    rows = [
        (model, form, gigabytes, *(_tokens(model, form, gigabytes, devices) for devices in (1, 2, 4)))
        for model, form, gigabytes in (("13B", "int8", 16), ("70B", "int4", 24), ("70B", "float16", 80))
    ]
    columns = ("model", "weights", "GiB each", "one device", "two", "four")
    return Table("the same on several devices, tensors or layers split evenly", columns, rows, 2)


def _here(setting: Setting) -> Table:
    config, memory = setting.config, free_memory()
    rows = []
    for form, bits in BITS.items():
        left = None if memory is None else max(memory - parameters(config) * bits / 8, 0)
        for users in (1, 8, 64):
            rows.append((form, users, left and left / GIB, left and tokens_that_fit(config, left, users)))
    columns = ("weights", "users", "GiB left", "tokens each, up to the model's context")
    return Table(f"{setting.model} in this machine's free memory, keys and values in float16", columns, rows)


def _drawing() -> Drawing:
    lines = {
        f"{model} {form}": [(memory, found) for memory in range(4, 81, 2) if (found := _tokens(model, form, memory))]
        for model, form in (("7B", "int4"), ("7B", "float16"), ("13B", "int4"), ("70B", "int4"))
    }
    title = "Memory beyond the weights is context"
    return Drawing(title, "memory, GiB", "tokens of context", lines, log_y=True)
