"""Messages that have names, with random delays and cancels, and the verdict on them (`streaming.judge.names`)."""

from __future__ import annotations

import random
import time
from typing import Any

from confluent_kafka import Producer

from streaming.judge.names import KEEP, REPLACE, Named, name_problems
from streaming.judge.outputs import Outputs
from streaming.judge.record import Received
from tests.eventually import assert_eventually
from tests.system.conftest import Application

# The time until a message takes over a name: the job reads it, and the release processes recall the one before.
SLACK_MS = 20_000


class NamedLoad:
    """Publishes messages that have names, and cancels by name, and judges the messages that come out.

    `mode` and `slack_ms` are arguments of `name_problems`.
    """

    def __init__(self, application: Application, mode: str = REPLACE, slack_ms: int = SLACK_MS) -> None:
        self._application = application
        self._mode, self._slack_ms = mode, slack_ms
        self._producer = Producer({"bootstrap.servers": application.bootstrap, "linger.ms": 5})
        self.records: dict[str, Named] = {}
        self.got: list[Received] = []
        self.answers: list[Received] = []
        topics = [application.output, application.other, application.dead]
        self._readers = [
            Outputs(application.bootstrap, topics, self.got.append),
            Outputs(application.bootstrap, [f"{application.id}-results"], self.answers.append),
        ]

    def publish(self, name: str, delay_ms: int | None, key: bytes | None = None, **more: Any) -> None:
        """Publish a message under `name` that is due after `delay_ms`, or a cancel (None)."""

        def sent(failure: object, message: Any) -> None:
            assert failure is None, failure
            identity = f"{message.topic()}/{message.partition()}/{message.offset()}"
            published_ms = message.timestamp()[1]
            due_ms = None if delay_ms is None else published_ms + delay_ms
            self.records[identity] = Named(identity, name, published_ms, due_ms)

        headers: list[tuple[str, str | bytes | None]] = [("delayline-cancel-name", name.encode())]
        if delay_ms is not None:
            headers = [("deliver-after", b"%dms" % delay_ms), *more.get("headers", ())]
        self._producer.produce(
            self._application.input, more.get("value", b"v"), key or name.encode(), headers=headers, on_delivery=sent
        )
        self._producer.poll(0)

    def publish_some(self, count: int, seed: int, longest_ms: int, names: int) -> None:
        """Publish records with random names and delays; one in five is a cancel."""
        chosen = random.Random(seed)
        for _ in range(count):
            delay_ms = None if chosen.random() < 0.2 else chosen.choice([0, 1_000, longest_ms // 2, longest_ms])
            self.publish(f"n{chosen.randrange(names)}", delay_ms)
        self._producer.flush(60)

    def flush(self) -> None:
        """Wait until all published records have their ids."""
        assert self._producer.flush(60) == 0

    def verify(self, timeout_s: float) -> None:
        """Wait until all that should come out has done so, and each cancel is answered; then judge all."""
        self.flush()
        newest = {record.name: record for record in sorted(self.records.values(), key=lambda record: record.offset)}
        expected = {record.id for record in newest.values() if record.due_ms is not None}
        cancels = {record.id for record in self.records.values() if record.due_ms is None}

        def complete() -> bool:
            for reader in self._readers:
                reader.check()
            answered = {answer.id for answer in list(self.answers)}
            if self._mode == KEEP:
                # Which messages come out depends on when batches have read them.
                return cancels <= answered and time.time() * 1_000 > last_ms and not self._problems()
            return expected <= {record.id for record in list(self.got)} and cancels <= answered

        last_ms = max(record.due_ms or 0 for record in self.records.values())
        assert_eventually(complete, timeout_s, "all that should come out, and all answers")
        for reader in self._readers:
            reader.drain()
        problems = self._problems()
        assert not problems, "\n".join(problems[:20])

    def _problems(self) -> list[str]:
        records, got, answers = self.records.values(), list(self.got), list(self.answers)
        return name_problems(records, got, answers, self._slack_ms, self._mode)

    def replaced(self) -> set[str]:
        """Return the ids of the messages that have not come out."""
        came_out = {record.id for record in list(self.got)}
        return {record.id for record in self.records.values() if record.due_ms is not None} - came_out

    def close(self) -> None:
        """End the subscriptions."""
        for reader in self._readers:
            reader.close()
