"""Accepting records: a table of Kafka records becomes a table of scheduled, routed messages.

Works on whole columns, and parses each distinct header value once. Pure: the batch's clock is an argument.
"""

from __future__ import annotations

from enum import Enum

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.rejected import BadCancel, BadDeliverTo, MessageTooLarge, TopicNotAllowed, TopicUnknown
from conf.sections import MOST_MESSAGE_BYTES
from sources.intake.accepted import ASKED, CONDITION, NAME, ROW_SCHEMA, Accepted, with_requests
from sources.intake.admission import refuse_waiting
from sources.intake.cancels import asked_keys, has_header
from sources.intake.due_times import due_times
from sources.intake.envelopes import Envelope, cancels_by_key, check_cancels
from sources.intake.expiry import check_expiry
from sources.intake.header_case import REQUEST_HEADERS, check_case, message_headers
from sources.intake.header_columns import Headers, Ints, Rejections, flatten, one_array, only, parse_distinct
from sources.intake.names import names_given, names_to_cancel, request_keys
from sources.intake.partitioner import partitions_for
from sources.intake.preset_headers import Preset
from sources.intake.presets import presets_named
from sources.intake.repeats import Repeats, find_repeats
from sources.intake.replacements import replaced_ids
from sources.intake.schedule import parse_deliver_to
from sources.intake.stubs import header_counts, sizes, with_marks, with_stubs
from state.cancel import ALWAYS, CANCEL_HEADER, DELIVER_NOW_HEADER
from state.checkpoint.batch_settings import NONE_REFUSED, BatchSettings, Refusal
from state.kinds import DEAD_LETTER, MESSAGE, REPEATING, REQUEST
from state.message import HEADERS
from state.names import CANCEL_NAME_HEADER, KEEP, OFF, REPLACE

# A subscriber with librdkafka sees no headers of a record with more than 100,000.
_MOST_HEADERS = 50_000


def accept(
    records: pa.Table, batch_settings: BatchSettings, clock_ms: int, refusal: Refusal = NONE_REFUSED
) -> Accepted:
    """Return all `records` as messages, in the same order, and then the requests that come with them.

    `records` has the columns of `sources.intake.kafka_reader`. `clock_ms` is the batch's clock, epoch ms, and
    `refusal` says which records the batch refuses. A record that cannot be scheduled is addressed to the dead-letter
    topic, with its error. It becomes a stub if it is larger than both a message and a dead letter may be.
    """
    groups = divided(records, batch_settings)
    tables = [accept_group(own, kind, batch_settings, clock_ms, refusal) for _, own, kind in groups]
    if len(tables) == 1:
        (table,) = tables
    else:
        rows = np.argsort(np.concatenate([rows for rows, _, _ in groups]))
        table = pa.concat_tables(tables).take(pa.array(rows))
    return with_requests(table, batch_settings, clock_ms)


class Kind(Enum):
    """The kind of records: messages, requests by id for a cancel or delivery at once, or for a cancel by name."""

    MESSAGES = 0
    CANCELS = 1
    CANCELS_BY_NAME = 2
    DELIVERIES = 3


# By the header of the request. The last one counts: a record that has several is refused.
_BY_ID = {DELIVER_NOW_HEADER: Kind.DELIVERIES, CANCEL_HEADER: Kind.CANCELS}


