"""The output of `delayline top`, and how it fits into a terminal."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sinks.group.members import Member
from streaming.status.broker import BrokerAnswer
from streaming.status.sample import Sample, sample_of
from streaming.status.screen import bar, problem_lines, screen_lines, sparkline
from streaming.status.status import Status
from tests.streaming.status.sample_status import NOW_MS, status_of

PROBLEMS = [
    {"at_ms": NOW_MS - number, "process": "pod-7", "level": "WARNING", "message": f"problem {number}\n\x1b[2J"}
    for number in range(30)
]


def samples_of(status: Status) -> list[Sample]:
    newest = sample_of(status)
    before = [
        replace(newest, at_ms=NOW_MS - 2_000 * ago, read=100 - 4 * ago, waiting=newest.waiting - ago) for ago in (2, 1)
    ]
    return [*before, newest]


def test_it_has_what_the_page_has_within_the_terminal() -> None:
    status = status_of()
    lines = screen_lines(status, samples_of(status), PROBLEMS, 100, 38)
    assert len(lines) == 38
    assert max(map(len, lines)) <= 100
    text = "\n".join(lines)
    for part in (
        "waiting            1,222 messages; 2 ready, 20 mutable, 1,200 sealed in 17 buckets, 20 segments",
        "next due           in 5 s; 2027-01-15 08:00:05 UTC",
        "lateness           p99 10 ms; largest 900 ms, of the latest shard in the last minute",
        "last batch         began 2.1 s ago; number 7",
        "merges             1 running; 3 finished since the start, the last 1 min ago: 16 buckets in 1.5 s",
        "input lag          3 records",
        "lease              process 2155 on node-1; delayline run, since 2027-01-15 08:00:00 UTC",
        "release processes  1; pod-7 on node-2",
        "forwarders         2; pod-8 on node-2, pod-9 on node-3; 1,502 undecided records",
        "the last 4 s",
        "  < 1h          40  ██████████████████",
        " < 30d          20  █████████ ",
        "< 366d           1  ▌",
        "lateness p99     10 ms ███",
        "read/s               2 ██",
        "merging              1 ███",
        "     1        1        10         100      in 5 s     2 s   1,234   5 ms  10 ms  900 ms  pod-7",
        "WARNING  pod-7  problem 0 \N{REPLACEMENT CHARACTER}[2J",
    ):
        assert part in text, text
    assert "\x1b" not in text


def test_the_latest_shards_come_first_where_there_is_no_room_for_all() -> None:
    lines = screen_lines(status_of(64), [], PROBLEMS, 100, 38)
    assert len(lines) == 38
    head = next(number for number, line in enumerate(lines) if line.lstrip().startswith("shard"))
    assert [line.split()[0] for line in lines[head + 1 : head + 4]] == ["63", "62", "61"]
    assert "problems" in lines
    assert sum("less lateness" in line for line in lines) == 1


def test_all_shards_are_shown_where_the_output_is_no_terminal_and_nothing_is_known_of_the_broker() -> None:
    status = replace(status_of(64), broker=BrokerAnswer(None, problem="away"), merges=None)
    lines = screen_lines(status, [sample_of(status)], [], 100, None)
    assert sum(line.endswith("      in 5 s       -") for line in lines) == 64
    assert "input lag          unknown; away" in lines
    assert lines[-2:] == ["problems", "none"]


def test_a_terminal_obeys_nothing_of_what_processes_say_and_any_instant_is_shown() -> None:
    problem = dict.fromkeys(("process", "level", "message"), "\x1b[2J") | {"at_ms": 10**20}
    shown = problem_lines([problem], None)
    member = Member("\x1b[2J", "\x9b2J", [0], False)
    status = status_of()
    status = replace(
        status,
        next_due_ms=10**20,
        broker=replace(status.broker, members=[member], ready=[replace(status.broker.ready[0], member="\x1b[2J")]),  # type: ignore[index]
    )
    shown += screen_lines(status, [], [], 100, None)
    assert f"{10**20} ms" in shown[2]
    assert all(line.isprintable() for line in shown)


@pytest.mark.parametrize(
    ("share", "drawn"), [(0, ""), (0.001, "▏"), (0.5, "██"), (0.53, "██▏"), (1, "████"), (2, "████")]
)
def test_a_bar_has_eighths_and_shows_the_least(share: float, drawn: str) -> None:
    assert bar(share, 4) == drawn


@pytest.mark.parametrize(
    ("values", "drawn"),
    [
        ([], ""),
        ([0, 0], "▁▁"),
        ([0, None, 7], "▁ █"),
        # If there are more values than characters, the newest group is whole.
        ([7, 1, 2, 3, 4, 14], "▅▃█"),
        ([7, 1, 2, 3, 4], "█▃▅"),
    ],
)
def test_a_line_stands_for_the_largest_values(values: list[float | None], drawn: str) -> None:
    assert sparkline(values, 3) == drawn
