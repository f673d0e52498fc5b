"""Which message has a name when records are accepted again."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import groupby
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given
from hypothesis import strategies as st

from state.buckets.parts import IdRows
from state.buckets.retimed import RETIMED_SCHEMA
from state.buckets.table_rows import STORED_SCHEMA
from state.checkpoint.origin import CheckpointOrigin
from state.index.offset_bitmaps import bitmaps_of
from state.message_ids import NO_IDS, Ids, ids_of, table_of
from state.name_holders import HOLDER_SCHEMA, NamesLeft
from state.names import KEEP, KEEP_TIME, REPLACE
from tests.messages import ids_of_rows

TOPIC = "delayline-in"
# The rest is sealed in bucket 8, and nothing is delivered that is due at 1,000 or later.
LEFT_IN, CUTOFF_MS, FAR_MS = 8, 1_000, 70_000
ORIGIN = CheckpointOrigin("c", 2, 2, LEFT_IN + 1, CUTOFF_MS, {TOPIC: {"0": 100, "1": 100}})


def left(offset: int, due_ms: int = FAR_MS, name: str = "a", partition: int = 0) -> tuple[Any, ...]:
    """Return the row of a message that is accepted again."""
    return name.encode(), TOPIC, partition, offset, due_ms, due_ms, False, LEFT_IN, True


def stored(
    offset: int, due_ms: int = FAR_MS, bucket: int = 3, name: str = "a", partition: int = 0, until_ms: int = 0
) -> tuple[Any, ...]:
    """Return the row of a message with a stored name."""
    return name.encode(), TOPIC, partition, offset, due_ms, max(due_ms, until_ms), False, bucket, False


def settle(
    *rows: tuple[Any, ...],
    cancelled: Ids = NO_IDS,
    overdue: Ids = NO_IDS,
    at_once: int = 2,
    mode: str = REPLACE,
    marked: bool | None = None,
    replaces: Collection[int] = (),
) -> tuple[Any, Any]:
    """Return the offset of the message that has each name, and the cancelled ones with their due times.

    All were accepted by the `mode` of their topic, except rows of the table with the offsets `replaces`: by `REPLACE`.
    `marked` says whether messages that have names keep them: by default as the mode does.
    """
    keeps = mode != REPLACE
    modes = [(*row[:6], keeps and (row[-1] or row[3] not in replaces), *row[7:]) for row in rows]
    in_order = sorted(modes, key=lambda row: row[:4])
    table = pa.Table.from_pylist([dict(zip(HOLDER_SCHEMA.names, row, strict=True)) for row in in_order], HOLDER_SCHEMA)
    before, waiting = (bitmaps_of([table_of(ids)]) for ids in (cancelled, overdue))
    batches = NamesLeft(ORIGIN, before, waiting, lambda _: mode).settled()(
        iter(table.to_batches(max_chunksize=at_once))
    )
    out = pa.Table.from_batches(batches, STORED_SCHEMA)
    names, gone = (
        ids_of_rows(out.filter(pc.field("part") == kind.partition(LEFT_IN))).to_pylist()
        for kind in (IdRows.NAMED, IdRows.CANCELLED)
    )
    assert all(row["bucket"] == LEFT_IN for row in (*names, *gone))
    assert all(row["keeps"] == (keeps if marked is None else marked) for row in names)
    assert len(names) + len(gone) == ids_of_rows(out).num_rows
    assert all(row["deliver_at_ms"] == row["max_deliver_at_ms"] for row in gone)
    return (
        {row["name"].decode(): (row["offset"], row["max_deliver_at_ms"]) for row in names},
        sorted((row["partition"], row["offset"], row["deliver_at_ms"]) for row in gone),
    )


def test_of_what_is_accepted_again_the_newest_of_a_name_stays() -> None:
    rows = [left(5), left(6, 500), left(7, 2_000), left(5, name="b")]
    assert settle(*rows) == ({"a": (7, 70_000), "b": (5, FAR_MS)}, [(0, 5, FAR_MS), (0, 6, 500)])


def test_what_waits_in_the_table_is_cancelled_unless_it_is_or_may_be_delivered() -> None:
    rows = [stored(1), stored(2, CUTOFF_MS), stored(3, CUTOFF_MS - 1), stored(4), left(9)]
    cancelled = ids_of([(TOPIC, 0, 4)])
    assert settle(*rows, cancelled=cancelled) == ({"a": (9, FAR_MS)}, [(0, 1, FAR_MS), (0, 2, CUTOFF_MS)])


def test_what_is_overdue_in_the_table_is_cancelled_if_it_waits() -> None:
    rows = [stored(1, 500), stored(2, 500), stored(3, 500), left(9)]
    overdue, cancelled = ids_of([(TOPIC, 0, 2), (TOPIC, 0, 3), (TOPIC, 0, 9)]), ids_of([(TOPIC, 0, 3)])
    expected = ({"a": (9, FAR_MS)}, [(0, 2, 500)])
    assert settle(*rows, overdue=overdue, cancelled=cancelled) == expected, "the first one is delivered"


def test_what_a_later_record_has_taken_the_name_from_is_cancelled_wherever_that_is() -> None:
    # The row of the newest is in the table, and need not be stored again.
    assert settle(left(5), stored(6, 500, bucket=4)) == ({}, [(0, 5, FAR_MS)])
    # The table may have the row of a message that is accepted again.
    assert settle(left(5), stored(5, bucket=2), stored(6, bucket=4)) == ({}, [(0, 5, FAR_MS)])
    assert settle(left(5), stored(5, bucket=2), stored(4)) == ({"a": (5, FAR_MS)}, [(0, 4, FAR_MS)])


def test_of_several_partitions_that_of_the_newest_batch_has_the_name() -> None:
    rows = [stored(50, bucket=3), left(1, partition=1)]
    assert settle(*rows) == ({"a": (1, FAR_MS)}, [(0, 50, FAR_MS)])
    assert settle(*rows, stored(1, bucket=2, partition=1)) == ({}, [(1, 1, FAR_MS)])


def test_a_row_is_of_use_as_long_as_that_of_any_message_before() -> None:
    assert settle(stored(1, 500, until_ms=90_000), left(2)) == ({"a": (2, 90_000)}, [])


def test_what_the_new_checkpoint_reads_again_takes_no_name() -> None:
    assert settle(left(5), stored(100, bucket=4)) == ({"a": (5, FAR_MS)}, [])
    assert settle() == ({}, [])


def test_where_messages_keep_their_names_the_first_one_that_waits_stays() -> None:
    rows = [left(5), left(6, 500), left(7), left(9, name="b")]
    expected = ({"a": (5, FAR_MS), "b": (9, FAR_MS)}, [(0, 6, 500), (0, 7, FAR_MS)])
    assert settle(*rows, mode=KEEP) == expected
    cancelled = ids_of([(TOPIC, 0, 5)])
    assert settle(*rows, cancelled=cancelled, mode=KEEP) == ({"a": (6, FAR_MS), "b": (9, FAR_MS)}, [(0, 7, FAR_MS)])
    assert settle(left(5), cancelled=cancelled, mode=KEEP) == ({}, [])


def test_a_cancelled_message_takes_the_name_from_none_that_waits() -> None:
    # It was dropped, in favour of the first one, when messages kept their names.
    assert settle(stored(1), left(2), cancelled=ids_of([(TOPIC, 0, 2)])) == ({}, [])
    assert settle(left(1), left(2), cancelled=ids_of([(TOPIC, 0, 2)])) == ({"a": (1, FAR_MS)}, [])
    assert settle(left(2), cancelled=ids_of([(TOPIC, 0, 2)])) == ({}, [])


def test_what_had_no_name_as_far_as_is_known_loses_none_to_another() -> None:
    # It was delivered, or accepted without a name: the present clock and policies say otherwise.
    records_alone = (*stored(1)[:-2], LEFT_IN, False)
    for mode in (REPLACE, KEEP, KEEP_TIME):
        assert settle(records_alone, left(5), mode=mode) == ({"a": (5, FAR_MS)}, [])
    # The table's due time counts, which is over.
    rows = [records_alone, stored(1, CUTOFF_MS - 1), left(5)]
    assert settle(*rows, mode=KEEP) == ({"a": (5, FAR_MS)}, [])
    assert settle(*rows) == ({"a": (5, FAR_MS)}, [])


def test_a_mark_of_which_no_message_waits_is_taken_away() -> None:
    row, recalled = stored(1, CUTOFF_MS + 1), ids_of([(TOPIC, 0, 1)])
    assert settle(row, cancelled=recalled, mode=KEEP, marked=False) == ({"a": (1, CUTOFF_MS + 1)}, [])
    assert settle(row, cancelled=recalled, mode=KEEP, replaces=[1]) == ({}, []), "it has none"
    assert settle(row, mode=KEEP) == ({}, [])


def test_a_message_that_was_dropped_does_not_get_the_name_of_a_delivered_one() -> None:
    delivered, dropped = stored(1, CUTOFF_MS - 1), ids_of([(TOPIC, 0, 5)])
    assert settle(delivered, left(5), cancelled=dropped, mode=KEEP, marked=False) == ({"a": (1, FAR_MS)}, [])
    # It had the name, by another row of the table, and was cancelled then.
    rows = [delivered, stored(5, bucket=4), left(5)]
    assert settle(*rows, cancelled=dropped, mode=KEEP, marked=False) == ({"a": (5, FAR_MS)}, [])
    # The message that waits stays, by its row in the table.
    assert settle(stored(1), left(5), cancelled=dropped, mode=KEEP) == ({}, [])


def test_what_is_delivered_keeps_no_name_and_what_waits_in_the_table_does() -> None:
    assert settle(stored(1, CUTOFF_MS - 1), left(5), left(6), mode=KEEP) == ({"a": (5, FAR_MS)}, [(0, 6, FAR_MS)])
    # Its row is older than the row that the other message may have.
    expected = ({"a": (1, FAR_MS)}, [(0, 5, FAR_MS)])
    assert settle(stored(1), left(5), mode=KEEP) == expected
    assert settle(stored(1), stored(5, bucket=4), mode=KEEP) == expected
    assert settle(stored(1), mode=KEEP) == ({}, []), "it stands in the table"
    overdue = ids_of([(TOPIC, 0, 1)])
    assert settle(stored(1, 500), left(5, 900), overdue=overdue, mode=KEEP) == ({"a": (1, 900)}, [(0, 5, 900)])


def test_of_several_partitions_that_of_the_oldest_batch_keeps_its_name() -> None:
    rows = [left(1), left(2), stored(50, bucket=3, partition=1)]
    assert settle(*rows, mode=KEEP) == ({"a": (50, FAR_MS)}, [(0, 1, FAR_MS), (0, 2, FAR_MS)])


def test_after_a_change_of_the_mode_a_message_is_replaced_that_was_not_accepted_to_keep_its_name() -> None:
    assert settle(stored(1), left(5), mode=KEEP, replaces=[1]) == ({"a": (5, FAR_MS)}, [(0, 1, FAR_MS)])
    expected = ({"a": (5, FAR_MS)}, [(0, 1, FAR_MS), (0, 2, FAR_MS), (0, 6, 500)])
    assert settle(stored(1), stored(2), left(5), left(6, 500), mode=KEEP, replaces=[1, 2]) == expected
    assert settle(stored(1), left(1, partition=1), mode=KEEP, replaces=[1]) == ({"a": (1, FAR_MS)}, [(0, 1, FAR_MS)])
    # The newest of several messages that do not keep the name has it.
    assert settle(stored(1), stored(2), mode=KEEP, replaces=[1, 2]) == ({}, [(0, 1, FAR_MS)])
    # The table's row of a message that is accepted again counts.
    rows, expected = [stored(1), stored(2), left(2)], ({"a": (2, FAR_MS)}, [(0, 1, FAR_MS)])
    for mode in (KEEP, KEEP_TIME):
        assert settle(*rows, mode=mode, replaces=[1, 2], marked=False) == expected


def test_where_messages_keep_their_due_times_the_newest_has_the_name() -> None:
    expected = ({"a": (7, FAR_MS)}, [(0, 5, FAR_MS), (0, 6, 500)])
    assert settle(left(5), left(6, 500), left(7), mode=KEEP_TIME) == expected
    recalled = ids_of([(TOPIC, 0, 7)])
    assert settle(left(5), left(7), cancelled=recalled, mode=KEEP_TIME) == ({"a": (5, FAR_MS)}, [])
    # A delivered message stays in the table.
    assert settle(stored(1), stored(2, CUTOFF_MS - 1), mode=KEEP_TIME) == ({}, [(0, 1, FAR_MS)])


def unknown(offset: int, due_ms: int = 500, name: str = "a", partition: int = 0) -> tuple[Any, ...]:
    """Return the row of a message that counts as staged, and that is not in the table."""
    return (*left(offset, due_ms, name, partition)[:-1], False)


def taken_over(
    *rows: tuple[Any, ...],
    cancelled: Ids = NO_IDS,
    overdue: Ids = NO_IDS,
    mode: str = KEEP_TIME,
    keeps: bool = True,
) -> Any:
    """Return the due times that messages have taken over, and the table does not show, by partition and offset.

    `keeps` says whether all of them keep their due times.
    """
    in_order = sorted(((*row[:6], keeps, *row[7:]) for row in rows), key=lambda row: row[:4])
    table = pa.Table.from_pylist([dict(zip(HOLDER_SCHEMA.names, row, strict=True)) for row in in_order], HOLDER_SCHEMA)
    before, waiting = (bitmaps_of([table_of(ids)]) for ids in (cancelled, overdue))
    batches = NamesLeft(ORIGIN, before, waiting, lambda _: mode).taken_over()(iter(table.to_batches(max_chunksize=2)))
    found = pa.Table.from_batches(batches, RETIMED_SCHEMA).to_pylist()
    assert all((row["topic"], row["until_ms"]) == (TOPIC, row["deliver_at_ms"]) for row in found)
    return {(row["partition"], row["offset"]): row["deliver_at_ms"] for row in found}


def test_a_record_that_the_table_does_not_know_is_due_no_sooner_than_the_message_before_it_that_waits() -> None:
    # In the table, or accepted again.
    assert taken_over(stored(1), unknown(2), unknown(3, 600)) == {(0, 2): FAR_MS, (0, 3): FAR_MS}
    assert taken_over(left(1), left(2, FAR_MS + 1), left(3, FAR_MS - 1), unknown(4)) == {
        (0, 3): FAR_MS,
        (0, 4): FAR_MS,
    }
    assert taken_over(stored(1, 600), unknown(2), overdue=ids_of([(TOPIC, 0, 1)])) == {(0, 2): 600}
    # Another name, partition or mode, and a message before the one that waits.
    assert taken_over(unknown(0), stored(1), unknown(2, name="b"), unknown(2, partition=1)) == {}
    assert taken_over(stored(1), unknown(2), mode=REPLACE) == {}


def test_a_record_that_the_table_knows_or_whose_name_was_free_is_due_by_itself() -> None:
    assert taken_over(stored(1), stored(2, 1_500), unknown(3)) == {(0, 3): 1_500}
    assert taken_over(stored(1), stored(2, 500), unknown(3)) == {}
    assert taken_over(stored(1, 500), unknown(2)) == {}
    first, second = (ids_of([(TOPIC, 0, offset)]) for offset in (1, 2))
    assert taken_over(stored(1), unknown(2), cancelled=first) == {}
    assert taken_over(stored(1), unknown(2), unknown(3), cancelled=second) == {(0, 3): FAR_MS}
    # It was accepted by another mode, or somebody has asked for it.
    assert taken_over(stored(0), unknown(2), keeps=False) == {}


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 1), st.booleans(), st.integers(0, 2_000)), max_size=20),
    st.integers(1, 30),
)
def test_all_but_one_of_a_name_is_cancelled_or_no_more(
    given_rows: list[tuple[str, int, bool, int]], at_once: int
) -> None:
    # In the order of the offsets, which is also the order in which batches have stored the rows.
    rows = [
        left(at, due, name, partition) if is_left else stored(at, due, 1 + at // 4, name, partition)
        for at, (name, partition, is_left, due) in enumerate(given_rows)
    ]
    names, gone = settle(*rows, at_once=at_once)
    lost = {offset for _, offset, _ in gone}
    waiting = {row[3]: row for row in rows if row[-1] or row[4] >= CUTOFF_MS}
    assert lost <= waiting.keys()
    for name, several in groupby(sorted(rows), key=lambda row: row[0]):
        own = list(several)
        kept = [row for row in own if row[3] in waiting.keys() - lost]
        newest = _newest(own)
        assert kept in ([newest], [])
        assert (kept == []) == (newest[3] not in waiting)
        assert (name.decode() in names) == newest[-1]


def _newest(rows: Iterable[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Return the newest row: among the rows with the last offset of each partition, the row of the last bucket."""
    last = {partition: list(own)[-1] for partition, own in groupby(sorted(rows), key=lambda row: row[2])}
    return max(last.values(), key=lambda row: (row[7], row[2], row[3]))
