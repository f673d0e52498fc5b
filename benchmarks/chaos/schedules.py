"""The schedules of a campaign: messages that repeat, requests about them, and the judge's verdict on them."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from benchmarks.chaos.published import read_back
from benchmarks.chaos.schedule_plan import SchedulePlan, Sent
from benchmarks.load import Header, Load, Publisher, read_value
from benchmarks.stand import PARTITIONS, Stand
from streaming.judge.acceptance import Acceptance
from streaming.judge.endings import Request, ending_problems
from streaming.judge.order import OrderCheck
from streaming.judge.outputs import Outputs
from streaming.judge.record import Published, Received
from streaming.judge.schedules import DUE_HEADER, Repeated, last_numbers, schedule_problems

RATE = 4
# Above the numbers of all other messages of a campaign, so that no two values are the same.
_FIRST = 2 * 10**9
# From the last answer until occurrences that were staged before it have come: `clock.horizon`, and a little more.
_STAGED_S = 65.0


@dataclass(frozen=True)
class Judged:
    """The judgement of the schedules: a sentence for each problem, and counts by kind."""

    problems: list[str]
    counts: dict[str, int]


class RepeatedRecords(threading.Thread):
    """Publishes `RATE` records/s for `seconds`, schedules and requests about them, and then cancels of all schedules.

    They have an input topic and an output topic of their own. The publisher takes the partitions in turn, and no other
    writes to the topic, so the plan knows the ids.
    """

    def __init__(self, stand: Stand, topic: str, output: str, seed: int, seconds: float) -> None:
        super().__init__(daemon=True, name="schedules")
        options = {"enable.idempotence": True, "log_level": 0}
        self._publisher = Publisher(stand.bootstrap, topic, PARTITIONS, options)
        self._plan = SchedulePlan(topic, output, seed, _FIRST)
        self._stand, self.topic, self._output, self._seconds = stand, topic, output, seconds
        self.received: list[Received] = []
        self._answered_s: float | None = None

    def subscribe(self) -> None:
        """Read the output topic, until `close`."""
        self._outputs = Outputs(self._stand.bootstrap, [self._output], self.received.append)

    def close(self) -> None:
        """End the subscription."""
        self._outputs.close()

    def run(self) -> None:
        """Publish."""

        def record(number: int, now_s: float) -> tuple[int, list[Header]]:
            stamp_ms = int(now_s * 1000)
            return stamp_ms * 1000, self._plan.record(number, stamp_ms)

        self._publisher.pace(RATE, self._seconds, record, first=_FIRST)
        stamp_ms = time.time_ns() // 1_000_000
        for number, headers in self._plan.cancels():
            self._publisher.publish(Load(number, stamp_ms, stamp_ms), headers)
        self._publisher.flush()
        self._publisher.close()

    def complete(self, answers: Iterable[Received]) -> bool:
        """Return whether each request is answered, and so long ago that all staged occurrences have come."""
        self._outputs.check()
        if len({answer.id for answer in answers}) < sum(sent.is_request for sent in self._plan.sent.values()):
            return False
        self._answered_s = self._answered_s or time.time()
        return time.time() > self._answered_s + _STAGED_S

    def drain(self) -> None:
        """Read to the end."""
        self._outputs.drain()

    def judge(self, answers: Iterable[Received], acceptance: Acceptance) -> Judged:
        """Return what came of the schedules. `answers` are those to records of this topic."""
        answers = list(answers)
        repeated: dict[str, Repeated] = {}
        requests: list[Request] = []
        for record in read_back(self._stand, self.topic):
            identity = f"{record.topic}/{record.partition}/{record.offset}"
            sent = self._plan.sent[read_value(record.value or b"")[0]]
            published = Published(identity, record.timestamp_ms, None, None, (), self._output)
            if sent.repeats is not None:
                known_ms = acceptance.committed_ms(published) or record.received_ms
                own = _as_published(sent.repeats, sent.after_ms, record, identity, known_ms)
                repeated[identity] = replace(own, staged_below_ms=acceptance.staged_below_ms(published))
            if sent.is_request:
                asked = None if sent.asked is None else self._plan.id_of(sent.asked)
                from_ms = acceptance.waited_from_ms(published)
                below_ms = acceptance.staged_below_ms(published)
                requests.append(Request(identity, asked, sent.name, sent.delivers, from_ms, below_ms))
        ended = last_numbers({answer.id: (answer.key or b"").decode() for answer in answers}, answers)
        until_ms = max((int(record.last(DUE_HEADER) or 0) for record in self.received), default=0)
        was_down = acceptance.staged_late
        foreign = {record.id for record in self.received} - repeated.keys()
        problems = [
            *schedule_problems(repeated, self.received, ended, until_ms, was_down),
            *ending_problems(repeated, requests, self.received, answers, was_down),
            *self._order_problems(acceptance),
            *(f"{identity} came out, and does not repeat" for identity in sorted(foreign)),
        ]
        kinds = Counter(_kind_of(sent) for sent in self._plan.sent.values())
        counts = {
            "schedules": len(repeated),
            "schedules by cron": sum(bool(message.cron) for message in repeated.values()),
            "occurrences": len(self.received),
            "cancels of schedules": kinds["cancel"],
            "cancels of schedules by name": kinds["cancel by name"],
            "schedules published under a name": kinds["named"],
            "schedules that requests ended": len(ended),
            "deliver-now requests for schedules": kinds["deliver now"],
        }
        return Judged(problems, counts)

    def _order_problems(self, acceptance: Acceptance) -> list[str]:
        """Return the occurrences that came after others due later, although they were staged in time."""
        check, problems = OrderCheck(), []
        for record in self.received:
            due_ms = int(record.last(DUE_HEADER) or 0)
            message = Published(record.id, due_ms, None, None, (), self._output, due_ms)
            if (finding := check.take(record, message, acceptance.held(message))) is not None:
                problems.append(f"{finding.id} is out of order: {finding.text}")
        return problems


def _as_published(message: Repeated, after_ms: int, record: Received, identity: str, known_ms: int) -> Repeated:
    first_ms = record.timestamp_ms + after_ms
    return replace(message, id=identity, first_ms=first_ms, key=record.key, value=record.value, known_ms=known_ms)


def _kind_of(sent: Sent) -> str:
    if sent.repeats is not None:
        return "named" if sent.name else "unnamed"
    if sent.name:
        return "cancel by name"
    return "deliver now" if sent.delivers else "cancel"
