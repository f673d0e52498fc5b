"""The records that a rebuild accepts again."""

from __future__ import annotations

import json
from dataclasses import replace

import pyarrow as pa
import pytest
from pyroaring import BitMap64

from conf.setting_types import DAY, HOUR, MINUTE
from state.checkpoint.batch_settings import DelayPolicy
from state.checkpoint.origin import CheckpointOrigin
from state.checkpoint.progress import BatchSpan, InTable, Progress
from state.checkpoint.staged import StagedMessages
from state.message import MESSAGE_SCHEMA, decode_chunk
from state.order import OrderKey
from state.repeats.waiting import waiting_in
from streaming.operations.moved import Moved
from streaming.operations.rest import Rest
from tests.messages import PARTITIONS, headers, records, some_batch_settings
from tests.streaming.operations.rest_of_job import (
    CLOCK_MS,
    CUTOFF_MS,
    READ,
    RESULTS,
    SETTINGS,
    TOPIC,
    left,
    published,
    rest_of,
    rows_left,
)


def test_a_message_whose_instant_was_shortened_is_not_delivered_again() -> None:
    shortened = some_batch_settings(
        shard_keys=(7,), partitions=PARTITIONS, policy=DelayPolicy(most_ms=HOUR, clamps=True)
    )
    rest = rest_of(settings=shortened, now_ms=CLOCK_MS + DAY)
    found = left(
        rest,
        # Published and staged yesterday. By today's clock it would wait for another hour.
        published(0, -DAY, ("deliver-at", 300 * DAY)),
        # The same. By today's clock the instant is near enough.
        published(1, -3 * HOUR, ("deliver-at", DAY + MINUTE)),
        # Due before the loss, if it was read at once: that is not known. It is taken for read within an hour.
        published(2, -HOUR - 30 * MINUTE, ("deliver-at", 300 * DAY)),
        published(3, -2 * HOUR, ("deliver-at", 300 * DAY)),
        # It waits, and is shortened again.
        published(4, -30 * MINUTE, ("deliver-at", 300 * DAY)),
        published(5, -30 * MINUTE, ("deliver-at", 20 * MINUTE)),
        # Delays count from the timestamp, whatever the clock says.
        published(6, -30 * MINUTE, ("deliver-after", 300 * DAY)),
        published(7, -2 * HOUR, ("deliver-after", HOUR - 1)),
        published(8, -2 * HOUR, ("deliver-at", -MINUTE)),
    )
    again = DAY + HOUR
    assert found == {2: again, 4: again, 5: 20 * MINUTE, 6: 30 * MINUTE}


def test_a_plain_message_that_was_stamped_ahead_is_not_delivered_again() -> None:
    # A day later, they are no longer ahead.
    for now_ms in (CLOCK_MS + MINUTE, CLOCK_MS + DAY):
        rest = rest_of(ends={TOPIC: {"0": 12}}, now_ms=now_ms)
        rows = [published(0, -1), published(1, 2 * HOUR), published(2, 2 * HOUR, ("deliver-after", 0))]
        # The newest batch may have been cut off before these.
        rows += [published(10, 2 * HOUR), published(11, -1)]
        assert left(rest, *rows) == {2: 2 * HOUR, 10: min(2 * HOUR, now_ms - CLOCK_MS)}


@pytest.mark.parametrize("now_ms", [CLOCK_MS - HOUR, CLOCK_MS, CLOCK_MS + DAY])
def test_what_the_newest_batch_has_staged_in_part_is_continued_whatever_the_clock_of_the_rebuild(now_ms: int) -> None:
    ends = {TOPIC: {"0": 14}}
    span = BatchSpan(CheckpointOrigin("c", 1, 1), 7, CUTOFF_MS - 500, CUTOFF_MS, READ, ends, clock_ms=CLOCK_MS)
    staged = StagedMessages((Progress(span, 3, OrderKey(CLOCK_MS, TOPIC, 0, 11)),))
    rest = Rest(staged, {}, {}, {}, SETTINGS, now_ms, Moved(staged))
    rows = [published(offset, 1_000) for offset in (10, 11, 12, 13, 14)]
    assert left(rest, *rows).keys() == {12, 13, 14}


def test_what_was_stamped_ahead_is_not_delivered_again_by_a_shard_that_was_silent_since() -> None:
    partitions = {name: count for name, count in PARTITIONS.items() if name != RESULTS}
    settings = some_batch_settings(partitions=partitions)
    before = BatchSpan(CheckpointOrigin("c", 1, 1), 3, CLOCK_MS - DAY, CLOCK_MS - DAY + 500, {}, READ)
    silent = Progress(before, 1, OrderKey(CLOCK_MS - DAY, TOPIC, 0, 0))
    rest = rest_of(settings=settings, now_ms=CLOCK_MS + DAY, others=[silent])
    rows = [published(at, -2 * HOUR) | {"key": b"%d" % at} for at in range(8)]
    assert left(rest, *rows) == {}


