"""The judge's subscriber: reads all records of some topics from the beginning, and notes when each one arrived."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from operator import methodcaller
from typing import Any

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from streaming.judge.record import Received

log = logging.getLogger(__name__)

# For a name that is not UTF-8, `message.headers()` returns a list with a null pointer, which ends the process, and sets
# an exception. Only a call of this kind surely raises that, as a SystemError.
_headers = methodcaller("headers")

_POLL_S = 0.05
_ANSWER_S = 30.0
_JOIN_S = 10.0
# Far above the duration of a running job's transaction.
_UNDECIDED_S = 10.0
# After so long without an event, the reader looks whether there was nothing to read. Once, of several consumers of a
# process, one fetched nothing any more after its broker had been killed and started again.
_SILENT_S = 15.0
# Errors while the broker is down, or is back and the client does not know its new epoch: the client tries again.
_TRANSIENT = {
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._RESOLVE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
}


class Outputs:
    """Reads the committed records of `topics` in a background thread, and calls `take` with each record.

    Partitions that are added later are not read.
    """

    def __init__(
        self,
        bootstrap: str,
        topics: Sequence[str],
        take: Callable[[Received], None],
        silent_s: float = _SILENT_S,
    ) -> None:
        """Read again from where it was if nothing has come for `silent_s`.

        Raises KafkaException if the broker does not describe the topics.
        """
        self._silent_s = silent_s
        # The ids of all received messages, for frequent lookups.
        self.ids: set[str] = set()
        self._take = take
        # Some tests kill the broker on purpose: the client must not log that it is unreachable.
        self._common: dict[str, str | int | float | bool] = {"bootstrap.servers": bootstrap, "log_level": 0}
        self._consumer = self._opened()
        self._problem: Exception | None = None
        # By topic and partition: the offset up to which all committed records have been passed on.
        self._read_to: dict[tuple[str, int], int] = {}
        for topic in topics:
            described = self._consumer.list_topics(topic, _ANSWER_S).topics[topic]
            if described.error is not None:
                raise KafkaException(described.error)
            self._read_to.update({(topic, number): 0 for number in described.partitions})
        self._assign()
        self._stop = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True, name="outputs")
        self._reader.start()

    @property
    def partitions(self) -> dict[str, int]:
        """The number of partitions of each topic."""
        topics = [topic for topic, _ in self._read_to]
        return {topic: topics.count(topic) for topic in topics}

    def check(self) -> None:
        """Raise the error of the background thread, if it failed."""
        if self._problem is not None:
            raise self._problem

    def drain(self, timeout_s: float = _ANSWER_S, undecided_s: float = _UNDECIDED_S) -> None:
        """Wait until everything that is committed now has been read.

        A broker confirms a commit before it has marked the records as committed. The method therefore first waits for
        all transactions that are open now, for at most `undecided_s`: a transaction that a killed writer left open
        blocks later records until it times out. Raises TimeoutError, and the error that `check` raises.
        """
        written, begun_s = self._ends(IsolationLevel.READ_UNCOMMITTED), time.monotonic()
        while self._left(written) and time.monotonic() < begun_s + undecided_s:
            self.check()
            time.sleep(_POLL_S)
        committed, begun_s = self._ends(IsolationLevel.READ_COMMITTED), time.monotonic()
        while left := self._left(committed):
            self.check()
            if time.monotonic() > begun_s + timeout_s:
                raise TimeoutError(f"not read to the end within {timeout_s} s; left, as (read, end): {left}")
            time.sleep(_POLL_S)

    def _ends(self, level: IsolationLevel) -> dict[tuple[str, int], int]:
        newest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        request = {TopicPartition(*partition): newest for partition in self._read_to}
        # A new one: a client goes on with the leaders' epochs that it knows, which brokers refuse after their restart.
        admin = AdminClient(self._common, logger=log)
        answers = admin.list_offsets(request, isolation_level=level, request_timeout=_ANSWER_S)
        return {(asked.topic, asked.partition): answer.result().offset for asked, answer in answers.items()}

    def _left(self, ends: dict[tuple[str, int], int]) -> dict[tuple[str, int], tuple[int, int]]:
        """Return (offset read up to, end offset) of the partitions that are not read up to `ends`."""
        return {part: (self._read_to[part], end) for part, end in ends.items() if self._read_to[part] < end}

    def close(self) -> None:
        """Stop reading."""
        self._stop.set()
        self._reader.join(_JOIN_S)

    def _opened(self) -> Consumer:
        return Consumer(
            {**self._common, "group.id": "judge", "isolation.level": "read_committed", "enable.auto.commit": False,
             "auto.offset.reset": "earliest", "fetch.wait.max.ms": 100, "enable.partition.eof": True},
            logger=log,
        )  # fmt: skip

    def _assign(self) -> None:
        self._consumer.assign([TopicPartition(*partition, offset) for partition, offset in self._read_to.items()])

    def _read(self) -> None:
        try:
            heard_s = time.monotonic()
            while not self._stop.is_set():
                message = self._consumer.poll(_POLL_S)
                # Taken at once, before other records of the same fetch are processed.
                received_ms = time.time_ns() // 1_000_000
                if message is not None:
                    heard_s = time.monotonic()
                    self._process(message, received_ms)
                elif time.monotonic() > heard_s + self._silent_s:
                    heard_s = time.monotonic()
                    self._begin_again_if_stuck()
        except Exception as problem:  # noqa: BLE001, `check` raises it
            self._problem = problem
        finally:
            self._consumer.close()

    def _begin_again_if_stuck(self) -> None:
        try:
            left = self._left(self._ends(IsolationLevel.READ_COMMITTED))
        except KafkaException:
            # The broker is down.
            return
        if left:
            log.warning(
                "a reader received nothing for %.0f s, and starts again: (read, end) is %s", self._silent_s, left
            )
            self._consumer.close()
            self._consumer = self._opened()
            self._assign()

    def _process(self, message: Any, received_ms: int) -> None:
        partition, error = (message.topic(), message.partition()), message.error()
        if error is None:
            record = received_from(message, received_ms)
            self._take(record)
            self.ids.add(record.id)
            self._read_to[partition] = record.offset + 1
        elif error.code() == KafkaError._PARTITION_EOF:
            # A transaction marker follows the last record; only this event has the offset after the marker.
            self._read_to[partition] = message.offset()
        elif not error.retriable() and error.code() not in _TRANSIENT:
            raise KafkaException(error)


def received_from(message: Any, received_ms: int) -> Received:
    """Convert confluent-kafka's `message`, received at `received_ms` (epoch ms), which must not be an error."""
    try:
        headers = tuple(_headers(message) or ())
    except (UnicodeDecodeError, SystemError):
        # The client converts no header if the name of one is not UTF-8. The service writes no such record.
        headers = ()
    return Received(
        topic=message.topic(),
        partition=message.partition(),
        offset=message.offset(),
        timestamp_ms=message.timestamp()[1],
        key=message.key(),
        value=message.value(),
        headers=headers,
        received_ms=received_ms,
    )
