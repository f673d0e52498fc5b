"""What a test published, what came out, and whether the two agree by the judge's word (`streaming.judge`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Producer

from streaming.judge.checkpoint_watch import CheckpointWatch
from streaming.judge.contract import Surroundings
from streaming.judge.outputs import Outputs
from streaming.judge.record import ANY_ERROR, Header, Published, Received
from streaming.judge.verdict import LEAST_HELD, Verdict, judge

__all__ = ["Got", "Header", "Ledger"]

Got = Received
Headers = Sequence[Header]
# From the last delivery of a batch until it is committed, on a machine that is busy.
_COMMIT_S = 20.0


@dataclass
class Ledger:
    """Publishes, subscribes from the beginning in a thread of its own, and has both judged.

    `outputs` are the topics that messages come out on, the dead-letter topic last; `checkpoint` is the job's, a folder.
    """

    bootstrap: str
    outputs: list[str]
    checkpoint: Path
    sent: dict[str, Published] = field(default_factory=dict)
    got: list[Got] = field(default_factory=list)
    # What the clock of the job's host had shown by an instant of this process' clock, both in epoch ms.
    shown_ms: Callable[[int], int] = lambda now_ms: now_ms
    # Raises when waiting has become pointless: the job that is to deliver has ended.
    check: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self.closed = False
        self._producer = Producer(
            {"bootstrap.servers": self.bootstrap, "linger.ms": 5, "message.max.bytes": 10_000_000}
        )
        self._watch = CheckpointWatch(self.checkpoint)
        self._reader = Outputs(self.bootstrap, self.outputs, self.got.append)
        self._partitions = {topic: {count} for topic, count in self._reader.partitions.items()}

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
        headers = tuple(headers or ())
        error = ANY_ERROR if output == self.outputs[-1] else None

        def landed(problem: object, message: object) -> None:
            assert problem is None, problem
            identity = f"{message.topic()}/{message.partition()}/{message.offset()}"  # type: ignore[attr-defined]
            stamp = message.timestamp()[1]  # type: ignore[attr-defined]
            due = stamp + delay_ms if delay_ms is not None else deliver_at_ms
            self.sent[identity] = Published(identity, stamp, key, value, headers, output, due, error)

        options: dict[str, Any] = {}
        if timestamp_ms is not None:
            options["timestamp"] = timestamp_ms
        if partition is not None:
            options["partition"] = partition
        self._producer.produce(topic, value, key, headers=list(headers), on_delivery=landed, **options)
        self._producer.poll(0)

    def flush(self) -> None:
        """Wait until all that was published has its id."""
        assert self._producer.flush(30) == 0

    def wait_for_all(self, timeout_s: float) -> None:
        """Wait until everything published has come out."""
        self.flush()
        self.wait_for(lambda: self._reader.ids >= self.sent.keys(), timeout_s)

    def wait_for(self, condition: Callable[[], bool], timeout_s: float) -> None:
        """Wait for a condition on what was received; fails at the deadline, with what is missing."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            self.check()
            self._reader.check()
            if time.monotonic() > deadline:
                missing = sorted(self.sent.keys() - self._reader.ids)
                raise AssertionError(
                    f"not within {timeout_s} s; of {len(self.sent)} messages {len(missing)} have not come out, "
                    f"such as {missing[:5]}"
                )
            time.sleep(0.02)

    def verify_after_outage(self, timeout_s: float, least_held: float = LEAST_HELD) -> None:
        """Wait for all, and verify."""
        self.wait_for_all(timeout_s)
        self.verify(least_held)

    def verify(self, least_held: float = LEAST_HELD) -> None:
        """Assert the contract for all that was published, up to where the output topics end now.

        `least_held` is the share of messages that must have been held to order. What comes afterwards is judged by
        `finish`.
        """
        self._reader.drain()
        self._wait_for_commits()
        problems = self._judged(complete=True).problems(least_held)
        assert not problems, "\n".join(problems)

    def finish(self) -> None:
        """Once the job has ended: assert that nothing of what has come out up to the end breaks the contract.

        Not that all has come: a test may end its job before. A ledger that was closed has been done with.
        """
        if self.closed:
            return
        self.flush()
        self._reader.drain()
        problems = self._judged(complete=False).problems(least_held=0)
        assert not problems, "\n".join(problems)

    def reread(self) -> None:
        """Subscribe anew, and so to partitions as well that were added to the output topics meanwhile."""
        self._reader.close()
        self.got.clear()
        self._reader = Outputs(self.bootstrap, self.outputs, self.got.append)
        for topic, count in self._reader.partitions.items():
            self._partitions[topic].add(count)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.finish()
        finally:
            self.close()

    def close(self) -> None:
        """End the subscription, and look at the checkpoint no more."""
        if not self.closed:
            self.closed = True
            self._reader.close()
            self._watch.close()

    def _judged(self, complete: bool) -> Verdict:
        surroundings = Surroundings(self._partitions, self.shown_ms)
        return judge(self.sent, list(self.got), self._watch.acceptance(), surroundings, complete)

    def _wait_for_commits(self) -> None:
        """Wait until it is known by which batch each message was accepted: a batch delivers before it is committed.

        For a while only, since a job that was killed in between commits no more; then what is not known is not held.
        """
        deadline = time.monotonic() + _COMMIT_S
        out = [message for identity, message in self.sent.items() if identity in self._reader.ids]
        while time.monotonic() < deadline:
            acceptance = self._watch.acceptance()
            if all(acceptance.in_order_from_ms(message) is not None for message in out):
                return
            time.sleep(0.05)