def test_what_was_accepted_while_the_cutoff_was_hours_behind_the_clock_is_left_if_it_waits() -> None:
    # After an outage the job has staged the messages that were due up to two hours ago, and goes on.
    cutoff_ms = CLOCK_MS - 2 * HOUR
    origin, ends = CheckpointOrigin("c", 1, 1), {TOPIC: {"0": 12}}
    span = BatchSpan(origin, 7, cutoff_ms - MINUTE, cutoff_ms, READ, ends, previous_clock_ms=CLOCK_MS)
    staged = StagedMessages((Progress(span, 3, OrderKey(cutoff_ms - 100, TOPIC, 0, 0)),))
    rest = Rest(staged, {}, {}, {}, SETTINGS, CLOCK_MS + MINUTE, Moved(staged))
    rows = [published(0, -1), published(1, -HOUR), published(2, -3 * HOUR), published(3, HOUR)]
    assert left(rest, *rows) == {0: -1, 1: -HOUR, 3: MINUTE}


def test_a_cancel_of_a_recalled_message_is_answered_cancelled_and_of_another_unknown() -> None:
    rest = replace(rest_of([2, 3]), recalled={(TOPIC, 0): BitMap64([2])})
    requests = [
        published(50 + at, MINUTE) | {"headers": headers(("delayline-cancel", b"%s/0/%d" % (TOPIC.encode(), at)))}
        for at in (2, 3)
    ]
    batches = rest.messages()(iter(records(requests).to_batches()))
    (table,) = [decode_chunk(chunk.as_py()) for batch in batches for chunk in batch.column("chunk")]
    results = {row["offset"]: json.loads(row["value"])["result"] for row in table.to_pylist()}
    assert results == {52: "cancelled", 53: "unknown"}


def test_the_answer_to_a_cancel_by_name_says_that_the_lost_batch_may_have_cancelled_the_message() -> None:
    rest = replace(rest_of(), cancelled={(TOPIC, 0): BitMap64([1])})
    (row,) = rows_left(rest, {"offset": 20, "headers": headers(("delayline-cancel-name", b"a"))})
    answer = json.loads(row["value"])
    assert (answer["result"], answer["reason"]) == ("unknown", "checkpoint-lost")
    assert "A cancel by name may already be done" in answer["why"]


@pytest.mark.parametrize(
    ("last_s", "below_s", "waits"),
    [
        # Nothing but other messages is staged, or two occurrences, or all.
        (40, 10, (1, 10)),
        (20, None, (3, 30)),
        (40, 30, (3, 30)),
        (40, None, (5, 50)),
    ],
)
def test_occurrence_that_the_newest_batch_left_of_a_message_that_it_read_is_left(
    last_s: int, below_s: int | None, waits: tuple[int, int]
) -> None:
    """The batch has stored nothing, so only the record says that the message repeats."""
    below_ms = None if below_s is None else CLOCK_MS + below_s * 1_000
    span = BatchSpan(CheckpointOrigin("c", 1, 1), 7, CLOCK_MS, CLOCK_MS + 45_000, {}, READ, clock_ms=CLOCK_MS)
    last = OrderKey(CLOCK_MS + last_s * 1_000, TOPIC, 0, 9)
    staged = StagedMessages((Progress(span, 3, last, 3, below_ms),))
    policy = DelayPolicy(repeats=True)
    settings = some_batch_settings(shard_keys=(7,), partitions=PARTITIONS | {RESULTS: 1}, policy=policy)
    rest = Rest(staged, {}, {}, {}, settings, CLOCK_MS, Moved(staged))
    record = {"offset": 4, "timestamp_ms": CLOCK_MS, "headers": headers(("delayline-repeat", b"every 10s"))}
    (row,) = rows_left(rest, record)
    (waiting,) = waiting_in(pa.Table.from_pylist([row], schema=MESSAGE_SCHEMA))
    assert waiting.occurrence[:2] == (waits[0], CLOCK_MS + waits[1] * 1_000)


@pytest.mark.parametrize(
    ("previous_s", "last_s", "number"),
    # The shard has a marker of the newest batch, or of one before. Or the newest one is the first to stage the message.
    [(60, 75, 8), (60, None, 6), (5, 75, 8)],
)
def test_a_schedule_continues_from_its_record_if_the_table_has_lost_it(
    previous_s: int, last_s: int | None, number: int
) -> None:
    """As without a backup: batches have stored the following occurrences, and nothing is there."""
    previous_ms = CLOCK_MS + previous_s * 1_000
    span = BatchSpan(CheckpointOrigin("c", 1, 1), 7, previous_ms, CLOCK_MS + 90_000, READ, READ)
    last = None if last_s is None else OrderKey(CLOCK_MS + last_s * 1_000, TOPIC, 0, 9)
    staged = StagedMessages((Progress(span, 3, last, 3, in_table=InTable(6)),))
    settings = some_batch_settings(
        shard_keys=(7,), partitions=PARTITIONS | {RESULTS: 1}, policy=DelayPolicy(repeats=True)
    )
    intact = Rest(staged, {}, {}, {}, settings, CLOCK_MS, Moved(staged))
    row = {"offset": 4, "timestamp_ms": CLOCK_MS, "headers": headers(("delayline-repeat", b"every 10s"))}
    ended = {
        **row,
        "offset": 5,
        "headers": headers(("delayline-repeat", b"every 10s"), ("delayline-repeat-count", b"4")),
    }
    assert not rows_left(intact, row, ended)
    older = replace(intact, is_older=True)
    (left_row,) = rows_left(older, row, ended)
    (waiting,) = waiting_in(pa.Table.from_pylist([left_row], schema=MESSAGE_SCHEMA))
    assert waiting.occurrence[:2] == (number, CLOCK_MS + number * 10_000)
    cancelled = replace(older, in_table={(TOPIC, 0): BitMap64([4])})
    assert not rows_left(cancelled, row, ended)
