"""The kinds of rows of `state.message.MESSAGE_SCHEMA`: the column `kind`, set where a record is accepted or answered.

| kind | what it is | how it goes on |
| --- | --- | --- |
| `MESSAGE` | a message for an output topic | waits until it is due; a cancel may take it out |
| `REPEATING` | the next occurrence of a message that repeats | the same; it is staged as an `OCCURRENCE` |
| `OCCURRENCE` | a staged occurrence | released when it is due; nothing takes it out, since others may have its id |
| `DEAD_LETTER` | a record that could not be scheduled, with its error | staged by its batch; sealed by a rebuild |
| `REQUEST` | a request (`state.cancel`) without its answer | its batch decides it, or a release process |
| `ANSWER` | a decided request, with the answer as its value | released like a message |
| `DUE_NOW` | a message that a request has made due at once | like a message, but never expires: somebody wants it now |

A message that cannot be delivered keeps its kind. The release makes a dead letter of it. Only there, where a row has
become a record of Kafka, the topic tells what it is (`sinks.release.record_check`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Mask = npt.NDArray[np.bool_]

# One byte for each message in memory. On the wire and on disk, where chunks are compressed, at most 150 bytes a chunk.
KIND = pa.field("kind", pa.int8())
MESSAGE, DEAD_LETTER, REQUEST, ANSWER, DUE_NOW, REPEATING, OCCURRENCE = range(7)


def kinds_of(messages: pa.Table | pa.RecordBatch) -> npt.NDArray[np.int8]:
    """Return the kind of each of `messages`."""
    kinds: npt.NDArray[np.int8] = messages.column("kind").to_numpy()
    return kinds


def is_message(messages: pa.Table | pa.RecordBatch) -> Mask:
    """Return which rows are messages: they wait until they are due, and a cancel may take them out.

    The batch that accepts any other row stages it, whenever it is due.
    """
    kinds = kinds_of(messages)
    return np.asarray((kinds == MESSAGE) | (kinds == DUE_NOW) | (kinds == REPEATING))


def repeats(messages: pa.Table | pa.RecordBatch) -> Mask:
    """Return which rows are occurrences of messages that repeat. Their batch makes the next occurrences from them."""
    return np.asarray(kinds_of(messages) == REPEATING)


def is_delivered(messages: pa.Table | pa.RecordBatch) -> Mask:
    """Return which rows go to output topics when they are due, if nothing goes wrong."""
    return np.asarray(is_message(messages) | (kinds_of(messages) == OCCURRENCE))


def is_request(messages: pa.Table | pa.RecordBatch) -> Mask:
    """Return which rows are requests, with or without their answers."""
    kinds = kinds_of(messages)
    return np.asarray((kinds == REQUEST) | (kinds == ANSWER))


def requests_in(messages: pa.Table) -> pa.Table:
    """Return the rows that are requests without their answers."""
    is_request = np.asarray(kinds_of(messages) == REQUEST)
    # There are nearly never any, and filtering a dozen columns takes longer than checking.
    return messages.filter(pa.array(is_request)) if is_request.any() else messages.slice(0, 0)


def with_kind(messages: pa.Table, kind: int) -> pa.Table:
    """Return `messages` as rows of this kind."""
    kinds = pa.repeat(pa.scalar(kind, KIND.type), messages.num_rows)
    return messages.set_column(messages.schema.get_field_index("kind"), KIND, kinds)
