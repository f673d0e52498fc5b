"""The output and the report of `delayline repair` about the corruption that it found."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from pyroaring import BitMap64
from typer.testing import CliRunner, Result

from state.buckets.parts import IdRows, chunks_of, metadata_of
from state.buckets.segments import Segment
from streaming.cli.app import app
from streaming.operations import repair as repairs
from streaming.operations.corruption import CorruptFile, Corruption, CorruptSegment
from streaming.operations.repair import Lost, Repair, as_json, ranges

SEGMENT = Segment(7, 1, 2, "p", 60_000, 90_000, 10, 1_000)
CORRUPTION = Corruption(
    [CorruptFile("part=p/part-0.parquet", "p", 3, 1)],
    [CorruptSegment((7, 1, 2), "p", SEGMENT, 4), CorruptSegment((8, 0, 0), "p", None, 5)],
)
LOST = [Lost("in", 0, BitMap64([1, 2, 3, 7]), BitMap64([3, 7])), Lost("in", 1, BitMap64([9, 10]), BitMap64())]


def run(monkeypatch: pytest.MonkeyPatch, outcome: Repair, *arguments: str) -> Result:
    monkeypatch.setattr(repairs, "repair", lambda settings, skip, report: outcome)
    return CliRunner().invoke(app, ["repair", *arguments])


def test_corruption_is_listed_and_kept_with_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, Repair("/t", 5, CORRUPTION, LOST, taken_out=False))
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "/t/part=p/part-0.parquet: 1 of 3 rows are readable",
        "bucket 7, shard 1, segment 2, due from 1970-01-01T00:01:00.000Z to 1970-01-01T00:01:30.000Z: 4 of 10 messages "
        "are readable",
        "bucket 8, shard 0, segment 0: its metadata is lost; --skip rebuilds it from the 5 readable messages",
        "6 waiting messages are lost; `delayline rebuild` can accept 2 of them again from the input topics",
    ]


def test_lost_ids_are_listed_with_what_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [kind.partition(number) for kind, number in (*((kind, 3) for kind in IdRows), (IdRows.CANCELLED, 4))]
    files = [CorruptFile(f"part={part}/0.parquet", part, 4, 1) for part in parts]
    outcome = Repair("/t", 5, Corruption(files, []), [], taken_out=True)
    assert run(monkeypatch, outcome, "--skip").stdout.splitlines()[4:7] == [
        "6 rows of cancelled ids are lost; messages that were cancelled, or delivered now, are delivered when they are "
        "due. Cancel them again",
        "3 rows of names are lost; a new message does not replace the one that waits under such a name",
        "3 rows of due times are lost; a rebuild takes these messages to be due as their records say",
    ]
    assert as_json(outcome)["lost_rows_of_ids"] == {"cancelled": 6, "named": 3, "retimed": 3}


def test_after_a_removal_the_report_and_the_next_command_are_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, Repair("/t", 5, CORRUPTION, LOST, taken_out=True), "--skip", "--report", "r.json")
    assert result.exit_code == 0
    assert "the ids are in r.json" in result.stdout
    assert "delayline rebuild --discard-checkpoint" in result.stdout
    assert "to accept these messages again" in result.stdout
    without_rebuild = run(monkeypatch, Repair("/t", 5, CORRUPTION, LOST[1:], taken_out=True), "--skip")
    assert "rebuild --discard-checkpoint" not in without_rebuild.stdout
    assert "messages that repeat" not in without_rebuild.stdout


def test_a_rebuild_is_the_next_command_also_if_it_brings_back_schedules_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    repeating = Corruption([], [CorruptSegment((7, 1, 2), "p", replace(SEGMENT, repeats=10), 4)])
    both_files = [CorruptFile(f"part={name('p')}/0.parquet", name("p"), 3, 0) for name in (chunks_of, metadata_of)]
    for corruption in (Corruption(both_files, []), repeating):
        result = run(monkeypatch, Repair("/t", 5, corruption, LOST[1:], taken_out=True), "--skip")
        assert "messages that repeat may be among the lost ones" in result.stdout
        assert result.stdout.endswith("run `delayline rebuild --discard-checkpoint` to continue the schedules\n")


def test_an_interrupted_command_is_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = Repair("/t", 5, CORRUPTION, LOST, taken_out=True, interrupted="rescale")
    result = run(monkeypatch, outcome, "--skip")
    assert "run `delayline rescale`: a switch to a new checkpoint was interrupted" in result.stdout
    assert "rebuild --discard-checkpoint" not in result.stdout


def test_a_table_without_corruption_gives_exit_code_0(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, Repair("/t", 5, Corruption([], []), [], taken_out=False))
    assert (result.exit_code, result.stdout) == (0, "all of /t is readable\n")


def test_the_report_has_the_ids_as_ranges() -> None:
    written = json.loads(json.dumps(as_json(Repair("/t", 5, CORRUPTION, LOST, taken_out=True))))
    assert [(one["messages"], one["offsets"], one["accepted_again_by_rebuild"]) for one in written["lost"]] == [
        (4, [[1, 3], [7, 7]], [[3, 3], [7, 7]]),
        (2, [[9, 10]], []),
    ]
    assert [(one["messages"], one["readable"]) for one in written["segments"]] == [(10, 4), (None, 5)]
    assert written["files"][0]["path"] == "part=p/part-0.parquet"


@pytest.mark.parametrize(
    ("offsets", "expected"), [([], []), ([5], [[5, 5]]), ([0, 1, 2], [[0, 2]]), ([1, 3, 4], [[1, 1], [3, 4]])]
)
def test_consecutive_offsets_are_one_range(offsets: list[int], expected: list[list[int]]) -> None:
    assert ranges(BitMap64(offsets)) == expected


def test_an_existing_report_is_not_overwritten(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    report.write_text("of an earlier repair")
    assert "Name a new file" in _refusal(tmp_path, report)
    assert report.read_text() == "of an earlier repair"


@pytest.mark.parametrize("name", ["no/such/dir/r.json", "report.json/r.json"])
def test_a_report_in_a_folder_that_does_not_exist_is_refused_before_anything_is_read(tmp_path: Path, name: str) -> None:
    (tmp_path / "report.json").touch()
    assert "is missing or not writable" in _refusal(tmp_path, tmp_path / name)


def _refusal(tmp_path: Path, report: Path) -> str:
    storage = f"storage.path={tmp_path}/storage"
    refused = CliRunner().invoke(app, ["repair", "--skip", "--report", str(report), "--set", storage])
    assert (refused.exit_code, (tmp_path / "storage").exists()) == (2, False)
    assert refused.stderr.startswith("error: bad-usage: ")
    return refused.stderr
