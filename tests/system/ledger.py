"""What was published, what came out, and whether the two agree. Shares no code with the service.

Its clients are confluent-kafka's, its rules are the contract's, written down a second time.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from confluent_kafka import Consumer, Producer, TopicPartition

Header = tuple[str, bytes | None]
Headers = Sequence[Header]


@dataclass(frozen=True)
class Sent:
    """A published message, with the id that Kafka gave it and the due time that the contract gives it."""

    id: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    output: str
    deliver_at_ms: int | None
    timestamp_ms: int


@dataclass(frozen=True)
class Got:
    """A record as a subscriber received it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int
    received_ms: int

    def last(self, name: str) -> str | None:
        """Return the last header of that name as text."""
        values = [value for key, value in self.headers if key == name]
        return values[-1].decode() if values and values[-1] is not None else None

    @property
    def id(self) -> str:
        """The message id."""
        return self.last("delayline-id") or "?"


@dataclass
class Ledger:
    """Publishes, subscribes from the beginning in a thread of its own, and compares."""

    bootstrap: str
    outputs: list[str]
    sent: dict[str, Sent] = field(default_factory=dict)
    got: list[Got] = field(default_factory=list)
    # What the clock of the job's host had shown by an instant of this process' clock, both in epoch ms.
    shown_ms: Callable[[int], int] = lambda now_ms: now_ms
    # Raises when waiting has become pointless: the job that is to deliver has ended.
    check: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._problem: Exception | None = None
        self._producer = Producer(
            {"bootstrap.servers": self.bootstrap, "linger.ms": 5, "message.max.bytes": 10_000_000}
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def publish(
        self,
        topic: str,
        value: bytes | None,
        headers: Headers | None = None,
        *,
        key: bytes | None = None,
        output: str,
        deliver_at_ms: int | None = None,
        delay_ms: int | None = None,
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> None:
        """Publish one message that must come out on `output` at `deliver_at_ms`, or `delay_ms` after its timestamp."""
        headers = headers or []

        def landed(error: object, message: object) -> None:
            assert error is None, error
            identity = f"{message.topic()}/{message.partition()}/{message.offset()}"  # type: ignore[attr-defined]
            stamp = message.timestamp()[1]  # type: ignore[attr-defined]
            due = stamp + delay_ms if delay_ms is not None else deliver_at_ms
            self.sent[identity] = Sent(identity, key, value, headers, output, due, stamp)

        options: dict[str, int] = {}
        if timestamp_ms is not None:
            options["timestamp"] = timestamp_ms
        if partition is not None:
            options["partition"] = partition
        self._producer.produce(topic, value, key, headers=headers, on_delivery=landed, **options)
        self._producer.poll(0)

    def flush(self) -> None:
        """Wait until all that was published has its id."""
        assert self._producer.flush(30) == 0

    def wait_for_all(self, timeout_s: float) -> None:
        """Wait until everything published has come out."""
        self.flush()
        self.wait_for(lambda: len({record.id for record in self.got}) >= len(self.sent), timeout_s)

    def wait_for(self, condition, timeout_s: float) -> None:  # type: ignore[no-untyped-def]
        """Wait for a condition on what was received; returns at the deadline too: `verify` says what is wrong."""
        deadline = time.monotonic() + timeout_s
        while not condition() and time.monotonic() < deadline:
            self.check()
            assert self._problem is None, self._problem
            time.sleep(0.02)

    def verify_after_outage(self, timeout_s: float) -> None:
        """Wait for all and verify, from a moment at which the job is up again: what is due by then may be late."""
        self.accepted_ms = time.time_ns() // 1_000_000 + 5_000
        self.wait_for_all(timeout_s)
        self.verify()

    def close(self) -> None:
        """End the subscription."""
        self._stop.set()
        self._reader.join(10)

    def _read(self) -> None:
        try:
            self._read_on()
        except Exception as problem:
            # To be told by the thread that waits.
            self._problem = problem

    def _read_on(self) -> None:
        consumer = Consumer(
            {"bootstrap.servers": self.bootstrap, "group.id": "ledger", "isolation.level": "read_committed",
             "fetch.wait.max.ms": 20}
        )  # fmt: skip
        partitions = [
            TopicPartition(name, number, 0)
            for name in self.outputs
            for number in consumer.list_topics(name, timeout=30).topics[name].partitions
        ]
        consumer.assign(partitions)
        while not self._stop.is_set():
            for message in consumer.consume(10_000, 0.05):
                now = time.time_ns() // 1_000_000
                assert message.error() is None, message.error()
                self.got.append(
                    Got(
                        message.topic(),
                        message.partition(),
                        message.offset(),
                        message.key(),
                        message.value(),
                        message.headers() or [],
                        message.timestamp()[1],
                        now,
                    )
                )
        consumer.close()

    def verify(self) -> None:
        """Assert the contract: nothing lost, doubled, early, altered or out of order."""
        counts = Counter(record.id for record in self.got)
        lost = set(self.sent) - set(counts)
        doubled = {identity: count for identity, count in counts.items() if count > 1}
        foreign = set(counts) - set(self.sent)
        assert not lost, f"{len(lost)} of {len(self.sent)} lost, such as {sorted(lost)[:5]}"
        assert not doubled, f"{len(doubled)} doubled, such as {sorted(doubled)[:5]}"
        assert not foreign, f"{len(foreign)} never published, such as {sorted(foreign)[:5]}"
        for record in self.got:
            self._verify_record(record, self.sent[record.id])
        self._verify_order()

    def _verify_record(self, record: Got, sent: Sent) -> None:
        assert record.topic == sent.output, f"{record.id} came out on {record.topic}, not on {sent.output}"
        assert (record.key, record.value) == (sent.key, sent.value), f"{record.id} was altered"
        count = len(sent.headers)
        assert record.headers[:count] == sent.headers, f"{record.id}: its headers were altered"
        if record.last("delayline-error") is not None:
            return
        assert [name for name, _ in record.headers[count:]] == ["delayline-id", "delayline-deliver-at"]
        due = int(record.last("delayline-deliver-at") or -1)
        assert due == (sent.timestamp_ms if sent.deliver_at_ms is None else sent.deliver_at_ms)
        assert record.timestamp_ms == due, f"{record.id} has timestamp {record.timestamp_ms}, is due {due}"
        early_ms = due - self.shown_ms(record.received_ms)
        assert early_ms <= 0, f"{record.id} came {early_ms} ms early"

    def _verify_order(self) -> None:
        """Of two neighbours in a partition, only one that was due when it was written may come too late."""
        last: dict[tuple[str, int], tuple[int, int, int]] = {}
        for record in sorted(self.got, key=lambda r: (r.topic, r.partition, r.offset)):
            sent = self.sent[record.id]
            if record.last("delayline-error") is not None or sent.deliver_at_ms is None:
                continue
            _, partition, offset = record.id.rsplit("/", 2)
            place = (sent.deliver_at_ms, int(partition), int(offset))
            before = last.get((record.topic, record.partition))
            if before is not None and place < before:
                late = sent.deliver_at_ms <= max(sent.timestamp_ms, self.accepted_ms)
                assert late, f"{record.id} due {place[0]} came after one due {before[0]} in {record.topic}"
            else:
                last[record.topic, record.partition] = place

    # What is due before this instant may have been accepted late: the job was down, or not yet started.
    accepted_ms: int = 0
