"""Leaving out the records that forwarders have taken, before anything of them is parsed."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from state.message_ids import by_source
from state.taken import Taken


def left_to_batch(records: pa.Table, taken: Taken) -> pa.Table:
    """Return `records` without those that are `taken`. The columns are those of `sources.intake.kafka_reader`."""
    if not taken.offsets:
        return records
    left = np.ones(records.num_rows, dtype=bool)
    offsets = records.column("offset").to_numpy()
    for source, rows in by_source(records):
        if own := taken.offsets.get(source):
            left[rows] = ~np.isin(offsets[rows], np.asarray(own.to_array()))
    return records if left.all() else records.filter(pa.array(left))
