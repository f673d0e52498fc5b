"""Why records that are resent would be refused, by their topics or again by the job, which decides with the same."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.durations import format_duration
from conf.rejected import MessageTooLarge, RecordRefused
from sinks.release.expiry import Expiry
from sinks.release.records import Record, record_bytes
from sinks.release.records import records as released
from sinks.resender import Outgoing
from sinks.topics.limits import TopicLimits
from sources.intake.accept import accept
from state.checkpoint.batch_settings import BatchSettings
from state.kinds import MESSAGE
from state.message import HEADERS
from state.names import NAME_HEADER
from state.repeats.schedule import NUMBER_HEADER

# The records get offsets above all that their topics have: a replacement names an earlier message.
_FIRST_OFFSET = 2**62


def refusals(
    records: Sequence[Outgoing], batch_settings: BatchSettings, expiry: Expiry, clock_ms: int
) -> list[str | None]:
    """Return for each of `records`, at least one, why the job would refuse it at `clock_ms` (epoch ms), or None.

    A batch refuses what it cannot schedule, and a release process what could only be delivered after it has expired.
    The job would accept an occurrence with a name, but as the message of that name, in place of its own schedule.
    """
    # After the messages come the requests of those that replace others.
    messages, requests = accept(as_read(records), batch_settings, clock_ms)
    accepted = messages.slice(0, len(records))
    errors: list[str | None] = accepted.column("error_text").to_pylist()
    is_plain = pc.equal(accepted.column("kind"), MESSAGE).to_pylist()
    for offset in requests.filter(pc.is_valid(requests.column("name"))).column("request_offset").to_pylist():
        record = records[offset - _FIRST_OFFSET]
        if is_plain[offset - _FIRST_OFFSET] and any(name == NUMBER_HEADER for name, _ in record.headers):
            errors[offset - _FIRST_OFFSET] = _occurrence_refusal(record)
    (batch,) = accepted.combine_chunks().to_batches()
    rows = np.flatnonzero(expiry.doubted(batch, clock_ms))
    for row, record in zip(rows.tolist(), released(batch.take(pa.array(rows))), strict=True):
        if (expired := expiry.objection(record, clock_ms)) is not None:
            errors[row] = str(expired)
    return errors


def _occurrence_refusal(record: Outgoing) -> str:
    """Return why an occurrence that would get a name is not resent."""
    remedy = f"Publish it to an input topic where it has no name ({record.topic} takes names from keys)"
    if any(name == NAME_HEADER for name, _ in record.headers):
        remedy = f"Add --drop-header {NAME_HEADER}"
    return (
        "it is an occurrence of a message that repeats, and would get the name of that: the schedule would end, or "
        f"the occurrence would be dropped. {remedy}"
    )


def topic_refusal(record: Outgoing, limits: TopicLimits, compresses: bool, now_ms: int) -> str | None:
    """Return why a topic with `limits` would not take `record` at `now_ms` (epoch ms), or None if no reason is known.

    A client that `compresses` may bring the record below the limit.
    """
    topic, age_ms = record.topic, now_ms - record.timestamp_ms
    nbytes = record_bytes(Record(0, topic, 0, record.key, record.value, record.headers))
    if nbytes > limits.max_bytes and not compresses:
        limit = f"max.message.bytes of {topic} is {limits.max_bytes}"
        return str(MessageTooLarge(f"the record takes {nbytes} bytes, and {limit}"))
    if limits.needs_key and record.key is None:
        return str(RecordRefused(f"the record has no key, and cleanup.policy of {topic} is compact"))
    for side, distance_ms, most_ms in (
        ("before", age_ms, limits.max_age_ms),
        ("after", -age_ms, limits.max_ahead_ms),
    ):
        if distance_ms > most_ms:
            where = f"{format_duration(distance_ms)} {side} the present time"
            limit = f"message.timestamp.{side}.max.ms of {topic} is {most_ms}"
            remedy = "With --stamp now, the delay counts from now"
            return str(RecordRefused(f"its timestamp is {where}, and {limit}. {remedy}"))
    return None


def as_read(records: Sequence[Outgoing]) -> pa.Table:
    """Return `records` as the job will read them: as the table that `accept` takes."""
    headers = [[{"key": name, "value": value} for name, value in record.headers] for record in records]
    return pa.table(
        {
            "key": pa.array([record.key for record in records], pa.binary()),
            "key_bytes": pa.array([_length(record.key) for record in records], pa.int32()),
            "value": pa.array([record.value for record in records], pa.binary()),
            "value_bytes": pa.array([_length(record.value) for record in records], pa.int32()),
            "value_sha256": pa.nulls(len(records), pa.string()),
            "headers": pa.array(headers, HEADERS),
            "topic": pa.array([record.topic for record in records], pa.string()),
            "partition": pa.array([record.partition or 0 for record in records], pa.int32()),
            "offset": pa.array(range(_FIRST_OFFSET, _FIRST_OFFSET + len(records)), pa.int64()),
            "timestamp_ms": pa.array([record.timestamp_ms for record in records], pa.int64()),
        }
    )


def _length(content: bytes | None) -> int | None:
    return None if content is None else len(content)
