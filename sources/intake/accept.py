"""Accepting records: a table of Kafka records becomes a table of scheduled, routed messages.

Works on whole columns, and parses each distinct header value once. Pure: the batch's clock is an argument.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.errors import BadDeliverTo, MessageTooLarge, TopicNotAllowed, TopicUnknown
from conf.settings import MOST_MESSAGE_BYTES
from sources.intake.cancels import asked_keys, has_header
from sources.intake.due_times import due_times
from sources.intake.expiry import check_expiry
from sources.intake.header_columns import Headers, Ints, Rejections, flatten, one_array, only, parse_distinct
from sources.intake.partitioner import partitions_for
from sources.intake.presets import Preset, presets_named
from sources.intake.replacements import check_replacements, with_asks
from sources.intake.schedule import parse_deliver_to
from sources.intake.stubs import header_counts, sizes, with_stubs
from state.cancel import CANCEL_HEADER
from state.checkpoint.batch_settings import BatchSettings
from state.message import HEADERS, MESSAGE_SCHEMA

# A subscriber with librdkafka sees none of a record's headers if there are more than 100,000.
_MOST_HEADERS = 50_000


def accept(records: pa.Table, batch_settings: BatchSettings, clock_ms: int) -> pa.Table:
    """Return all `records` as messages of `MESSAGE_SCHEMA`, in the same order; then the asks of those that replace.

    `records` has the columns of `sources.intake.kafka_reader`. `clock_ms` is the batch's clock, epoch ms. A record that
    cannot be scheduled is addressed to the dead-letter topic, with its error; as a stub if it is larger than both a
    message and a dead letter may be.
    """
    groups = _groups(records, batch_settings)
    if len(groups) < 2:
        messages = _accepted(records, bool(groups and groups[0][1]), batch_settings, clock_ms)
    else:
        tables = [_accepted(records.take(pa.array(rows)), asks, batch_settings, clock_ms) for rows, asks in groups]
        rows = np.argsort(np.concatenate([rows for rows, _ in groups]))
        messages = pa.concat_tables(tables).take(pa.array(rows))
    return with_asks(messages, batch_settings, clock_ms) if batch_settings.results else messages


def _groups(records: pa.Table, batch_settings: BatchSettings) -> list[tuple[Ints, bool]]:
    """Return the rows that are accepted together, and whether they are asks for a cancel.

    The records of each topic are accepted for themselves where topics have presets and policies of their own.
    """
    is_ask = has_header(records, CANCEL_HEADER) if batch_settings.results else np.zeros(records.num_rows, dtype=bool)
    groups = [(np.flatnonzero(is_ask), True)]
    if batch_settings.presets or batch_settings.policies:
        topics = records.column("topic")
        of_topic = (np.asarray(pc.equal(topics, topic)) for topic in topics.unique())
        groups += [(np.flatnonzero(own & ~is_ask), False) for own in of_topic]
    else:
        groups.append((np.flatnonzero(~is_ask), False))
    return [group for group in groups if len(group[0])]


def _accepted(records: pa.Table, asks: bool, batch_settings: BatchSettings, clock_ms: int) -> pa.Table:
    """Accept `records` of one topic, or of topics that have no presets and policies; or `asks` for a cancel."""
    records = records.set_column(
        records.schema.get_field_index("headers"), "headers", one_array(records.column("headers").cast(HEADERS))
    )
    headers = flatten(one_array(records.column("headers")))
    # A record without a timestamp (-1) counts as written when its batch began.
    published = records.column("timestamp_ms").to_numpy().astype(np.int64)
    timestamps = np.where(published < 0, clock_ms, published)
    rejections = Rejections()
    at_once = np.minimum(timestamps, clock_ms)
    if asks:
        # Whatever else its headers ask for: it is answered at once.
        deliver_at, asked = at_once.copy(), asked_keys(headers, len(timestamps), rejections)
        names, which = [batch_settings.results], np.zeros(len(timestamps), dtype=np.int64)
    else:
        topic = records.column("topic")[0].as_py() if len(timestamps) else ""
        presets = presets_named(batch_settings.presets.get(topic, ()))
        policy = batch_settings.policies.get(topic, batch_settings.policy)
        deliver_at = due_times(headers, timestamps, batch_settings, policy, presets, clock_ms, rejections)
        if policy.expiry_header:
            check_expiry(headers, policy.expiry_header, deliver_at, rejections)
        names, which = _route(headers, len(timestamps), batch_settings, presets, rejections)
        if batch_settings.results:
            check_replacements(headers, len(timestamps), rejections)
    carried = _check_sizes(records, batch_settings, rejections)
    keys, values = one_array(carried.column("key")), carried.column("value")
    codes: list[str | None] = [None] * len(timestamps)
    texts: list[str | None] = [None] * len(timestamps)
    for row, error in rejections.errors.items():
        codes[row], texts[row] = error.code, str(error)
        which[row] = len(names)
        deliver_at[row] = at_once[row]
    if asks:
        is_rejected = pc.is_valid(pa.array(codes, pa.string()))
        keys, values = pc.if_else(is_rejected, keys, asked), pc.if_else(is_rejected, values, None)
    names = [*names, batch_settings.dead_letter]
    counts = np.array([batch_settings.partitions[name] for name in names], dtype=np.int64)[which]
    input_partitions = records.column("partition").to_numpy().astype(np.int64)
    columns = {
        "deliver_at_ms": deliver_at,
        "topic": records.column("topic"),
        "partition": records.column("partition"),
        "offset": records.column("offset"),
        "timestamp_ms": timestamps,
        "output_topic": pa.array(names, pa.string()).take(pa.array(which)),
        "output_partition": pa.array(partitions_for(keys, input_partitions, counts), pa.int32()),
        "error_code": pa.array(codes, pa.string()),
        "error_text": pa.array(texts, pa.string()),
        "key": keys,
        "value": values,
        "headers": carried.column("headers"),
    }
    return pa.table(columns).cast(MESSAGE_SCHEMA)


def _route(
    headers: Headers,
    count: int,
    batch_settings: BatchSettings,
    presets: tuple[Preset, ...],
    rejections: Rejections,
) -> tuple[list[str], Ints]:
    """Return output topics, and for each row which of these is its own; add errors to `rejections`."""
    topics, which = [batch_settings.output], np.zeros(count, dtype=np.int64)

    routed = np.zeros(count, dtype=bool)
    # Delayline's own header goes before those that presets read.
    for name in (batch_settings.headers.deliver_to, *(preset.target for preset in presets if preset.target)):
        all_rows, all_values = headers.named(name)
        if not len(all_rows):
            continue
        counts = np.bincount(all_rows, minlength=count)
        has_it = (counts > 0) & ~routed
        rejections.reject(np.flatnonzero(has_it & (counts > 1)), BadDeliverTo(f"a message may have one {name} header"))

        def number_of(value: bytes | None, name: str = name) -> int:
            topics.append(_allowed(parse_deliver_to(value, name), batch_settings))
            return len(topics) - 1

        rows, values = only((has_it & (counts == 1))[all_rows], all_rows, all_values)
        if len(rows):
            which[rows] = parse_distinct(rows, values, number_of, rejections)
        routed |= has_it
    return topics, which


def _check_sizes(records: pa.Table, batch_settings: BatchSettings, rejections: Rejections) -> pa.Table:
    """Reject rows that are too large; return key, value and headers of all rows, with stubs for the largest."""
    counts = header_counts(records)
    nbytes = sizes(records, counts)
    most = min(batch_settings.max_message_bytes, MOST_MESSAGE_BYTES)
    for row in np.flatnonzero(nbytes > most).tolist():
        rejections.reject(
            np.array([row]),
            MessageTooLarge(
                f"key, value and headers have {nbytes[row]} bytes, each header counting 8 more; "
                f"limits.max_message_bytes is {most}: send less, or raise that limit"
            ),
        )
    has_too_many = counts > _MOST_HEADERS
    rejections.reject(
        np.flatnonzero(has_too_many), MessageTooLarge(f"a message may have {_MOST_HEADERS} headers: send fewer")
    )
    carried = max(most, min(batch_settings.dead_letter_bytes, MOST_MESSAGE_BYTES))
    return with_stubs(records, np.flatnonzero((nbytes > carried) | has_too_many))


def _allowed(topic: str, batch_settings: BatchSettings) -> str:
    if not batch_settings.allows(topic):
        raise TopicNotAllowed(f"{topic!r} is not among topics.allowed_outputs, or is one of the job's own topics")
    if topic not in batch_settings.partitions:
        raise TopicUnknown(f"{topic!r} is allowed but did not exist when the job started; create it and restart")
    return topic
