"""Plans that read stored chunks in the order of due times, with chunks of cancelled ids among them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from state.buckets.table_rows import ArrowFunction
from state.order import ORDER


def in_one_task(chunks: DataFrame, cancelled: DataFrame | None) -> DataFrame:
    """Return stored chunks in order of their keys, in one partition.

    The ids that are `cancelled` are among them, if there are any: for `CancelledFilter.left`.
    """
    if cancelled is not None:
        columns = (*ORDER, "bucket", "chunk")
        with_ids = cancelled.selectExpr(*columns, "true AS has_ids")
        chunks = chunks.selectExpr(*columns, "false AS has_ids").union(with_ids)
    return chunks.coalesce(1).sortWithinPartitions(*ORDER)


def in_slices(
    chunks: DataFrame,
    cancelled: DataFrame,
    ranges: Iterable[tuple[int, int]],
    function: Callable[[int, int], ArrowFunction],
    schema: StructType,
) -> DataFrame:
    """Return the output of `function` for the chunks of each of `ranges` of due time (epoch ms), each in its own task.

    `ranges` has at least one range. `function` takes a range, and returns a function for `mapInArrow` that yields
    batches of the `schema`.
    """
    slices = (
        in_one_task(due_between(chunks, *each), due_between(cancelled, *each)).mapInArrow(function(*each), schema)
        for each in ranges
    )
    return reduce(DataFrame.union, slices)


def due_between(chunks: DataFrame, start_ms: int, end_ms: int) -> DataFrame:
    """Return the chunks that may have a message due in [start_ms, end_ms), epoch ms."""
    return chunks.where(f"deliver_at_ms < {end_ms} AND max_deliver_at_ms >= {start_ms}")
