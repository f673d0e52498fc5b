"""Leaving out the records that forwarders have taken, before anything of them is parsed."""

from __future__ import annotations

import logging

import numpy as np
import pyarrow as pa

from sources.intake.stubs import header_counts
from state.message_ids import by_source
from state.taken import Taken

log = logging.getLogger(__name__)

# librdkafka returns no headers of a record with more headers, so the record looks like one without headers.
_MOST_HEADERS_READ = 100_000


def left_to_batch(records: pa.Table, taken: Taken) -> pa.Table:
    """Return `records` without the records that are `taken`. The columns are as in `sources.intake.kafka_reader`."""
    if not taken.offsets:
        return records
    left = np.ones(records.num_rows, dtype=bool)
    offsets = records.column("offset").to_numpy()
    for source, rows in by_source(records):
        if own := taken.offsets.get(source):
            left[rows] = ~np.isin(offsets[rows], np.asarray(own.to_array()))
    if left.all():
        return records
    for row in np.flatnonzero(~left & (header_counts(records) > _MOST_HEADERS_READ)).tolist():
        named = "/".join(str(records.column(name)[row]) for name in ("topic", "partition", "offset"))
        log.warning(
            "%s was delivered without its headers: forwarders cannot read more than 100,000 headers of a record", named
        )
    return records.filter(pa.array(left))
