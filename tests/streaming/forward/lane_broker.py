"""The broker's part in the model of who takes a record: claims and staged records, in memory."""

from __future__ import annotations

from typing import Literal

from state.claims import Claim

MOST_LANES = 3

# The outcomes of a transaction. The last one is committed, but its owner gets an error.
Outcome = Literal["lost", "committed", "unreported"]

Record = tuple[str, int, int]


class Fenced(Exception):
    """The lane has another owner."""


class Failed(Exception):
    """The outcome of a transaction is not known to its owner."""


class Broker:
    """The claims topic and the near log. Claims that were deleted are None."""

    def __init__(self) -> None:
        self.claims: dict[int, list[Claim | None]] = {lane: [] for lane in range(MOST_LANES)}
        self.near: list[Record] = []
        self.owners = dict.fromkeys(range(MOST_LANES), 0)


class Writer:
    """The writer of a lane's owner, in place of `sinks.lanes.writer`."""

    def __init__(self, broker: Broker, lane: int) -> None:
        broker.owners[lane] += 1
        self._broker, self._lane, self._number = broker, lane, broker.owners[lane]
        own = broker.claims[lane]
        self.claim = own[-1] if own else None

    def write(self, claim: Claim, outcome: Outcome) -> None:
        if self._broker.owners[self._lane] != self._number:
            raise Fenced
        if outcome != "lost":
            # As it is stored, and its messages with it.
            stored = Claim.from_bytes(claim.to_bytes())
            self._broker.claims[self._lane].append(stored)
            self._broker.near += [
                (topic, number, offset)
                for (topic, number), offsets in stored.offsets_taken().items()
                for offset in offsets
            ]
        if outcome != "committed":
            raise Failed
        self.claim = claim
