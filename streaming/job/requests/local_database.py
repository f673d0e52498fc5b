"""Copies of what the table has, in SQLite on the driver's local disk, and how rows become tables and back.

They are derived, and no batch needs them after a crash: the file has no name any more when it is open, so nothing is
left of it.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark import SparkFiles

# Nobody else reads the file, and after a failure nobody goes on with it.
_UNSAFE = """
    PRAGMA journal_mode = OFF;
    PRAGMA synchronous = OFF;
"""
# Never committed: outside a transaction, each statement costs ten times its work in calls to the file system.
_BEGIN = "BEGIN EXCLUSIVE"


def local_database(tables: str) -> sqlite3.Connection:
    """Return a new database with `tables` (SQL), which any thread may use, one at a time."""
    # Beside Spark's own files, which have room.
    handle, path = tempfile.mkstemp(prefix="delayline-", suffix=".sqlite", dir=SparkFiles.getRootDirectory())
    os.close(handle)
    # Spark calls each batch in a thread of its own choice, one after the other.
    database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    database.executescript(_UNSAFE + tables)
    database.execute(_BEGIN)
    os.unlink(path)
    return database


def table_from(rows: Iterable[tuple[object, ...]], schema: pa.Schema) -> pa.Table:
    """Return `rows`, as they are read, as a table of `schema`."""
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.table(arrays, schema=schema)


def as_tuples(table: pa.Table) -> Iterator[tuple[object, ...]]:
    """Return the rows of `table` as they are inserted."""
    return zip(*(column.to_pylist() for column in table.columns), strict=True)
