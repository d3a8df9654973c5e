"""Many sequences at once: requests join and leave at every step, which serves them all for one read of the weights."""

from .engine import Engine, Load
from .request import Event
from .runner import Runner

__all__ = ["Engine", "Event", "Load", "Runner"]
