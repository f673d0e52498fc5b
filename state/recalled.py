"""Records of the recalled topic: which messages release processes have recalled.

The topic is internal and compacted. Its first partition has one key, with the bounds of what the job knows
(`sinks.internal_topics.known_from`). Each of the others belongs to a shard, and has a record for each message that the
shard has recalled, by the message's id. The record is written in the transaction that answers the request, and deleted
when the job forgets the message.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

from conf.errors import InvariantViolated
from state.cancel import MessageId
from state.message_ids import Ids, id_texts, parse_id, table_of


class Recall(NamedTuple):
    """A message that was recalled: its id, and an instant before which it was due, epoch ms."""

    id: MessageId
    due_before_ms: int


def partition_of_shard(shard: int) -> int:
    """Return the partition that has what a shard has recalled."""
    return 1 + shard


def recall_records(ids: Ids, due_before_ms: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield the key and the value of the record for each of `ids`, all of which are due before `due_before_ms`."""
    value = json.dumps({"due_before_ms": due_before_ms}).encode()
    for text in id_texts(table_of(ids)).to_pylist():
        yield text.encode(), value


def read_recall(key: bytes | None, value: bytes) -> Recall:
    """Read such a record. Raises InvariantViolated for another one, which the service has not written."""
    try:
        return Recall(parse_id((key or b"").decode()), int(json.loads(value)["due_before_ms"]))
    except (ValueError, TypeError, KeyError, RecursionError) as problem:
        raise InvariantViolated(f"the record with the key {key!r} is none of a release process: {problem}") from problem
