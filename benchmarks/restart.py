"""Restart: the time from the start of a killed job's new process until a subscriber has a message that is due."""

from __future__ import annotations

import time

from confluent_kafka import Consumer, TopicPartition

from benchmarks.job import Application, Job
from benchmarks.load import Load, Publisher, read_value
from benchmarks.stand import PARTITIONS, Stand
from benchmarks.waiting import say

TIMEOUT_S = 900.0
# Far above the numbers of any load.
_FIRST_NUMBER = 900_000_000_000


def restart_s(stand: Stand, application: Application, job: Job, attempt: int) -> float:
    """Kill the job's process tree, publish a plain message, and start the job again.

    Returns the seconds from that start until a subscriber of committed records has the message. Afterwards the job runs
    and is idle.
    """
    job.kill()
    consumer = _at_the_end(stand, application)
    number, now_ms = _FIRST_NUMBER + attempt, time.time_ns() // 1_000_000
    publisher = Publisher(stand.bootstrap, application.input, PARTITIONS)
    publisher.publish(Load(number, now_ms, now_ms), [])
    publisher.flush()
    publisher.close()
    job.launch()
    seconds = _received_at(consumer, number, job) - job.launched
    consumer.close()
    say(f"{application.name}: back {seconds:.1f} s after the start of its process")
    # The next kill must find an idle job again.
    job.wait_for_messages(sum(stand.end_offsets(application.input)), TIMEOUT_S)
    return seconds


def _at_the_end(stand: Stand, application: Application) -> Consumer:
    """Return a subscriber that starts at the current end of the output topic."""
    consumer = Consumer(
        {"bootstrap.servers": stand.bootstrap, "group.id": "restart", "isolation.level": "read_committed",
         "enable.auto.commit": False, "fetch.wait.max.ms": 100}
    )  # fmt: skip
    ends = stand.end_offsets(application.output)
    consumer.assign([TopicPartition(application.output, partition, end) for partition, end in enumerate(ends)])
    return consumer


def _received_at(consumer: Consumer, number: int, job: Job) -> float:
    """Return when the message was received, by `time.monotonic()`. Raises TimeoutError."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        message = consumer.poll(0.1)
        if message is None:
            job.check()
            continue
        now = time.monotonic()
        if message.error() is not None:
            raise RuntimeError(message.error())
        if read_value(message.value() or b"")[0] == number:
            return now
    raise TimeoutError(f"a due message was not delivered within {TIMEOUT_S:.0f} s of the restart")
