"""Publishes the messages and requests of a test, and keeps what must become of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from confluent_kafka import Producer

from streaming.judge.names import Named
from streaming.judge.outputs import Outputs
from streaming.judge.record import ANY_ERROR, Header, Published, Received
from streaming.judge.schedules import Repeated

Headers = Sequence[Header]


@dataclass
class Publishing:
    """Publishes messages and requests. `outputs` are the output topics, the dead-letter topic last.

    `results` is the topic of the answers to cancels, which is read from the first cancel on.
    """

    bootstrap: str
    outputs: list[str]
    _: KW_ONLY
    results: str = ""
    # The id that each cancel request is for, by the id of the request.
    requests: dict[str, str] = field(default_factory=dict)
    # The other headers of each cancel request.
    asked_with: dict[str, Headers] = field(default_factory=dict)
    # The condition of each request that is a message which replaces another.
    conditions: dict[str, str] = field(default_factory=dict)
    # When each deliver-now request was published, epoch ms.
    delivering: dict[str, int] = field(default_factory=dict)
    answers: list[Received] = field(default_factory=list, repr=False)
    # Messages that have a name, and cancels by one. All records of a name are in one partition.
    named: dict[str, Named] = field(default_factory=dict)
    # Messages that repeat. They are not among those that were `sent`.
    repeated: dict[str, Repeated] = field(default_factory=dict)
    # Without `repr`: pytest shows this object if a test fails, and some tests publish gigabytes.
    sent: dict[str, Published] = field(default_factory=dict, repr=False)
    names: dict[str, str] = field(default_factory=dict)
    # Options of the producer, such as its compression.
    producer_options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._open_producer()
        self._results: Outputs | None = None

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
        name: str | None = None,
        replaces: str | None = None,
        condition: str = "waiting",
        holds: str | None = None,
        expected: Callable[[Published], Published] = lambda message: message,
    ) -> None:
        """Publish one message that must be delivered to `output` at `deliver_at_ms`, or `delay_ms` after its timestamp.

        Args:
            topic: The input topic.
            value: The record's value.
            headers: The record's headers.
            key: The record's key.
            output: The expected output topic. The dead-letter topic stands for any error.
            deliver_at_ms: The expected due time, epoch ms. Neither this nor `delay_ms`: a plain message.
            delay_ms: The expected due time, from the record's timestamp.
            timestamp_ms: The record's timestamp, epoch ms; the time of publication by default.
            partition: The input partition; the client chooses one by default.
            name: Kept in `names` under the message id.
            replaces: The id of the message that it replaces.
            condition: The condition of the replacement: "waiting" or "always".
            holds: The message's name for the ledger. Its header, or key, is among the others.
            expected: Returns the message that must be delivered for the published one, if that is different.
        """
        own: list[Header] = []
        if replaces is not None:
            self._read_answers()
            own = [("delayline-replaces", replaces.encode()), ("delayline-if", condition.encode())]
        headers = tuple(headers or ())
        error = ANY_ERROR if output == self.outputs[-1] else None

        def record_sent(failure: object, message: object) -> None:
            assert failure is None, failure
            identity = f"{message.topic()}/{message.partition()}/{message.offset()}"  # type: ignore[attr-defined]
            published_ms = message.timestamp()[1]  # type: ignore[attr-defined]
            due = published_ms + delay_ms if delay_ms is not None else deliver_at_ms
            sent = Published(identity, published_ms, key, value, headers, output, due, error)
            self.sent[identity] = expected(sent)
            if holds is not None:
                self.named[identity] = Named(identity, holds, published_ms, sent.due_ms)
            if name is not None:
                self.names[identity] = name
            if replaces is not None:
                self.requests[identity] = replaces
                self.conditions[identity] = condition

        options: dict[str, Any] = {}
        if timestamp_ms is not None:
            options["timestamp"] = timestamp_ms
        if partition is not None:
            options["partition"] = partition
        self._producer.produce(topic, value, key, headers=[*headers, *own], on_delivery=record_sent, **options)
        self._producer.poll(0)

    def repeat(
        self,
        topic: str,
        value: bytes | None,
        rule: Headers,
        expected: Callable[[str, int], Repeated],
        *,
        headers: Headers = (),
        key: bytes | None = None,
        partition: int | None = None,
        replaces: str | None = None,
    ) -> None:
        """Publish one message that repeats, by the headers `rule`. `expected` takes its id and timestamp (epoch ms)."""
        own = list(rule)
        if replaces is not None:
            self._read_answers()
            own += [("delayline-replaces", replaces.encode())]

        def record_sent(failure: object, message: object) -> None:
            assert failure is None, failure
            identity = f"{message.topic()}/{message.partition()}/{message.offset()}"  # type: ignore[attr-defined]
            self.repeated[identity] = expected(identity, message.timestamp()[1])  # type: ignore[attr-defined]
            if replaces is not None:
                self.requests[identity], self.conditions[identity] = replaces, "waiting"

        options: dict[str, Any] = {} if partition is None else {"partition": partition}
        self._producer.produce(topic, value, key, headers=[*headers, *own], on_delivery=record_sent, **options)
        self._producer.poll(0)

    def cancel(self, identity: str, partition: int | None = None, more: Headers = ()) -> None:
        """Request to cancel a message, in its own input partition or in another one, with `more` headers."""
        self._ask("delayline-cancel", identity, partition, more)

    def deliver_now(self, identity: str, partition: int | None = None) -> None:
        """Request to deliver a message now, in its own input partition or in another one."""
        self._ask("delayline-deliver-now", identity, partition, ())

    def _ask(self, header: str, identity: str, partition: int | None, more: Headers) -> None:
        self._read_answers()
        topic, number, _ = identity.rsplit("/", 2)

        def record_asked(failure: object, message: object) -> None:
            assert failure is None, failure
            request = f"{message.topic()}/{message.partition()}/{message.offset()}"  # type: ignore[attr-defined]
            self.requests[request], self.asked_with[request] = identity, more
            if header == "delayline-deliver-now":
                self.delivering[request] = message.timestamp()[1]  # type: ignore[attr-defined]

        place = int(number) if partition is None else partition
        headers: list[tuple[str, str | bytes | None]] = [*more, (header, identity.encode())]
        self._producer.produce(topic, b"", None, place, headers=headers, on_delivery=record_asked)
        self._producer.poll(0)

    def cancel_by_name(
        self,
        topic: str,
        holds: str,
        headers: Headers,
        partition: int,
        key: bytes | None = None,
        value: bytes | None = b"",
    ) -> None:
        """Publish a record that cancels by a name: by its `headers`, or by its key and value."""
        self._read_answers()

        def record_asked(failure: object, message: object) -> None:
            assert failure is None, failure
            identity = f"{message.topic()}/{message.partition()}/{message.offset()}"  # type: ignore[attr-defined]
            self.named[identity] = Named(identity, holds, message.timestamp()[1], None)  # type: ignore[attr-defined]

        own: list[tuple[str, str | bytes | None]] = list(headers)
        self._producer.produce(topic, value, key, partition, headers=own, on_delivery=record_asked)
        self._producer.poll(0)

    def flush(self) -> None:
        """Wait until all published messages have their ids."""
        assert self._producer.flush(120) == 0

    def _open_producer(self) -> None:
        options = {"linger.ms": 5, "message.max.bytes": 10_000_000, **self.producer_options}
        self._producer = Producer({"bootstrap.servers": self.bootstrap, **options})

    def publish_with(self, **options: Any) -> None:
        """Publish with these options of the producer from now on: `publish_with(**{"compression.type": "zstd"})`."""
        self.flush()
        self.producer_options = options
        self._open_producer()

    def _read_answers(self) -> None:
        if self._results is None:
            self._results = Outputs(self.bootstrap, [self.results], self.answers.append)
