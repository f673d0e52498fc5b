from __future__ import annotations

from dataclasses import replace

import pytest

from conf.errors import CheckpointMismatch
from state.buckets.segments import Segment
from streaming.job.sealed.replayed_seal import SealedBatch

FIRST = Segment(9, 0, 0, "9", 1_000, 2_000, 10, 500)
SECOND = Segment(9, 0, 1, "9", 2_000, 3_000, 5, 300)
OTHER = Segment(9, 1, 0, "9", 1_500, 1_500, 1, 50)
SEALED = SealedBatch(7, (FIRST, SECOND, OTHER))


def test_a_replay_may_cut_what_it_seals_in_another_way() -> None:
    SEALED.check(7, [OTHER, replace(FIRST, max_deliver_at_ms=3_000, count=15, bytes=700)])


def test_a_batch_that_has_not_sealed_is_not_compared() -> None:
    SEALED.check(8, [])
    SealedBatch(None, ()).check(0, [FIRST])


@pytest.mark.parametrize(
    ("replayed", "words"),
    [
        ([FIRST, OTHER], "sealed 15 messages .* of shard 0, but its replay seals 10 messages"),
        ([FIRST, replace(SECOND, count=6), OTHER], "15 messages .* of shard 0, but its replay seals 16"),
        ([FIRST, SECOND], "sealed 1 messages .* of shard 1, but its replay seals no message"),
        ([FIRST, SECOND, OTHER, replace(OTHER, shard=2)], "sealed no message of shard 2"),
        ([FIRST, replace(SECOND, max_deliver_at_ms=3_001), OTHER], r"\(3000\)\) of shard 0"),
        ([replace(FIRST, min_deliver_at_ms=999), SECOND, OTHER], "of shard 0"),
    ],
)
def test_a_replay_that_seals_other_messages_of_a_shard_than_the_first_try_is_refused(
    replayed: list[Segment], words: str
) -> None:
    with pytest.raises(CheckpointMismatch, match=words):
        SEALED.check(7, replayed)
