"""The one shape in which messages travel between packages: an Arrow table, and the bytes of one.

Messages go through Spark as *chunks*: one row holds the Arrow IPC bytes of many messages, so that the cost
of a row (JVM to Python to pandas and back) is paid once a chunk and not once a message.
"""

from __future__ import annotations

import pyarrow as pa

HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))

MESSAGE_SCHEMA = pa.schema(
    [
        # When it is due: epoch ms. For a plain message its timestamp, but never after its batch's clock.
        pa.field("deliver_at_ms", pa.int64()),
        # The message id, and the record's Kafka timestamp in epoch ms.
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp_ms", pa.int64()),
        # Where it goes. Decided once, when the message is accepted.
        pa.field("output_topic", pa.string()),
        pa.field("output_partition", pa.int32()),
        # Set on dead letters only: the code and the sentence of the error (`conf.errors.Rejected`).
        pa.field("error_code", pa.string()),
        pa.field("error_text", pa.string()),
        # The record as it came, nulls and repeated header names included.
        pa.field("key", pa.binary()),
        pa.field("value", pa.large_binary()),
        pa.field("headers", HEADERS),
    ]
)

# Headers that the service adds to every message; those of a dead letter are in `state.dead_letter`.
ID_HEADER = "delayline-id"
DELIVER_AT_HEADER = "delayline-deliver-at"


def empty_messages() -> pa.Table:
    """Return a table of `MESSAGE_SCHEMA` without rows."""
    return MESSAGE_SCHEMA.empty_table()


def encode_chunk(messages: pa.Table) -> bytes:
    """Write `messages` as Arrow IPC stream bytes, lz4-compressed."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, messages.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_table(messages)
    return bytes(sink.getvalue().to_pybytes())


def decode_chunk(chunk: bytes) -> pa.Table:
    """Read what `encode_chunk` wrote."""
    with pa.ipc.open_stream(pa.py_buffer(chunk)) as reader:
        return reader.read_all()


def split_by_bytes(messages: pa.Table, max_bytes: int) -> list[pa.Table]:
    """Cut `messages` into consecutive pieces of about `max_bytes` bytes, each of one row or more."""
    pieces = max(1, -(-messages.nbytes // max_bytes))
    step = max(1, -(-messages.num_rows // pieces))
    return [messages.slice(at, step) for at in range(0, messages.num_rows, step)]
