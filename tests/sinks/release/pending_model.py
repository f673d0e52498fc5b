"""A release process that may die, in the core of the release stage, and the logs that it reads."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from sinks.internal_topics.position import Log, Place, Position
from sinks.ready_log.chunk import RecordHeaders, chunk_record, summary_of
from sinks.release.encoded_chunks import PayloadMissing
from sinks.release.pending import Pending
from sinks.release.planned import Planned
from sinks.release.room import Limits
from state.order import OrderKey, keys_of


@dataclass
class Logs:
    """The logs of one shard, as far as they are written at a time: their chunks in the order in which they come."""

    chunks: list[tuple[Place, pa.Table]]
    visible: int = 0

    @classmethod
    def of(cls, tables: Iterable[tuple[int, pa.Table]]) -> Logs:
        """Return chunks of the ready log at these offsets."""
        return cls([(Place(Log.READY, offset), table) for offset, table in tables])

    def record(self, place: Place) -> tuple[bytes, RecordHeaders]:
        return chunk_record(dict(self.chunks)[place])

    def ends(self, after: int = 1) -> dict[Log, int]:
        """Return the visible end of each log: where the next chunk is, or `after` its last one."""
        ends = {}
        for log in Log:
            seen = [place.offset for place, _ in self.chunks[: self.visible] if place.log is log]
            coming = [place.offset for place, _ in self.chunks[self.visible :] if place.log is log]
            ends[log] = coming[0] if coming else seen[-1] + after if seen else 0
        return ends


@dataclass
class Release:
    """A release process that may die, and what a subscriber sees."""

    logs: Logs
    limits: Limits
    committed: Position = field(default_factory=Position)
    seen: list[OrderKey] = field(default_factory=list)
    # The last planned message when a message arrived. A message that comes before that is late.
    planned_below: dict[OrderKey, OrderKey] = field(default_factory=dict)
    max_bytes: int = sys.maxsize
    # How many chunks were read again.
    restored: int = 0
    # How much was seen when the clock was set back.
    set_back_at: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.open()

    def open(self, set_back: bool = False, first: Log = Log.READY) -> None:
        """Begin from the committed position, as after a crash, or since the clock was set back; read one log `first`.

        It is set back still as long as nothing is committed since.
        """
        if set_back:
            self.set_back_at.append(len(self.seen))
            self.planned_below.clear()
        is_set_back = self.set_back_at[-1:] == [len(self.seen)]
        self.floor = self.committed.set_back() if is_set_back else self.committed
        self.pending = Pending(self.floor)
        self.pending.merge.max_bytes = self.max_bytes
        self.planned: list[Planned] = []
        there = [place for place, _ in self.logs.chunks[: self.logs.visible]]
        for place in sorted(there, key=lambda each: each.log is not first):
            if place.offset >= self.committed.of(place.log).lowest:
                self.add(place)

    def add(self, place: Place) -> None:
        """Read the chunk at `place`."""
        value, headers = self.logs.record(place)
        self.pending.add(place, summary_of(headers, "log"), value)

    def arrive(self, count: int) -> None:
        below = self.pending.position.below
        for place, table in self.logs.chunks[self.logs.visible : self.logs.visible + count]:
            self.logs.visible += 1
            self.add(place)
            if below is not None:
                for batch in table.to_batches():
                    self.planned_below |= dict.fromkeys(keys_of(batch), below)

    def plan(self, now_ms: int, lead_ms: int) -> bool:
        below = self.pending.position.below
        while True:
            try:
                planned = self.pending.plan(now_ms, now_ms + lead_ms, self.limits)
                break
            except PayloadMissing as missing:
                places = missing.places
            assert places == sorted(set(places))
            self.restored += len(places)
            for place in places:
                self.pending.merge.chunks.restore(place, self.logs.record(place)[0])
        if planned is not None:
            self.planned.append(planned)
            self._check_limits(planned.messages, is_late=planned.position.below == below)
        return planned is not None

    def come_to_end(self) -> dict[Log, int]:
        """Pass the ends of the logs, if nothing is pending, up to where the next chunks will be after other records."""
        ends = self.logs.ends(after=3)
        self.pending.incoming.reach(ends)
        planned = self.pending.past()
        if planned is not None:
            assert planned.messages.num_rows == 0
            self.planned.append(planned)
        return ends

    def _check_limits(self, planned: pa.Table, is_late: bool) -> None:
        """Only late messages of a single chunk, and those with one key, may be more than a limit allows."""
        topics = planned.column("output_topic")
        limited: list[tuple[pa.Table, int]] = [(planned, self.limits.messages)]
        for topic, most in self.limits.at_once.items():
            limited.append((planned if topic is None else planned.filter(pc.equal(topics, topic)), most))
        for own, most in limited:
            if own.num_rows > most and len({key for part in own.to_batches() for key in keys_of(part)}) > 1:
                offsets = set(own.column("offset").to_pylist())
                assert is_late
                assert any(offsets <= set(chunk.column("offset").to_pylist()) for _, chunk in self.logs.chunks)

    def memory_is_bounded(self) -> bool:
        """Return whether memory is within its bound, apart from parts that always stay.

        These are the messages in order, one message of each chunk, and the next incoming chunk of each log.
        """
        merge = self.pending.merge
        # No message has more.
        least_bytes = sum(table.slice(0, 1).nbytes for _, table in self.logs.chunks)
        next_bytes = sum(len(own[0].payload or b"") for own in merge.chunks.incoming.values() if own)
        bound: int = merge.max_bytes + merge.current.nbytes + least_bytes + next_bytes
        return merge.nbytes <= bound

    def commit(self) -> None:
        if self.planned:
            planned = self.planned.pop(0)
            for log in Log:
                own, before = planned.position.of(log), self.committed.of(log)
                assert own.taken_in >= before.taken_in
                assert own.lowest >= before.lowest
            assert (planned.position.below or OrderKey(-1, "", 0, 0)) >= (self.floor.below or OrderKey(-1, "", 0, 0))
            self.committed = self.floor = planned.position
            for batch in planned.messages.to_batches():
                self.seen += keys_of(batch)
