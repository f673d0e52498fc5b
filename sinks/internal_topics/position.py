"""The position topic: how far the release of each shard has come.

It is an internal, compacted topic with one partition for each shard. A position is written in the same transaction as
the messages that it counts as released. It has a topic of its own, apart from the markers of the hand-over: what a
killed hand-over left open there would hide the position from the next release process until it times out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

import pyarrow as pa
from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from conf.errors import CheckpointMismatch
from sinks.internal_topics.newest_record import newest_value
from state.checkpoint.stored_json import STORED, RecordFormat
from state.order import OrderKey, count_before

# How many bytes an error shows of a value that is not a position.
_SHOWN_BYTES = 80


@dataclass(frozen=True, config=STORED)
class Lateness:
    """How late a release process was during its last minute: the number of messages, and quantiles in ms."""

    messages: int = 0
    p50_ms: int = 0
    p99_ms: int = 0
    max_ms: int = 0


@dataclass(frozen=True, config=STORED)
class Ahead:
    """What a clock that was ahead has released: what lies below offset `taken_in`, and comes before `below`."""

    taken_in: int
    below: OrderKey


@dataclass(frozen=True, config=STORED)
class Position:
    """How far a shard is released. Both bounds only grow, but that `below` goes back with the clock (`set_back`).

    Released is exactly what lies in the ready log below offset `taken_in` and comes before `below` in delivery order,
    and what is so by one of `ahead`.

    - `topic_id`: Kafka's id of the ready topic, since a topic of the same name may be another one
    - `taken_in`: the offset after the last record whose messages were considered
    - `below`: the first order key that is not released; None if nothing is
    - `ahead`: what was released before the clock was set back, as long as it is more than by `below`
    - `lowest`: the lowest offset that still holds a message that is not released: reading begins here
    - `released`: how many messages were released, or taken out since they were cancelled, in all
    - `member`, `at_ms`, `lateness`: who wrote this and when (epoch ms), only for people to read
    """

    topic_id: str
    taken_in: int = 0
    below: OrderKey | None = None
    lowest: int = 0
    released: int = 0
    member: str = ""
    at_ms: int = 0
    lateness: Lateness = field(default_factory=Lateness)
    ahead: tuple[Ahead, ...] = ()

    def below_at(self, offset: int) -> OrderKey | None:
        """Return before which order key the messages at `offset` of the ready log are released; None if none are."""
        if offset >= self.taken_in:
            return None
        passed = [each.below for each in self.ahead if offset < each.taken_in]
        return max(passed if self.below is None else [*passed, self.below], default=None)

    def left_of(self, offset: int, messages: pa.Table) -> pa.Table:
        """Return what is not released of `messages`, in delivery order, which are at `offset` of the ready log."""
        below = self.below_at(offset)
        return messages if below is None else messages.slice(count_before(messages, below))

    def set_back(self) -> Position:
        """Return the position after the clock was set back: what comes from now on may be due before `below`."""
        if self.below is None:
            return self
        return replace(self, below=None, ahead=(*self.ahead, Ahead(self.taken_in, self.below)))

    def ending_at(self, taken_in: int, lowest: int) -> Position:
        """Return the position in a log that ends at offset `taken_in`, whose offsets from there on are used again."""
        ahead = tuple(replace(each, taken_in=min(each.taken_in, taken_in)) for each in self.ahead)
        return replace(self, taken_in=taken_in, lowest=lowest, ahead=ahead)

    def moved(self, below: OrderKey | None, released: int, lowest: int) -> Position:
        """Return the position with these values, without what was released ahead and says nothing more."""
        ahead = (each for each in self.ahead if lowest < each.taken_in and (below is None or below < each.below))
        return replace(self, below=below, released=released, lowest=lowest, ahead=tuple(ahead))

    @property
    def place(self) -> tuple[int, int, OrderKey | None]:
        """What differs from each position of the shard to the next: `released`, `taken_in` and `below`."""
        return self.released, self.taken_in, self.below

    def to_bytes(self) -> bytes:
        """Return the value of a position record."""
        return _FORMAT.dump(self)

    @staticmethod
    def from_bytes(value: bytes) -> Position:
        """Read the value of a position record. Raises CheckpointMismatch if it is not one, and FormatMismatch."""
        try:
            return _FORMAT.read(value)
        except ValueError as problem:
            raise CheckpointMismatch(
                f"the position topic holds {value[:_SHOWN_BYTES]!r}, which is not a position of this Delayline "
                "version; only Delayline may write to it"
            ) from problem


_FORMAT = RecordFormat(TypeAdapter(Position), "a position in the position topic")


def position_key(shard: int) -> bytes:
    """Return the key of a shard's positions, which are in the partition with the shard's number."""
    return f"shard-{shard}".encode()


def read_position(options: Mapping[str, str], topic: str, shard: int, after_fencing: bool = False) -> Position | None:
    """Return the last committed position of `shard`, or None if it has none.

    `after_fencing` says that all who may write positions of the shard are fenced (`newest_value`).

    Raises BrokerUnreachable, TopicMissing, CheckpointMismatch, FormatMismatch.
    """
    value = newest_value(options, topic, shard, after_fencing)
    return None if value is None else Position.from_bytes(value)
