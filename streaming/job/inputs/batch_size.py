"""How many records the next batch may read: many small ones of a backlog, few large ones, and few if they take long.

The driver works as long on a batch of few records as on a large one, so large batches take in a backlog faster. But
answers to requests, and messages that no forwarder claims, wait until the running batch ends.

Spark plans a batch by numbers of records, and nothing is known of these records yet. So a batch's size follows from the
messages of the batches before it. If records suddenly get larger, one batch is too large. It takes time and disk space,
but no more memory: overflow groups bound that (`sources.intake.grouping`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from pyspark.sql import Row

from state.buckets.operator import DUE, KEPT, SEALED

# Of a start's first batch, about whose records nothing is known. Small enough even for records of a megabyte.
_FIRST_RECORDS = 50_000
# A batch reads so many times the records of the one before, at most: a backlog may have other records.
_GROWTH = 4
# How long a batch may take for its records.
_RECORDS_S = 5.0
# A batch may be slow for another reason, and smaller batches would only add to that.
_LEAST_BY_TIME = 20_000


def first_size(most_records: int) -> int:
    """Return how many records the first batch of a start may read, where `limits.messages_per_trigger` is the most."""
    return min(most_records, _FIRST_RECORDS)


class BatchSize:
    """The number of records that the next batch may read, as `records`."""

    def __init__(self, most_records: int, most_bytes: int) -> None:
        """Take the bounds of a batch: `limits.messages_per_trigger`, and bytes in memory."""
        self._most_records, self._most_bytes = most_records, most_bytes
        # What a batch takes without records, at most.
        self._shortest_s = math.inf
        self.records = first_size(most_records)

    def done(self, read: int, record_bytes: float | None, took_s: float) -> None:
        """Take a batch: the records read, what each has left on average (`record_bytes`), and its steps' time."""
        self._shortest_s = min(self._shortest_s, took_s)
        if not read:
            return
        by_time = _RECORDS_S * read / max(took_s - self._shortest_s, 1e-3)
        records = min(self._most_records, max(_FIRST_RECORDS, _GROWTH * read), max(_LEAST_BY_TIME, by_time))
        if record_bytes is not None:
            records = min(records, self._most_bytes / record_bytes)
        self.records = max(1, int(records))


def record_bytes(rows: Iterable[Row], read: int) -> float | None:
    """Return the mean bytes in memory that a record leaves to a batch, which has `read` so many; None if none does.

    What forwarders have taken leaves nothing. `rows` are those of the batch (`SHARD_OUTPUT_SCHEMA`), and those that are
    kept have messages of the batches before as well.
    """
    own = [row for row in rows if row["kind"] in (DUE, SEALED, KEPT)]
    count = sum(row["count"] for row in own)
    return sum(row["bytes"] for row in own) / max(count, read) if count else None