def divided(records: pa.Table, batch_settings: BatchSettings) -> list[tuple[Ints, pa.Table, Kind]]:
    """Return the groups of records that are accepted together: their rows, the records, and their kind.

    The records of each topic are accepted separately where topics have presets and policies of their own. There is at
    least one group.
    """
    records = records.set_column(
        records.schema.get_field_index("headers"), "headers", one_array(records.column("headers").cast(HEADERS))
    )
    kinds = np.zeros(records.num_rows, dtype=np.int8)
    topics = records.column("topic")
    for topic, names in batch_settings.presets.items():
        own = np.flatnonzero(np.asarray(pc.equal(topics, topic)))
        if len(own):
            of_topic = records.take(pa.array(own))
            kinds[own[cancels_by_key(of_topic, presets_named(names), batch_settings)]] = Kind.CANCELS_BY_NAME.value
    kinds[has_header(records, CANCEL_NAME_HEADER)] = Kind.CANCELS_BY_NAME.value
    for name, kind in _BY_ID.items():
        kinds[has_header(records, name)] = kind.value
    groups = [(np.flatnonzero(kinds == kind.value), kind) for kind in _BY_ID.values()]
    apart = batch_settings.presets or batch_settings.policies
    for kind in (Kind.MESSAGES, Kind.CANCELS_BY_NAME):
        rows = np.flatnonzero(kinds == kind.value)
        # A name belongs to its topic.
        if len(rows) and (apart or kind is Kind.CANCELS_BY_NAME):
            own_topics = topics.take(pa.array(rows))
            groups += [(rows[np.asarray(pc.equal(own_topics, topic))], kind) for topic in own_topics.unique()]
        else:
            groups.append((rows, kind))
    groups = [group for group in groups if len(group[0])] or [(np.arange(0), Kind.MESSAGES)]
    if len(groups) == 1:
        return [(groups[0][0], records, groups[0][1])]
    return [(rows, records.take(pa.array(rows)), kind) for rows, kind in groups]


def accept_group(
    records: pa.Table, kind: Kind, batch_settings: BatchSettings, clock_ms: int, refusal: Refusal = NONE_REFUSED
) -> pa.Table:
    """Accept the `records` of a group that `divided` has returned, as a table of `ROW_SCHEMA`."""
    headers = flatten(one_array(records.column("headers")))
    # A record without a timestamp (-1) counts as written when its batch began.
    published = records.column("timestamp_ms").to_numpy().astype(np.int64)
    timestamps = np.where(published < 0, clock_ms, published)
    rejections = Rejections()
    at_once = np.minimum(timestamps, clock_ms)
    topic = records.column("topic")[0].as_py() if len(timestamps) else ""
    presets = presets_named(batch_settings.presets.get(topic, ()))
    policy = batch_settings.policy_of(topic)
    record_keys = one_array(records.column("key"))
    names_read = REQUEST_HEADERS if kind is not Kind.MESSAGES else message_headers(batch_settings, policy, presets)
    check_case(headers, tuple(names_read), rejections)
    asked, given = (pa.nulls(len(timestamps), pa.binary()) for _ in range(2))
    conditions = pa.nulls(len(timestamps), pa.string())
    envelope = Envelope(presets, headers, len(timestamps))
    repeats = Repeats(len(timestamps))
    if kind is not Kind.MESSAGES:
        # A request is answered at once, whatever its other headers say.
        deliver_at = at_once.copy()
        names, which = [batch_settings.results], np.zeros(len(timestamps), dtype=np.int64)
        if kind is not Kind.CANCELS_BY_NAME:
            header = CANCEL_HEADER if kind is Kind.CANCELS else DELIVER_NOW_HEADER
            asked = asked_keys(headers, header, len(timestamps), rejections)
        else:
            by_key = cancels_by_key(records, presets, batch_settings) & ~has_header(records, CANCEL_NAME_HEADER)
            has_names = policy.names != OFF or any(preset.named for preset in presets)
            check_cancels(presets, headers, by_key, rejections)
            given = names_to_cancel(headers, record_keys, has_names, by_key, BadCancel, rejections)
    else:
        repeats = find_repeats(headers, len(timestamps), policy, presets, rejections)
        deliver_at, decided = due_times(
            headers, timestamps, batch_settings, policy, presets, clock_ms, repeats.rows, rejections
        )
        deliver_at = repeats.first_due(deliver_at, decided, timestamps, policy, clock_ms, rejections)
        if policy.expiry_header:
            check_expiry(headers, policy.expiry_header, deliver_at, rejections)
        # One occurrence of them waits at any time, however soon the first is due.
        waits_from = np.where(repeats.rows, np.iinfo(np.int64).max, deliver_at)
        refuse_waiting(records, waits_from, refusal, batch_settings, rejections)
        names, which = _route(headers, len(timestamps), batch_settings, presets, rejections)
        # A message replaces either the one with the id in its header, or the one with its own name: one request each.
        asked, conditions = replaced_ids(headers, records, rejections)
        given = names_given(headers, record_keys, policy.names, envelope.named, rejections)
        if given.null_count < len(given):
            takes_name = ALWAYS if policy.name_mode == REPLACE else policy.name_mode
            conditions = pc.if_else(given.is_valid(), takes_name, conditions)
        counts = np.array([batch_settings.partitions[name] for name in names], dtype=np.int64)[which]
        envelope.check_partitions(counts, rejections)
    carried, stubs = _check_sizes(records, envelope.growth(records), batch_settings, rejections)
    carried = with_marks(carried, np.setdiff1d(np.array(list(rejections.errors), np.int64), stubs))
    keys, values = one_array(carried.column("key")), carried.column("value")
    codes: list[str | None] = [None] * len(timestamps)
    texts: list[str | None] = [None] * len(timestamps)
    kinds = np.full(len(timestamps), MESSAGE if kind is Kind.MESSAGES else REQUEST, dtype=np.int8)
    for row, error in rejections.errors.items():
        kinds[row], codes[row], texts[row] = DEAD_LETTER, error.code, str(error)
        which[row] = len(names)
        deliver_at[row] = at_once[row]
    is_rejected = pa.array(kinds == DEAD_LETTER)
    all_headers = one_array(carried.column("headers"))
    if kind is not Kind.MESSAGES:
        keys = pc.if_else(is_rejected, keys, request_keys(records.column("topic"), asked, given))
        values = pc.if_else(is_rejected, values, pa.scalar(None, values.type))
    elif envelope.rows_left(is_rejected):
        keys, all_headers = envelope.opened(records, keys, all_headers, is_rejected)
    if repeats.schedules:
        keeps = policy.name_mode == KEEP
        all_headers, own = repeats.kept_headers(all_headers, topic, given, keeps, rejections.errors)
        kinds[own] = REPEATING
    names = [*names, batch_settings.dead_letter]
    counts = np.array([batch_settings.partitions[name] for name in names], dtype=np.int64)[which]
    input_partitions = records.column("partition").to_numpy().astype(np.int64)
    partitions = partitions_for(keys, input_partitions, counts)
    if kind is Kind.MESSAGES:
        partitions = envelope.partitions(partitions, counts, is_rejected)
    requests = {ASKED: asked, NAME: given, CONDITION: conditions}
    columns = {
        "deliver_at_ms": deliver_at,
        "kind": kinds,
        "topic": records.column("topic"),
        "partition": records.column("partition"),
        "offset": records.column("offset"),
        "timestamp_ms": timestamps,
        "output_topic": pa.array(names, pa.string()).take(pa.array(which)),
        "output_partition": pa.array(partitions, pa.int32()),
        "error_code": pa.array(codes, pa.string()),
        "error_text": pa.array(texts, pa.string()),
        "key": keys,
        "value": values,
        "headers": all_headers,
        **{name: pc.if_else(is_rejected, None, column) for name, column in requests.items()},
    }
    return pa.table(columns).cast(ROW_SCHEMA)


