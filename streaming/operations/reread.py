"""Which records of the input topics a rebuild reads again, and which of them were staged without a bucket."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from contextlib import closing

from pyroaring import BitMap64

from conf.errors import BrokerUnreachable, CheckpointMismatch
from conf.settings import Settings
from sinks.internal_topics.broker_retry import BrokerRetry
from state.checkpoint.input_ids import left_out
from state.checkpoint.origin import InputIds, Offsets, as_offsets
from state.checkpoint.staged import StagedMessages
from state.claims import Claim
from state.index.offset_bitmaps import OffsetBitmaps
from streaming.job.inputs.input_loss import deleted_ranges, listed
from streaming.job.lanes.claim_watch import ClaimWatch
from streaming.job.requests.recalled import RecalledMessages

log = logging.getLogger(__name__)

# For each input topic and partition: its first offset and the offset after its last.
Bounds = Mapping[tuple[str, int], tuple[int, int]]
# Above every offset.
_NO_OFFSET = 2**63 - 1


def recalled_messages(settings: Settings, staged: StagedMessages) -> OffsetBitmaps:
    """Return which messages release processes have recalled: an instant that was shortened may not tell."""
    found: dict[tuple[str, int], BitMap64] = {}
    with closing(RecalledMessages(settings, staged.origin.epoch, has_run=True)) as recalled:
        retry = BrokerRetry("the recalled topic", settings.kafka.outage_limit)
        recalled.read(staged.cutoff_ms)
        while not recalled.knows_all:
            # A commit is done before it is seen.
            retry.wait(BrokerUnreachable(f"{settings.recalled_topic} has an open transaction"))
            recalled.read(staged.cutoff_ms)
        for source, offsets in recalled.every():
            found.setdefault(source, BitMap64()).update(offsets)
    return found


def taken_records(
    settings: Settings, ids: InputIds, epoch: int, starts: Offsets, ends: Offsets, gone: Collection[str]
) -> OffsetBitmaps:
    """Return which records from `starts` up to `ends` forwarders have taken. The lanes must be closed.

    `ids` are the input topics. Markers may not know all of them yet: claims and the table can be ahead of these. Does
    not read topics that are `gone`. Raises CheckpointMismatch if a forwarder has found that another topic is cut,
    because new records would count as taken.
    """
    ranges = {
        (topic, int(number)): (starts[topic][number], end) for topic, own in ends.items() for number, end in own.items()
    }
    with closing(ClaimWatch(settings, 0, epoch, starts, ids)) as claims:
        claims.check_ends({}, {topic: own for topic, own in ids.items() if topic not in gone})
        return claims.taken({source: own for source, own in ranges.items() if source[0] in ids}, ids).offsets


def warn_of_left_out(staged: StagedMessages, inputs: Collection[str]) -> None:
    """Warn of topics that were read and are not `inputs` any more: their records are not read again."""
    read = {topic for topic, own in staged.ends.items() if any(own.values())} | left_out(staged.input_ids)
    if missing := sorted(read - {*inputs}):
        log.warning(
            "topics.input does not name %s any more: the new checkpoint does not have its messages that waited in no "
            "sealed bucket. Publish them again from their records",
            ", ".join(missing),
        )


def decided_offsets(
    bounds: Bounds, claims: Iterable[Claim | None], topic_ids: Mapping[str, str], epoch: int
) -> dict[tuple[str, int], int]:
    """Return the offset below which the newest `claims` of all lanes have decided an input partition; 0 without one."""
    own = [claim for claim in claims if claim is not None and claim.epoch == epoch]
    return {
        (topic, partition): max((claim.position(topic, partition, topic_ids[topic]) for claim in own), default=0)
        for topic, partition in bounds
        if topic in topic_ids
    }


def reread_range(
    bounds: Bounds,
    staged: StagedMessages,
    in_table: OffsetBitmaps,
    decided: Mapping[tuple[str, int], int],
    gone: Collection[str],
) -> tuple[Offsets, Offsets]:
    """Return the offsets from which, and up to which, records are read again: they may be in no bucket.

    The end is the highest offset that a marker or a bucket has. The new checkpoint reads what follows as new records:
    all records of a topic in place of one that is `gone`. So a start refuses to continue without deleted records behind
    the end. It would also refuse after forwarders have delivered them, which leaves no marker: deleted records that
    claims have `decided` are skipped here, with a warning.
    """
    read, accepted = staged.ends, staged.ends
    for (topic, partition), offsets in in_table.items():
        if offsets:
            known = accepted.setdefault(topic, {})
            known[str(partition)] = max(known.get(str(partition), 0), offsets.max() + 1)
    refuse_cut(bounds, accepted, gone)
    starts, ends = dict.fromkeys(bounds, 0), dict.fromkeys(bounds, 0)
    for (topic, partition), (first, _) in bounds.items():
        if topic in gone:
            continue
        number = str(partition)
        # A job that has read nothing begins with the first record that exists. A partition that is added is unread.
        end = accepted.get(topic, {}).get(number, 0 if read else first)
        end = max(end, min(first, decided.get((topic, partition), 0)))
        starts[topic, partition] = min(max(first, staged.origin.offsets.get(topic, {}).get(number, 0)), end)
        ends[topic, partition] = end
    if skipped := deleted_ranges(bounds, read, as_offsets(ends)):
        log.warning(
            "the rebuild continues without records: %s were deleted. Their messages are lost, unless they are "
            "delivered, cancelled or sealed",
            listed(skipped),
        )
    return as_offsets(starts), as_offsets(ends)


def not_read_again(messages: OffsetBitmaps, bounds: Bounds, staged: StagedMessages, gone: Collection[str]) -> int:
    """Return how many of `messages` are of records that `reread_range` leaves out, or that are deleted."""
    count = 0
    for (topic, partition), offsets in messages.items():
        first, _ = bounds.get((topic, partition), (_NO_OFFSET, 0))
        first = max(first, staged.origin.offsets.get(topic, {}).get(str(partition), 0))
        count += len(offsets) if topic in gone else offsets.range_cardinality(0, first)
    return count


def refuse_cut(bounds: Bounds, accepted: Offsets, gone: Collection[str]) -> None:
    """Raise CheckpointMismatch if an input topic ends before the records that were accepted from it.

    New records that fill the gap have the ids of lost ones, and would count as accepted. Topics that are `gone` have a
    successor, which is read from its beginning.
    """
    for (topic, partition), (_, last) in bounds.items():
        end = accepted.get(topic, {}).get(str(partition), 0)
        if topic not in gone and end > last:
            raise CheckpointMismatch(
                f"{topic}/{partition} ends at offset {last}, but records up to {end} were accepted: "
                "the topic has lost its newest records. New records would get their ids, and be left out. Stop the "
                "publishers, create the topic again, and run this command with topics.skip_expired=true: see "
                "docs/operate/runbooks/input-topic-cut.md"
            )
