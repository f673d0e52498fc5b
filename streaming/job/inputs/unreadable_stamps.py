"""Records with timestamps that Spark cannot read: finds them in the input of a failed batch."""

from __future__ import annotations

import logging

from conf.errors import KafkaError, RecordUnreadable
from conf.settings import Settings
from sources.intake.stamp_check import unreadable_records
from state.message import LAST_MS
from streaming.checkpoint.checkpoint import Checkpoint

log = logging.getLogger(__name__)

# How many unreadable records an error names.
_MOST_NAMED = 10


def check_stamps(settings: Settings, checkpoint: Checkpoint) -> None:
    """Raise RecordUnreadable if the planned batch has records with timestamps that Spark cannot read.

    Raises nothing if the input cannot be read. The query's own error is then more useful.
    """
    planned = checkpoint.last_planned()
    if planned is None:
        return
    try:
        records = unreadable_records(settings, checkpoint.read_offsets(), checkpoint.planned(planned).offsets)
    except KafkaError as problem:
        log.warning("cannot search the input for timestamps that Spark cannot read: %s", problem)
        return
    if records:
        named = "; ".join(map(str, records[:_MOST_NAMED]))
        count = f" (the first {_MOST_NAMED} of {len(records)} found)" if len(records) > _MOST_NAMED else ""
        raise RecordUnreadable(
            f"{named}{count}: Spark cannot read timestamps after {LAST_MS}, or as far before 1970 (is it in "
            "nanoseconds?). Publish the unread records before this one again unless forwarders have taken them, "
            "delete the partition's "
            "records up to and including it (kafka-delete-records.sh), and start with "
            "topics.skip_expired=true. To make the broker refuse such records, set "
            "message.timestamp.after.max.ms and message.timestamp.before.max.ms"
        )
