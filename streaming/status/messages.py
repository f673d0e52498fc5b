"""The waiting messages as a Spark DataFrame: for queries, for exports, and for `delayline peek`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from conf.settings import Settings
from sinks.buckets.bucket_table import BucketTable
from state.message_ids import ids_of
from streaming.checkpoint.current import current_checkpoint
from streaming.status.ready import EVERY_BATCH
from streaming.status.sealed_rows import ReadLimits, SealedRows
from streaming.status.staged_rows import staged_rows
from streaming.status.storage_reader import consistent_versions
from streaming.status.waiting_rows import END_MS, ROW_SCHEMA, WAITING_SCHEMA, Selection, chunk_rows
from streaming.storage.paths import buckets_path


def waiting_messages(
    spark: SparkSession,
    settings: Settings,
    from_ms: int = 0,
    until_ms: int = END_MS,
    ids: Iterable[tuple[str, int, int]] | None = None,
) -> DataFrame:
    """Return the messages that wait after the last committed batch, unordered: a DataFrame of `WAITING_SCHEMA`.

    Reads only metadata before the DataFrame is computed. A sealed message is read only if it is near the messages that
    are selected by due time or id. So give these here, and not as a condition on the DataFrame.

    The DataFrame stays valid for a while: the job keeps files that it has replaced for an hour, and the state of its
    last ten batches. A message that was recalled after it was staged is `ready` until its time.

    Args:
        spark: a session of `streaming.spark.session.open_session`, or with the same packages.
        settings: the settings of the job.
        from_ms: the first due time, epoch ms.
        until_ms: the end of the due times, exclusive, epoch ms.
        ids: only these messages: topic, partition, offset of each.

    Raises CheckpointUnreadable, CheckpointMismatch, BucketUnreadable, BrokerUnreachable, TopicMissing, ReadyLogLost.
    """
    selection = Selection(from_ms, until_ms, None if ids is None else ids_of(ids))
    return selected_messages(spark, settings, selection).select(*WAITING_SCHEMA.names)


def selected_messages(
    spark: SparkSession,
    settings: Settings,
    selection: Selection,
    at_least: int | None = None,
    limits: ReadLimits | None = None,
) -> DataFrame:
    """Return what `waiting_messages` does for a `selection`, as a DataFrame of `ROW_SCHEMA`.

    With `at_least`, only the first so many messages by due time are there, and some more. Raises what
    `waiting_messages` does, and TooMuchToRead if the sealed messages to read are more than the `limits`.
    """
    checkpoint, store = current_checkpoint(spark, settings), BucketTable(spark, buckets_path(settings))
    batch_id, version = consistent_versions(checkpoint, store)
    schema = from_arrow_schema(ROW_SCHEMA)
    if batch_id is None:
        if version is None or not checkpoint.is_initialized():
            return spark.createDataFrame([], schema)
        # A checkpoint that `rescale` or `rebuild` has made goes on with buckets of the one before.
        origin = checkpoint.origin
        sealed = SealedRows(store, version, origin.overdue_bucket, origin.cutoff_ms, limits)
        overdue = replace(sealed, from_ms=0, condition=f"bucket = {origin.overdue_bucket}")
        before = replace(selection, until_ms=min(selection.until_ms, origin.cutoff_ms))
        places = [sealed.messages(selection), overdue.messages(before)]
        if checkpoint.last_planned() is None:
            places += staged_rows(spark, settings, EVERY_BATCH, selection, at_least)
        return reduce(DataFrame.union, places)
    cutoff_ms, last_bucket = checkpoint.planned(batch_id).cutoff_ms, checkpoint.origin.bucket_of(batch_id)
    kept = None if version is None else SealedRows(store, version, last_bucket, cutoff_ms, limits)
    if kept is not None and at_least is not None:
        selection = kept.first(selection, at_least)
    state = spark.read.format("statestore").option("batchId", batch_id).load(checkpoint.path)
    mutable = state.selectExpr("value.groupState.bucket AS chunk")
    places = [mutable.mapInArrow(chunk_rows("mutable", selection), schema)]
    # The value that is read now is not below its value when the batch was committed.
    if limits is None or selection.from_ms < max(cutoff_ms, limits.forwarded_before_ms()):
        places += staged_rows(spark, settings, batch_id, selection, at_least)
    if kept is not None:
        places.append(kept.messages(selection))
    return reduce(DataFrame.union, places)
