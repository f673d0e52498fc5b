"""Whole batches of requests against a model: each message either comes out or is cancelled, and all answers agree.

Records become messages and requests as in the job, go through the state stage, and the desk decides. Its decision is
stored, and its messages are staged and released (`decision_service`). The table is in memory, and in the last tests it
is the real one.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from state.names import KEEP, KEEP_TIME, REPLACE
from tests.streaming.job.requests.decision_run import run_all
from tests.streaming.job.requests.decision_steps import Step
from tests.streaming.job.requests.memory_table import MemoryTable
from tests.streaming.job.requests.spark_table import SparkTable

_KINDS = [
    "message", "message", "bad", "cancel", "waiting", "always", "named", "named", "named asks", "cancel-name",
    "keep", "keep", "keep asks", "keep late", "keep cancel-name", "deliver", "deliver", "deliver",
    "repeats one", "repeats all", "repeats none", "named repeats one", "keep repeats one", "waiting repeats all",
    "timed", "timed", "timed asks", "timed late", "timed cancel-name",
    "changing", "changing", "changing asks", "changing repeats one", "changing cancel-name",
]  # fmt: skip
_ENDS = [
    "", "", "killed before it is stored", "killed after it is stored", "killed at the end", "started again", "rescaled",
    "names joined",
]  # fmt: skip
_RECORDS = st.tuples(
    st.sampled_from(_KINDS),
    st.integers(0, 1),
    st.sampled_from([0, 700, 1_500, 4_000, 60_000]),
    st.sampled_from([0, 1, 2, 3, 5, 8, 14]),
    st.sampled_from("ab"),
)
_STEPS = st.lists(
    st.builds(
        Step,
        st.sampled_from([0, 300, 1_000, 5_000]),
        st.lists(_RECORDS, max_size=7),
        st.booleans(),
        st.sampled_from(_ENDS),
        st.sampled_from([REPLACE, KEEP, KEEP_TIME]),
    ),
    min_size=2,
    max_size=7,
)
# Cases that random steps seldom hit: a sealed message is cancelled, and replaced twice at once. A name is taken over
# twice at once, by messages that are due.
_EXAMPLE = [
    Step(0, [("message", 0, 60_000, 0, "a")] * 6, False, ""),
    Step(
        1_000,
        [("cancel", 0, 0, 2, "a"), ("waiting", 0, 4_000, 3, "a"), ("waiting", 1, 4_000, 3, "a")],
        False,
        "killed after it is stored",
    ),
    Step(300, [("named", 0, 0, 0, "a"), ("named", 0, 0, 0, "a"), ("named", 1, 4_000, 0, "b")], True, "started again"),
    Step(300, [("cancel-name", 1, 0, 0, "b"), ("cancel", 0, 0, 3, "a")], False, "killed before it is stored"),
]
# Sealed and staged messages keep their names. Then requests ask for these messages: in the batch of the next message of
# their name, and in one before.
_KEEPING = [
    Step(
        0,
        [("keep", 0, 60_000, 0, "a"), ("keep", 0, 1_500, 0, "b"), ("keep asks", 0, 0, 0, "b")],
        False,
        "killed after it is stored",
    ),
    Step(300, [("keep asks", 0, 0, 0, "a"), ("keep", 0, 4_000, 0, "b")], True, "started again"),
    Step(300, [("keep asks", 1, 700, 0, "b"), ("cancel", 0, 0, 4, "a")], False, "killed before it is stored"),
    Step(
        0, [("keep", 0, 4_000, 0, "b"), ("keep cancel-name", 0, 0, 0, "a"), ("keep asks", 0, 60_000, 0, "a")], False, ""
    ),
    Step(0, [("keep", 0, 4_000, 0, "b"), ("waiting", 0, 4_000, 0, "b"), ("keep", 0, 0, 0, "a")], False, ""),
    Step(5_000, [("keep", 0, 0, 0, "b"), ("keep late", 0, 0, 0, "b")], False, ""),
]
# Messages that wait in a bucket, in the table, in an overflow group or under a name, and staged messages, are made due
# at once. They are asked for again, in the same batch and in the next one.
_DELIVERED = [
    Step(
        0,
        [("message", 0, 60_000, 0, "a")] * 6 + [("named", 1, 60_000, 0, "a"), ("message", 0, 1_500, 0, "a")],
        False,
        "",
    ),
    Step(
        300,
        [("deliver", 0, 0, 3, "a"), ("cancel", 0, 0, 3, "a"), ("deliver", 1, 0, 3, "a"), ("deliver", 0, 0, 5, "a")],
        False,
        "killed after it is stored",
    ),
    Step(300, [("message", 0, 60_000, 0, "a")] * 3 + [("deliver", 0, 0, 0, "a"), ("deliver", 0, 0, 2, "a")], True, ""),
    Step(
        300, [("deliver", 1, 0, 4, "a"), ("deliver", 1, 0, 1, "a"), ("named", 1, 4_000, 0, "a")], True, "started again"
    ),
    Step(300, [("cancel-name", 1, 0, 0, "a"), ("cancel", 1, 0, 2, "a"), ("waiting", 1, 4_000, 3, "a")], False, ""),
    Step(2_000, [("deliver", 1, 0, 0, "a"), ("waiting", 1, 4_000, 0, "a"), ("deliver", 1, 0, 0, "a")], False, ""),
]
# The same for messages that keep their names, that another checkpoint has left, in a replay of its first batch, for
# dead letters, for recalled messages, and for messages that are replaced or cancelled in the same batch.
_DELIVERED_LATER = [
    Step(
        0,
        [("keep", 0, 60_000, 0, "a"), *[("message", 0, 60_000, 0, "")] * 2, ("bad", 0, 0, 0, "")],
        False,
        "rescaled",
    ),
    Step(
        300,
        [*(("deliver", 0, 0, back, "") for back in (3, 1)), ("cancel", 0, 0, 2, ""), ("keep asks", 0, 1_500, 0, "a")],
        False,
        "killed after it is stored",
    ),
    Step(300, [*(("deliver", 0, 0, back, "") for back in (4, 0)), ("keep asks", 0, 4_000, 0, "a")], False, "rescaled"),
    Step(300, [("waiting", 0, 60_000, 0, ""), *(("deliver", 1, 0, back, "") for back in (0, 1))], True, ""),
    Step(300, [("always", 0, 60_000, 1, ""), ("deliver", 0, 0, 0, ""), ("cancel", 1, 0, 0, "")], False, "rescaled"),
    Step(300, [("waiting", 0, 60_000, 2, ""), *(("deliver", 0, 0, back, "") for back in (0, 1, 9))], False, ""),
    Step(5_000, [("deliver", 0, 0, 0, ""), ("cancel", 0, 0, 1, ""), ("named", 0, 4_000, 0, "b")], False, "rescaled"),
]
# A message that repeats is cancelled, replaced and asked for in the batch that reads it, after some occurrences, after
# the last one and in an overflow group. The same is done by its name, which it keeps. It is never due at once.
_REPEATING = [
    Step(
        0,
        [
            *(("repeats one", 0, 700, 0, ""), ("repeats all", 0, 700, 0, ""), ("repeats none", 1, 700, 2, "")),
            *(("named repeats one", 0, 700, 0, "a"), ("keep repeats one", 0, 700, 0, "a"), ("keep late", 0, 0, 0, "a")),
        ],
        False,
        "killed at the end",
    ),
    Step(300, [("repeats one", 0, 0, 0, ""), ("deliver", 0, 0, 0, ""), ("deliver", 0, 0, 5, "")], True, "rescaled"),
    Step(
        5_000,
        [("deliver", 0, 0, 1, ""), ("cancel", 0, 0, 1, ""), ("deliver", 1, 0, 2, ""), ("keep asks", 0, 0, 0, "a")],
        False,
        "killed after it is stored",
    ),
    Step(5_000, [("named repeats one", 0, 0, 0, "a"), ("deliver", 0, 0, 0, "")], True, "killed before it is stored"),
    Step(9_000, [("cancel", 0, 0, 6, ""), ("waiting repeats all", 0, 700, 2, "")], False, "started again"),
    Step(5_000, [("cancel-name", 0, 0, 0, "a"), ("keep cancel-name", 0, 0, 0, "a"), ("cancel", 1, 0, 0, "")], True, ""),
    Step(5_000, [("deliver", 0, 0, 0, ""), ("keep repeats one", 0, 700, 1, "a"), ("keep", 0, 700, 0, "a")], False, ""),
]
# A due time is taken over from a sealed message, from a staged one, and from a message of the same batch. It is sooner
# or later than the message's own due time, also from the third message on. It is not taken over after a request for the
# message before, nor once that message is due.
_TIMED = [
    Step(
        0,
        [("timed", 0, 60_000, 0, "a"), ("timed", 0, 1_500, 0, "b"), ("timed", 0, 4_000, 0, "b")],
        False,
        "killed after it is stored",
    ),
    Step(300, [("timed asks", 0, 0, 0, "a"), ("timed", 0, 60_000, 0, "b"), ("timed", 1, 0, 0, "a")], True, "rescaled"),
    Step(300, [("timed asks", 0, 4_000, 0, "b"), ("timed asks", 0, 4_000, 0, "a")], False, "started again"),
    Step(0, [("deliver", 0, 0, 0, ""), ("timed", 0, 60_000, 0, "a")], False, "killed before it is stored"),
    Step(
        0, [("timed cancel-name", 0, 0, 0, "a"), ("timed", 0, 60_000, 0, "a"), ("timed", 0, 1_500, 0, "a")], False, ""
    ),
    Step(5_000, [("timed", 0, 4_000, 0, "b"), ("timed late", 0, 0, 0, "b"), ("cancel", 0, 0, 2, "")], True, "rescaled"),
    Step(0, [("timed", 0, 60_000, 0, "b"), ("deliver", 0, 0, 0, ""), ("timed", 0, 1_500, 0, "b")], False, ""),
    # All of a batch wait, and none has the time of its request.
    Step(5_000, [("timed", 0, 700, 0, "b"), ("timed late", 0, 1_500, 0, "b")], False, ""),
    Step(5_000, [("timed", 0, 0, 0, "a"), ("timed", 0, 1_500, 0, "a"), ("timed asks", 0, 0, 0, "b")], False, ""),
]
# A message that repeats keeps its name from others when a request in vain asks for it to be due: in its batch, and
# later, when it is in the table. It does so until the next request. After its last occurrence, the message that had the
# name before does not come back.
_KEEPING_ON = [
    Step(0, [("keep", 0, 60_000, 0, "b"), ("keep repeats one", 0, 700, 0, "a"), ("deliver", 0, 0, 0, "")], False, ""),
    Step(
        300,
        [("keep asks", 0, 0, 0, "a"), ("keep cancel-name", 0, 0, 0, "b"), ("keep repeats one", 0, 700, 2, "b")],
        False,
        "started again",
    ),
    Step(5_000, [("deliver", 0, 0, 3, ""), ("keep asks", 0, 0, 0, "a")], True, "killed after it is stored"),
    Step(5_000, [("deliver", 1, 0, 4, ""), ("keep asks", 1, 0, 0, "a")], False, "rescaled"),
    Step(5_000, [], False, "names joined"),
    Step(300, [("keep asks", 0, 60_000, 0, "b")], False, ""),
    Step(300, [("deliver", 0, 0, 6, ""), ("cancel", 1, 0, 6, ""), ("keep asks", 0, 700, 0, "a")], False, ""),
]
# Each mode after each other one. A message that repeats gives the due time of the occurrence that waits, once, if it
# was accepted to keep its name. A message that has taken a due time over keeps its name.
_CHANGED = [
    Step(0, [("changing repeats one", 0, 700, 0, "a"), ("changing", 0, 60_000, 0, "b")], False, "", KEEP),
    Step(5_000, [("changing repeats one", 0, 700, 0, "b")], False, "", KEEP),
    Step(
        300,
        [("changing asks", 0, 60_000, 0, "a"), ("changing asks", 0, 0, 0, "b")],
        False,
        "killed after it is stored",
        KEEP_TIME,
    ),
    Step(300, [("changing asks", 0, 0, 0, "a"), ("changing repeats one", 0, 0, 0, "b")], True, "started again", KEEP),
    Step(5_000, [("changing repeats one", 0, 700, 0, "a"), ("changing asks", 0, 60_000, 0, "b")], False, ""),
    Step(300, [("changing asks", 0, 60_000, 0, "a"), ("changing", 0, 1_500, 0, "b")], False, "rescaled", KEEP_TIME),
    Step(300, [("changing asks", 0, 700, 0, "a"), ("changing asks", 0, 700, 0, "b")], False, "names joined"),
    Step(0, [("changing repeats one", 0, 700, 1, "a"), ("changing repeats one", 0, 0, 1, "b")], False, "", KEEP),
    # The last occurrences are staged.
    Step(300, [("changing", 0, 0, 0, "a"), ("changing asks", 0, 60_000, 0, "b")], False, "", KEEP_TIME),
]


@example(_EXAMPLE)
@example(_KEEPING)
@example(_DELIVERED)
@example(_DELIVERED_LATER)
@example(_REPEATING)
@example(_TIMED)
@example(_KEEPING_ON)
@example(_CHANGED)
@given(_STEPS)
@settings(max_examples=12)
def test_each_message_comes_out_or_is_cancelled_and_all_answers_are_those_of_the_model(steps: list[Step]) -> None:
    run_all(MemoryTable(), steps)


@pytest.mark.thorough
@pytest.mark.takes(60)
@given(_STEPS)
@settings(max_examples=600)
def test_hundreds_of_runs_agree_with_the_model(steps: list[Step]) -> None:
    run_all(MemoryTable(), steps)


@pytest.fixture
def new_table(spark: SparkSession, empty_table: Path, tmp_path: Path) -> Callable[[], SparkTable]:
    """A function that makes an empty table."""
    numbers = count()

    def make() -> SparkTable:
        path = tmp_path / str(next(numbers))
        shutil.copytree(empty_table, path)
        return SparkTable(spark, str(path))

    return make


@pytest.mark.takes(20)
@pytest.mark.parametrize("steps", [_DELIVERED_LATER, pytest.param(_KEEPING_ON, marks=pytest.mark.thorough)])
def test_a_run_on_the_real_table_agrees_with_the_model(new_table: Callable[[], SparkTable], steps: list[Step]) -> None:
    run_all(new_table(), steps)


@pytest.mark.thorough
@pytest.mark.takes(60)
def test_random_runs_on_the_real_table_agree_with_the_model(new_table: Callable[[], SparkTable]) -> None:
    @given(_STEPS)
    @settings(max_examples=8, phases=[Phase.generate], database=None, suppress_health_check=list(HealthCheck))
    def run(steps: list[Step]) -> None:
        run_all(new_table(), steps)

    run()
