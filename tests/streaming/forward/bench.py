"""An application with lanes that a test opens, and the records of its forwarders, read back from a real broker."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from confluent_kafka import Producer

from conf.failpoints import ROOT_VARIABLE, VARIABLE
from conf.kafka.headers import RecordHeaders
from conf.kafka.options import librdkafka_options
from conf.load import load_settings
from conf.settings import Settings
from sinks.lanes.terms import write_terms
from sinks.lanes.writer import LaneTaken, LaneWriter
from sinks.topics.partitions import partition_counts
from sinks.topics.topic_ids import input_ids
from sinks.topics.topics import ensure_topics
from state.checkpoint.batch_settings import batch_settings_from
from state.checkpoint.origin import CheckpointOrigin
from state.claims import Claim, Terms
from state.decided import Claims
from state.message import decode_chunk
from streaming.forward.process import ForwardProcess
from streaming.local.broker import EmbeddedBroker
from tests.sinks.committed_records import committed

LANES = 2
Id = tuple[str, int, int]
_PROGRAM = """
import sys
from conf.load import load_settings
from streaming.forward.process import ForwardProcess
ForwardProcess(load_settings(None, sys.argv[2:]), sys.argv[1]).run(lambda _: False, lambda: print("joined", flush=True))
"""


@dataclass(frozen=True)
class ForwardBench:
    """`input` is the only input topic. `overrides` make `settings` in another process."""

    broker: EmbeddedBroker
    settings: Settings
    overrides: tuple[str, ...]

    @property
    def input(self) -> str:
        return self.settings.topics.input[0]

    def terms(self, epoch: int = 1, lanes: int = LANES) -> Terms:
        """Return terms by which forwarders read the input topic as it is now."""
        settings, shards = self.settings, self.settings.bucket.shards
        ids = {topic: [found] for topic, found in input_ids(settings).items()}
        counts = partition_counts(settings)
        own = batch_settings_from(settings, counts, range(shards), CheckpointOrigin("c", 1, shards), input_ids=ids)
        return Terms(epoch, lanes, own)

    def open_lanes(self, terms: Terms | None = None) -> None:
        """Act as a job that starts: give each lane a claim of the epoch, and publish the terms."""
        terms = terms or self.terms()
        for lane in range(terms.lanes):
            # A forwarder may fence the writer to look at the lane.
            while not self._open(lane, terms.epoch):
                pass
        self.write_terms(terms)

    def _open(self, lane: int, epoch: int) -> bool:
        with closing(self.writer(lane)) as writer:
            try:
                before = writer.claim or Claim(epoch=0)
                writer.write(replace(before, epoch=epoch, owner="job", decided={}, taken={}))
            except LaneTaken:
                return False
            return True

    def write_terms(self, terms: Terms) -> None:
        write_terms(self.settings, terms, lambda: None)

    def writer(self, lane: int) -> LaneWriter:
        return LaneWriter(self.settings, librdkafka_options(self.settings.kafka), lane)

    def publish(
        self, count: int, partition: int = 0, headers: RecordHeaders | None = None, producer: Producer | None = None
    ) -> None:
        own = producer or Producer({"bootstrap.servers": self.broker.bootstrap, "linger.ms": 5})
        for number in range(count):
            own.produce(self.input, b"v", b"%d" % number, partition, headers=headers or [])
            own.poll(0)
        own.flush()

    def claims(self) -> dict[int, list[Claim]]:
        """Return the committed claims of each lane, in order."""
        found: dict[int, list[Claim]] = {}
        for record in committed(self.broker, self.settings.claims_topic):
            if record.partition():
                found.setdefault((record.partition() or 0) - 1, []).append(Claim.from_bytes(record.value() or b""))
        return found

    def known(self) -> Claims:
        """Return all claims together. Their ranges must meet."""
        known = Claims()
        for own in self.claims().values():
            for before, claim in zip([Claim(epoch=0), *own], own, strict=False):
                known.add(claim)
                for topic, decided in claim.decided.items():
                    for partition, count in decided.items():
                        start = claim.positions[topic][partition] - count
                        assert start == before.position(topic, int(partition), claim.topic_ids[topic])
        return known

    def messages(self) -> list[dict[str, Any]]:
        """Return the committed messages of the near log, by shard in the order of the log."""
        rows: list[tuple[int, int, dict[str, Any]]] = []
        for record in committed(self.broker, self.settings.near_topic):
            for row in decode_chunk(record.value() or b"").to_pylist():
                rows.append((record.partition() or 0, record.offset() or 0, row))
        return [row for _, _, row in sorted(rows, key=lambda each: each[:2])]

    def forwarded(self) -> list[Id]:
        """Return the ids of the messages in the near log, ascending. They are those that claims take, each once."""
        ids = sorted((row["topic"], row["partition"], row["offset"]) for row in self.messages())
        claimed = sorted(
            (topic, partition, offset)
            for own in self.claims().values()
            for claim in own
            for (topic, partition), offsets in claim.offsets_taken().items()
            for offset in offsets
        )
        assert ids == claimed
        assert len({*ids}) == len(ids)
        return ids

    def decided(self, **ends: int) -> bool:
        """Return whether claims have decided all records below `ends`, by partition: `p0=5`."""
        known, present = self.known(), input_ids(self.settings)
        return all(known.position(present[self.input], int(name[1:])) >= end for name, end in ends.items())

    @contextmanager
    def forwarder(self, member: str = "north") -> Iterator[ForwardProcess]:
        """Run a forwarder in a thread until the end of the context."""
        process, ended, errors = ForwardProcess(self.settings, member), threading.Event(), list[BaseException]()

        def run() -> None:
            try:
                process.run(lambda _: ended.is_set())
            except BaseException as error:  # noqa: BLE001, the test looks at it
                errors.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield process
        finally:
            ended.set()
            thread.join(60)
            assert not thread.is_alive()
        assert errors == []

    @contextmanager
    def forwarder_process(self, member: str = "north", failpoint: str = "") -> Iterator[subprocess.Popen[str]]:
        """Run a forwarder in a process of its own, which is killed at the end of the context if it still runs."""
        # A failpoint kills this process alone: a session of Spark in the tests' process has made that the root of all.
        environ = {name: value for name, value in os.environ.items() if name != ROOT_VARIABLE}
        if failpoint:
            environ[VARIABLE] = failpoint
        command = [sys.executable, "-c", _PROGRAM, member, *self.overrides]
        with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as process:
            try:
                yield process
            finally:
                process.kill()


def new_bench(broker: EmbeddedBroker, *overrides: str) -> ForwardBench:
    """Make the topics of a new application of `broker`, with two shards and lanes and two input partitions."""
    application_id = f"app-{uuid.uuid4().hex[:8]}"
    topics = [f"topics.{role}={application_id}-{role}" for role in ("input", "output", "dead_letter")]
    servers = f"kafka.bootstrap_servers={broker.bootstrap}"
    own = (f"application_id={application_id}", servers, *topics, "monitor.job=", f"bucket.shards={LANES}")
    settings = load_settings(None, [*own, *overrides], environ={})
    ensure_topics(settings, 2)
    return ForwardBench(broker, settings, (*own, *overrides))


def ids(topic: str, offsets: Mapping[int, Iterable[int]]) -> list[Id]:
    """Return message ids, from offsets by partition."""
    return sorted((topic, partition, offset) for partition, own in offsets.items() for offset in own)