def _route(
    headers: Headers,
    count: int,
    batch_settings: BatchSettings,
    presets: tuple[Preset, ...],
    rejections: Rejections,
) -> tuple[list[str], Ints]:
    """Return output topics, and for each row the index of its topic; add errors to `rejections`."""
    topics, which = [batch_settings.output], np.zeros(count, dtype=np.int64)

    routed = np.zeros(count, dtype=bool)
    # Delayline's own header takes precedence over headers that presets read.
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


def _check_sizes(
    records: pa.Table, growth: Ints | int, batch_settings: BatchSettings, rejections: Rejections
) -> tuple[pa.Table, Ints]:
    """Reject rows that are too large; return key, value and headers of all rows, and which (the largest) are stubs.

    A message is larger than its record by `growth` bytes.
    """
    counts = header_counts(records)
    nbytes = sizes(records, counts)
    most = min(batch_settings.max_message_bytes, MOST_MESSAGE_BYTES)
    for row in np.flatnonzero(nbytes + growth > most).tolist():
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
    stubs = np.flatnonzero((nbytes > carried) | has_too_many)
    return with_stubs(records, stubs), stubs


def _allowed(topic: str, batch_settings: BatchSettings) -> str:
    if not batch_settings.allows(topic):
        raise TopicNotAllowed(f"{topic!r} is not among topics.allowed_outputs, or is one of the job's own topics")
    if topic not in batch_settings.partitions:
        raise TopicUnknown(
            f"{topic!r} is allowed but did not exist when the job started, or the job had no right to write to it; see "
            "to that, and restart"
        )
    return topic
