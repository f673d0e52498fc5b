"""The names of a campaign: messages that take names over, cancels by name, and the judge's verdict on them."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable

from benchmarks.chaos.published import read_back
from benchmarks.load import Header, Load, Publisher, any_delay, read_value
from benchmarks.stand import PARTITIONS, Stand
from state.names import CANCEL_NAME_HEADER, NAME_HEADER
from streaming.judge.acceptance import Acceptance
from streaming.judge.names import Named, name_problems
from streaming.judge.outputs import Outputs
from streaming.judge.record import Published, Received

RATE = 20
# A name is used again after some seconds or minutes, as long as messages wait.
_NAMES = 1_000
_CANCELS = 0.2
# After its record is committed, a message takes over a name once all release processes have recalled the message
# before. They do so one after the other, and one of them may be paused for a minute.
_SLACK_MS = 120_000
# Above the numbers of all other messages of a campaign, so that no two values are the same.
_FIRST = 10**9


class NamedRecords(threading.Thread):
    """Publishes `RATE` records/s with names for `seconds`, due after `longest_s` at the most; one in five is a cancel.

    They have an input topic and an output topic of their own.
    """

    def __init__(self, stand: Stand, topic: str, output: str, seed: int, seconds: float, longest_s: float) -> None:
        super().__init__(daemon=True, name="names")
        options = {"enable.idempotence": True, "log_level": 0}
        self._publisher = Publisher(stand.bootstrap, topic, PARTITIONS, options)
        self._stand, self.topic, self._output = stand, topic, output
        self._chance = random.Random(seed)
        self._seconds, self._longest_s = seconds, longest_s
        self.received: list[Received] = []
        # The newest record of each name: the number of a message, or None for a cancel.
        self._newest: dict[str, int | None] = {}
        self.cancels = 0

    def subscribe(self) -> None:
        """Read the output topics, until `close`."""
        self._outputs = Outputs(self._stand.bootstrap, [self._output], self.received.append)

    def close(self) -> None:
        """End the subscription."""
        self._outputs.close()

    def run(self) -> None:
        """Publish."""
        self._publisher.pace(RATE, self._seconds, self._record, first=_FIRST)
        self._publisher.close()

    def complete(self) -> bool:
        """Return whether the newest message of each name has come out."""
        self._outputs.check()
        came_out = {read_value(record.value or b"")[0] for record in list(self.received)}
        return {number for number in self._newest.values() if number is not None} <= came_out

    def drain(self) -> None:
        """Read to the end."""
        self._outputs.drain()

    def problems(self, answers: Iterable[Received], acceptance: Acceptance) -> list[str]:
        """Return a sentence for each problem. `answers` has the answers to records of this topic."""
        published = [self._named(record, acceptance) for record in read_back(self._stand, self.topic)]
        return name_problems(published, self.received, answers, _SLACK_MS)

    def _named(self, record: Received, acceptance: Acceptance) -> Named:
        identity = f"{record.topic}/{record.partition}/{record.offset}"
        _, due_us = read_value(record.value or b"")
        cancelled = record.last(CANCEL_NAME_HEADER)
        published = Published(
            identity, record.timestamp_ms, record.key, record.value, record.headers, self._output, due_us // 1000
        )
        known_ms = acceptance.committed_ms(published) or record.received_ms
        waited_from_ms = acceptance.waited_from_ms(published)
        if cancelled is not None:
            return Named(identity, cancelled, known_ms, None, waited_from_ms)
        staged_ms = acceptance.staged_ms(published)
        out_by_ms = None if staged_ms is None else max(staged_ms, due_us // 1000) + _SLACK_MS
        return Named(identity, record.last(NAME_HEADER) or "", known_ms, due_us // 1000, waited_from_ms, out_by_ms)

    def _record(self, number: int, now_s: float) -> tuple[int, list[Header]]:
        stamp_ms = int(now_s * 1000)
        # All records of a name are in one partition: the publisher takes the partitions in turn.
        name = f"n{self._chance.randrange(_NAMES // PARTITIONS) * PARTITIONS + number % PARTITIONS}"
        if self._chance.random() < _CANCELS:
            self.cancels += 1
            self._newest[name] = None
            return stamp_ms * 1000, [(CANCEL_NAME_HEADER, name.encode())]
        self._newest[name] = number
        longest_s = min(self._chance.choice((10.0, 60.0, self._longest_s)), self._longest_s)
        due_ms = stamp_ms + int(self._chance.uniform(0.1, longest_s) * 1000)
        to_own = ("deliver-to", self._output.encode())
        return due_ms * 1000, [any_delay(Load(number, due_ms, stamp_ms)), (NAME_HEADER, name.encode()), to_own]
