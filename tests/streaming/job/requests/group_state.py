"""A stand-in for the state that Spark keeps of a group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class State:
    """Stands for Spark's state of a group."""

    watermark_ms: int
    get: tuple[Any, ...] = ()

    @property
    def exists(self) -> bool:
        """Whether the group has state."""
        return bool(self.get)

    def getCurrentWatermarkMs(self) -> int:
        """Return the cutoff."""
        return self.watermark_ms

    def setTimeoutTimestamp(self, _: int) -> None:
        """Pass over it: each batch updates each group."""

    def update(self, value: tuple[Any, ...]) -> None:
        """Set the state."""
        self.get = value

    def remove(self) -> None:
        """Remove the state."""
        self.get = ()
