"""The position topic: how far the release of each shard has come.

It is an internal, compacted topic with one partition for each shard. A position is written in the same transaction as
the messages that it counts as released. Positions are not in the topic of the staging markers. A killed writer may
leave a transaction open there, which would hide the position from the next release process until it times out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from enum import StrEnum
from typing import NamedTuple

import pyarrow as pa
from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from conf.settings import Settings
from state.checkpoint.stored_json import STORED, RecordFormat
from state.order import OrderKey, count_before


@dataclass(frozen=True, config=STORED)
class Lateness:
    """How late a release process was during its last minute: the number of messages, and quantiles in ms."""

    messages: int = 0
    p50_ms: int = 0
    p99_ms: int = 0
    max_ms: int = 0


class Log(StrEnum):
    """The two logs of a shard: batches stage messages in the ready log, forwarders in the near log."""

    READY = "ready"
    NEAR = "near"


class Place(NamedTuple):
    """Where a chunk of a shard is."""

    log: Log
    offset: int

    def __str__(self) -> str:
        return f"the record of the {self.log} log at offset {self.offset}"


class Skipped(NamedTuple):
    """The records of a log from offset `first` on, below offset `end`, of which none can be read."""

    log: Log
    first: int
    end: int


def topics_of(settings: Settings) -> dict[Log, str]:
    """Return the topic of each log."""
    return {Log.READY: settings.ready_topic, Log.NEAR: settings.near_topic}


@dataclass(frozen=True, config=STORED)
class LogPosition:
    """How far one of the logs is taken in.

    - `topic_id`: Kafka's id of its topic, since a topic of the same name may be another one
    - `taken_in`: the offset after the last record that was taken in
    - `lowest`: the lowest offset that still holds a message that is not released: reading begins here
    """

    topic_id: str = ""
    taken_in: int = 0
    lowest: int = 0


@dataclass(frozen=True, config=STORED)
class Ahead:
    """The messages released by a clock that was ahead: in order before `below`, and in a log below its offset."""

    ready: int
    near: int
    below: OrderKey

    def taken_in(self, log: Log) -> int:
        """Return the offset of `log`."""
        return self.ready if log is Log.READY else self.near


@dataclass(frozen=True, config=STORED)
class Position:
    """How far a shard is released. Its bounds only grow, except that `below` goes back with the clock (`set_back`).

    A message is released if its offset is below `taken_in` of its log and it comes before `below` in delivery order. It
    is also released if both hold for one of `ahead`. No other message is.

    - `ready`, `near`: how far each log is taken in
    - `below`: the first order key that is not released; None if nothing is
    - `ahead`: the messages released before the clock was set back, while they are more than `below` says
    - `skipped`: the ranges that cannot be read and count as released, if they end above `lowest` of their log
    - `released`: how many messages were released, or taken out since they were cancelled, in all
    - `forwarded`: how many messages were taken in from the near log. No one else counts the messages staged there
    - `member`, `at_ms`, `lateness`: who wrote this and when (epoch ms), only for people to read
    """

    ready: LogPosition = field(default_factory=LogPosition)
    near: LogPosition = field(default_factory=LogPosition)
    below: OrderKey | None = None
    released: int = 0
    forwarded: int = 0
    member: str = ""
    at_ms: int = 0
    lateness: Lateness = field(default_factory=Lateness)
    ahead: tuple[Ahead, ...] = ()
    skipped: tuple[Skipped, ...] = ()

    def of(self, log: Log) -> LogPosition:
        """Return how far `log` is taken in."""
        return self.ready if log is Log.READY else self.near

    def with_log(self, log: Log, own: LogPosition) -> Position:
        """Return the position with `own` as the position of `log`."""
        return replace(self, ready=own) if log is Log.READY else replace(self, near=own)

    def taken_in_to(self, log: Log, offset: int) -> Position:
        """Return the position after all records of `log` below `offset` were taken in."""
        return self.with_log(log, replace(self.of(log), taken_in=offset))

    def below_at(self, place: Place) -> OrderKey | None:
        """Return the order key below which the messages at `place` are released, or None if no messages are."""
        if place.offset >= self.of(place.log).taken_in:
            return None
        passed = [each.below for each in self.ahead if place.offset < each.taken_in(place.log)]
        return max(passed if self.below is None else [*passed, self.below], default=None)

    def skips(self, place: Place) -> bool:
        """Return whether the record at `place` cannot be read, and counts as released."""
        return any(each.log is place.log and each.first <= place.offset < each.end for each in self.skipped)

    def left_of(self, place: Place, messages: pa.Table) -> pa.Table:
        """Return the `messages` at `place` that are not released. They are in delivery order."""
        below = self.below_at(place)
        return messages if below is None else messages.slice(count_before(messages, below))

    def set_back(self) -> Position:
        """Return the position after the clock was set back: messages from now on may be due before `below`."""
        if self.below is None:
            return self
        passed = Ahead(self.ready.taken_in, self.near.taken_in, self.below)
        return replace(self, below=None, ahead=(*self.ahead, passed))

    def ending_at(self, log: Log, own: LogPosition) -> Position:
        """Return the position if `log` is only taken in up to `own`: its offsets from there on are used again."""
        offset = own.taken_in
        ahead = (
            replace(each, ready=min(each.ready, offset))
            if log is Log.READY
            else replace(each, near=min(each.near, offset))
            for each in self.ahead
        )
        skipped = (each._replace(end=min(each.end, offset)) if each.log is log else each for each in self.skipped)
        left = tuple(each for each in skipped if each.first < each.end)
        return replace(self.with_log(log, own), ahead=tuple(ahead), skipped=left)

    def moved(self, below: OrderKey | None, released: int, lowest: Mapping[Log, int]) -> Position:
        """Return the position with these values, without the parts of `ahead` and `skipped` that no longer matter."""
        ahead = (
            each
            for each in self.ahead
            if any(lowest[log] < each.taken_in(log) for log in Log) and (below is None or below < each.below)
        )
        skipped = tuple(each for each in self.skipped if each.end > lowest[each.log])
        ready, near = (replace(self.of(log), lowest=lowest[log]) for log in (Log.READY, Log.NEAR))
        return replace(
            self, ready=ready, near=near, below=below, released=released, ahead=tuple(ahead), skipped=skipped
        )

    @property
    def counts(self) -> tuple[int, int, int]:
        """The counters of the position, which never decrease."""
        return self.released, self.ready.taken_in, self.near.taken_in

    @property
    def mark(self) -> tuple[object, ...]:
        """The values that tell two successive positions of the shard apart: the counters, and `below`."""
        return *self.counts, self.below

    def to_bytes(self) -> bytes:
        """Return the value of a position record."""
        return _FORMAT.dump(self)

    @staticmethod
    def from_bytes(value: bytes) -> Position:
        """Read the value of a position record. Raises CheckpointMismatch if it is not one, and FormatMismatch."""
        return _FORMAT.read_of("position", "a position", value)


_FORMAT = RecordFormat(TypeAdapter(Position), "a position in the position topic")


def position_key(shard: int) -> bytes:
    """Return the key of a shard's positions, which are in the partition with the shard's number."""
    return f"shard-{shard}".encode()
