"""The search for records that a topic refuses, in a transaction that is written again in groups.

The producer can name a refused record with certainty only if no other record is in flight. A transaction is first
written as a whole. If a topic refuses part of it, it is written again with flushes between groups of records, until a
group has a single record of that topic.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from conf.rejected import Rejected

# The most suspects between two flushes: mostly about as many records as fit a batch.
FIRST_GROUP = 1_000


class FaultSearch:
    """The search for the first records of a transaction that a topic refuses, whichever topic that is.

    `suspects` has the ids of consecutive messages, at least one with a refused record. It has the messages of all
    topics: several topics may refuse records, and it is chance which answer comes first.
    """

    def __init__(self, suspects: Collection[bytes], is_first: bool) -> None:
        """`is_first` says whether they were written as a whole, without groups."""
        self.suspects = frozenset(suspects)
        # If a batch has several such records, the client names each. So the first groups are as large as batches. Then
        # few flushes are needed, for this round and the next one together.
        self.group = min(len(suspects), FIRST_GROUP) if is_first else math.isqrt(len(suspects))


class GroupRefused(Exception):
    """`topic` refused a record of one of the messages `ids` with `error`; or of several, which are known already.

    If `is_certain`, it refuses the records of all these messages. `suspects` has the ids of the messages that were
    written together with them, to any topic. The records for `topic` among these have `nbytes` bytes.
    """

    def __init__(
        self,
        topic: str,
        error: Rejected,
        ids: Collection[bytes],
        suspects: Collection[bytes],
        nbytes: int,
        is_certain: bool,
    ) -> None:
        super().__init__(str(error))
        self.topic = topic
        self.error = error
        self.ids = ids
        self.suspects = suspects
        self.nbytes = nbytes
        self.is_certain = is_certain
