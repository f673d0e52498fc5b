"""Runs that keep the contract, made by a small model of the service, for tests that plant faults in them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from hypothesis import strategies as st

from streaming.judge.acceptance import Acceptance, CheckpointLog, CommittedBatch, Held
from streaming.judge.contract import Environment
from streaming.judge.forwarded import Forwarded
from streaming.judge.record import Header, Published, Received
from streaming.judge.verdict import Verdict, judge

PARTITIONS = {"out": 2, "other": 3, "dead": 2}
_LONG_MS = 1_000
# How far ahead of the due time a batch stages a message, and a release process writes it.
_HORIZON_MS = 2_000
_LEAD_MS = 100
# Some of the hashes in the tests of Kafka's murmur2.
_HASHES = {b"21": -973932308, b"foobar": -790332482, b"abc": 479470107}


@dataclass(frozen=True)
class Run:
    """The published messages, the received records in order of receipt, the committed batches, and the forwarders."""

    published: dict[str, Published]
    received: list[Received]
    log: CheckpointLog
    forwarded: Forwarded = field(default_factory=Forwarded)

    @property
    def acceptance(self) -> Acceptance:
        """Who accepted the messages."""
        return Acceptance([self.log], self.forwarded)

    def judged(self, received: list[Received] | None = None, complete: bool = True) -> Verdict:
        """Judge this run, or the same run with other received records."""
        environment = Environment({topic: {count} for topic, count in PARTITIONS.items()})
        records = self.received if received is None else received
        return judge(self.published, records, self.acceptance, environment, complete)

    def is_held(self, record: Received) -> bool:
        """Return whether the record's message must be in order among some messages."""
        message = self.published[record.id]
        return message.error is None and self.acceptance.held(message) is not Held.NOT

    def must_be_in_order(self, record: Received) -> bool:
        """Return whether the record's message must be in order."""
        message = self.published[record.id]
        return message.error is None and self.acceptance.must_be_in_order(message)


def record_of(message: Published, partition: int, offset: int = 0) -> Received:
    """Return the record that the contract makes of a message."""
    added_headers: list[Header] = [("delayline-id", message.id.encode())]
    if message.error is None:
        added_headers.append(("delayline-deliver-at", b"%d" % message.due_ms))
    else:
        added_headers += [
            ("delayline-error", message.error.encode()),
            ("delayline-error-text", f"{message.error}: x".encode()),
        ]
        added_headers.append(("delayline-timestamp", b"%d" % message.timestamp_ms))
    headers = (*message.headers, *added_headers)
    return Received(
        message.output, partition, offset, message.due_ms, message.key, message.value, headers, message.due_ms
    )


def numbered(records: list[Received]) -> list[Received]:
    """Return the records with offsets that number each partition's records in list order."""
    counts: Counter[tuple[str, int]] = Counter()
    result = []
    for record in records:
        partition = record.topic, record.partition
        result.append(replace(record, offset=counts[partition]))
        counts[partition] += 1
    return result


@st.composite
def runs(draw: st.DrawFn) -> Run:
    """Draw batches, some soon after the one before and some long after, with messages of the past and the future.

    A batch stages messages that are due within the horizon when it begins. A release process has then written all
    messages that were staged before and are nearly due. In some runs a forwarder takes some messages that are due
    within the horizon.
    """
    log, forwarded = CheckpointLog(), Forwarded()
    has_forwarder = draw(st.booleans())
    published: dict[str, Published] = {}
    received: list[Received] = []
    waiting: list[Published] = []
    ready: list[Published] = []
    ends = {("in", 0): 0, ("in", 1): 0}
    now_ms = 0
    for number in range(draw(st.integers(1, 5))):
        now_ms += draw(st.integers(0, _LONG_MS) | st.just(3 * _HORIZON_MS))
        for _ in range(draw(st.integers(0, 5))):
            message = _message(draw, ends, now_ms)
            published[message.id] = message
            is_near = message.error is None and message.due_ms < now_ms + _HORIZON_MS
            if has_forwarder and is_near and draw(st.booleans()):
                ready.append(message)
                forwarded.sources.add(message.source)
                forwarded.seen_ms[message.source] = now_ms
            else:
                waiting.append(message)
        until_ms = now_ms + _HORIZON_MS
        now_ms += draw(st.integers(0, _LONG_MS))
        received += _released(ready, now_ms)
        ready += _taken(waiting, until_ms)
        received += _released(ready, now_ms)
        log.batches[number] = CommittedBatch(until_ms, now_ms, dict(ends))
    # Release the rest.
    ready += waiting
    received += _released(ready, 10**9)
    return Run(published, numbered(received), log, forwarded)


def _message(draw: st.DrawFn, ends: dict[tuple[str, int], int], now_ms: int) -> Published:
    partition = draw(st.integers(0, 1))
    offset = ends["in", partition]
    ends["in", partition] = offset + 1
    due_ms = max(1, now_ms + draw(st.integers(-_LONG_MS, 2 * _HORIZON_MS)))
    error = draw(st.sampled_from([None, None, None, "two-delays"]))
    topic = draw(st.sampled_from(["out", "out", "other"])) if error is None else "dead"
    key = draw(st.sampled_from([None, *_HASHES]))
    identity = f"in/{partition}/{offset}"
    headers = (("a", b"1"), ("a", None))
    if error is None and draw(st.booleans()):
        return Published(identity, due_ms - 1, key, identity.encode(), headers, topic, due_ms)
    return Published(identity, due_ms, key, identity.encode(), headers, topic, None, error)


def _released(ready: list[Published], now_ms: int) -> list[Received]:
    """Remove messages that are nearly due at `now_ms` from `ready`. Return their records in the contract's order."""
    due = sorted(_taken(ready, now_ms + _LEAD_MS), key=lambda message: message.order_key)
    return [record_of(message, right_partition(message)) for message in due]


def _taken(messages: list[Published], until_ms: int) -> list[Published]:
    """Remove messages due before `until_ms`, and all dead letters, from `messages`, and return them."""
    taken = [message for message in messages if message.due_ms < until_ms or message.error]
    messages[:] = [message for message in messages if message not in taken]
    return taken


def right_partition(message: Published) -> int:
    """Return the partition that the message belongs in."""
    number = message.source[1] if message.key is None else _HASHES[message.key] & 0x7FFFFFFF
    return number % PARTITIONS[message.output]
