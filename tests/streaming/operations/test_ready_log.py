"""The messages that a repair of the ready log counts as released, and as lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from conf.errors import BrokerUnreachable
from conf.settings import Settings
from sinks.internal_topics.position import Log, Place, Position, Skipped
from streaming.cli.app import app
from streaming.operations import ready_log
from streaming.operations.ready_log import RepairedShard, released_and_lost, skipped_ranges


@pytest.mark.parametrize(
    ("staged", "counted", "expected"),
    [
        (10, 6, (7, 2)),
        (10, 8, (5, 0)),
        # A progress topic that was lost counts again from zero. The count of released messages never goes back.
        (0, 0, (5, None)),
        (1, 3, (5, None)),
    ],
)
def test_what_is_neither_in_the_logs_nor_released_is_lost(
    staged: int, counted: int, expected: tuple[int, int | None]
) -> None:
    assert released_and_lost(staged, Position(released=5, forwarded=3), counted) == expected


def test_records_that_cannot_be_read_are_skipped_as_ranges_without_any_that_can() -> None:
    # The offsets in between are ends of transactions, or records that hold no messages.
    damaged = [Place(Log.READY, offset) for offset in (3, 5, 9)] + [Place(Log.NEAR, 4)]
    readable = [Place(Log.READY, offset) for offset in (1, 7, 11)] + [Place(Log.NEAR, 8)]
    assert [*skipped_ranges(damaged, readable)] == [
        Skipped(Log.NEAR, 4, 5), Skipped(Log.READY, 3, 6), Skipped(Log.READY, 9, 10)
    ]  # fmt: skip


def test_the_position_after_a_large_damage_is_small() -> None:
    damaged = [Place(log, offset) for log in Log for offset in range(0, 100_000, 2)]
    position = Position(skipped=tuple(skipped_ranges(damaged, [Place(Log.READY, 30_001)])))
    assert all(map(position.skips, damaged))
    assert not position.skips(Place(Log.READY, 30_001))
    assert len(position.to_bytes()) < 1_000


def test_a_loss_that_nobody_has_counted_is_not_printed_as_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    repaired = [
        RepairedShard(0, "the log ends", 2, 1, had_position=True),
        RepairedShard(1, "the log ends", None, 4, had_position=True),
        RepairedShard(2, "the log begins", None, 5, had_position=False),
        RepairedShard(3, "another log", 6, 7, had_position=True, refilled=("near", "ready")),
    ]
    monkeypatch.setattr(ready_log, "repair_ready_log", lambda settings: repaired)
    lines = CliRunner().invoke(app, ["repair", "--ready-log"]).stdout.splitlines()
    assert lines[1:8:2] == [
        "shard 0: 2 messages are lost; 1 are left and will be released",
        "shard 1: an unknown number of messages is lost, since the progress topic was lost too; 4 are left and will be "
        "released",
        "shard 2: whether messages are lost is unknown, since the shard had no position; 5 are left and will be "
        "released, some perhaps a second time",
        "shard 3: 6 messages are lost; 7 are left and will be released",
    ]
    assert lines[8:] == [
        f"shard 3: {topic} is another topic than before. If it was filled from a copy, messages that were delivered "
        "before come a second time"
        for topic in ("near", "ready")
    ]


def test_a_repair_that_is_cut_off_has_printed_the_losses_of_the_shards_before(monkeypatch: pytest.MonkeyPatch) -> None:
    def repaired(settings: Settings) -> Iterator[RepairedShard]:
        yield RepairedShard(0, "the log ends", 2, 1, had_position=True)
        raise BrokerUnreachable("no broker answers")

    monkeypatch.setattr(ready_log, "repair_ready_log", repaired)
    result = CliRunner().invoke(app, ["repair", "--ready-log"])
    assert (result.exit_code, "error: broker-unreachable: " in result.stderr) == (1, True)
    assert result.stdout.splitlines() == [
        "shard 0: the log ends",
        "shard 0: 2 messages are lost; 1 are left and will be released",
    ]
