"""The load: 100-byte values that contain their due time, published with all header forms, at once or at a rate."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from confluent_kafka import Producer

VALUE_BYTES = 100
PADDING_BYTES = VALUE_BYTES - 30
KEYS = 1000
_PADDING = [random.Random(seed).randbytes(VALUE_BYTES).hex()[:PADDING_BYTES].encode() for seed in range(64)]
_KEYS = [None if number % 10 == 9 else b"key-%d" % number for number in range(KEYS)]
# Log level: warnings only. At its end, a client would log a notice about events that it did not poll.
_OPTIONS = {"linger.ms": 5, "queue.buffering.max.messages": 500_000, "acks": "all", "log_level": 4}
_FLUSH_S = 120

Header = tuple[str, bytes]


@dataclass(frozen=True)
class Load:
    """One message: its number, when it is due and when it was published, both epoch ms."""

    number: int
    due_ms: int
    stamp_ms: int


def value_of(number: int, due_us: int, padding: bytes | None = None) -> bytes:
    """Return a value that begins with the message's number and its due time in epoch microseconds.

    `padding` fills the value up to `VALUE_BYTES`. The default paddings are few, and compress well.
    """
    return b"%012d %016d %b" % (number, due_us, padding or _PADDING[number % len(_PADDING)])


def read_value(value: bytes) -> tuple[int, int]:
    """Return the number and the due time (epoch microseconds) from a value that `value_of` made."""
    return int(value[:12]), int(value[13:29])


def key_of(number: int) -> bytes | None:
    """Return one of `KEYS` keys. A tenth of the messages has no key."""
    return _KEYS[number % KEYS]


def any_delay(load: Load) -> Header:
    """Return the header for the due time, in one of four forms: epoch ms, ISO-8601, a delay with or without a unit."""
    form = load.number % 4
    if form < 2:
        return instant(Load(form, load.due_ms, load.stamp_ms))
    delay = b"%d" % (load.due_ms - load.stamp_ms)
    return "deliver-after", delay if form == 2 else delay + b"ms"


def instant(load: Load) -> Header:
    """Return the header for the due time as an instant, by turns in epoch ms and in ISO-8601."""
    if load.number % 2 == 0:
        return "deliver-at", b"%d" % load.due_ms
    at = datetime.fromtimestamp(load.due_ms / 1000, UTC)
    return "deliver-at", at.isoformat(timespec="milliseconds").replace("+00:00", "Z").encode()


class Publisher:
    """Publishes to the partitions of one topic in turn, with explicit timestamps, so that delays are exact."""

    def __init__(
        self, bootstrap: str, topic: str, partitions: int, options: Mapping[str, str | int | bool] | None = None
    ) -> None:
        """Open the producer. `options` are librdkafka options that override the default ones."""
        self._producer = Producer({"bootstrap.servers": bootstrap, **_OPTIONS, **(options or {})})
        self._topic = topic
        self._partitions = partitions

    def preload(self, loads: Iterable[Load], header: Callable[[Load], Header]) -> float:
        """Publish all messages as fast as possible, each with one header; return the seconds it took."""
        begun = time.monotonic()
        for load in loads:
            self.publish(load, [header(load)])
        self.flush()
        return time.monotonic() - begun

    def preload_at_once(self, loads: Iterable[Load], header: Callable[[Load], Header]) -> None:
        """Publish all messages in one transaction, so that a job sees them in one instant.

        Needs the option `transactional.id`.
        """
        self._producer.init_transactions(_FLUSH_S)
        self._producer.begin_transaction()
        for load in loads:
            self.publish(load, [header(load)])
        self._producer.commit_transaction(_FLUSH_S)

    def pace(
        self, rate: int, seconds: float, load_at: Callable[[int, float], tuple[int, list[Header]]], first: int = 0
    ) -> int:
        """Publish `rate` messages/s for `seconds`, numbered from `first`; return their count.

        `load_at` takes a message's number and the time of publishing (epoch s), and returns the due time (epoch
        microseconds) and the headers.
        """
        count, begun = int(rate * seconds), time.time()
        for number in range(count):
            while (ahead := begun + number / rate - time.time()) > 0:
                self._producer.poll(0)
                time.sleep(min(ahead, 0.005))
            now = time.time()
            due_us, headers = load_at(first + number, now)
            self._send(first + number, due_us, int(now * 1000), headers)
        self.flush()
        return count

    def publish(self, load: Load, headers: list[Header]) -> None:
        """Publish one message."""
        self._send(load.number, load.due_ms * 1000, load.stamp_ms, headers)

    def close(self) -> None:
        """Close the client. Call this before the broker stops: the client would log errors."""
        self._producer.close()

    def flush(self) -> None:
        """Wait until the broker has all messages. Raises RuntimeError if it does not get them in time."""
        if left := self._producer.flush(_FLUSH_S):
            raise RuntimeError(f"{left} messages could not be published to {self._topic}")

    def _send(self, number: int, due_us: int, stamp_ms: int, headers: list[Header]) -> None:
        while True:
            try:
                self._producer.produce(
                    self._topic, value_of(number, due_us), key_of(number), number % self._partitions,
                    timestamp=stamp_ms, headers=list(headers),
                )  # fmt: skip
            except BufferError:
                self._producer.poll(0.1)
            else:
                return
            finally:
                if number % 1000 == 0:
                    self._producer.poll(0)


def far_loads(count: int, after_s: float, spread_s: float) -> Iterable[Load]:
    """Yield `count` messages due from `after_s` from now, spread evenly over `spread_s`, in random order."""
    stamp_ms = time.time_ns() // 1_000_000
    spread_ms = max(1, int(spread_s * 1000))
    chance = random.Random(1)
    for number in range(count):
        yield Load(number, stamp_ms + int(after_s * 1000) + chance.randrange(spread_ms), stamp_ms)
