"""Records of the recalled topic: messages that release processes have recalled, and from where on the job knows them.

The topic is internal and compacted. Its first partition has one key, with `KnownFrom`. Each of the others belongs to a
shard. It has a `Recall` for each message that the shard has recalled, by the epoch and the message's id. A recall is
written in the transaction that answers the request, and deleted when the job has forgotten the message.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from conf.errors import FormatMismatch
from state.cancel import MessageId
from state.checkpoint.origin import Offsets
from state.checkpoint.stored_json import STORED, RecordFormat
from state.message_ids import Ids, id_texts, parse_id, table_of

KNOWN_FROM_PARTITION, KNOWN_FROM_KEY = 0, b"known-from"


@dataclass(frozen=True, config=STORED)
class Recall:
    """The record of a recalled message.

    - `due_before_ms`: an instant before which it was due, epoch ms
    - `epoch`: the epoch of the checkpoint that had the request. `delayline run --fresh` accepts the message again, in a
      later epoch
    """

    due_before_ms: int
    epoch: int


@dataclass(frozen=True, config=STORED)
class KnownFrom:
    """The offset of each input partition from which on the job knows the outcome of each message. It never goes back.

    `input_ids` are Kafka's ids of the input topics, and of former ones. If a topic was created again since, its offsets
    belong to another topic. `epoch` is the epoch of the checkpoint.
    """

    offsets: Offsets
    input_ids: dict[str, str]
    epoch: int


_RECALL = RecordFormat(TypeAdapter(Recall), "a record of the recalled topic")
_KNOWN_FROM = RecordFormat(TypeAdapter(KnownFrom), "a record of the recalled topic")


def partition_of_shard(shard: int) -> int:
    """Return the partition with the recalls of a shard."""
    return KNOWN_FROM_PARTITION + 1 + shard


def recall_records(ids: Ids, recall: Recall) -> Iterator[tuple[bytes, bytes]]:
    """Yield the key and the value of the record for each of `ids`."""
    value = _RECALL.dump(recall)
    for text in id_texts(table_of(ids)).to_pylist():
        yield recall_key(recall.epoch, text), value


def recall_key(epoch: int, message_id: str) -> bytes:
    """Return the key of a record. Deleting the record of an earlier epoch does not delete this one."""
    return f"{epoch}:{message_id}".encode()


def read_recall(key: bytes | None, value: bytes) -> tuple[MessageId, Recall]:
    """Read such a record. Raises ValueError for a record of another writer, FormatMismatch."""
    recall = _RECALL.read(value)
    return read_recall_key(key)[1], recall


def read_recall_key(key: bytes | None) -> tuple[int, MessageId]:
    """Return the epoch and the id that the key of a record has. Raises ValueError for another key."""
    epoch, _, text = (key or b"").decode().partition(":")
    return int(epoch), parse_id(text)


def known_from_record(known: KnownFrom) -> bytes:
    """Return the value of the record."""
    return _KNOWN_FROM.dump(known)


def read_known_from(value: bytes) -> KnownFrom:
    """Read the value of the record. Raises ValueError for the value of another writer, FormatMismatch."""
    return _KNOWN_FROM.read(value)


def is_known_from(value: bytes | None) -> bool:
    """Return whether Delayline wrote this value, also in another format: that matters for the newest one alone."""
    try:
        return value is not None and read_known_from(value) is not None
    except FormatMismatch:
        return True
    except ValueError:
        return False
