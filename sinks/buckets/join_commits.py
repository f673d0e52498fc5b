"""The commits that join Delta partitions with ids of messages, without the ids that are no longer needed."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from sinks.buckets.bucket_table import BucketTable
from state.buckets.cancelled import Forgettable
from state.buckets.id_rows import ID_ROW_SCHEMA, STORED_IDS, joined_ids, packed_ids, unpacked_ids
from state.buckets.parts import IdRows
from state.buckets.table_rows import STORED_SCHEMA
from state.order import ORDER

# In which order names are given. A batch may store an occurrence of a message that repeats, and the one that follows.
_BY_AGE = ("bucket", "partition", "offset", "deliver_at_ms")


def join_ids(store: BucketTable, kind: IdRows, buckets: Iterable[int], forget: Forgettable) -> None:
    """Join several Delta partitions with ids of a `kind` in the last one, without the ids to `forget`.

    Names are joined by `join_names`, since later names replace earlier ones.
    """
    numbers = sorted(buckets)
    partitions = [kind.partition(number) for number in numbers]
    joined = joined_ids(kind, numbers[-1], lambda ids: ~forget.contains_mask(ids))
    rows = _rows_of(store, partitions)
    ordered = rows.coalesce(1).sortWithinPartitions(*ORDER)
    store.overwrite(partitions, ordered.mapInArrow(joined, from_arrow_schema(STORED_SCHEMA)))


def join_names(store: BucketTable, buckets: Iterable[int], due_before_ms: int) -> None:
    """Join several Delta partitions with names in the last one. Only the newest row of each name is kept.

    The row is kept for as long as any joined row of the name would be. It is dropped if that time ended before
    `due_before_ms` (epoch ms).
    """
    numbers = sorted(buckets)
    partitions = [IdRows.NAMED.partition(number) for number in numbers]
    rows = _rows_of(store, partitions).mapInArrow(unpacked_ids, from_arrow_schema(ID_ROW_SCHEMA))
    # Before anything is forgotten: otherwise the row that a newer one has replaced would count again.
    left = _newest(rows).where(f"max_deliver_at_ms >= {due_before_ms}").select(*ID_ROW_SCHEMA.names)
    joined = left.coalesce(1).sortWithinPartitions(*ORDER)
    packing = packed_ids(IdRows.NAMED, numbers[-1])
    store.overwrite(partitions, joined.mapInArrow(packing, from_arrow_schema(STORED_SCHEMA)))


def _rows_of(store: BucketTable, partitions: Iterable[str]) -> DataFrame:
    return store.all_rows().where(F.col("part").isin(list(partitions))).select(*STORED_IDS)


def _newest(names: DataFrame) -> DataFrame:
    """Return the newest row of each name, to be kept as long as any other row of the name.

    The row of an occurrence is needed until the occurrence is due. The first row of its message may be needed for
    longer: as long as the row of the message before, which may be in an older partition.
    """
    by_name = Window.partitionBy("name")
    by_age = by_name.orderBy(*(F.col(name).desc() for name in _BY_AGE))
    aged = names.withColumn("age", F.row_number().over(by_age))
    return aged.withColumn("max_deliver_at_ms", F.max("max_deliver_at_ms").over(by_name)).where("age = 1").drop("age")
