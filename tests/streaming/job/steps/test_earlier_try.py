"""What a replayed batch compares with what its first try has left."""

from __future__ import annotations

from dataclasses import replace

import pytest

from conf.errors import CheckpointMismatch
from state.buckets.segments import Segment
from streaming.job.steps.earlier_try import EarlierTry

FIRST = Segment(9, 0, 0, "9", 1_000, 2_000, 10, 500)
SECOND = Segment(9, 0, 1, "9", 2_000, 3_000, 5, 300)
OTHER = Segment(9, 1, 0, "9", 1_500, 1_500, 1, 50)
EARLIER = EarlierTry(7, (FIRST, SECOND, OTHER))


def test_a_replay_may_cut_what_it_seals_in_another_way() -> None:
    EARLIER.check_sealed(7, [OTHER, replace(FIRST, max_deliver_at_ms=3_000, count=15, bytes=700)])


def test_a_batch_that_has_not_sealed_is_not_compared() -> None:
    EARLIER.check_sealed(8, [])
    EarlierTry(7).check_sealed(7, [FIRST])
    EarlierTry().check_sealed(0, [FIRST])


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
        EARLIER.check_sealed(7, replayed)


def test_a_first_try_that_has_stored_what_follows_is_known_by_its_number() -> None:
    earlier = EarlierTry(7, (), has_followed=True)
    assert [earlier.has_followed_in(batch_id) for batch_id in (6, 7, 8)] == [False, True, False]
    assert not EarlierTry(7).has_followed_in(7)


def test_a_first_try_that_has_stored_ids_alone_has_sealed_no_message() -> None:
    with pytest.raises(CheckpointMismatch, match="sealed no message of shard 0, but its replay seals 10 messages"):
        EarlierTry(7, ()).check_sealed(7, [FIRST])
