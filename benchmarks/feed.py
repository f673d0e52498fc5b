"""A load that no topic should have to hold, streamed into a running job by a process of its own.

`python -m benchmarks.feed BOOTSTRAP TOPIC PARTITIONS BEFORE COUNT CHECKPOINT` publishes COUNT messages that fall due
`DUE_IN_S` after its start, spread evenly over `SPREAD_S`, in no order, to a topic that has had BEFORE messages. It
stays at most `LEAD` messages ahead of what the job has committed, deletes from the topic what is behind that, and at
the end prints one line of JSON.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from benchmarks.checkpoint_watch import CheckpointWatch
from benchmarks.load import PADDING_BYTES, key_of, value_of

DUE_IN_S, SPREAD_S = 48 * 3600, 600
# Enough for the job to find every batch full, and half a gigabyte of topic.
LEAD = 2_000_000
# For the topic and its broker, so that what is deleted leaves the disk soon.
TOPIC = {"segment.bytes": str(64 * 2**20), "file.delete.delay.ms": "1000"}
BROKER = {"log.retention.check.interval.ms": "10000", "log.initial.task.delay.ms": "10000"}
# Repeats further apart than any compression looks back: bytes on disk are those of values that do not compress.
_NOISE = random.Random(3).randbytes(PADDING_BYTES * 60_000)
_CHUNK = 10_000
_TRIM_EVERY_S = 5.0
_TIMEOUT_S = 120
# Large requests: each message costs the broker 0.6 µs of CPU instead of 1.2, and the job is on the same cores.
_OPTIONS = {"linger.ms": 50, "batch.size": 1_000_000, "batch.num.messages": 100_000, "acks": "all",
            "queue.buffering.max.messages": 500_000}  # fmt: skip


class Feed:
    """Runs `main` as a process, for a job whose checkpoint is in `checkpoint`. A context, which ends it."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, before: int, count: int, checkpoint: Path) -> None:
        arguments = [bootstrap, topic, str(partitions), str(before), str(count), str(checkpoint)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.feed", *arguments], stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Feed:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def check(self) -> None:
        """Raise RuntimeError if it has failed."""
        if self._process.poll():
            raise RuntimeError(f"the publisher ended with {self._process.returncode}")

    def result(self) -> dict[str, float]:
        """Wait for its end, and return the figures that it printed."""
        printed, _ = self._process.communicate(timeout=_TIMEOUT_S)
        self.check()
        return dict(json.loads(printed))


class _Stream:
    """Where the publishing stands, and the job behind it."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, before: int, checkpoint: Path) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, **_OPTIONS})
        self._admin = AdminClient({"bootstrap.servers": bootstrap})
        self._topic, self._partitions, self._before = topic, partitions, before
        self._parent = os.getppid()
        self._job = CheckpointWatch(checkpoint, topic)
        self._job.start()
        self._next_trim = 0.0
        self.held_s = 0.0

    def publish(self, first: int, dues_ms: list[int]) -> None:
        """Publish messages numbered from `first`, each with its due time (epoch ms) in one header."""
        for number, due_ms in enumerate(dues_ms, first):
            at = number * PADDING_BYTES % len(_NOISE)
            value = value_of(number, due_ms * 1000, _NOISE[at : at + PADDING_BYTES])
            headers = [("deliver-at", b"%d" % due_ms)]
            while True:
                try:
                    self._producer.produce(
                        self._topic, value, key_of(number), number % self._partitions, headers=list(headers)
                    )
                    break
                except BufferError:
                    self._producer.poll(0.1)
        self._producer.poll(0)

    def hold(self, published: int, lead: int) -> None:
        """Wait until the job is at most `lead` messages behind. Ends the process when its parent is gone."""
        begun = time.monotonic()
        while published - max(0, self._job.messages - self._before) > lead:
            if os.getppid() != self._parent:
                sys.exit("the benchmark is gone")
            time.sleep(0.05)
        self.held_s += time.monotonic() - begun
        if time.monotonic() >= self._next_trim:
            self.trim()

    def finish(self) -> None:
        """Wait until the broker has all of it. Raises RuntimeError if it has not."""
        if left := self._producer.flush(_TIMEOUT_S):
            raise RuntimeError(f"{left} messages could not be published to {self._topic}")

    def trim(self) -> None:
        """Delete what is in committed batches: the job never reads it again."""
        self._next_trim = time.monotonic() + _TRIM_EVERY_S
        ends = self._job.newest.ends if self._job.newest else {}
        request = [TopicPartition(self._topic, partition, end) for partition, end in ends.items()]
        for answer in self._admin.delete_records(request).values() if request else ():
            answer.result(_TIMEOUT_S)


def main() -> None:
    """Publish, and print the seconds it took, those it was held back for the job, and its CPU seconds."""
    bootstrap, topic, partitions, before, count, checkpoint = sys.argv[1:]
    stream = _Stream(bootstrap, topic, int(partitions), int(before), Path(checkpoint))
    chance = np.random.default_rng(1)
    begun = time.monotonic()
    first_due_ms = time.time_ns() // 1_000_000 + DUE_IN_S * 1000
    for first in range(0, int(count), _CHUNK):
        size = min(_CHUNK, int(count) - first)
        stream.publish(first, (first_due_ms + chance.integers(0, SPREAD_S * 1000, size)).tolist())
        stream.hold(first + size, LEAD)
    stream.finish()
    seconds = time.monotonic() - begun
    used = os.times()
    figures = {"seconds": seconds, "held_s": stream.held_s, "cpu_s": used.user + used.system}
    # The last of it goes off the disk too.
    stream.hold(int(count), 0)
    stream.trim()
    print(json.dumps({name: round(value, 1) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
