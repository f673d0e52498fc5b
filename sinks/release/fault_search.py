"""The search for records that a topic refuses, in a transaction that is written again in groups.

The producer names refused records for certain only if no other record is in flight. So a transaction is first written
as a whole. If a topic refuses something of it, it is written again with flushes between groups of records, until a
group has a single record of that topic.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from conf.rejected import Rejected

# The most suspects between two flushes: about as many as have room in a batch, mostly.
FIRST_GROUP = 1_000


class FaultSearch:
    """The search for the first records of a transaction that a topic refuses, whichever topic that is.

    `suspects` has the ids of consecutive messages, one of a refused record at least. It has those of all topics:
    several topics may refuse records, and whose answer comes first is chance.
    """

    def __init__(self, suspects: Collection[bytes], is_first: bool) -> None:
        """`is_first` says whether they were written as a whole, without groups."""
        self.suspects = frozenset(suspects)
        # If a batch has several such records, the client names each: so first, groups as large as batches. Then few
        # flushes are needed, for this round and the next one together.
        self.group = min(len(suspects), FIRST_GROUP) if is_first else math.isqrt(len(suspects))


class GroupRefused(Exception):
    """`topic` refused a record of one of the messages `ids` with `error`; or of several, which are known already.

    If `is_certain`, it refuses those of all of them. `suspects` are the ids of the messages that were written together
    with it, to any topic. Of these, the records of `topic` have `nbytes` bytes.
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
