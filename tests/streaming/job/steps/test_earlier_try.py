"""How a replayed batch compares with the results of its first try."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from conf.errors import CheckpointMismatch
from state.buckets.parts import following_part, sealed_part
from state.buckets.segments import Segment
from state.checkpoint.origin import CheckpointOrigin
from state.checkpoint.planned_batch import PlannedBatch
from streaming.job.steps.earlier_try import EarlierTry, earlier_try

FIRST = Segment(9, 0, 0, "9", 1_000, 2_000, 10, 500)
SECOND = Segment(9, 0, 1, "9", 2_000, 3_000, 5, 300)
OTHER = Segment(9, 1, 0, "9", 1_500, 1_500, 1, 50)
STORED = tuple(replace(each, part=sealed_part(9)) for each in (FIRST, OTHER))
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


def test_a_first_try_that_has_stored_ids_alone_has_sealed_no_message() -> None:
    with pytest.raises(CheckpointMismatch, match="sealed no message of shard 0, but its replay seals 10 messages"):
        EarlierTry(7, ()).check_sealed(7, [FIRST])


def recovered(committed: int | None, sealed_by: int | None, planned: int = 7) -> Any:
    """The state that a start finds, by its newest planned batch, last committed batch, and last batch that sealed."""
    origin = CheckpointOrigin("c", 1, 1, first_bucket=2)
    following = replace(FIRST, segment=9, part=following_part(9))
    return SimpleNamespace(
        planned=PlannedBatch(planned, 0, 0, {}),
        checkpoint=SimpleNamespace(origin=origin, last_committed=lambda: committed),
        store=SimpleNamespace(newest_of={"c": sealed_by}.get),
        catalog=SimpleNamespace(buckets={9: (*STORED, following), 8: (SECOND,)}),
    )


@pytest.mark.parametrize(
    ("state", "found"),
    [
        (recovered(7, 7), EarlierTry()),
        (recovered(6, 6), EarlierTry(7)),
        (recovered(6, 7), EarlierTry(7, STORED)),
        (recovered(None, 0, planned=0), EarlierTry(0, ())),
    ],
    ids=["committed", "nothing stored", "sealed", "only ids stored"],
)
def test_what_an_earlier_try_has_left_is_found_by_the_commits_of_the_table(state: Any, found: EarlierTry) -> None:
    assert earlier_try(state) == found


def test_before_the_first_batch_is_planned_there_is_no_earlier_try() -> None:
    state = recovered(None, None)
    state.planned = None
    assert earlier_try(state) == EarlierTry()
