"""Choosing the groups of the state stage that get the requests of a batch.

The contents of a request go to one group. If the request comes with a message, that is the group of the message's
shard, which must not keep the message. Otherwise any group will do, since it only passes the request on.

The shard of a message does not follow from its id: the output partition depends on the key and the headers of its
record. So each shard gets the requested ids, and only these, as bitmaps. No shard gets the ids of messages that
forwarders have taken, or of messages that have a name: no mutable bucket has these.

Pure. The choice does not depend on how Spark cuts the records into tables, as far as a decision can tell.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from sources.intake.accepted import Accepted
from state.cancel import is_undecided, own_ids
from state.checkpoint.batch_settings import RunningBatch
from state.index.offset_bitmaps import as_table, bitmaps_of
from state.kinds import is_message
from state.message_ids import ID, places_in
from state.shards import shard_of, shards_of


class RequestGrouping:
    """Divides the requests among the records of one input partition."""

    def __init__(self, batch: RunningBatch) -> None:
        self._batch = batch
        self._asked: list[pa.Table] = []

    def divide(self, accepted: Accepted) -> Iterator[tuple[int, pa.Table]]:
        """Yield the key of each group that passes some of the requests on, and these requests (`REQUEST_SCHEMA`)."""
        requests, settings = accepted.requests, self._batch.settings
        if not requests.num_rows:
            return
        by_id = requests.filter(pc.greater_equal(requests.column("offset"), 0))
        self._asked.append(by_id.select(ID).append_column("undecided", pa.array(is_undecided(by_id))))
        routes = accepted.messages.select([*ID, "kind", "output_topic", "output_partition"])
        # A message comes before the request that has its id.
        own = routes.take(pa.array(places_in(routes, own_ids(requests))))
        topic, partition = (own.column(name)[0].as_py() for name in ID[:2])
        any_shard = shard_of(topic, partition, settings.shards)
        shards = np.where(is_message(own), shards_of(own, settings.shards), any_shard)
        for shard in np.unique(shards).tolist():
            yield settings.shard_keys[shard], requests.filter(pa.array(shards == shard))

    def ids(self) -> Iterator[tuple[int, pa.Table]]:
        """Yield the key of each shard's own group, and the requested ids (`BITMAPS_SCHEMA`), if there are any.

        Call it once, after all records.
        """
        ids = pa.concat_tables(map(self._ids_that, (False, True)))
        if ids.num_rows:
            for key in self._batch.settings.shard_keys:
                yield key, ids

    def _ids_that(self, undecided: bool) -> pa.Table:
        """Return the requested ids (`BITMAPS_SCHEMA`), either those left to the batch or those cancelled for good."""
        taken = self._batch.taken.offsets
        wanted = pc.equal(pc.field("undecided"), undecided)
        asked = bitmaps_of(each.filter(wanted) for each in self._asked)
        left = {source: own - taken.get(source, BitMap64()) for source, own in asked.items()}
        return as_table({source: own for source, own in left.items() if own}, undecided)
