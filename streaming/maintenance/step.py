"""A step of maintenance, which another thread does for a service."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

# Called in the query's thread once a step has ended.
Outcome = Callable[[], None]


class Moment(NamedTuple):
    """The committed state when a batch begins. Steps change nothing that the batch may read.

    - `now_s`: the time, in seconds by the clock of maintenance
    - `last_bucket`: the bucket number of the batch before
    - `staged_before_ms`: its cutoff, epoch ms; everything due before it is staged
    """

    now_s: float
    last_bucket: int
    staged_before_ms: int


@dataclass(frozen=True)
class Step:
    """One step.

    - `kind`: one of `failures.STEPS`
    - `what`: what it does, for the log
    - `run`: does it, in another thread. It leaves nothing behind that keeps it from being run again if it fails
    - `items`: what is set aside if it fails
    """

    kind: str
    what: str
    run: Callable[[], Outcome]
    items: Collection[Hashable]


class Service(Protocol):
    """One task of maintenance. Only the query's thread calls it."""

    kind: str

    def due(self, at: Moment) -> Step | None:
        """Return the step that is due, if there is one, and if nothing of it is set aside."""
