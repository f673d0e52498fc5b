"""Streams a load that is too large for a topic into a running job, from a separate process.

`python -m benchmarks.feed BOOTSTRAP TOPIC PARTITIONS BEFORE COUNT CHECKPOINT SPREAD RATE` publishes COUNT messages to a
topic that has had BEFORE messages, RATE in a second, or as fast as it can if RATE is 0. They are due from `DUE_IN_S`
after its start, as `SPREADS` says, in random order. The process stays at most `LEAD` messages ahead of the job's
committed batches, deletes committed messages from the topic, and prints one line of JSON at the end.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from benchmarks.checkpoint_watch import CheckpointWatch
from benchmarks.load import PADDING_BYTES, key_of, value_of
from benchmarks.waiting import wait_until

if TYPE_CHECKING:
    # Not for the process that publishes.
    from benchmarks.job import Job

DUE_IN_S = 48 * 3600
_HOUR_S, _YEAR_S = 3600, 366 * 24 * 3600 - DUE_IN_S - 3600
# How due times are spread: pairs of a share of the messages, and the seconds over which these are due evenly.
SPREADS: dict[str, tuple[tuple[float, int], ...]] = {
    # That of Pulsar's benchmark of its bucket tracker.
    "10m": ((1.0, 600),),
    "48h": ((1.0, 48 * _HOUR_S),),
    "366d": ((1.0, _YEAR_S),),
    "tail": ((0.9, _HOUR_S), (0.1, _YEAR_S)),
}
# Enough to fill every batch of the job; takes half a gigabyte in the topic.
LEAD = 2_000_000
# Settings of the topic and its broker, so that deleted messages leave the disk soon.
TOPIC = {"segment.bytes": str(64 * 2**20), "file.delete.delay.ms": "1000"}
BROKER = {"log.retention.check.interval.ms": "10000", "log.initial.task.delay.ms": "10000"}
# Random bytes that repeat only beyond the window of any compression: the values must not compress on disk.
_NOISE = random.Random(3).randbytes(PADDING_BYTES * 60_000)
_CHUNK = 10_000
_TRIM_EVERY_S = 5.0
_TIMEOUT_S = 120
# With large requests a message takes 0.6 µs of the broker's CPU instead of 1.2. The job runs on the same cores.
_OPTIONS = {"linger.ms": 50, "batch.size": 1_000_000, "batch.num.messages": 100_000, "acks": "all",
            "queue.buffering.max.messages": 500_000}  # fmt: skip


class Feed:
    """Runs `main` as a process. A context manager, which ends the process."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: int,
        before: int,
        count: int,
        checkpoint: Path,
        spread: str,
        rate: int = 0,
    ) -> None:
        """Start the process.

        Args:
            bootstrap: `host:port` of the broker.
            topic: the input topic of the job.
            partitions: its number of partitions.
            before: the number of messages that the topic has had.
            count: the number of messages to publish.
            checkpoint: folder of the job's checkpoint.
            spread: which of `SPREADS`.
            rate: messages per second; 0: no limit.
        """
        arguments = [bootstrap, topic, str(partitions), str(before), str(count), str(checkpoint), spread, str(rate)]
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

    def run_into(self, job: Job, count: int, limit_s: float) -> dict[str, float]:
        """Wait until `job` has committed `count` messages, at most `limit_s`, and return `result`.

        Raises RuntimeError if either of them fails.
        """

        def check() -> None:
            self.check()
            job.check()

        wait_until(lambda: job.batches.messages >= count, limit_s, f"{count:,} messages ingested", check)
        return self.result()

    def result(self) -> dict[str, float]:
        """Wait until the process ends, and return the figures that it printed."""
        printed, _ = self._process.communicate(timeout=_TIMEOUT_S)
        self.check()
        return dict(json.loads(printed))


class _Stream:
    """Publishes messages, and follows how far the job has committed them."""

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

    def wait_for_job(self, published: int, lead: int) -> None:
        """Wait until the job is at most `lead` messages behind. Exits if the parent process has ended."""
        begun = time.monotonic()
        while published - max(0, self._job.messages - self._before) > lead:
            if os.getppid() != self._parent:
                sys.exit("the benchmark's process has ended")
            time.sleep(0.05)
        self.held_s += time.monotonic() - begun
        if time.monotonic() >= self._next_trim:
            self.trim()

    def finish(self) -> None:
        """Wait until the broker has all messages. Raises RuntimeError if it does not get them in time."""
        if left := self._producer.flush(_TIMEOUT_S):
            raise RuntimeError(f"{left} messages could not be published to {self._topic}")

    def trim(self) -> None:
        """Delete the messages of committed batches: the job never reads them again."""
        self._next_trim = time.monotonic() + _TRIM_EVERY_S
        ends = self._job.newest.ends if self._job.newest else {}
        request = [TopicPartition(self._topic, partition, end) for partition, end in ends.items()]
        for answer in self._admin.delete_records(request).values() if request else ():
            answer.result(_TIMEOUT_S)


def due_after_ms(spread: str, chance: np.random.Generator, size: int) -> np.ndarray:
    """Return `size` random due times of a spread, in ms after the first possible one."""
    shares, seconds = zip(*SPREADS[spread], strict=True)
    longest_s = np.array(seconds)[chance.choice(len(shares), size, p=shares)]
    return np.asarray(chance.random(size) * longest_s * 1000, dtype=np.int64)


def main() -> None:
    """Publish, and print the seconds it took, the seconds it waited for the job, and its CPU seconds."""
    bootstrap, topic, partitions, before, count, checkpoint, spread, rate = sys.argv[1:]
    stream = _Stream(bootstrap, topic, int(partitions), int(before), Path(checkpoint))
    chance = np.random.default_rng(1)
    begun = time.monotonic()
    first_due_ms = time.time_ns() // 1_000_000 + DUE_IN_S * 1000
    for first in range(0, int(count), _CHUNK):
        size = min(_CHUNK, int(count) - first)
        stream.publish(first, (first_due_ms + due_after_ms(spread, chance, size)).tolist())
        stream.wait_for_job(first + size, LEAD)
        if int(rate):
            time.sleep(max(0.0, begun + (first + size) / int(rate) - time.monotonic()))
    stream.finish()
    seconds = time.monotonic() - begun
    used = os.times()
    figures = {"seconds": seconds, "held_s": stream.held_s, "cpu_s": used.user + used.system}
    # Wait for the job, so that the last messages are deleted too.
    stream.wait_for_job(int(count), 0)
    stream.trim()
    print(json.dumps({name: round(value, 1) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
