"""What an experiment is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...config import ModelConfig, read_config
from . import USUAL_MODEL

if TYPE_CHECKING:
    from ...llm import LLM


@dataclass
class Setting:
    """A model by name, and how much time there is.

    full   take the course's sizes; without it an experiment ends within about a minute
    text   of a file that the reader gave in place of an experiment's own, or None
    say    tells how far it is
    """

    model: str = USUAL_MODEL
    full: bool = False
    text: str | None = None
    say: Callable[[str], object] = lambda line: None

    @cached_property
    def llm(self) -> LLM:
        """The model as it is stored."""
        return self.load()

    @cached_property
    def config(self) -> ModelConfig:
        """Its facts, without its weights."""
        from ...checkpoint.source import open_checkpoint

        return read_config(open_checkpoint(self._path).config)

    def load(self, **how: Any) -> LLM:
        """The model loaded in another way, see `tinyinfer.load`."""
        from ...llm import load

        return load(self._path, **how)

    @cached_property
    def _path(self) -> Path:
        from ...checkpoint.places import find_model

        return find_model(self.model)
