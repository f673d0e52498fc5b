"""The pace of batches: how many records the next one may read, and when it begins."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import Row, SparkSession

from conf.settings import Settings
from state.checkpoint.batch_settings import BatchSettings
from state.checkpoint.progress import BatchSpan
from streaming.job.inputs.arrivals import ArrivalWatch, reads_to_limit
from streaming.job.inputs.batch_size import BatchSize, record_bytes
from streaming.job.lanes.claim_watch import ClaimWatch
from streaming.job.query import limit_next_batch


class Pace:
    """Chooses size and time of the next batch, after each batch."""

    def __init__(
        self, spark: SparkSession, settings: Settings, batch_settings: BatchSettings, claims: ClaimWatch
    ) -> None:
        """Take the session of the query, and the settings of new batches."""
        self._spark, self._settings, self._claims = spark, settings, claims
        # The bytes of all shards' own groups in the state stage.
        self._size = BatchSize(settings.limits, batch_settings.shards * batch_settings.group_bytes)
        self._arrivals = ArrivalWatch(settings)

    @property
    def idle_s(self) -> float:
        """How long a batch may be put off, in s."""
        return self._arrivals.idle_s

    def choose_size(self, span: BatchSpan, rows: Iterable[Row], took_s: float) -> bool:
        """Choose how many records the next batch may read. Return whether this one has read its full number.

        The batch of `span` has `rows` (`SHARD_OUTPUT_SCHEMA`), and its steps took `took_s`.
        """
        most, read = self._size.records, sum(span.read_by_topic.values())
        self._size.done(read, record_bytes(rows, read), took_s)
        if self._size.records != most:
            limit_next_batch(self._spark, self._settings.application_id, self._size.records)
        return reads_to_limit(span, most)

    def wait(self, begun_s: float, span: BatchSpan, is_urgent: bool, is_empty: bool) -> None:
        """Wait until the batch after `span` should begin (`ArrivalWatch.wait`)."""
        self._arrivals.wait(
            begun_s,
            span.ends,
            is_urgent=is_urgent,
            is_forwarded=self._claims.is_forwarded,
            look_for_urgent=self._claims.look_for_urgent,
            is_empty=is_empty,
        )

    def wake(self) -> None:
        """Stop waiting between batches."""
        self._arrivals.wake()

    def close(self) -> None:
        """Close the consumer."""
        self._arrivals.close()
