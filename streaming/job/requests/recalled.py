"""The messages that release processes have recalled: the job follows the recalled topic, and forgets old ones.

Each process reads the topic from its beginning, in the background during its first batches. The records are on the
driver's local disk from then on (`streaming.job.requests.runs`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from itertools import islice

from confluent_kafka import KafkaException

from conf.errors import BrokerUnreachable
from conf.kafka.options import librdkafka_options
from conf.kafka.rights import is_refusal, right_missing
from conf.settings import Settings
from sinks.internal_topics.broker_retry import BrokerRetry
from sinks.internal_topics.log_producer import ProducerFenced
from sinks.internal_topics.newest_record import NO_SUCH_PARTITION
from sinks.internal_topics.recalled_writer import RecalledWriter
from sinks.topics.input_ends import input_bounds, input_offsets_at
from sinks.topics.topic_ids import PresentTopic, TopicIds
from state.checkpoint.input_ids import recreated
from state.checkpoint.origin import InputIds, as_offsets, by_partition
from state.kinds import Mask
from state.message_ids import Ids
from state.recalled import KnownFrom, partition_of_shard
from streaming.job.requests.recalled_log import RecalledLog
from streaming.job.requests.recalled_rows import LIMITS, Limits, Reading, Recalled, no_rows
from streaming.job.requests.runs import Source, chosen

log = logging.getLogger(__name__)

# How long to wait for transactions that are open when the topic is read. They last for milliseconds, unless the process
# hangs or is dead. Then its successor, or the broker, ends them.
_OPEN_S = 0.2
Bounds = Mapping[tuple[str, int], int]


class RecalledMessages:
    """The records of the recalled topic. Not thread-safe, except for `known_from`.

    Besides the records, it keeps how far it has read, and what must be found out before all is read for the first time.
    """

    def __init__(self, settings: Settings, epoch: int, has_run: bool = False, limits: Limits = LIMITS) -> None:
        """Read nothing yet.

        `epoch` is the checkpoint's. `has_run` says whether earlier processes have staged messages.
        """
        self._settings = settings
        self._topic = settings.recalled_topic
        self._epoch = epoch
        self._has_run = has_run
        self._topic_ids: TopicIds | None = None
        self._limits = limits
        self._log = RecalledLog(settings)
        # Kafka's id of the topic, and how far each partition is read; None and empty before the first time.
        self._topic_id: str | None = None
        self._next: dict[int, int] = {}
        self._runs = no_rows()
        # Until all is read for the first time: the next value of `known_from`, and the input topics that were created
        # again.
        self._opening: Bounds | None = None
        self._created_again: set[str] = set()
        # The input topics to which `known_from` and the rows belong, by Kafka's ids.
        self._input_ids: InputIds = {}
        self._known_from: Bounds = {}
        self._knows_all = True

    @property
    def known_from(self) -> Bounds:
        """The offset of each input partition from which on it is known which messages were cancelled.

        For messages below, it may be forgotten: their records are deleted, or older than `cancels.known_for`, or the
        topic that had the cancels is lost. The offsets only grow, also for later processes. Empty before the first
        `read`. Any thread may read it.
        """
        return self._known_from

    @property
    def knows_all(self) -> bool:
        """Whether the last `read` has read all earlier recalls. It cannot read past an open transaction."""
        return self._knows_all

    def read(self, cutoff_ms: int) -> None:
        """Read the topic up to now. The first time, move `known_from` on as well: see `forget`.

        Ignores records of other writers, with a warning. Waits through an outage; raises BrokerUnreachable after
        `kafka.outage_limit`, RightMissing, TopicMissing, FormatMismatch.
        """
        retry = BrokerRetry("the recalled topic", self._settings.kafka.outage_limit)
        while True:
            try:
                self._read_on(cutoff_ms, _OPEN_S)
                return
            except ProducerFenced:
                # The lease tells which of the two processes continues.
                retry.wait(BrokerUnreachable("another process of this application has begun to read it"))
            except (KafkaException, BrokerUnreachable) as problem:
                retry.wait(self._cause_of(problem))

    def only(self, ids: Ids) -> Ids:
        """Return the messages among `ids` that were recalled, by the records read so far."""
        found = self._runs.find(ids).items()
        return {source: rows.offsets[rows.counts] for source, rows in found if rows.counts.any()}

    def every(self) -> Iterable[tuple[tuple[str, int], list[int]]]:
        """Yield by source the offsets of all recalled messages, by the records read so far, some at a time."""
        for source, rows in self._runs.pieces():
            yield source, rows.offsets[rows.counts].tolist()

    def forget(self, cutoff_ms: int, due_before_ms: int) -> None:
        """Read the topic up to now, move `known_from` on, and forget messages below it due before `due_before_ms`.

        A forgotten message must be old for all later requests, also after a restart. So its age is measured by
        `cutoff_ms`, the cutoff of a batch, which never goes back, and not by the clock. Both are epoch ms. In an outage
        nothing is forgotten. Raises RightMissing, TopicMissing, FormatMismatch.
        """
        try:
            present = self._read_on(cutoff_ms, wait_s=0)
            if again := sorted(recreated(self._input_ids, self._ids_of(present))):
                # The bounds are of the topics before. The next start knows the ids of both.
                log.warning("no recalled ids are forgotten: %s was created again", ", ".join(again))
                return
            bounds = _highest(self._known_from, self._old_below(cutoff_ms))

            def is_old(source: Source, rows: Recalled) -> Mask:
                return ~rows.counts | ((rows.dues < due_before_ms) & (rows.offsets < bounds.get(source, 0)))

            has_old = any(is_old(*piece).any() for piece in self._runs.pieces())
            if bounds == self._known_from and not has_old:
                return
            with closing(RecalledWriter(self._settings)) as writer:
                # This comes first: a message without its record must be old.
                self._move(writer, bounds, present)
                self._delete(writer, is_old)
        except ProducerFenced:
            log.warning("another process of this application has begun to delete old recalled ids")
        except (KafkaException, BrokerUnreachable) as problem:
            log.warning("the recalled topic could not be read ahead: %s", self._cause_of(problem))

    def close(self) -> None:
        """Close the consumers."""
        self._log.close()

    def _cause_of(self, problem: KafkaException | BrokerUnreachable) -> KafkaException | BrokerUnreachable:
        """Return why the topic cannot be read. Raises RightMissing if waiting does not help."""
        if isinstance(problem, KafkaException) and is_refusal(problem.args[0]):
            raise right_missing("Read", f"topic {self._topic}") from problem
        # The topic was there when the job started.
        if isinstance(problem, KafkaException) and problem.args[0].name() in NO_SUCH_PARTITION:
            return BrokerUnreachable(f"the broker does not know its partitions: {problem}")
        return problem

    def _old_below(self, cutoff_ms: int) -> Bounds:
        """Return below which offsets records are old or deleted, by the newest cutoff. Raises BrokerUnreachable."""
        return input_offsets_at(self._settings, cutoff_ms - self._settings.cancels.known_for)

    def _move(self, writer: RecalledWriter, bounds: Bounds, present: Mapping[str, PresentTopic]) -> None:
        """Move `known_from` on to `bounds`, and to the stored offsets of the `present` input topics."""
        stored = writer.known_from
        input_ids = self._ids_of(present)
        former: Mapping[str, str] = {}
        if stored is not None:
            # A former input topic may come back, created again.
            former = stored.input_ids
            same = {topic for topic, own in stored.input_ids.items() if own == input_ids.get(topic)}
            bounds = _highest(bounds, by_partition({topic: stored.offsets.get(topic, {}) for topic in same}))
        known_from = KnownFrom(as_offsets(bounds), {**former, **input_ids}, self._epoch)
        if known_from != stored:
            writer.move(known_from)
        self._known_from = bounds

    def _ids_of(self, present: Mapping[str, PresentTopic]) -> dict[str, str]:
        """Return the ids of the `present` input topics."""
        return {topic: found.id for topic, found in present.items() if topic != self._topic}

    def _delete(self, writer: RecalledWriter, is_old: Callable[[Source, Recalled], Mask]) -> None:
        """Delete the records that are old, and forget them."""
        rest = (
            (number, epoch, (*source, offset))
            for source, rows in self._runs.pieces()
            for offset, epoch, _, _, number in zip(
                *(column.tolist() for column in chosen(rows, is_old(source, rows))), strict=True
            )
            # Skip records of an earlier recalled topic, which may have had more partitions.
            if number in self._next
        )
        while several := list(islice(rest, self._limits.written)):
            writer.delete(several)
        self._runs.forget(is_old)

    def _begin(self, cutoff_ms: int, present: Mapping[str, PresentTopic]) -> None:
        """Begin with the first records. If something was read before, records since then may be lost."""
        bounds = _highest(self._known_from, self._old_below(cutoff_ms))
        with closing(RecalledWriter(self._settings)) as writer:
            stored = writer.known_from
        if self._topic_id is not None or (self._has_run and stored is None):
            bounds = _highest(bounds, {source: end for source, (_, end) in input_bounds(self._settings).items()})
            log.warning(
                "%s is new, or has lost records. Requests about messages that are already staged or delivered may "
                "be answered `unknown` from now on",
                self._topic,
            )
        ids = {} if stored is None else stored.input_ids
        self._opening = bounds
        self._created_again = {topic for topic, own in ids.items() if topic in present and present[topic].id != own}
        self._topic_id = present[self._topic].id
        self._input_ids = {topic: [own] for topic, own in self._ids_of(present).items()}
        self._next = dict.fromkeys(range(partition_of_shard(0), present[self._topic].partitions), 0)

    def _end_opening(self, bounds: Bounds, present: Mapping[str, PresentTopic]) -> None:
        """Move `known_from` on once all is read for the first time."""
        with closing(RecalledWriter(self._settings)) as writer:
            if self._created_again:
                # This comes first: once the present ids of the input topics are stored, these no longer look old.
                self._delete(writer, lambda _, rows: ~rows.counts)
            self._move(writer, bounds, present)
        self._opening, self._created_again = None, set()

    def _read_on(self, cutoff_ms: int, wait_s: float) -> dict[str, PresentTopic]:
        """Read on up to now, but not past transactions that stay open for longer than `wait_s`.

        Returns the topic and the input topics as they are now.
        """
        present = self._present()
        if present[self._topic].id != self._topic_id:
            self._begin(cutoff_ms, present)
        bounds, self._knows_all = self._log.bounds(self._next, wait_s)
        if any(0 < self._next[number] < low or high < self._next[number] for number, (low, high) in bounds.items()):
            self._begin(cutoff_ms, present)
            bounds, self._knows_all = self._log.bounds(self._next, wait_s)
        begins = {number: max(self._next[number], low) for number, (low, _) in bounds.items()}
        self._read_to(begins, {number: high for number, (_, high) in bounds.items()})
        if self._opening is not None:
            self._end_opening(self._opening, present)
        return present

    def _read_to(self, begins: Mapping[int, int], ends: Mapping[int, int]) -> None:
        """Read the partitions of `ends` up to there, from the offsets `begins` on."""
        reading = Reading(self._runs, self._epoch, self._created_again, self._limits)
        with closing(self._log.read(begins, ends)) as messages:
            for message in messages:
                reading.take(message)
        reading.end()
        self._next = dict(ends)

    def _present(self) -> dict[str, PresentTopic]:
        """Return the topic and the input topics as they are now. Raises BrokerUnreachable, KafkaException."""
        self._topic_ids = self._topic_ids or TopicIds(librdkafka_options(self._settings.kafka))
        found = self._topic_ids.described([self._topic, *self._settings.topics.input])
        if self._topic not in found:
            raise BrokerUnreachable(f"the broker does not know {self._topic}")
        return found


def _highest(one: Bounds, other: Bounds) -> Bounds:
    return {source: max(one.get(source, 0), other.get(source, 0)) for source in one.keys() | other.keys()}
