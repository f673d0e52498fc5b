"""A shard in the core of the release stage: its logs, requests and crashes, and what comes out of it."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from sinks.internal_topics.position import Log, Place, Position
from sinks.ready_log.chunk import RecordHeaders, chunk_record, summary_of
from sinks.release.encoded_chunks import PayloadMissing
from sinks.release.pending import Pending
from sinks.release.planned import Planned
from sinks.release.recently_released import RecentlyReleased
from sinks.release.removals import REMEMBERED_MS
from sinks.release.room import Limits
from state.answers import Undecided
from state.kinds import ANSWER, REQUEST
from state.order import in_order
from tests.messages import messages


def _replaces(offset: int) -> bool:
    """Return whether the request at `offset` belongs to a message that takes the place of another."""
    return bool(offset % 2)


START_MS = 1_000_000_000


@dataclass
class Shard:
    """One of `shards` shards: its logs, a release process that may die, and its committed position.

    The near log is read as far as `near_read`: an open transaction hides what follows.
    """

    limits: Limits
    shards: int
    logs: dict[Log, list[tuple[bytes, RecordHeaders]]] = field(default_factory=lambda: {log: [] for log in Log})
    near_read: int = 0
    committed: Position = field(default_factory=Position)
    now_ms: int = START_MS
    max_bytes: int = sys.maxsize
    # How many released messages the process knows still.
    remembered: int = 10
    # How many chunks were read again.
    restored: int = 0
    messages: int = 0
    requests: int = 0
    seen: Counter[int] = field(default_factory=Counter)
    # The results for each message, and how often each request was answered or passed on.
    results: dict[int, set[str]] = field(default_factory=dict)
    reasons: dict[int, str | None] = field(default_factory=dict)
    outputs: dict[int, dict[str, Any]] = field(default_factory=dict)
    settled: Counter[int] = field(default_factory=Counter)
    passed_on: list[pa.Table] = field(default_factory=list)
    # The messages that the recalled topic has.
    recorded: set[int] = field(default_factory=set)
    # The due time of each message when it was staged, and the messages that have come out as due sooner.
    dues: dict[int, int] = field(default_factory=dict)
    sooner: set[int] = field(default_factory=set)
    # The requests that want their message to be due at once.
    delivering: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.open()

    def open(self) -> None:
        below = self.committed.below
        is_ahead = below is not None and below.deliver_at_ms > self.now_ms
        position = self.committed.set_back() if is_ahead else self.committed
        self.recently = RecentlyReleased(most=self.remembered)
        self.pending = Pending(position, self.now_ms, self.recently.find)
        self.pending.merge.max_bytes = self.max_bytes
        self.planned: list[Planned] = []
        for log, end in ((Log.READY, len(self.logs[Log.READY])), (Log.NEAR, self.near_read)):
            for offset in range(self.committed.of(log).lowest, end):
                self._add(Place(log, offset))

    def _add(self, place: Place) -> None:
        value, headers = self.logs[place.log][place.offset]
        self.pending.add(place, summary_of(headers, "log"), value)

    def read_near(self, count: int) -> None:
        for offset in range(self.near_read, min(self.near_read + count, len(self.logs[Log.NEAR]))):
            self._add(Place(Log.NEAR, offset))
            self.near_read = offset + 1

    def arrive(self, kind: str, numbers: list[int], asked_ms: int | None = None, delivers: Sequence[bool] = ()) -> None:
        """Add a chunk: messages that are due at `numbers`, or requests for these, some of them to be due at once."""
        if kind != "requests":
            rows: list[dict[str, Any]] = [
                {"deliver_at_ms": START_MS + due, "offset": self.messages + at} for at, due in enumerate(numbers)
            ]
            self.dues |= {row["offset"]: row["deliver_at_ms"] for row in rows}
            self.messages += len(rows)
        else:
            # The job itself answers requests for messages that it knows to be cancelled.
            asked = [each for each in numbers if "cancelled" not in self.results.get(each, ())]
            # All staged messages are due before 2,001.
            since_ms = self.now_ms if asked_ms is None else asked_ms
            undecided = Undecided(START_MS + 2_001, since_ms, self.shards, self.shards - 1)
            self.delivering |= {
                1_000 + self.requests + at for at, (_, now) in enumerate(zip(asked, delivers, strict=False)) if now
            }
            # Every other request comes with a message.
            rows = [
                {"deliver_at_ms": self.now_ms, "offset": own, "kind": REQUEST, "key": b"delayline-in/0/%d" % each,
                 "value": undecided._replace(
                     replaces=_replaces(own) and own not in self.delivering, delivers=own in self.delivering
                 ).to_bytes()}
                for own, each in enumerate(asked, 1_000 + self.requests)
            ]  # fmt: skip
            self.requests += len(rows)
        if rows:
            self.receive(in_order(messages(rows)), Log.NEAR if kind == "near" else Log.READY)

    def receive(self, chunk: pa.Table, log: Log = Log.READY) -> None:
        self.logs[log].append(chunk_record(chunk))
        if log is Log.READY:
            self._add(Place(log, len(self.logs[log]) - 1))

    def plan(self, lead_ms: int) -> bool:
        # Known ids come some at a time.
        for _ in range(200):
            try:
                planned = self.pending.plan(self.now_ms, self.now_ms + lead_ms, self.limits)
            except PayloadMissing as missing:
                self.restored += len(missing.places)
                # As a process does, so that little memory is no endless loop.
                if self.pending.merge.nbytes > self.pending.merge.max_bytes:
                    self.pending.merge.shrink()
                for place in missing.places:
                    self.pending.merge.chunks.restore(place, self.logs[place.log][place.offset][0])
                continue
            if planned is None and self.pending.incoming.needs_near_end:
                self.pending.incoming.learn_near_end(len(self.logs[Log.NEAR]), self.pending.incoming.ends[Log.READY])
                continue
            if planned is not None:
                self.planned.append(planned)
            return planned is not None
        raise AssertionError("planning does not come to an end")

    def commit(self) -> None:
        if not self.planned:
            return
        planned = self.planned.pop(0)
        for log in Log:
            assert planned.position.of(log).taken_in >= self.committed.of(log).taken_in
            assert planned.position.of(log).lowest >= self.committed.of(log).lowest
        assert planned.position.released >= self.committed.released
        assert planned.position.mark != self.committed.mark
        self.committed = planned.position
        if planned.messages.num_rows:
            self.recently.add(planned.messages, {}, {}, self.now_ms)
        self.recorded |= {at for each in planned.recalled for own in each.ids.values() for at in own.tolist()}
        comes_out = set()
        for row in planned.messages.to_pylist():
            assert row["kind"] != REQUEST
            if row["kind"] == ANSWER:
                self.settled[row["offset"]] += 1
                answer = json.loads(row["value"])
                asked = int(answer["id"].rsplit("/", 1)[1])
                self.results.setdefault(asked, set()).add(answer["result"])
                self.reasons[asked] = answer["reason"]
                delivers = row["offset"] in self.delivering
                assert answer["result"] != "due-now" or (asked < self.messages and delivers)
                if answer["result"] in ("too-late", "due-now") and asked < self.messages:
                    comes_out.add(asked)
                if "output" in answer:
                    self.outputs[asked] = answer["output"]
                    assert self.seen[asked] == 1
                    assert answer["result"] == "too-late"
                recalled = "already-cancelled" if delivers else "recalled"
                assert (answer["result"] == "cancelled") == (answer["reason"] == recalled)
                assert answer["result"] != "cancelled" or asked in self.recorded
                of_message = {"replacement": f"delayline-in/0/{row['offset']}", "accepted": True}
                of_one = _replaces(row["offset"]) and not delivers
                assert answer.items() >= of_message.items() if of_one else "accepted" not in answer
            else:
                self.seen[row["offset"]] += 1
                due_ms = self.dues.get(row["offset"], row["deliver_at_ms"])
                assert row["deliver_at_ms"] <= due_ms
                if row["deliver_at_ms"] < due_ms:
                    self.sooner.add(row["offset"])
        assert all(self.seen[asked] == 1 for asked in comes_out)
        assert all("due-now" in self.results[each] for each in self.sooner)
        if planned.passed_on is not None:
            self.passed_on.append(planned.passed_on)
            self.settled.update(planned.passed_on.column("offset").to_pylist())

    def finish(self) -> None:
        self.read_near(len(self.logs[Log.NEAR]))
        for _ in range(3):
            self.now_ms += 2 * REMEMBERED_MS
            self.settle()

    def settle(self) -> None:
        while self.plan(0):
            pass
        while self.planned:
            self.commit()


def two_shards() -> tuple[Shard, Shard]:
    limits = Limits(100, 1_000_000, 20)
    return Shard(limits, 2), Shard(limits, 2)
