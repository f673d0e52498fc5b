"""How much of the input an open transaction holds back.

Readers of committed records, such as the job, get nothing of a partition from the first open transaction on, whoever
wrote it: until that transaction ends, all that was written after it waits. For them the partition ends there, so no lag
shows it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from conf.kafka.client_log import client_log
from conf.kafka.options import librdkafka_options
from conf.settings import Settings
from state.checkpoint.origin import Offsets

log = logging.getLogger(__name__)

_TIMEOUT_S = 10.0
# Brokers are asked so often at most, and an answer holds for so long: until the next scrape, and some that fail.
_EVERY_S, _HOLDS_S = 10.0, 300.0

# Topic and number.
Partition = tuple[str, int]


@dataclass(frozen=True)
class PartitionEnd:
    """Where a partition ends: the next offset for readers of committed records, and the one after all that is written.

    `written` is a moment older, so that what is published meanwhile does not count as held.
    """

    committed: int
    written: int

    @property
    def held(self) -> int:
        """The number of offsets from the first open transaction on."""
        return max(0, self.written - self.committed)


class PartitionEnds:
    """Asks brokers for the ends of partitions, with one client for all calls that are answered."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._client: AdminClient | None = None

    def __call__(self, partitions: Iterable[Partition]) -> dict[Partition, PartitionEnd]:
        """Return the end of each partition. Takes up to 20 s. Raises KafkaException."""
        asked = [TopicPartition(topic, number) for topic, number in partitions]
        if not asked:
            return {}
        if self._client is None:
            self._client = AdminClient(
                {**librdkafka_options(self._settings.kafka), "log_level": 2}, logger=client_log(log)
            )
        try:
            written = self._ends(asked, IsolationLevel.READ_UNCOMMITTED)
            committed = self._ends(asked, IsolationLevel.READ_COMMITTED)
        except KafkaException:
            # A client goes on with the leaders' epochs that it knows, which brokers refuse after their restart.
            self._client = None
            raise
        return {partition: PartitionEnd(committed[partition], written[partition]) for partition in written}

    def _ends(self, asked: list[TopicPartition], level: IsolationLevel) -> dict[Partition, int]:
        assert self._client is not None
        newest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        assert newest is not None
        answers = self._client.list_offsets(
            dict.fromkeys(asked, newest), isolation_level=level, request_timeout=_TIMEOUT_S
        )
        return {(each.topic, each.partition): answer.result().offset for each, answer in answers.items()}


class HeldInput(Collector):
    """Collects how much is held of each input topic, and for how long.

    Each call starts to ask for the next one, in a thread, and answers with what is known: it waits for no broker.
    """

    def __init__(
        self,
        ask: Callable[[Iterable[Partition]], Mapping[Partition, PartitionEnd]],
        read: Callable[[], Offsets],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`read` returns the partitions of the input, with what is read of them; `now_s` is a clock in seconds."""
        self._ask = ask
        self._read = read
        self._now_s = now_s
        self._lock = threading.Lock()
        self._asking = False
        self._asked_s = self._known_s = float("-inf")
        self._ends: Mapping[Partition, PartitionEnd] = {}
        # Since when the transaction is known to be open that holds a partition.
        self._since_s: dict[Partition, float] = {}

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics, if the brokers have answered within five minutes."""
        partitions = [(topic, int(number)) for topic, offsets in self._read().items() for number in offsets]
        with self._lock:
            now_s = self._now_s()
            if partitions and not self._asking and now_s - self._asked_s >= _EVERY_S:
                self._asking, self._asked_s = True, now_s
                threading.Thread(target=self._look, args=(partitions,), name="held-input", daemon=True).start()
            ends = dict(self._ends) if now_s - self._known_s <= _HOLDS_S else {}
            held_s = {partition: now_s - since_s for partition, since_s in self._since_s.items()}
        records = GaugeMetricFamily(
            "delayline_input_held_records",
            "Offsets of an input topic behind an open transaction, which readers of committed records do not get.",
            labels=["topic"],
        )
        seconds = GaugeMetricFamily(
            "delayline_input_held_seconds",
            "How long one transaction has been holding a partition of an input topic, as far as known.",
            labels=["topic"],
        )
        for topic in sorted({topic for topic, _ in ends}):
            records.add_metric([topic], sum(end.held for (name, _), end in ends.items() if name == topic))
            longest_s = max((held_s.get(partition, 0.0) for partition in ends if partition[0] == topic), default=0.0)
            seconds.add_metric([topic], longest_s)
        yield from (records, seconds)

    def _look(self, partitions: list[Partition]) -> None:
        ends: Mapping[Partition, PartitionEnd] | None = None
        try:
            ends = self._ask(partitions)
        except KafkaException as problem:
            log.debug("the end offsets of the input are unknown: %s", problem)
        finally:
            with self._lock:
                self._asking = False
                if ends is not None:
                    self._keep(ends)

    def _keep(self, ends: Mapping[Partition, PartitionEnd]) -> None:
        now_s = self._now_s()
        # The end for committed readers is where the first open transaction begins: while it stays, so does that.
        self._since_s = {
            partition: self._since_s.get(partition, now_s) if end.committed == self._committed(partition) else now_s
            for partition, end in ends.items()
            if end.held
        }
        self._ends, self._known_s = ends, now_s

    def _committed(self, partition: Partition) -> int | None:
        before = self._ends.get(partition)
        return None if before is None else before.committed
