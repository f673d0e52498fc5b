"""A shard's knowledge of the topics that it writes to: their limits, and the messages that they refused."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.kafka.clients import STARTING_S
from conf.kafka.rights import write_barred
from conf.rejected import MessageTooLarge, RecordRefused, Rejected
from conf.settings import Settings
from sinks.release.closed_topics import ClosedTopics, refused_by
from sinks.release.expiry import Expiry
from sinks.release.planned import Planned
from sinks.release.record_check import RecordCheck, Refusals, batch_bytes, compresses
from sinks.release.records import message_ids
from sinks.release.reports import Unwritable, topic_gone
from sinks.release.waits import DEFAULT_WAITS, Waits
from sinks.release.wall_clock import now_ms
from sinks.topics.limits import NO_LIMIT, TopicLimits, read_limits, topic_access

# Up to this many refusals of a topic in this time, with a new ring for each, are worth it to find the exact records.
MOST_REFUSALS, _REFUSALS_S = 32, 60.0
# By how much the clock of a topic's broker may be behind this host's.
CLOCKS_APART_MS = 1_000
# How far ahead of their due times records are written, by steps, for a topic that refuses their timestamps.
_AHEAD_MS = (0, -100, -CLOCKS_APART_MS)


class Topics:
    """The topics that a shard writes to: their known limits, and the messages that they refused.

    Each thing that a refusal teaches has a table of its own, by topic.
    """

    def __init__(
        self,
        settings: Settings,
        options: Mapping[str, str],
        closed: ClosedTopics | None = None,
        most_refusals: int = MOST_REFUSALS,
        waits: Waits = DEFAULT_WAITS,
    ) -> None:
        """Know nothing yet: there may be thousands of topics, and a shard writes to few at a time.

        `closed` are the closed topics that the process knows of.
        """
        self._settings, self._options = settings, options
        self._most_refusals = most_refusals
        self.waits = waits
        self._dead_letter = settings.topics.dead_letter
        self._reserved = dict.fromkeys(settings.topics.input, "an input topic (topics.input)")
        self._reserved[settings.results_topic] = "the topic of answers (topics.results)"
        self._expiry = Expiry.of(settings)
        self.limits: dict[str, TopicLimits] = {}
        # When the limits of each topic were read, by the monotonic clock.
        self._read_s: dict[str, float] = {}
        # See `RecordCheck`. To be cleared once they are released: each check costs more as long as there are some.
        self.refused: dict[tuple[str, bytes], list[Rejected]] = {}
        # When each topic refused something last, by the monotonic clock.
        self._refusals_s: dict[str, deque[float]] = {}
        # By the topics that have refused timestamps: how far ahead of their due times records are written.
        self._ahead_ms: dict[str, int] = {}
        # The topics that did not take the present time of this host.
        self._stamped_by_due: set[str] = set()
        self.closed = closed or ClosedTopics(settings, options, waits)

    @property
    def check(self) -> RecordCheck:
        """The check of records by the present knowledge."""
        options = self._options
        return RecordCheck(
            self.limits,
            self._dead_letter,
            compresses(options),
            batch_bytes(options),
            self.refused,
            self._expiry,
            now_ms(),
            self._reserved,
            self._stamped_by_due,
            self.closed.now,
        )

    def learn(self, topics: Collection[str]) -> None:
        """Read the limits of `topics` again. Raises KafkaException."""
        read = read_limits(self._options, topics)
        self.limits |= {topic: replace(each, shared_bytes=self._shared(topic)) for topic, each in read.items()}
        self._read_s |= dict.fromkeys(topics, time.monotonic())

    def bound_batches(self, topic: str, nbytes: int) -> bool:
        """Remember that `topic` refused a batch of several records, of `nbytes` bytes at the most, for its size.

        Its batches of several records have half of that from now on, until the shard is opened again. The topic may
        hide its limits, or have another one than `max.message.bytes`, as `segment.bytes` is. Returns False if it had
        no such batches before.
        """
        shared_bytes = self._shared(topic)
        most_bytes = min(nbytes, shared_bytes, batch_bytes(self._options)) // 2
        self.limits[topic] = replace(self.limits[topic], shared_bytes=most_bytes)
        return shared_bytes > 0

    def _shared(self, topic: str) -> int:
        return self.limits[topic].shared_bytes if topic in self.limits else NO_LIMIT

    def refuse(self, topic: str, identity: bytes, error: Rejected) -> None:
        """Remember that `topic` refused the record of a message."""
        self.refused.setdefault((topic, identity), []).append(error)
        if isinstance(error, RecordRefused) and error.cause != "other":
            # To write it later did not help.
            self._ahead_ms.pop(topic, None)

    def refuse_too_large(self, topic: str, refusals: Refusals, written: Mapping[bytes, int]) -> None:
        """Remember `refusals` of single records for their size, and those that follow from them.

        `written` has the uncompressed bytes of all records of `topic` in the transaction, by message id. No larger one
        is accepted, unless it is compressed better. If the topic refuses often, all records above its limit count as
        refused, or all records if the limit is not known.
        """
        for (_, identity), error in refusals.items():
            self.refuse(topic, identity, error)
        is_often = self.refuses_often(topic)
        if compresses(self._options) and not is_often:
            return
        smallest = min(refusals, key=lambda refused: written[refused[1]])
        least, error = written[smallest[1]], refusals[smallest]
        if is_often:
            most_bytes = self.limits[topic].max_bytes
            least = 0 if most_bytes == NO_LIMIT else min(least, most_bytes + 1)
        for identity, nbytes in written.items():
            if nbytes >= least and (topic, identity) not in self.refused:
                self.refuse(topic, identity, MessageTooLarge(f"{error}. This record has {nbytes} bytes"))

    def refuse_all(self, topic: str, messages: pa.Table, error: Rejected) -> None:
        """Remember that `topic` refuses the records of all `messages`, as of a transaction that it refuses often."""
        own = messages.filter(pc.equal(messages.column("output_topic"), topic))
        others = RecordRefused(f"{topic} refuses too many records to find each of them. The last one: {error}")
        for identity in message_ids(own).to_pylist():
            self.refused.setdefault((topic, identity), [others])

    def refuses_often(self, topic: str) -> bool:
        """Count a refusal of `topic`, and return whether there were too many lately to look for each record.

        All topics of the shard wait for each of them. The dead-letter topic never has too many refusals: a record that
        it refuses loses its value.
        """
        now_s = time.monotonic()
        lately = self._refusals_s.setdefault(topic, deque(maxlen=self._most_refusals))
        is_often = len(lately) == self._most_refusals and now_s - lately[0] < _REFUSALS_S
        lately.append(now_s)
        return is_often and topic != self._dead_letter

    def _know(self, planned: Planned) -> None:
        """Read the unknown limits of the topics of a transaction. Raises KafkaException."""
        if unknown := {*planned.topics, self._dead_letter} - self.limits.keys():
            self.learn(unknown)

    def write_at_ms(self, planned: Planned) -> int:
        """Return when the topics take all records of a transaction, epoch ms. Raises KafkaException.

        It is before the last one is due, unless a topic takes no timestamp that is ahead of its broker's clock.
        """
        self._know(planned)
        ahead_ms = {topic: self._ahead_of(topic) for topic in planned.topics}
        written_ms = planned.last_due_ms - min(ahead_ms.values(), default=0)
        if written_ms <= now_ms():
            return written_ms
        outputs, dues_ms = planned.messages.column("output_topic"), planned.messages.column("deliver_at_ms")
        latest_ms = 0
        for topic, each_ms in ahead_ms.items():
            last_due_ms: int = pc.max(dues_ms.filter(pc.equal(outputs, topic))).as_py()
            latest_ms = max(latest_ms, last_due_ms - each_ms)
        return latest_ms

    def _ahead_of(self, topic: str) -> int:
        return self._ahead_ms.get(topic, self.limits[topic].max_ahead_ms)

    def write_later(self, topic: str) -> bool:
        """Write records of `topic`, which refused a timestamp, later from now on; return whether that is possible."""
        later = next((each_ms for each_ms in _AHEAD_MS if each_ms < self._ahead_of(topic)), None)
        if later is None:
            return False
        self._ahead_ms[topic] = later
        return True

    def stamp_by_due(self, topic: str) -> bool:
        """Stamp overdue records of `topic` with their due times from now on, and return whether that is new.

        For an output topic that refused a timestamp: this host's clock may be far ahead of its broker's.
        """
        is_new = topic != self._dead_letter and topic not in self._stamped_by_due
        if is_new:
            self._stamped_by_due.add(topic)
        return is_new

    def check_of(self, planned: Planned) -> RecordCheck:
        """Return the check for a transaction. Raises KafkaException.

        Reads unknown limits. Before a record is refused, reads the limits of its topic again, which may have been
        raised. Checks whether a closed topic takes records again.
        """
        self.closed.look_again(planned.topics)
        self._know(planned)
        # It sees what is learned below: it has the same mapping.
        check = self.check
        if not check.may_doubt(planned.topics, planned.largest_bytes):
            return check
        doubted: set[str] = set()
        for part in planned.messages.to_batches():
            rows = pa.array(check.doubted(part, planned.largest_bytes))
            doubted.update(part.column("output_topic").filter(rows).unique().to_pylist())
        doubted -= check.closed.keys()
        if doubted:
            doubted.add(self._dead_letter)
            stale_s = time.monotonic() - self.waits.fresh
            if stale := {topic for topic in doubted if self._read_s[topic] < stale_s}:
                self.learn(stale)
        return check

    def goes_to(self, messages: pa.Table, clock_ms: int) -> pa.ChunkedArray:
        """Return the topic to which each of `messages` goes, if it is written at `clock_ms` (epoch ms).

        Messages that are expired, or for a closed topic, go to the dead-letter topic. Other refusals are not known in
        advance.
        """
        outputs, closed = messages.column("output_topic"), self.closed.now
        if not self._expiry.exists and not closed:
            return outputs
        dead = refused_by(messages, closed)
        if self._expiry.exists:
            dead |= np.concatenate([self._expiry.expired(part, clock_ms) for part in messages.to_batches()] or [dead])
        return pc.if_else(pa.array(dead), self._dead_letter, outputs)

    def went_to(self, messages: pa.Table, replaced: Mapping[int, str]) -> pa.ChunkedArray:
        """Return the topic to which each of `messages` was written; `replaced` has the rows that were refused."""
        outputs = messages.column("output_topic")
        if not replaced:
            return outputs
        dead = np.zeros(messages.num_rows, dtype=bool)
        dead[[*replaced]] = True
        return pc.if_else(pa.array(dead), self._dead_letter, outputs)

    def of(self, planned: Planned) -> set[str]:
        """Return the topics that a transaction may be written to: any message may become a dead letter."""
        own = {self._settings.position_topic}
        own |= set() if planned.passed_on is None else {self._settings.ready_topic}
        own |= {self._settings.recalled_topic} if planned.recalled else set()
        closed = {topic for topic, each in self.closed.now.items() if not each.partitions}
        return {*planned.topics, self._dead_letter} - closed | own

    def look_for(self, topics: Collection[str]) -> Unwritable | None:
        """Return one of `topics` that is gone, or may not be written to, if there is any. Raises KafkaException.

        A topic that the service cannot do without comes first.
        """
        found = topic_access(self._options, topics)
        if any(found[topic].kind != "open" and not self.closed.may_close(topic) for topic in found):
            # The service ends for it, so the first answer of a broker that has just started is not enough.
            time.sleep(STARTING_S)
            found = topic_access(self._options, topics)
        for topic in sorted(found, key=self.closed.may_close):
            if found[topic].kind != "open":
                return Unwritable(topic, topic_gone(topic) if found[topic].kind == "gone" else write_barred(topic))
        return None
