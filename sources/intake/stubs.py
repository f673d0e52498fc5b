"""Replacing a record that is too large to be carried by a stub (`state.stub`): pure, on Arrow tables.

Also marks a whole dead letter that would look like a stub.

A key or a value above `MOST_MESSAGE_BYTES` does not even leave the JVM. The reader's expressions (`COLUMNS`) leave it
out, and give its length and hash in columns of their own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from conf.sections import MOST_MESSAGE_BYTES
from state.stub import HEADER_BYTES, STUB_HEADER, WHOLE, Stub, digest, headers_left, key_left

Ints = npt.NDArray[np.int64]

# SQL expressions for the columns of a record for which a publisher chooses the size.
COLUMNS = (
    f"IF(length(key) <= {MOST_MESSAGE_BYTES}, key, NULL) AS key",
    "length(key) AS key_bytes",
    f"IF(length(value) <= {MOST_MESSAGE_BYTES}, value, NULL) AS value",
    "length(value) AS value_bytes",
    f"IF(length(value) <= {MOST_MESSAGE_BYTES}, NULL, sha2(value, 256)) AS value_sha256",
    "headers",
)


def sizes(records: pa.Table, counts: Ints) -> Ints:
    """Return the bytes of key, value and headers of each record, with `HEADER_BYTES` more for each header.

    `counts` are the records' `header_counts`.
    """
    total = np.zeros(records.num_rows, dtype=np.int64)
    for name in ("key_bytes", "value_bytes"):
        total += _numbers(records.column(name))
    ends = np.cumsum(counts)
    each = _header_lengths(pc.list_flatten(records.column("headers"))) + HEADER_BYTES
    until = np.concatenate([[0], np.cumsum(each)])
    return np.asarray(total + until[ends] - until[ends - counts])


def header_counts(records: pa.Table) -> Ints:
    """Return the number of headers of each record."""
    return _numbers(pc.list_value_length(records.column("headers")))


def with_stubs(records: pa.Table, rows: Ints) -> pa.Table:
    """Return key, value and headers of `records`, with a stub's key, value and headers in each of `rows`."""
    return _replaced(
        records.select(["key", "value", "headers"]), rows, [_stub(records.slice(row, 1)) for row in rows.tolist()]
    )


def with_marks(carried: pa.Table, rows: Ints) -> pa.Table:
    """Return `carried`, which has key, value and headers, with the mark of a whole dead letter on each that needs it.

    `rows` are the whole dead letters.
    """
    rows = rows[np.asarray(carried.column("value").take(pa.array(rows)).is_null())]
    if not len(rows):
        return carried
    counts = header_counts(carried)
    rows = rows[counts[rows] > 0]
    names = pc.struct_field(pc.list_flatten(carried.column("headers")), [0])
    last = names.take(pa.array(np.cumsum(counts)[rows] - 1))
    rows = rows[np.asarray(pc.equal(last, STUB_HEADER).fill_null(False))]
    marked = carried.take(pa.array(rows)).to_pylist()
    name, value = WHOLE
    for record in marked:
        record["headers"].append({"key": name, "value": value})
    return _replaced(carried, rows, marked)


def _replaced(table: pa.Table, rows: Ints, others: list[dict[str, Any]]) -> pa.Table:
    """Return `table` with `others` in place of `rows`."""
    if not len(rows):
        return table
    chosen = np.arange(table.num_rows)
    chosen[rows] = table.num_rows + np.arange(len(rows))
    return pa.concat_tables([table, pa.Table.from_pylist(others, schema=table.schema)]).take(pa.array(chosen))


def _stub(record: pa.Table) -> dict[str, Any]:
    """Return the stub of a table's only record."""
    (key,) = record.column("key")
    (value,) = record.column("value")
    headers = pc.list_flatten(record.column("headers")).combine_chunks()
    kept = headers.filter(pa.array(headers_left(_header_lengths(headers))))
    facts = Stub(
        record.column("key_bytes")[0].as_py(),
        record.column("value_bytes")[0].as_py(),
        record.column("value_sha256")[0].as_py() or digest(value.as_buffer() if value.is_valid else None),
        len(headers),
    )
    name, text = facts.to_header()
    return {
        "key": key_left(key.as_py()),
        "value": None,
        "headers": [*kept.to_pylist(), {"key": name, "value": text}],
    }


def _header_lengths(headers: pa.Array | pa.ChunkedArray) -> Ints:
    """Return the bytes of name and value of each header."""
    names, values = (_numbers(pc.binary_length(pc.struct_field(headers, [field]))) for field in (0, 1))
    return np.asarray(names + values)


def _numbers(column: pa.Array | pa.ChunkedArray) -> Ints:
    return np.asarray(column.fill_null(0)).astype(np.int64)
