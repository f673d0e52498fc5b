"""The form of messages between packages: an Arrow table, or a chunk, which is such a table as bytes.

Messages go through Spark as *chunks*: one row holds the Arrow IPC bytes of many messages. The cost of a row (JVM to
Python to pandas and back) is then paid once for each chunk, not once for each message.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from state.kinds import KIND

HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))

# A change raises the format numbers of all that stores chunks: `state.checkpoint.file_format`,
# `sinks.buckets.delta_store` and `sinks.ready_log.chunk`.
MESSAGE_SCHEMA = pa.schema(
    [
        # The due time, epoch ms. For a plain message its timestamp, but never later than its batch's clock.
        pa.field("deliver_at_ms", pa.int64()),
        # The kind of the row: a message, a dead letter, or a request (`state.kinds`).
        KIND,
        # The message id, and the record's Kafka timestamp in epoch ms.
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp_ms", pa.int64()),
        # Where it goes: decided once, when the message is accepted.
        pa.field("output_topic", pa.string()),
        pa.field("output_partition", pa.int32()),
        # Dead letters only: the code and the sentence of the error (`conf.rejected.Rejected`).
        pa.field("error_code", pa.string()),
        pa.field("error_text", pa.string()),
        # The record as it was published, with nulls and repeated header names.
        pa.field("key", pa.binary()),
        pa.field("value", pa.large_binary()),
        pa.field("headers", HEADERS),
    ]
)

# The last timestamp of a record that Spark can read, since it counts microseconds in 64 bits: in the year 294,247. The
# first one is as far before 1970.
LAST_MS = ((1 << 63) - 1) // 1000

# Headers that the service adds to every message. `state.dead_letter` has the headers of a dead letter.
ID_HEADER = "delayline-id"
DELIVER_AT_HEADER = "delayline-deliver-at"


def empty_messages() -> pa.Table:
    """Return a table of `MESSAGE_SCHEMA` without rows."""
    return MESSAGE_SCHEMA.empty_table()


def with_due_times(messages: pa.Table, dues_ms: npt.NDArray[np.int64]) -> pa.Table:
    """Return `messages` as due at `dues_ms` (epoch ms), one for each of them."""
    at = messages.schema.get_field_index("deliver_at_ms")
    return messages.set_column(at, messages.schema.field(at), pa.array(dues_ms, pa.int64()))


def encode_chunk(messages: pa.Table) -> bytes:
    """Return `messages` as Arrow IPC stream bytes, lz4-compressed."""
    sink = pa.BufferOutputStream()
    # Threads would cost more than they save: a few messages are written four times as fast without, and many as fast.
    options = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
    with pa.ipc.new_stream(sink, messages.schema, options=options) as writer:
        writer.write_table(messages)
    return bytes(sink.getvalue().to_pybytes())


def decode_chunk(chunk: bytes) -> pa.Table:
    """Return the messages of a chunk that `encode_chunk` wrote."""
    with pa.ipc.open_stream(pa.py_buffer(chunk)) as reader:
        return reader.read_all()


def split_by_bytes(messages: pa.Table, max_bytes: int) -> list[pa.Table]:
    """Cut `messages` into consecutive pieces of about `max_bytes` bytes and at least one row each.

    Only a single row may take more than twice `max_bytes`.
    """
    pieces = max(1, -(-messages.nbytes // max_bytes))
    step = max(1, -(-messages.num_rows // pieces))
    cut: list[pa.Table] = []
    for at in range(0, messages.num_rows, step):
        piece = messages.slice(at, step)
        # Rows of different sizes: the large ones may be next to each other.
        is_cut = piece.num_rows == 1 or piece.nbytes <= 2 * max_bytes
        cut += [piece] if is_cut else split_by_bytes(piece, max_bytes)
    return cut
