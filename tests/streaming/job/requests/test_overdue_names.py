"""Names of messages that an outage, or an earlier checkpoint, has left overdue."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pytest

from state.checkpoint.progress import BatchSpan
from state.message_ids import NO_IDS, Ids
from state.names import NAMED_SCHEMA
from streaming.job.requests.names import LookedUp, look_up
from streaming.job.requests.stored_ids import StoredIds
from tests.messages import cancelled
from tests.streaming.job.requests.desk_bench import (
    CLOCK_MS,
    PREVIOUS_MS,
    READ,
    TOPIC,
    each_of,
    hash_of,
    name_of,
    seal,
    span,
)
from tests.streaming.job.requests.memory_table import MemoryTable
from tests.streaming.job.requests.named_requests import (
    FAR_MS,
    Given,
    asked_in,
    decide,
    holders,
    name,
    place,
    requests_for,
)

pytestmark = pytest.mark.usefixtures("known_from", "markers", "recalled")

# A clock that is behind the due times of messages that an outage has kept.
AFTER_OUTAGE_MS = 50_000


@pytest.fixture
def store(memory_table: MemoryTable) -> MemoryTable:
    """An empty table of sealed buckets."""
    return memory_table


class Rows(StoredIds):
    """Stored rows of names: offset, due time, and until when each is of use, by name."""

    def __init__(self, **given: tuple[int, int, int]) -> None:
        self._given = {hash_of(name): row for name, row in given.items()}

    def moved_among(self, ids: Ids) -> Ids:
        """Return none: no request has made any of them due at once."""
        return NO_IDS

    def named_among(self, names: Iterable[bytes], from_ms: int) -> pa.Table:
        found = {name: self._given[name] for name in names if name in self._given and self._given[name][2] >= from_ms}
        rows = [(name, *place(offset), due, until, False) for name, (offset, due, until) in found.items()]
        return pa.Table.from_pylist(
            [dict(zip(NAMED_SCHEMA.names, row, strict=True)) for row in rows], schema=NAMED_SCHEMA
        )

    def keeping_among(self, ids: Ids) -> pa.Table:
        return NAMED_SCHEMA.empty_table()


def found(
    rows: Rows,
    *given: Given,
    of: BatchSpan | None = None,
    clock_ms: int = AFTER_OUTAGE_MS,
    left: Iterable[int] = (),
) -> LookedUp:
    """Look names up at a clock that is behind the cutoffs, of which an outage has kept the batches."""
    still = cancelled((*place(offset), 0, 0) for offset in left)
    return look_up(requests_for(*given), NO_IDS, rows, of or span(), clock_ms, lambda _: still)


def names_in(names: LookedUp) -> dict[str, int]:
    rows = zip(names.names.column("name").to_pylist(), names.names.column("offset").to_pylist(), strict=True)
    return {name_of(name): offset for name, offset in rows}


def test_after_an_outage_what_is_overdue_and_waits_has_its_name() -> None:
    due_ms = PREVIOUS_MS + 5_000
    rows = Rows(a=(1, due_ms, due_ms), b=(2, due_ms, due_ms), c=(3, PREVIOUS_MS - 1, FAR_MS))
    names = found(rows, (50, "a", FAR_MS), (51, "b", None), (52, "c", None))
    assert asked_in(names) == {50: 1, 51: 2, 52: -1}, "the last one is staged, and due"
    assert sorted(names.earlier.column("offset").to_pylist()) == [1, 2, 3]


def test_the_name_of_what_is_accepted_overdue_is_stored_unless_the_batch_hands_it_over() -> None:
    cutoff_ms = span().cutoff_ms
    names = found(Rows(), (50, "a", cutoff_ms), (51, "b", cutoff_ms - 1), (52, "c", FAR_MS))
    assert names_in(names) == {"a": 50, "c": 52}
    rows = Rows(b=(1, PREVIOUS_MS, cutoff_ms))
    assert names_in(found(rows, (51, "b", cutoff_ms - 1))) == {"b": 51}, "or it hides an older one"
    # While the job keeps up, its clock is before its cutoff.
    names = found(Rows(), (50, "a", CLOCK_MS), (51, "b", CLOCK_MS - 1), clock_ms=CLOCK_MS)
    assert names_in(names) == {"a": 50}


def test_the_first_batch_finds_by_name_what_an_earlier_checkpoint_has_left_overdue() -> None:
    rows = Rows(a=(1, 600, 600), b=(2, 700, 700))
    first = span(0, 0, first_bucket=8, cutoff_ms=2_000)
    given: list[Given] = [(50, "a", FAR_MS), (51, "b", FAR_MS)]
    assert asked_in(found(rows, *given, of=first, left=[2])) == {50: -1, 51: 2}
    assert asked_in(found(rows, *given, left=[2])) == {50: -1, 51: -1}, "no later batch"


def test_what_an_outage_has_kept_is_cancelled_by_the_next_of_its_name(store: MemoryTable) -> None:
    seal(store, 3, _1=5_000, _2=6_000)
    name(store, 4, a=(1, 5_000), b=(2, 6_000))
    given: list[Given] = [(50, "a", FAR_MS), (51, "b", None), (52, "c", 7_000)]
    answers, decision = decide(store, *given, clock_ms=AFTER_OUTAGE_MS)
    assert answers == {51: {"id": "delayline-in/0/2", "result": "cancelled", "reason": "withdrawn"}}
    assert {each.id for each in each_of(decision.cancelled)} == {place(1), place(2)}
    assert holders(decision) == {"a": 50, "c": 52}


def test_the_first_batch_cancels_by_name_what_a_rebuild_has_left_overdue(store: MemoryTable) -> None:
    seal(store, 6, _1=500, _2=600)
    name(store, 7, a=(1, 500), b=(2, 600), c=(3, 600))
    seal(store, 8, _3=600)
    first = span(0, 0, first_bucket=9, cutoff_ms=2_000, offsets={TOPIC: {"0": READ}})
    given: list[Given] = [(50, "a", FAR_MS), (51, "b", FAR_MS), (52, "c", FAR_MS)]
    answers, decision = decide(store, *given, of=first, clock_ms=AFTER_OUTAGE_MS)
    assert answers == {}, "what is staged is asked for no more"
    assert {each.id for each in each_of(decision.cancelled)} == {place(3)}
