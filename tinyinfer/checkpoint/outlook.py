"""What becomes of the tensors of a file that have one type: how many, how large, how exact."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TypeOutlook:
    """What becomes of all tensors of a model that have one type."""

    type: str
    tensors: int
    weights: int
    file_bytes: int
    form: str  # a form of quantized weights, or a dtype
    bytes: int
    relative_error: float  # from some rows of each tensor; 0.0 where the form holds the type exactly

    @property
    def bits_per_weight(self) -> float:
        """Of what it becomes."""
        return 8 * self.bytes / max(self.weights, 1)
