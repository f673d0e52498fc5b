"""How many records the next batch may read: many small ones of a backlog, few large ones, and few if they take long.

The driver works as long on a batch of few records as on a large one, so large batches take in a backlog faster. But
answers to requests, and messages that no forwarder claims, wait until the running batch ends.

Spark plans a batch by numbers of records, and nothing is known of these records yet. So a batch's size follows from the
messages of the batches before it. The first batch of a start takes each for as large as `limits.max_message_bytes`
allows. While forwarders take all records, batches grow from there, up to a bound: otherwise they would fall behind the
forwarders. If records suddenly get larger, one batch is too large. It takes time and disk space, but little more
memory: overflow groups bound that (`sources.intake.grouping`). A batch keeps its size in a replay.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from pyspark.sql import Row

from conf.sections import LimitSettings
from state.buckets.operator import DUE, KEPT, SEALED

# A batch of a backlog may have so many records: at least, once a start has seen a message, and at most until then.
_OF_BACKLOG = 50_000
# How many bytes a batch may have from records of unknown size: these are on disk in less than a minute.
_UNKNOWN_BYTES = 1024 * 1024 * 1024
# A batch reads at most so many times the records of the previous one: a backlog may have different records.
_GROWTH = 4
# How long a batch may take for its records.
_RECORDS_S = 5.0
# A batch may be slow for another reason, and smaller batches would only add to that.
_LEAST_BY_TIME = 20_000


def first_size(limits: LimitSettings) -> int:
    """Return how many records the first batch of a start may read: no message is known yet."""
    of_any_size = max(1, _UNKNOWN_BYTES // limits.max_message_bytes)
    return min(limits.messages_per_trigger, _OF_BACKLOG, of_any_size)


class BatchSize:
    """The number of records that the next batch may read, as `records`."""

    def __init__(self, limits: LimitSettings, most_bytes: int) -> None:
        """Take the bounds of a batch: the settings, and bytes in memory."""
        self._limit, self._most_bytes = limits.messages_per_trigger, most_bytes
        # How many records a batch of a backlog may have, whatever the batch before has read, and how many at the most.
        self._least, self._most = first_size(limits), min(self._limit, _OF_BACKLOG)
        # An upper bound for the time of a batch without records.
        self._shortest_s = math.inf
        self.records = self._least

    def done(self, read: int, record_bytes: float | None, took_s: float) -> None:
        """Take a batch: the number of records read, their mean size (`record_bytes`), and the time of its steps."""
        self._shortest_s = min(self._shortest_s, took_s)
        if not read:
            return
        if record_bytes is not None:
            self._least, self._most = _OF_BACKLOG, self._limit
        by_time = _RECORDS_S * read / max(took_s - self._shortest_s, 1e-3)
        records = min(self._most, max(self._least, _GROWTH * read), max(_LEAST_BY_TIME, by_time))
        if record_bytes is not None:
            records = min(records, self._most_bytes / record_bytes)
        self.records = max(1, int(records))


def record_bytes(rows: Iterable[Row], read: int) -> float | None:
    """Return the mean bytes in memory for each record that a batch has `read`; None if it has no messages.

    Records that forwarders have taken add no bytes. `rows` are the batch's rows (`SHARD_OUTPUT_SCHEMA`). Rows of kept
    messages also have messages of earlier batches.
    """
    own = [row for row in rows if row["kind"] in (DUE, SEALED, KEPT)]
    count = sum(row["count"] for row in own)
    return sum(row["bytes"] for row in own) / max(count, read) if count else None
