"""A ready chunk as a Kafka record: its value has the messages, and a header has their summary, readable by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from conf.errors import ReadyLogLost
from conf.kafka.headers import RecordHeaders
from state.answers import Undecided
from state.checkpoint.stored_json import STORED, RecordFormat
from state.kinds import REQUEST, kinds_of
from state.message import decode_chunk, encode_chunk
from state.order import OrderKey, key_of

# The headers of a record: None if a header's name is not UTF-8.
Headers = Sequence[tuple[str, str | bytes | None]] | Mapping[str, str | bytes | None] | None

_HEADER = "delayline-chunk"
# The most requests in a chunk that make messages due at once, and the most bytes of these messages at their largest.
# A transaction may have more of them, since it has several chunks.
MOST_DELIVERIES, _DELIVERED_BYTES = 8, 9 * 1024 * 1024


@dataclass(frozen=True, config=STORED)
class ChunkSummary:
    """The content of a chunk: its first and last order key, the number of messages, and their bytes once decoded.

    `batch` is the batch that staged it. `has_requests` says whether some are requests that the release must decide.
    """

    batch: int
    first: OrderKey
    last: OrderKey
    count: int
    nbytes: int
    has_requests: bool = False


_FORMAT = RecordFormat(TypeAdapter(ChunkSummary), "a chunk in the ready topic", number=2)


def chunk_record(messages: pa.Table, batch: int = 0) -> tuple[bytes, RecordHeaders]:
    """Return value and headers of the record by which `batch` stages `messages`, at least one, in their order."""
    has_requests = bool((kinds_of(messages) == REQUEST).any())
    first, last = key_of(messages), key_of(messages, -1)
    summary = ChunkSummary(batch, first, last, messages.num_rows, messages.nbytes, has_requests)
    return encode_chunk(messages), [(_HEADER, _FORMAT.dump(summary))]


def most_deliveries(message_bytes: int) -> int:
    """Return how many requests for messages to be due at once a chunk may have, each for `message_bytes` at the most.

    The release process that decides such a chunk has all of these messages in memory.
    """
    return max(1, min(MOST_DELIVERIES, _DELIVERED_BYTES // message_bytes))


def with_few_deliveries(messages: pa.Table, most: int) -> Iterator[pa.Table]:
    """Cut messages for chunks that have `most` requests each for messages to be due at once (`most_deliveries`)."""
    rows = np.flatnonzero(kinds_of(messages) == REQUEST)
    values = messages.column("value").take(pa.array(rows)).cast(pa.binary())
    delivering = [each for each in values.unique().to_pylist() if Undecided.from_bytes(each).delivers]
    own = rows[np.asarray(pc.is_in(values, pa.array(delivering, pa.binary())))]
    bounds = [0, *own[most::most].tolist(), messages.num_rows]
    yield from (messages.slice(start, end - start) for start, end in pairwise(bounds))


def is_chunk(headers: Headers, payload: bytes) -> bool:
    """Return whether a record is a chunk, perhaps a damaged one. Others are from another writer.

    A chunk may have lost its header: its record was copied without headers, or a name among them cannot be read.
    """
    if headers is None or _HEADER in dict(headers):
        return True
    with suppress(ReadyLogLost):
        messages_of(payload, "")
        return True
    return False


def summary_of(headers: Headers, place: str) -> ChunkSummary:
    """Read the summary of a chunk from its record's headers.

    Raises FormatMismatch, and ReadyLogLost, with `place`, if it cannot be read.
    """
    try:
        return _FORMAT.read(dict(headers or ()).get(_HEADER) or b"")
    except ValueError as problem:
        raise _damaged(place, problem) from problem


def messages_of(payload: bytes, place: str) -> pa.Table:
    """Return the messages of a chunk, in delivery order. Raises ReadyLogLost, with `place`, if they cannot be read."""
    try:
        return decode_chunk(payload)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as problem:
        raise _damaged(place, problem) from problem


def _damaged(place: str, problem: Exception) -> ReadyLogLost:
    return ReadyLogLost(
        f"{place} is not a chunk of this Delayline version: {problem}. Its messages are lost. `delayline repair "
        "--ready-log` skips the record, and prints how many they are"
    )
