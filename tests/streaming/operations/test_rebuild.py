"""Which records of the input topics a rebuild reads again, and which topics it refuses."""

from __future__ import annotations

import pytest
from pyroaring import BitMap64

from conf.errors import CheckpointMismatch
from state.checkpoint.origin import CheckpointOrigin, Offsets
from state.checkpoint.progress import BatchSpan, Progress
from state.checkpoint.staged import StagedMessages
from state.claims import Claim
from streaming.operations.reread import decided_offsets, refuse_cut, reread_range

ACCEPTED = {"in": {"0": 9, "1": 5}}


def test_an_input_topic_that_lost_records_which_were_accepted_is_refused_with_the_remedy() -> None:
    refuse_cut({("in", 0): (3, 9), ("in", 1): (0, 7), ("other", 0): (0, 0)}, ACCEPTED, [])
    pattern = r"in/1 ends at offset 4, but records up to 5 were accepted.*create the topic again.*input-topic-cut\.md"
    with pytest.raises(CheckpointMismatch, match=pattern):
        refuse_cut({("in", 0): (3, 9), ("in", 1): (0, 4)}, ACCEPTED, [])
    # All records of a topic that takes its place are new.
    refuse_cut({("in", 0): (0, 0), ("in", 1): (0, 0)}, ACCEPTED, ["in"])


def _staged(ends: Offsets, origin: Offsets | None = None) -> StagedMessages:
    """Return the marker of a batch that has read up to `ends`, in a checkpoint that began at `origin`."""
    ids = {"in": ["id"]}
    begin = CheckpointOrigin("c", 1, 1, offsets=origin or {}, input_ids=ids)
    return StagedMessages((Progress(BatchSpan(begin, 7, ends=ends, input_ids=ids)),))


def _range(first: int, staged: StagedMessages, table: int = 0, decided: int = 0) -> tuple[int, int]:
    """Return the range that is read again of a partition that begins at `first`.

    The table has a message from before offset `table`, and claims have `decided` the records below that offset.
    """
    in_table = {("in", 0): BitMap64([table - 1])} if table else {}
    starts, ends = reread_range({("in", 0): (first, 900)}, staged, in_table, {("in", 0): decided}, [])
    return starts["in"]["0"], ends["in"]["0"]


def test_what_a_marker_or_the_table_has_is_read_again_and_the_rest_is_new(caplog: pytest.LogCaptureFixture) -> None:
    assert _range(0, _staged({"in": {"0": 100}})) == (0, 100)
    assert _range(30, _staged({"in": {"0": 100}})) == (30, 100)
    assert _range(30, _staged({"in": {"0": 100}}, {"in": {"0": 50}})) == (50, 100)
    assert _range(30, _staged({"in": {"0": 100}}), table=120) == (30, 120)
    # No batch has staged anything.
    assert _range(0, _staged({}, {"in": {"0": 50}})) == (50, 50)
    # Claims alone do not show that a batch has read a record.
    assert _range(30, _staged({"in": {"0": 100}}), decided=400) == (30, 100)
    assert caplog.messages == []


def test_deleted_records_that_nothing_shows_as_read_are_left_to_the_start_which_refuses_to_miss_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert _range(500, _staged({"in": {"0": 100}})) == (100, 100)
    assert _range(500, _staged({}, {"in": {"0": 50}})) == (50, 50)
    assert _range(500, _staged({}), table=120) == (120, 120)
    # A partition that was added.
    assert _range(500, _staged({"in": {"1": 100}})) == (0, 0)
    assert caplog.messages == []
    # A job that has read nothing misses nothing.
    assert _range(500, _staged({})) == (500, 500)
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("table", "decided", "end", "text"),
    [
        (0, 300, 300, "in/0: offsets 100 to 299 (200 in all) were deleted"),
        (0, 800, 500, "in/0: offsets 100 to 499 (400 in all) were deleted"),
        # A batch was cut off: the table has some of its messages.
        (700, 0, 700, "in/0: offsets 100 to 499 (400 in all) were deleted"),
    ],
)
def test_deleted_records_that_are_skipped_are_named(
    table: int, decided: int, end: int, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert _range(500, _staged({"in": {"0": 100}}), table, decided)[1] == end
    (message,) = caplog.messages
    assert message.startswith(f"the rebuild continues without records: {text}. Their messages are lost, unless")


def test_the_newest_claims_of_all_lanes_say_what_is_decided() -> None:
    claims = [
        None,
        Claim(2, positions={"in": {"0": 70}}, topic_ids={"in": "id"}),
        Claim(2, positions={"in": {"0": 90}, "other": {"0": 80}}, topic_ids={"in": "id", "other": "before"}),
        Claim(1, positions={"in": {"0": 300}}, topic_ids={"in": "id"}),
    ]
    bounds = {("in", 0): (0, 0), ("in", 1): (0, 0), ("other", 0): (0, 0), ("new", 0): (0, 0)}
    decided = decided_offsets(bounds, claims, {"in": "id", "other": "now"}, epoch=2)
    assert decided == {("in", 0): 90, ("in", 1): 0, ("other", 0): 0}
