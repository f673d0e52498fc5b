"""Refusing messages of topics with too many waiting messages, as the job decides (`streaming.job.inputs.admission`)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.rejected import TooManyWaiting
from sources.intake.header_columns import Ints, Rejections
from state.checkpoint.batch_settings import BatchSettings, Refusal


def refuse_waiting(
    records: pa.Table, deliver_at: Ints, refusal: Refusal, batch_settings: BatchSettings, rejections: Rejections
) -> None:
    """Reject the `records` that the batch refuses. `deliver_at` has their due times, epoch ms."""
    if not refusal.from_offsets:
        return
    waits = deliver_at >= refusal.due_from_ms
    offsets = records.column("offset").to_numpy()
    partitions = records.column("partition").to_numpy()
    for topic, starts in refusal.from_offsets.items():
        of_topic = waits & np.asarray(pc.equal(records.column("topic"), topic))
        if not of_topic.any():
            continue
        most = batch_settings.policy_of(topic).most_waiting
        error = TooManyWaiting(
            f"{most} messages of {topic} wait, and its policy max_waiting allows no more: publish it again when fewer "
            "messages wait"
        )
        for partition, start in starts.items():
            rejections.reject(np.flatnonzero(of_topic & (partitions == int(partition)) & (offsets >= start)), error)
