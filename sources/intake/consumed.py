"""Records that librdkafka has consumed, as the table that `accept` needs, the same as from Spark's reader.

Records that only Spark's reader can read are left out: the client cannot return headers if a header's name is not
UTF-8. Records with a timestamp that Spark cannot read are left out too: these end the job. One difference cannot be
seen here: a record with more than 100,000 headers has none for this client (`rd_kafka_message_headers`).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
from confluent_kafka import Message

from conf.kafka.headers import read_headers
from conf.sections import MOST_MESSAGE_BYTES
from state.message import HEADERS, LAST_MS
from state.stub import digest


def records_of(messages: Iterable[Message]) -> pa.Table:
    """Return the records among `messages`, which must not be errors, as a table in their order.

    It has the columns of `sources.intake.kafka_reader.read_records`, with the same values.
    """
    names: list[str] = []
    values: list[bytes | None] = []
    ends: list[int] = [0]
    has_headers: list[bool] = []
    kept: list[Message] = []
    stamps: list[int] = []
    for message in messages:
        headers, stamp = read_headers(message), message.timestamp()[1]
        if headers is None or abs(stamp) > LAST_MS:
            continue
        for name, value in headers:
            names.append(name)
            values.append(value)
        # To Spark, a record without headers has null.
        has_headers.append(bool(headers))
        ends.append(len(names))
        kept.append(message)
        stamps.append(stamp)
    keys, payloads = [message.key() for message in kept], [message.value() for message in kept]
    flat = pa.StructArray.from_arrays(
        [pa.array(names, pa.string()), pa.array(values, pa.binary())], fields=list(HEADERS.value_type)
    )
    is_null = pa.array(~np.array(has_headers, dtype=bool))
    return pa.table(
        {
            "key": pa.array(list(map(_carried, keys)), pa.binary()),
            "key_bytes": pa.array(list(map(_length, keys)), pa.int32()),
            "value": pa.array(list(map(_carried, payloads)), pa.binary()),
            "value_bytes": pa.array(list(map(_length, payloads)), pa.int32()),
            "value_sha256": pa.array(list(map(_hash, payloads)), pa.string()),
            "headers": pa.ListArray.from_arrays(pa.array(ends, pa.int32()), flat, type=HEADERS, mask=is_null),
            "topic": pa.array([message.topic() for message in kept], pa.string()),
            "partition": pa.array([message.partition() for message in kept], pa.int32()),
            "offset": pa.array([message.offset() for message in kept], pa.int64()),
            "timestamp_ms": pa.array(stamps, pa.int64()),
        }
    )


def _length(content: bytes | None) -> int | None:
    return None if content is None else len(content)


def _carried(content: bytes | None) -> bytes | None:
    return content if content is None or len(content) <= MOST_MESSAGE_BYTES else None


def _hash(value: bytes | None) -> str | None:
    return None if value is None or len(value) <= MOST_MESSAGE_BYTES else digest(value)
