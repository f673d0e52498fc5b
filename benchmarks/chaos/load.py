"""The load of a campaign: mixed delays to two topics, and requests about them; its rate leaves room for faults."""

from __future__ import annotations

import random
import threading
import time
from array import array
from collections.abc import Callable

from benchmarks.load import Header, Load, Publisher, any_delay
from benchmarks.stand import PARTITIONS, Stand
from benchmarks.waiting import wait_until
from state.cancel import ALWAYS, CANCEL_HEADER, DELIVER_NOW_HEADER, WAITING, replacing
from streaming.judge.outputs import Outputs

RATE = 500
# Shares of the records. Each of these is about one of the latest messages, which still wait or have just come out.
_CANCELS, _DELIVERIES, _REPLACEMENTS, _LATEST = 0.05, 0.03, 0.02, 20_000
# Most deliver-now requests are about a message that waits this long still. Others are out when a batch reads them.
_STILL_WAITS_MS, _TRIES = 15_000, 20
# Time after the last due time: for a start of the job, overdue messages, and a busy machine.
_DRAIN_S = 180.0
_LONGEST_S = 300.0
_WARM_UP, _WARM_UP_TIMEOUT_S = 100, 180.0


class RandomLoad(threading.Thread):
    """Publishes `RATE` records/s for `seconds`, nearly all with a random delay; the number determines the output topic.

    `published` counts all records, `cancels` the cancel requests, `deliveries` the deliver-now requests, and
    `replacements` the messages that replace others.
    """

    def __init__(self, stand: Stand, topic: str, outputs: tuple[str, str], seed: int, seconds: float) -> None:
        """`topic` is the input. Most messages go to the first of `outputs`, the job's own, and some to the second."""
        super().__init__(daemon=True, name="load")
        # Idempotent, because a killed broker may have stored a record without acknowledging it.
        options = {"enable.idempotence": True, "log_level": 0}
        self._publisher = Publisher(stand.bootstrap, topic, PARTITIONS, options)
        self._stand, self._topic, self._outputs = stand, topic, outputs
        self._chance = random.Random(seed)
        self._seconds = seconds
        # A short campaign should not wait long at its end.
        self.longest_s = min(_LONGEST_S, seconds / 3)
        self.published = _WARM_UP + int(RATE * seconds)
        self.cancels = self.deliveries = self.replacements = 0
        # By number, epoch ms.
        self._dues_ms = array("q")

    def warm_up(self) -> None:
        """Let the job deliver before the first fault, so that its transactional writers are open."""
        now_ms = time.time_ns() // 1_000_000
        self._dues_ms.extend([now_ms] * _WARM_UP)
        for number in range(_WARM_UP):
            self._publisher.publish(Load(number, now_ms, now_ms), self._route(number))
        self._publisher.flush()
        wait_until(
            lambda: all(sum(self._stand.end_offsets(topic)) for topic in self._outputs),
            _WARM_UP_TIMEOUT_S,
            "a delivery",
            lambda: None,
        )

    def run(self) -> None:
        """Publish the other messages."""
        self._publisher.pace(RATE, self._seconds, self._record, first=_WARM_UP)
        self._publisher.close()

    def topic_of(self, number: int) -> str:
        """Return the output topic of the message with this number."""
        return self._outputs[number % 5 == 0]

    def wait_for_all(self, outputs: Outputs, answered: Callable[[], int], unexpected: Callable[[], int]) -> None:
        """Wait until all is delivered or answered, or the time for that is over; the judge reports what is missing.

        `answered` returns the number of answers. `unexpected` returns the number of messages that are cancelled or not
        accepted, according to their answers.
        """
        deadline_s = time.monotonic() + self.longest_s + _DRAIN_S
        while answered() < self.requests + self.replacements and time.monotonic() < deadline_s:
            time.sleep(0.1)
        expected = self.published - self.requests - unexpected()
        while len(outputs.ids) < expected and time.monotonic() < deadline_s:
            outputs.check()
            time.sleep(0.1)

    @property
    def requests(self) -> int:
        """The number of records that are not messages."""
        return self.cancels + self.deliveries

    def _record(self, number: int, now_s: float) -> tuple[int, list[Header]]:
        stamp_ms = int(now_s * 1000)
        kind = self._chance.random()
        due_ms, headers = stamp_ms, list[Header]()
        if kind < _CANCELS:
            self.cancels += 1
            headers = [(CANCEL_HEADER, self._id(self._earlier(number)).encode())]
        elif kind < _CANCELS + _DELIVERIES:
            self.deliveries += 1
            headers = [(DELIVER_NOW_HEADER, self._id(self._waiting(number, stamp_ms)).encode())]
        else:
            due_ms, headers = self._message(number, stamp_ms)
        self._dues_ms.append(due_ms)
        return due_ms * 1000, headers

    def _message(self, number: int, stamp_ms: int) -> tuple[int, list[Header]]:
        # Half of the delays are up to ten seconds; some messages wait through several faults.
        longest_s = min(self._chance.choice((10.0, 10.0, 60.0, _LONGEST_S)), self.longest_s)
        due_ms = stamp_ms + int(self._chance.uniform(0.1, longest_s) * 1000)
        headers = [any_delay(Load(number, due_ms, stamp_ms)), *self._route(number)]
        if self._chance.random() < _REPLACEMENTS:
            self.replacements += 1
            replaced = self._id(self._earlier(number))
            headers += replacing(replaced, self._chance.choice((WAITING, WAITING, ALWAYS)))
        return due_ms, headers

    def _earlier(self, number: int) -> int:
        """Return the number of one of the latest records before this one."""
        return number - self._chance.randrange(1, min(number, _LATEST))

    def _waiting(self, number: int, now_ms: int) -> int:
        """Return the number of one of the latest records before this one, such as waits still if one is soon found."""
        for _ in range(_TRIES):
            earlier = self._earlier(number)
            if self._dues_ms[earlier] > now_ms + _STILL_WAITS_MS:
                break
        return earlier

    def _id(self, earlier: int) -> str:
        # The publisher takes the partitions in turn, and no other writes to the topic.
        return f"{self._topic}/{earlier % PARTITIONS}/{earlier // PARTITIONS}"

    def _route(self, number: int) -> list[Header]:
        topic = self.topic_of(number)
        return [] if topic == self._outputs[0] else [("deliver-to", topic.encode())]
