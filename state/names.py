"""Names that publishers give to messages: at most one message of an input topic waits under a name.

If a policy of the input topic says so, a message has a name: the value of its header `NAME_HEADER`, or else its key.
Another policy, the *mode*, says which of several messages waits. `REPLACE`: the newest, which replaces the one before
it. `KEEP`: the first, and later ones are dropped. `KEEP_TIME`: the newest, with the due time of the first. A cancel
needs no id: the header `CANCEL_NAME_HEADER` has the name.

Names are stored as hashes: rows of the table of sealed buckets, in Delta partitions of their own, say which message got
a name last. A row is needed until its message is due and staged, and as long as an older row of the same name would be
found instead.
"""

from __future__ import annotations

from hashlib import blake2b

import pyarrow as pa

from state.buckets.id_rows import Columns, id_rows
from state.buckets.parts import IdRows
from state.message_ids import ID, ID_SCHEMA

# On a record of an input topic: the name of the message; the name of the message to cancel.
NAME_HEADER, CANCEL_NAME_HEADER = "delayline-name", "delayline-cancel-name"
# On a message with a name: "true" if its publisher waits for an answer about its outcome.
ANSWER_HEADER = "delayline-answer"
# Where names come from (the policy `names`): nowhere, the header, or the key of a message without this header.
OFF, FROM_HEADER, FROM_KEY = "off", "header", "key"
# The result for a message if another one waits under its name (the policy `name_mode`).
REPLACE, KEEP, KEEP_TIME = "replace", "keep", "keep-time"
# Messages by their names: the name (`named`), the id, the due time, and until when the row is needed, both epoch ms.
# `keeps` says whether the message keeps its name and its due time: it was accepted by `KEEP` or `KEEP_TIME`, and no
# request has asked for it since.
NAMED_SCHEMA = pa.schema(
    [
        ("name", pa.binary()),
        *ID_SCHEMA,
        ("deliver_at_ms", pa.int64()),
        ("until_ms", pa.int64()),
        ("keeps", pa.bool_()),
    ]
)
# The most bytes of a name in a header.
MOST_NAME_BYTES = 1024

# The probability that two of 10^12 names have the same hash is below 10^-14.
HASH_BYTES = 16


def named(topic: str, name: bytes) -> bytes:
    """Return the hash that stands for `name` on the input topic `topic`. So a name may be as long as a key."""
    # No topic's name has a zero byte.
    return blake2b(topic.encode() + b"\0" + name, digest_size=HASH_BYTES).digest()


def name_rows(names: pa.Table, bucket: int) -> pa.Table:
    """Return the rows of `STORED_SCHEMA` for the `names` (`NAMED_SCHEMA`) given in the batch that seals `bucket`."""
    return id_rows(IdRows.NAMED, bucket, name_columns(names))


def name_columns(names: pa.Table) -> Columns:
    """Return the columns of these rows, for `id_rows`."""
    columns = {name: names.column(name) for name in ("name", *ID, "deliver_at_ms", "keeps")}
    return {**columns, "max_deliver_at_ms": names.column("until_ms")}
