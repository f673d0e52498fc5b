"""Restart: the time from the start of a killed job's new process until a subscriber has a message that is due.

And what a request for a sealed message costs, in a running job that has had none, and after a restart.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from confluent_kafka import Consumer, TopicPartition

from benchmarks.job import Application, Job
from benchmarks.load import Load, Publisher, read_value
from benchmarks.stand import PARTITIONS, Stand
from benchmarks.waiting import say
from sources.canceller import Canceller, requests_for

TIMEOUT_S = 900.0
# Far above the numbers of any load.
_FIRST_NUMBER = 900_000_000_000


def first_answer_s(application: Application, asked: str) -> float:
    """Ask a running job to cancel a sealed message; return how long the answer took, in s."""
    with Canceller(application.settings) as canceller:
        begun = time.monotonic()
        canceller.ask(requests_for(application.settings, [asked]))
        return _answered_at(canceller) - begun


def asked_restart(stand: Stand, application: Application, job: Job, attempt: int, asked: str) -> dict[str, float]:
    """Do what `restart_s` does, with a request in the input topic: to cancel the sealed message with the id `asked`.

    Returns the same time, the time from the start until the answer, and the longest time from the plan of a new batch
    until its commit, all in s.
    """
    figures: dict[str, float] = {}
    with Canceller(application.settings) as canceller:

        def ask() -> None:
            canceller.ask(requests_for(application.settings, [asked]))
            figures["asked_s"] = time.time()

        def wait_for_answer() -> None:
            figures["asked_answer_s"] = _answered_at(canceller) - job.launched

        figures["asked_restart_s"] = restart_s(stand, application, job, attempt, ask, wait_for_answer)
    asked_s = figures.pop("asked_s")
    # Not the batch that was cut off.
    new = [batch for batch in job.batches.between(asked_s, time.time()) if batch.planned_s >= asked_s]
    figures["asked_batch_s"] = max(batch.committed_s - batch.planned_s for batch in new)
    return {name: round(seconds, 2) for name, seconds in figures.items()}


def restart_s(
    stand: Stand,
    application: Application,
    job: Job,
    attempt: int,
    while_down: Callable[[], None] = lambda: None,
    once_back: Callable[[], None] = lambda: None,
) -> float:
    """Kill the job's process tree, publish a plain message, and start the job again.

    Returns the seconds from that start until a subscriber of committed records has the message. Afterwards the job runs
    and is idle. `while_down` is called before the start, and `once_back` when the message is there.
    """
    job.kill()
    consumer = _at_the_end(stand, application)
    number, now_ms = _FIRST_NUMBER + attempt, time.time_ns() // 1_000_000
    publisher = Publisher(stand.bootstrap, application.input, PARTITIONS)
    publisher.publish(Load(number, now_ms, now_ms), [])
    publisher.flush()
    publisher.close()
    while_down()
    job.launch()
    seconds = _received_at(consumer, number, job) - job.launched
    consumer.close()
    say(f"{application.name}: back {seconds:.1f} s after the start of its process")
    once_back()
    # The next kill must find an idle job again.
    job.wait_for_messages(sum(stand.end_offsets(application.input)), TIMEOUT_S)
    return seconds


def _answered_at(canceller: Canceller) -> float:
    """Return when the answer came, by `time.monotonic()`. Raises RuntimeError if the message is not cancelled."""
    results = [answer.result for answer in canceller.answers(int(TIMEOUT_S * 1000))]
    if results != ["cancelled"]:
        raise RuntimeError(f"the request was answered with {results}")
    return time.monotonic()


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
