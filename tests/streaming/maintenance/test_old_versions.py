"""Reading the table as it was, at a version that has been the newest one for long."""

from __future__ import annotations

from tests.streaming.maintenance.clocked_table import HOUR_MS, Table, seal
from tests.streaming.sealed import waiting_offsets


def test_a_version_that_was_the_newest_for_hours_is_read_although_another_commit_follows(table: Table) -> None:
    seal(table, 1, [1, 2, 3])
    version = table.store.version()
    table.advance(2 * HOUR_MS)
    seal(table, 2, [4])
    before, now = (table.store.all_rows(each).count() for each in (version, table.store.version()))
    assert 0 < before < now
    assert table.store.cancelled_chunks(0, 10, 0, 2, version) is None
    assert len(waiting_offsets(table.store)) == 4
