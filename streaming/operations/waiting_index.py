"""The message-id index of the sealed buckets, from their metadata alone: no message is read."""

from __future__ import annotations

from sinks.bucket_table import BucketTable
from state.index.message_index import MessageIndex


def index_of(store: BucketTable, version: int) -> MessageIndex:
    """Return the index of every message that the table holds at `version`.

    Those delivered already are in it until their time partition is deleted; `MessageIndex.forget_before` drops them.
    Its ticks are the coarsest that the metadata has, one of 1 ms where there is none. Raises BucketUnreadable if the
    metadata is damaged.
    """
    index = MessageIndex(max(store.precisions(version), default=0))
    for row in store.index_entries(version):
        index.add_entries(row["index_entries"], row["precision_bits"])
    return index
