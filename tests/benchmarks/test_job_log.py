"""The figures that are read from the job's log."""

from __future__ import annotations

from datetime import UTC, datetime

from benchmarks.job import BatchLine, batch_lines_in

INFO = "2026-11-22T14:25:{}Z INFO streaming.job.{}\n"
LOG = "running\n" + "".join(
    INFO.format(at, line)
    for at, line in (
        (
            "17.123",
            "batch: batch 3: staged messages due before 1970…Z (1700), sealed 5 messages in 2 segments, took 0.42 s",
        ),
        (
            "18.000",
            "piece: loaded 7 sealed messages due from 1970…Z (1) to 1970…Z (2)",
        ),
        (
            "19.500",
            "batch: batch 4: staged messages due before 1970…Z (1800), sealed 0 messages in 0 segments, took 1.00 s",
        ),
    )
)


def test_a_batch_is_done_when_its_line_was_logged() -> None:
    at_s = datetime(2026, 11, 22, 14, 25, 17, 123_000, UTC).timestamp()
    assert batch_lines_in(LOG) == {
        3: BatchLine(at_s, 1700, 5, 2, 0.42),
        4: BatchLine(datetime(2026, 11, 22, 14, 25, 19, 500_000, UTC).timestamp(), 1800, 0, 0, 1.0),
    }
