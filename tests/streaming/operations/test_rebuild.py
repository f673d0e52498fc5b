"""Which input topics a rebuild refuses."""

from __future__ import annotations

import pytest

from conf.errors import CheckpointMismatch
from streaming.operations.reread import refuse_cut

ACCEPTED = {"in": {"0": 9, "1": 5}}


def test_an_input_topic_that_lost_records_which_were_accepted_is_refused_with_the_remedy() -> None:
    refuse_cut({("in", 0): (3, 9), ("in", 1): (0, 7), ("other", 0): (0, 0)}, ACCEPTED, [])
    pattern = r"in/1 ends at offset 4, but records up to 5 were accepted.*create the topic again.*input-topic-cut\.md"
    with pytest.raises(CheckpointMismatch, match=pattern):
        refuse_cut({("in", 0): (3, 9), ("in", 1): (0, 4)}, ACCEPTED, [])
    # Of a topic in its place, all records are new.
    refuse_cut({("in", 0): (0, 0), ("in", 1): (0, 0)}, ACCEPTED, ["in"])
