"""The result of accepting records: messages, and the requests among them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sources.intake.cancels import has_header
from sources.intake.header_columns import Ints, one_array, without_headers
from sources.intake.names import request_keys
from sources.intake.partitioner import partitions_for
from state.cancel import (
    CONDITION_HEADER,
    DELIVER_NOW_HEADER,
    NOTHING,
    OPERATOR_HEADER,
    REPLACES_HEADER,
    REQUEST_ID,
    REQUEST_SCHEMA,
)
from state.checkpoint.batch_settings import BatchSettings
from state.kinds import REQUEST, is_message, repeats
from state.message import HEADERS, MESSAGE_SCHEMA
from state.message_ids import ID, id_text, ids_from_texts
from state.names import ANSWER_HEADER, named
from state.order import request_due_ms
from state.repeats.schedule import NUMBER_HEADER, SCHEDULE_HEADER
from state.repeats.waiting import waiting_in

# The request of a row, in columns after the message's columns: the id of a message as binary, the name of a message,
# and the condition (`state.cancel.Request`). If a message comes with the request, name and condition are its own.
ASKED, NAME, CONDITION = "asked", "name", "condition"
# Accepted records. A rejected record has no request.
ROW_SCHEMA = pa.schema([*MESSAGE_SCHEMA, (ASKED, pa.binary()), (NAME, pa.binary()), (CONDITION, pa.string())])


class Accepted(NamedTuple):
    """Accepted records.

    - `messages`: rows of `MESSAGE_SCHEMA`
    - `requests`: the requests among them (`REQUEST_SCHEMA`)
    """

    messages: pa.Table
    requests: pa.Table


def with_requests(rows: pa.Table, batch_settings: BatchSettings, clock_ms: int) -> Accepted:
    """Return `rows` (`ROW_SCHEMA`) as messages, followed by the requests that come with messages.

    Delivered messages do not carry the headers of requests. A consumer that publishes such a message again does not
    mean a second replacement, or request an answer that nobody can give. An operator's name is for the answer only.
    """
    messages = rows.select(MESSAGE_SCHEMA.names)
    requests_by_id, requests_by_name = (np.asarray(rows.column(name).is_valid()) for name in (ASKED, NAME))
    requests = requests_by_id | requests_by_name
    if not requests.any():
        return Accepted(messages, REQUEST_SCHEMA.empty_table())
    comes_with_message = is_message(rows)
    at = messages.schema.get_field_index("headers")
    headers = one_array(messages.column(at).cast(HEADERS))
    for own, names in (
        (requests_by_id, (REPLACES_HEADER, CONDITION_HEADER, OPERATOR_HEADER)),
        (requests_by_name, (ANSWER_HEADER,)),
    ):
        headers = without_headers(headers, np.flatnonzero(own & comes_with_message), names)
    asking = rows.drop_columns("value").filter(pa.array(requests))
    request_rows = _request_rows(asking.filter(pa.array(is_message(asking))), batch_settings, clock_ms)
    return Accepted(pa.concat_tables([messages.set_column(at, "headers", headers), request_rows]), _requests(asking))


def _requests(rows: pa.Table) -> pa.Table:
    """Return the request of each of `rows` (`ROW_SCHEMA` without the value), as a table of `REQUEST_SCHEMA`."""
    topics, names = (rows.column(name).to_pylist() for name in ("topic", NAME))
    hashes = [None if name is None else named(topic, name) for topic, name in zip(topics, names, strict=True)]
    is_request = ~is_message(rows)
    # Or it is the name of another message.
    has_no_name = is_request | np.asarray(rows.column(NAME).is_null())
    # The message that has a name is looked up later.
    asked = ids_from_texts(rows.column(ASKED).fill_null(id_text(NOTHING).encode()).cast(pa.string()))
    columns = {
        **dict(zip(ID, asked.columns, strict=True)),
        **{name: rows.column(own) for name, own in zip(REQUEST_ID, ID, strict=True)},
        "condition": rows.column(CONDITION),
        "deliver_at_ms": pa.array(rows.column("deliver_at_ms").to_numpy(), mask=is_request),
        "name": pa.array(hashes, pa.binary()),
        "published_ms": pa.array(rows.column("timestamp_ms").to_numpy(), mask=has_no_name),
        "wants_answer": pa.array(has_header(rows, ANSWER_HEADER), mask=has_no_name),
        "delivers": has_header(rows, DELIVER_NOW_HEADER),
        "repeats": repeats(rows),
    }
    return pa.table(columns).cast(REQUEST_SCHEMA)


def _request_rows(messages: pa.Table, batch_settings: BatchSettings, clock_ms: int) -> pa.Table:
    """Return the requests that come with accepted `messages`, as messages with the same ids.

    `messages` has the columns of `ROW_SCHEMA` without the value.
    """
    asked, names = (one_array(messages.column(name)) for name in (ASKED, NAME))
    keys = request_keys(messages.column("topic"), asked, names)
    published_ms, dues_ms = (messages.column(name).to_numpy() for name in ("timestamp_ms", "deliver_at_ms"))
    at_once = request_due_ms(published_ms, clock_ms, dues_ms)
    # No later occurrence may have its order key either.
    repeating = np.flatnonzero(repeats(messages))
    at_once[repeating] += _have_instants(messages.take(pa.array(repeating)), at_once[repeating])
    count = messages.num_rows
    headers = messages.column("headers")
    if len(repeating):
        # An answer has the headers that the publisher sent.
        headers = without_headers(one_array(headers.cast(HEADERS)), repeating, (SCHEDULE_HEADER, NUMBER_HEADER))
    partitions = np.full(count, batch_settings.partitions[batch_settings.results], dtype=np.int64)
    input_partitions = messages.column("partition").to_numpy().astype(np.int64)
    columns = {name: messages.column(name) for name in messages.column_names} | {
        "deliver_at_ms": at_once,
        "kind": np.full(count, REQUEST, dtype=np.int8),
        "output_topic": pa.array([batch_settings.results] * count, pa.string()),
        "output_partition": pa.array(partitions_for(keys, input_partitions, partitions), pa.int32()),
        "key": keys,
        "value": pa.nulls(count),
        "headers": headers,
    }
    return pa.table(columns).select(MESSAGE_SCHEMA.names).cast(MESSAGE_SCHEMA)


def _have_instants(messages: pa.Table, instants_ms: Ints) -> npt.NDArray[np.bool_]:
    """Return which of `messages`, which all repeat, may come again at these instants (epoch ms).

    These do not come again one ms later.
    """
    found = np.zeros(len(instants_ms), dtype=bool)
    for row, (waiting, at_ms) in enumerate(zip(waiting_in(messages), instants_ms.tolist(), strict=True)):
        first_ms = waiting.occurrence.at_ms
        found[row] = first_ms < at_ms == waiting.schedule.rule.after(first_ms, at_ms)
    return found
