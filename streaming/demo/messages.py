"""The messages that the demo publishes: every header form of the contract, each with its expected delivery."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Producer

from conf.errors import PublishFailed
from conf.kafka.client_log import client_log
from conf.kafka.options import librdkafka_options
from conf.settings import Settings
from streaming.judge.record import Published

log = logging.getLogger(__name__)

Headers = list[tuple[str, bytes | None]]

# A message that is due when it is staged may follow a later one.
SHORTEST_MS, LONGEST_MS = 500, 25_000
# So long that forwarders leave it to the batches, and it waits in buckets.
FAR_MS = (45_000, 60_000)
_FAR_EVERY = 5
_FLUSH_S = 30.0
# Headers that cannot be scheduled, each with the error code of its dead letter.
_BAD: list[tuple[str, Headers]] = [
    ("bad-deliver-after", [("deliver-after", b"soon")]),
    ("bad-deliver-at", [("deliver-at", b"2026-12-24T18:00:00")]),
    ("bad-delay-level", [("delay-level", b"high")]),
    ("two-delays", [("deliver-after", b"2s"), ("delay-level", b"1")]),
    ("delay-too-long", [("deliver-after", b"4000d")]),
    ("bad-deliver-to", [("deliver-to", b"no topic")]),
    ("topic-not-allowed", [("deliver-to", b"someone-elses")]),
]


@dataclass(frozen=True)
class Wanted:
    """One message to publish.

    `delay_ms` counts from the message's Kafka timestamp. With neither `delay_ms` nor `deliver_at_ms`, the message is
    plain, unless `error` is set: then it must become a dead letter with that code.
    """

    key: bytes | None
    value: bytes
    headers: Headers
    output: str
    delay_ms: int | None = None
    deliver_at_ms: int | None = None
    error: str | None = None


def mixture(settings: Settings, count: int, far: int, seed: int = 1) -> Iterator[Wanted]:
    """Yield `count` messages, a plain one first. A deliver-at value is computed when its message is yielded.

    Among the first `far`, some wait for `FAR_MS`.
    """
    chance = random.Random(seed)
    second = settings.topics.allowed_outputs[0]
    levels = [(n, ms) for n, ms in enumerate(settings.levels.delays, 1) if SHORTEST_MS <= ms <= LONGEST_MS]
    for number in range(count):
        key = None if chance.random() < 0.2 else f"customer-{chance.randrange(50)}".encode()
        value = f"message {number}".encode()
        headers: Headers = [("trace", str(number).encode())]
        if number % 20 == 7:
            error, bad = _BAD[number // 20 % len(_BAD)]
            yield Wanted(key, value, [*headers, *bad], settings.topics.dead_letter, error=error)
            continue
        output = settings.topics.output
        if chance.random() < 0.2:
            output = second
            headers.append(("deliver-to", output.encode()))
        form, delay_ms = chance.random(), chance.randint(SHORTEST_MS, LONGEST_MS)
        if number % _FAR_EVERY == 3 and number < far:
            delay_ms = chance.randint(*FAR_MS)
            yield Wanted(key, value, [*headers, ("deliver-after", f"{delay_ms}ms".encode())], output, delay_ms)
        elif form < 0.15 or number == 0:
            yield Wanted(key, value, headers, output)
        elif form < 0.30:
            level, delay_ms = chance.choice(levels)
            yield Wanted(key, value, [*headers, ("delay-level", str(level).encode())], output, delay_ms)
        elif form < 0.65:
            yield Wanted(key, value, [*headers, ("deliver-after", f"{delay_ms}ms".encode())], output, delay_ms)
        else:
            due = time.time_ns() // 1_000_000 + delay_ms
            yield Wanted(key, value, [*headers, ("deliver-at", str(due).encode())], output, deliver_at_ms=due)


class Publication:
    """Publishes the mixture in waves, each in a background thread. `sent` has the messages confirmed by the broker."""

    def __init__(self, settings: Settings, count: int, far: int) -> None:
        self.sent: dict[str, Published] = {}
        self._settings = settings
        self._mixture = mixture(settings, count, far)
        self._requested = 0
        self._problem: Exception | None = None
        self._stop = threading.Event()
        self._wave: threading.Thread | None = None

    @property
    def done(self) -> bool:
        """Whether all waves so far are published. Raises PublishFailed if publishing failed."""
        if self._problem is not None:
            raise PublishFailed(str(self._problem))
        return len(self.sent) == self._requested

    def start(self, count: int, seconds: float) -> None:
        """Start to publish the next `count` messages, evenly over `seconds`. The previous wave must be done."""
        self._requested += count
        self._wave = threading.Thread(target=self._run, args=(count, seconds), daemon=True)
        self._wave.start()

    def close(self) -> None:
        """Stop publishing."""
        self._stop.set()
        if self._wave is not None:
            self._wave.join(_FLUSH_S)

    def _run(self, count: int, seconds: float) -> None:
        try:
            options = librdkafka_options(self._settings.kafka)
            producer = Producer(
                {"log_level": "3", "linger.ms": "5", "enable.idempotence": "true", **options}, logger=client_log(log)
            )
            begun = time.monotonic()
            for number in range(count):
                if self._stop.wait(max(0.0, begun + seconds * number / count - time.monotonic())):
                    break
                self._publish(producer, next(self._mixture))
            producer.flush(_FLUSH_S)
        except Exception as problem:  # noqa: BLE001, `done` raises it in the main thread
            self._problem = problem

    def _publish(self, producer: Producer, wanted: Wanted) -> None:
        def confirmed(error: Any, message: Any) -> None:
            if error is not None:
                self._problem = PublishFailed(str(error))
                return
            identity = f"{message.topic()}/{message.partition()}/{message.offset()}"
            published_ms = message.timestamp()[1]
            due = wanted.deliver_at_ms if wanted.delay_ms is None else published_ms + wanted.delay_ms
            content = wanted.key, wanted.value, tuple(wanted.headers)
            self.sent[identity] = Published(identity, published_ms, *content, wanted.output, due, wanted.error)

        topic = self._settings.topics.input[0]
        producer.produce(topic, wanted.value, wanted.key, headers=list(wanted.headers), on_delivery=confirmed)
        producer.poll(0)
