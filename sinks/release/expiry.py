"""Messages that are no longer of use when they could be delivered: they go to the dead-letter topic.

The policies of their input topic decide: they expire some time after they were due, or after the instant in a header.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from conf.durations import format_duration
from conf.rejected import Expired
from conf.settings import Settings
from conf.topic_tables import Policy
from sinks.release.records import Record, record_due_ms, record_id, records
from state.header_values import header_text, parse_instant
from state.kinds import MESSAGE, OCCURRENCE, kinds_of
from state.message_ids import parse_id

# The kinds of rows that can expire. Messages that are made due at once do not: somebody has just requested them.
EXPIRING = (MESSAGE, OCCURRENCE)


@dataclass(frozen=True)
class Expiry:
    """The rules of expiry: an input topic has its own policy, or else the common one applies (`of_all`)."""

    of_all: Policy
    by_topic: Mapping[str, Policy]
    # The topics of messages without a due time of their own: dead letters, and answers to requests.
    never: frozenset[str]

    @staticmethod
    def of(settings: Settings) -> Expiry:
        """Return the rules in the settings of the job."""
        never = frozenset((settings.topics.dead_letter, settings.results_topic))
        return Expiry(settings.policies.of_all, settings.policies.by_topic, never)

    @cached_property
    def exists(self) -> bool:
        """Whether anything can expire."""
        return any(each.expire_after or each.expiry_header for each in (self.of_all, *self.by_topic.values()))

    @staticmethod
    def may_expire(batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Return which messages can expire at all."""
        return np.isin(kinds_of(batch), EXPIRING)

    def doubted(self, batch: pa.RecordBatch, clock_ms: int) -> npt.NDArray[np.bool_]:
        """Return which messages may be expired at `clock_ms` (epoch ms), of the columns of `MESSAGE_SCHEMA`.

        No message expires before it is due: messages with an earlier expiry are not accepted.
        """
        overdue_ms = clock_ms - batch.column("deliver_at_ms").to_numpy()
        doubted = np.zeros(batch.num_rows, dtype=bool)
        if not (overdue_ms > 0).any():
            return doubted
        topics = batch.column("topic")
        for topic in topics.unique().to_pylist():
            policy = self.by_topic.get(topic, self.of_all)
            least_ms = 0 if policy.expiry_header else policy.expire_after
            if least_ms is not None:
                doubted |= np.asarray(pc.equal(topics, topic)) & (overdue_ms > least_ms)
        return doubted & self.may_expire(batch)

    def expired(self, batch: pa.RecordBatch, clock_ms: int) -> npt.NDArray[np.bool_]:
        """Return which messages are expired at `clock_ms` (epoch ms), of the columns of `MESSAGE_SCHEMA`."""
        expired = self.doubted(batch, clock_ms)
        rows = np.flatnonzero(expired)
        if len(rows) and any(each.expiry_header for each in (self.of_all, *self.by_topic.values())):
            doubted = records(batch.take(pa.array(rows)))
            expired[rows] = [self.objection(record, clock_ms) is not None for record in doubted]
        return expired

    def objection(self, record: Record, clock_ms: int) -> Expired | None:
        """Return the error of a record that is expired at `clock_ms` (epoch ms), or None."""
        if record.topic in self.never:
            return None
        topic, _, _ = parse_id(record_id(record).decode())
        policy = self.by_topic.get(topic, self.of_all)
        overdue_ms = clock_ms - record_due_ms(record)
        if policy.expire_after is not None and overdue_ms > policy.expire_after:
            return Expired(
                f"it could not be delivered until {format_duration(overdue_ms)} after it was due, and "
                f"expire_after of {topic} is {format_duration(policy.expire_after)}"
            )
        values = [value for name, value in record.headers if name == policy.expiry_header]
        if values and (late_ms := clock_ms - _instant(values[-1], clock_ms)) > 0:
            return Expired(
                f"it could not be delivered until {format_duration(late_ms)} after the instant in its "
                f"{policy.expiry_header}"
            )
        return None


def _instant(value: bytes | None, otherwise_ms: int) -> int:
    try:
        return parse_instant(header_text(value))
    except ValueError:
        # It was accepted before the policy existed, or under another one. Such a message never expires.
        return otherwise_ms
