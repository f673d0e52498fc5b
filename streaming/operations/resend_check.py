"""Why the job would make dead letters again of records that are resent: pure, by what the job itself decides with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from sinks.release.expiry import Expiry
from sinks.release.records import records as released
from sinks.resender import Outgoing
from sources.intake.accept import accept
from state.checkpoint.batch_settings import BatchSettings
from state.message import HEADERS

# The records get offsets above all that their topics have: a replacement names an earlier message.
_FIRST_OFFSET = 2**62


def refusals(
    records: Sequence[Outgoing], batch_settings: BatchSettings, expiry: Expiry, clock_ms: int
) -> list[str | None]:
    """Return for each of `records`, at least one, why the job would refuse it at `clock_ms` (epoch ms), or None.

    A batch refuses what it cannot schedule, and a release process what could only be delivered after it has expired.
    """
    # After the messages come the asks of those that replace others.
    accepted = accept(_table(records), batch_settings, clock_ms).messages.slice(0, len(records))
    errors: list[str | None] = accepted.column("error_text").to_pylist()
    (batch,) = accepted.combine_chunks().to_batches()
    rows = np.flatnonzero(expiry.doubted(batch, clock_ms))
    for row, record in zip(rows.tolist(), released(batch.take(pa.array(rows))), strict=True):
        if (expired := expiry.objection(record, clock_ms)) is not None:
            errors[row] = str(expired)
    return errors


def _table(records: Sequence[Outgoing]) -> pa.Table:
    headers = [[{"key": name, "value": value} for name, value in record.headers] for record in records]
    return pa.table(
        {
            "key": pa.array([record.key for record in records], pa.binary()),
            "key_bytes": pa.array([_length(record.key) for record in records], pa.int32()),
            "value": pa.array([record.value for record in records], pa.binary()),
            "value_bytes": pa.array([_length(record.value) for record in records], pa.int32()),
            "value_sha256": pa.nulls(len(records), pa.string()),
            "headers": pa.array(headers, HEADERS),
            "topic": pa.array([record.topic for record in records]),
            "partition": pa.array([record.partition or 0 for record in records], pa.int32()),
            "offset": pa.array(range(_FIRST_OFFSET, _FIRST_OFFSET + len(records)), pa.int64()),
            "timestamp_ms": pa.array([record.timestamp_ms for record in records], pa.int64()),
        }
    )


def _length(content: bytes | None) -> int | None:
    return None if content is None else len(content)
