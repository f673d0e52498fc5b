"""The part of the table of sealed buckets, and of Spark's DataFrames, that the decision about cancels needs, in memory.

So a decision takes milliseconds, and a test can make thousands of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from state.buckets.id_rows import ID_ROW_SCHEMA, packed_ids
from state.buckets.operator import ASKED, KEPT, NAMED, TAKEN_OUT
from state.buckets.parts import IdRows, chunks_of, is_metadata, part_of
from state.buckets.table_rows import STORED_SCHEMA
from state.index.locate import ENTRY_SCHEMA, METADATA, entries_of
from state.order import in_order
from tests.messages import ids_of_rows

_KINDS = re.compile(r"kind IN \((.+)\)")
# The kinds with chunks that the driver reads (`streaming.job.requests.search.driver_rows`).
_READ_BY_DRIVER = (ASKED, TAKEN_OUT, KEPT, NAMED)


class Rows:
    """Stands for a DataFrame."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def where(self, condition: str) -> Rows:
        """Return the rows of some kinds: `condition` asks for nothing else."""
        kinds = _KINDS.fullmatch(condition)
        assert kinds is not None
        return Rows(self.table.filter(pc.field("kind").isin(re.findall(r"\w+", kinds[1]))))

    def select(self, *columns: str) -> Rows:
        """Return some columns."""
        return Rows(self.table.select(columns))

    def drop(self, column: str) -> Rows:
        """Return all other columns."""
        return Rows(self.table.drop_columns([column]))

    def union(self, other: Rows) -> Rows:
        """Return these rows and `other` ones."""
        return Rows(pa.concat_tables([self.table, other.table]))

    def collect(self) -> list[dict[str, Any]]:
        """Return the rows."""
        rows: list[dict[str, Any]] = self.table.to_pylist()
        return rows

    def toLocalIterator(self, prefetchPartitions: bool = False) -> Iterator[dict[str, Any]]:
        """Return the rows one by one."""
        del prefetchPartitions
        return iter(self.collect())

    def mapInArrow(
        self, function: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]], schema: StructType
    ) -> Rows:
        """Return the result of `function` for the rows."""
        made = list(function(iter(self.table.to_batches())))
        own = made[0].schema if made else to_arrow_schema(schema)
        return Rows(pa.Table.from_batches(made, own))

    def toArrow(self) -> pa.Table:
        """Return the rows as a table."""
        return self.table


class MemoryTable:
    """Stands for `BucketTable`, without merges. Rows are of `STORED_SCHEMA`."""

    def __init__(self) -> None:
        self._newest: dict[str, int] = {}
        self._rows = STORED_SCHEMA.empty_table()
        self._version = 0

    def frame(self, table: pa.Table) -> Rows:
        """Return a frame with the rows of `table`."""
        return Rows(table)

    def driver_rows(self, frame: Rows) -> list[Any]:
        """As `streaming.job.requests.search.driver_rows`."""
        return [row if row["kind"] in _READ_BY_DRIVER else row | {"chunk": None} for row in frame.collect()]

    def append(self, rows: pa.Table, writer_id: str, batch_id: int) -> None:
        """Store rows once."""
        if batch_id > self._newest.get(writer_id, -1):
            self._newest[writer_id] = batch_id
            self._version += 1
            self._rows = pa.concat_tables([self._rows, rows.select(STORED_SCHEMA.names).cast(STORED_SCHEMA)])

    def newest_of(self, writer_id: str) -> int | None:
        """As of `BucketTable`."""
        return self._newest.get(writer_id)

    def version(self) -> int:
        """As of `BucketTable`."""
        return self._version

    def ids_before(self, kind: IdRows, bucket: int) -> Iterator[pa.Table]:
        """As of `BucketTable`."""
        yield self._ids(kind).filter(pc.field("bucket") < bucket)

    def id_partitions(self, kind: IdRows) -> set[int]:
        """Return the buckets of the Delta partitions with rows of a kind."""
        numbers = map(kind.bucket_of, self._rows.column("part").to_pylist())
        return {number for number in numbers if number is not None}

    def join_names(self, numbers: Collection[int], due_before_ms: int) -> None:
        """As `sinks.buckets.join_commits.join_names`."""
        chosen = set(map(IdRows.NAMED.partition, numbers))
        by_name: dict[bytes, list[dict[str, Any]]] = {}
        for row in ids_of_rows(self._in_partitions(lambda part: part in chosen)).to_pylist():
            by_name.setdefault(row["name"], []).append(row)
        until, ages = "max_deliver_at_ms", ("bucket", "partition", "offset", "deliver_at_ms")
        newest = [
            max(own, key=lambda row: [row[each] for each in ages]) | {until: max(row[until] for row in own)}
            for own in by_name.values()
        ]
        left = pa.Table.from_pylist([row for row in newest if row[until] >= due_before_ms], schema=ID_ROW_SCHEMA)
        joined = packed_ids(IdRows.NAMED, max(numbers))(iter(in_order(left).combine_chunks().to_batches()))
        others = self._in_partitions(lambda part: part not in chosen)
        self._rows = pa.concat_tables([others, pa.Table.from_batches(joined, STORED_SCHEMA)])

    def metadata_partitions(self, version: int) -> set[str]:
        """As of `BucketTable`."""
        return set(filter(is_metadata, self._rows.column("part").to_pylist()))

    def index_entries_of(self, partitions: Iterable[str], version: int) -> Iterator[pa.Table]:
        """As of `BucketTable`."""
        chosen = set(partitions)
        rows = self._in_partitions(lambda part: part in chosen).select(METADATA)
        yield pa.Table.from_batches(entries_of(rows.combine_chunks().to_batches()), ENTRY_SCHEMA)

    def chunks_at(self, places: pa.Table, version: int) -> Rows:
        """As of `BucketTable`, but with all chunks of the buckets."""
        buckets = places.column("bucket").unique().to_pylist()
        chosen = set(map(chunks_of, map(part_of, places.column("part").unique().to_pylist())))
        return Rows(self._in_partitions(lambda part: part in chosen).filter(pc.field("bucket").isin(buckets)))

    def _ids(self, kind: IdRows) -> pa.Table:
        return ids_of_rows(self._in_partitions(lambda part: kind.bucket_of(part) is not None))

    def _in_partitions(self, is_wanted: Callable[[str], bool]) -> pa.Table:
        return self._rows.filter(
            pa.array([is_wanted(part) for part in self._rows.column("part").to_pylist()], pa.bool_())
        )
