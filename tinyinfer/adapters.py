"""The adapters that a loaded model has at hand, by name, and which of them a request goes through."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from .errors import BadRequest
from .model.adapters import Adapter, open_adapter
from .model.forward import Model

Scaled = tuple[Adapter, float]
# What a request may ask for: a name, several, or names with scales; nothing at all is what `load` was given.
Wish = str | Sequence[str | tuple[str, float]] | Mapping[str, float] | None
# What `load` may be given: folders, or folders with scales.
Folders = str | os.PathLike | Sequence[str | os.PathLike] | Mapping[str | os.PathLike, float]


class Adapters:
    """Names of adapters, and the usual ones: those that a request goes through which does not say."""

    def __init__(self, model: Model):
        self._model = model
        self._named: dict[str, Adapter] = {}
        self._usual: tuple[Scaled, ...] = ()

    @property
    def names(self) -> list[str]:
        """Those at hand, in the order in which they were loaded."""
        return list(self._named)

    def load(self, folder: str | os.PathLike, name: str | None = None) -> str:
        """Have one more at hand; gives its name: by default the folder's own, or its path where that is taken.

        Raises as `model.adapters.open_adapter`, and `BadRequest` for a name that is taken.
        """
        path = Path(folder)
        if name is None:
            name = path.resolve().name
            name = str(folder) if name in self._named else name
        if name in self._named:
            raise BadRequest(f"there is an adapter of the name {name!r} already", "adapters")
        named = self._named | {name: open_adapter(path, self._model.config)}
        self._model.set_adapters(list(named.values()))
        self._named = named
        return name

    def unload(self, name: str) -> None:
        """Forget one; answers that go through it can't go on. Raises `BadRequest` where there is none of that name."""
        adapter = self._found(name)
        named = {other: one for other, one in self._named.items() if one is not adapter}
        self._model.set_adapters(list(named.values()))
        self._named = named
        self._usual = tuple(pair for pair in self._usual if pair[0] is not adapter)

    def load_usual(self, folders: Folders) -> None:
        """Load some, and let requests go through them which do not say otherwise."""
        if isinstance(folders, str | os.PathLike):
            folders = [folders]
        if not isinstance(folders, Sequence | Mapping):
            raise BadRequest(f"lora should be folders of adapters, found {repr(folders)[:80]}", "lora")
        scales = folders if isinstance(folders, Mapping) else dict.fromkeys(folders, 1.0)
        if not isinstance(folders, Mapping) and len(scales) < len(folders):
            raise BadRequest("an adapter was given twice", "lora")
        self._usual = self.chosen({self.load(folder): scale for folder, scale in scales.items()})

    def chosen(self, wish: Wish) -> tuple[Scaled, ...]:
        """The adapters that a request asks for, each with its scale. Raises `BadRequest` for what can't be had."""
        if wish is None:
            return self._usual
        if isinstance(wish, str):
            wish = [wish]
        if not isinstance(wish, Sequence | Mapping):
            raise BadRequest(f"adapters should be names, found {repr(wish)[:80]}", "adapters")
        pairs = list(wish.items()) if isinstance(wish, Mapping) else [_pair(one) for one in wish]
        names = [name for name, _ in pairs]
        if repeated := next((name for name in names if names.count(name) > 1), None):
            raise BadRequest(f"the adapter {repeated!r} was asked for twice", "adapters")
        return tuple((self._found(name), _checked_scale(name, scale)) for name, scale in pairs)

    def _found(self, name: str) -> Adapter:
        if name not in self._named:
            known = ", ".join(self._named) or "none"
            raise BadRequest(f"there is no adapter {str(name)[:80]!r}; loaded: {known}", "adapters")
        return self._named[name]


def _pair(wish: str | tuple[str, float]) -> tuple[str, float]:
    if isinstance(wish, str):
        return wish, 1.0
    if not isinstance(wish, tuple | list) or len(wish) != 2 or not isinstance(wish[0], str):
        raise BadRequest(f"adapters should be names, or names with a scale, found {repr(wish)[:80]}", "adapters")
    return wish[0], wish[1]


def _checked_scale(name: str, scale: float) -> float:
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not math.isfinite(scale):
        raise BadRequest(f"the scale of adapter {name!r} should be a number, found {repr(scale)[:40]}", "adapters")
    return float(scale)
