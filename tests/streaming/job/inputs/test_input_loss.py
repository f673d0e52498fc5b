from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from pyroaring import BitMap64

from conf.errors import RecordsExpired
from state.checkpoint.origin import CheckpointOrigin, InputIds
from state.checkpoint.progress import BatchSpan, Ranges
from state.taken import Taken
from streaming.job.inputs.input_loss import (
    DeletedRange,
    check_replay,
    deleted_ranges,
    input_loss_error,
    truncated,
    warn_of_input_loss,
    with_taken,
)

BOUNDS = {("in", 0): (250, 300), ("in", 1): (0, 10), ("in", 2): (7, 7)}


def taken_in(ranges: Ranges, ids: InputIds) -> Taken:
    """Forwarders have taken offsets 240 and 241 of in/0."""
    assert {topic for topic, _ in ranges} <= ids.keys()
    return Taken({("in", 0): BitMap64([240, 241])})


def test_the_deleted_range_is_from_the_next_offset_to_the_first_that_is_left() -> None:
    assert deleted_ranges(BOUNDS, {"in": {"0": 100, "1": 0, "2": 7}}) == [DeletedRange("in", 0, 100, 250)]
    assert deleted_ranges(BOUNDS, {"in": {"0": 250, "1": 10, "2": 7}}) == []


def test_an_added_partition_is_unread_from_offset_0() -> None:
    assert deleted_ranges(BOUNDS, {"in": {"0": 250, "1": 0}}) == [DeletedRange("in", 2, 0, 7)]


def test_a_recreated_topic_ends_before_the_offsets_that_were_read() -> None:
    assert truncated(BOUNDS, {"in": {"0": 300, "1": 10, "2": 7}}) == []
    assert truncated(BOUNDS, {"in": {"10": 4, "2": 8, "0": 301, "1": 3}}) == [
        "in/0 ends at offset 300, but records up to offset 301 were read",
        "in/2 ends at offset 7, but records up to offset 8 were read",
        "in/10 is gone, but records up to offset 4 were read",
    ]
    assert truncated(BOUNDS, {}) == []


def test_nothing_is_lost_with_a_partition_that_was_not_read() -> None:
    assert truncated(BOUNDS, {"in": {"10": 0}}) == []


def test_a_job_that_never_read_misses_nothing() -> None:
    assert deleted_ranges(BOUNDS, {}) == []


def test_a_batch_misses_no_more_than_its_own_range() -> None:
    starts, ends = {"in": {"0": 100, "1": 0}}, {"in": {"0": 120, "1": 5, "2": 3}}
    assert deleted_ranges(BOUNDS, starts, ends) == [DeletedRange("in", 0, 100, 120), DeletedRange("in", 2, 0, 3)]


def test_a_batch_warns_of_deleted_records_and_of_a_partition_that_ends_before_what_was_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    starts = {"in": {"0": 240, "1": 10, "2": 7}}
    ends = {"in": {"0": 300, "1": 4, "2": 7}}
    batch = BatchSpan(CheckpointOrigin("c", 1, 1), 7, starts=starts, ends=ends, input_ids={"in": ["A"]})
    with caplog.at_level(logging.WARNING):
        warn_of_input_loss(BOUNDS, batch, taken_in)
    cut, deleted = (record.getMessage() for record in caplog.records)
    assert cut.startswith("batch 7: in/1 ends at offset 4, but records up to 10 were read")
    assert "in/0: offsets 240 to 249 (10 in all, of which forwarders have taken 2) were deleted" in deleted


def test_the_error_names_each_range_and_the_remedy() -> None:
    message = str(input_loss_error([DeletedRange("in", 0, 100, 250), DeletedRange("in", 2, 0, 7)]))
    assert message.startswith(
        "records-expired: in/0: offsets 100 to 249 (150 in all); in/2: offsets 0 to 6 (7 in all) were deleted"
    )
    assert "topics.skip_expired=true" in message


@pytest.mark.parametrize(
    ("taken", "sentence"),
    [
        (0, "These records are lost, and nothing else."),
        (7, "Those that forwarders have taken are delivered. The others are lost, and nothing else."),
        (150, "Forwarders have taken them all, so nothing is lost."),
    ],
)
def test_the_error_says_of_no_record_that_it_is_lost_which_forwarders_have_taken(taken: int, sentence: str) -> None:
    assert f"by hand. {sentence} To continue" in str(input_loss_error([DeletedRange("in", 0, 100, 250, taken)]))


def test_records_of_topics_without_ids_count_as_not_taken() -> None:
    ranges = [DeletedRange("gone", 0, 5, 9), DeletedRange("in", 0, 200, 250)]
    assert with_taken(ranges, {"in": ["A"]}, taken_in) == [ranges[0], replace(ranges[1], taken=2)]


def test_a_batch_that_has_sealed_is_not_replayed_without_its_records() -> None:
    lost = [DeletedRange("in", 0, 100, 120)]
    for ranges, sealed in ((lost, -1), (lost, 6), ([], 7), ([replace(lost[0], taken=20)], 7)):
        check_replay(7, ranges, sealed)
    with pytest.raises(RecordsExpired, match=r"offsets 100 to 119 .*batch 7 .* rebuild --discard-checkpoint"):
        check_replay(7, lost, 7)
