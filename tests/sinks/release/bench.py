"""An application with one shard: the test writes its logs, and starts and stops its releases."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError, Message, Producer

from conf.load import load_settings
from conf.settings import Settings
from sinks.internal_topics.position import Log, Position, topics_of
from sinks.internal_topics.position_reader import read_position
from sinks.ready_log.chunk import chunk_record
from sinks.release.context import ReleaseContext
from sinks.release.counts import ReleaseCounts
from sinks.release.known_topics import MOST_REFUSALS
from sinks.release.shard import ShardRelease
from sinks.release.waits import DEFAULT_WAITS, Waits
from state.order import in_order
from streaming.local.broker import EmbeddedBroker
from tests.eventually import assert_eventually
from tests.messages import messages
from tests.sinks.committed_records import TIMEOUT_S, committed, topic_bounds, topic_reader
from tests.sinks.release.topic_records import ids


@dataclass
class ReleaseBench:
    """An application with one shard. The test writes its logs.

    `settings`, `most_refusals` and `waits` apply to the next release process, and `counts` belong to the last one. The
    topics are read and written on `broker`.
    """

    broker: EmbeddedBroker
    settings: Settings
    most_refusals: int = MOST_REFUSALS
    waits: Waits = DEFAULT_WAITS
    counts: ReleaseCounts = field(default_factory=ReleaseCounts)
    prepared: list[ShardRelease] = field(default_factory=list)
    # The offset after the last staged chunk, by log.
    ends: dict[Log, int] = field(default_factory=lambda: dict.fromkeys(Log, 0))

    @property
    def options(self) -> dict[str, str]:
        """The options of a client of the broker's plain listener."""
        return {"bootstrap.servers": self.broker.bootstrap, "log_level": "0"}

    @property
    def dead_letter(self) -> str:
        """The dead-letter topic."""
        return self.settings.topics.dead_letter

    def change(self, *overrides: str) -> None:
        """Give the next release process other settings."""
        self.settings = bench_settings(self.settings.kafka.bootstrap_servers, self.settings.application_id, *overrides)

    def stage(self, *chunks: pa.Table, log: Log = Log.READY) -> None:
        """Write each of `chunks`, which are in delivery order, as a record of `log`."""
        offsets: list[int] = []

        def written(error: KafkaError | None, message: Message) -> None:
            assert error is None
            offset = message.offset()
            assert offset is not None
            offsets.append(offset)

        producer = Producer({**self.options, "message.max.bytes": "100000000", "on_delivery": written})
        for chunk in chunks:
            value, headers = chunk_record(chunk)
            producer.produce(topics_of(self.settings)[log], value, None, 0, headers=headers)
        assert producer.flush(TIMEOUT_S) == 0
        self.ends[log] = max([self.ends[log], *(offset + 1 for offset in offsets)])

    def prepare(self) -> ShardRelease:
        """Make a release that is not started."""
        context = ReleaseContext(self.settings, "test", most_refusals=self.most_refusals, waits=self.waits)
        self.counts = context.counts
        self.prepared.append(ShardRelease(context, 0))
        return self.prepared[-1]

    def start(self) -> ShardRelease:
        """Start to release."""
        release = self.prepare()
        release.start()
        return release

    def wait(self, release: ShardRelease) -> None:
        """Wait until `release` has released all staged messages. Raises its error if it ends before."""
        assert_eventually(lambda: release.ended.is_set() or self.is_done(release), TIMEOUT_S, "the release")
        if release.error is not None:
            raise release.error
        assert not release.ended.is_set(), "the shard was taken"

    def is_done(self, release: ShardRelease) -> bool:
        """Return whether `release` has released all staged messages."""
        position = release.position
        if position is None or not release.drained:
            return False
        return all(position.of(log).lowest >= end for log, end in self.ends.items())

    def release(self, *chunks: pa.Table) -> int:
        """Stage `chunks`, release all staged messages, and return how many messages this released.

        Raises the error of the release.
        """
        before = self.settled()
        self.stage(*chunks)
        running = self.start()
        try:
            self.wait(running)
        finally:
            self.stop(running)
        return self.settled() - before

    def stop(self, release: ShardRelease) -> None:
        """Stop `release`, and wait for its end."""
        release.stop()
        release.join()

    @property
    def position(self) -> Position | None:
        """The committed position."""
        return read_position(self.options, self.settings.position_topic, 0)

    @property
    def released(self) -> int:
        """The number of released messages, by the committed position that can be read now."""
        position = self.position
        return 0 if position is None else position.released

    def settled(self) -> int:
        """Return how many messages are released, once no transaction is open: a broker ends it after it says so."""
        topic = self.settings.position_topic
        with topic_reader(self.broker, "read_committed") as one, topic_reader(self.broker, "read_uncommitted") as other:
            assert_eventually(lambda: topic_bounds(one, topic, [0]) == topic_bounds(other, topic, [0]), TIMEOUT_S)
        return self.released

    def read(self, topic: str) -> list[Message]:
        """Return the committed records of `topic`, once no transaction is open in it."""
        return committed(self.broker, topic)

    def close(self) -> None:
        """Stop all releases that still run."""
        for release in self.prepared:
            release.stop()
        for release in self.prepared:
            release.join()


def bench_settings(bootstrap: str, application_id: str, *overrides: str) -> Settings:
    own = [
        f"application_id={application_id}",
        f"kafka.bootstrap_servers={bootstrap}",
        "bucket.shards=1",
        "kafka.log_level=0",
    ]
    topics = [f"topics.{role}={application_id}-{role}" for role in ("input", "output", "dead_letter")]
    return load_settings(None, [*own, *topics, *overrides], environ={})


def due_at(bench: ReleaseBench, dues_ms: list[int], first: int = 0, **columns: Any) -> pa.Table:
    """Return messages with numbered input offsets that are due at `dues_ms`, in delivery order."""
    own = {"output_topic": bench.settings.topics.output, **columns}
    return in_order(messages({**own, "offset": first + n, "deliver_at_ms": due} for n, due in enumerate(dues_ms)))


def released_ids(bench: ReleaseBench) -> list[int]:
    """Return the input offsets of the released messages, in the order of the output topic."""
    return ids(bench.read(bench.settings.topics.output))


def allow_pending(release: ShardRelease, most_bytes: int | None) -> ShardRelease:
    """Allow `release` only so many bytes of pending messages."""
    if most_bytes is not None:
        release._most_pending_bytes = most_bytes
    return release
