"""When deliveries go on after a kill."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from benchmarks.job import Application
from benchmarks.outage import Kill, partitions_of, stopped
from benchmarks.receiver import COLUMNS, Received

KILL = Kill(done_s=100.0, from_s=99.5)


def received(*rows: tuple[int, float, float]) -> Received:
    """Records with (output partition, due s, received s)."""
    columns = {name: np.zeros(len(rows), np.int64) for name in COLUMNS}
    partitions, dues_s, received_s = np.array(rows).T
    columns["partition"] = partitions.astype(np.int64)
    columns |= {"due_us": (dues_s * 1e6).astype(np.int64), "received_us": (received_s * 1e6).astype(np.int64)}
    return Received(columns)


def test_deliveries_go_on_with_the_first_message_due_after_the_kill_in_each_partition() -> None:
    # Messages due before the kill may arrive after it, and do not count.
    records = received((0, 99.9, 100.1), (0, 100.2, 101.0), (0, 100.3, 101.1), (1, 99.0, 100.2), (1, 100.1, 103.5))
    assert stopped(records, KILL) == {"next_delivery_s": 1.5, "all_partitions_s": 4.0}
    assert stopped(records, KILL, [0]) == {"next_delivery_s": 1.5, "all_partitions_s": 1.5}


@pytest.mark.parametrize("partitions", [[0, 1], [1], []])
def test_without_a_delivery_in_each_partition_there_is_no_figure(partitions: list[int]) -> None:
    assert stopped(received((0, 100.2, 101.0), (1, 99.0, 101.0)), KILL, partitions) == {}


def test_each_partition_belongs_to_one_shard(tmp_path) -> None:  # type: ignore[no-untyped-def]
    application = Application("x", tmp_path, ["application_id=x", "topics.output=x-out"])
    first = (zlib.crc32(b"x-out") % 2) != 0
    assert partitions_of(application, {0}) == [int(first)]
    assert partitions_of(application, {1}) == [int(not first)]
    assert partitions_of(application, {0, 1}) == [0, 1]
