"""A checkpoint with a file that is missing, damaged or of another version: the error names the file and the remedy."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from conf.errors import ApplicationHeld, CheckpointUnreadable, CheckpointVersion
from conf.settings import Settings
from state.checkpoint.batch_settings import NONE_REFUSED, Refusal, SettingsHistory
from state.checkpoint.file_format import FORMAT, with_format
from state.checkpoint.origin import CheckpointOrigin
from streaming.checkpoint.checkpoint import Checkpoint
from streaming.storage.failures import translate_storage_errors
from streaming.storage.folder import Folder
from tests.messages import some_batch_settings

ORIGIN = CheckpointOrigin("c", 1, 2, cutoff_ms=5)
HISTORY = SettingsHistory(((0, some_batch_settings()),))
BATCH_METADATA = {"batchTimestampMs": 20, "batchWatermarkMs": 10}


@pytest.fixture
def checkpoint(spark: SparkSession, tmp_path: Path) -> Checkpoint:
    """A checkpoint with a newest batch, 4, that is planned and not committed."""
    new_checkpoint = Checkpoint(spark, str(tmp_path))
    new_checkpoint.initialize(ORIGIN)
    new_checkpoint.write_settings_history(HISTORY)
    for log, newest in (("offsets", 4), ("commits", 3)):
        (tmp_path / log).mkdir()
        for number in range(newest + 1):
            metadata = BATCH_METADATA if log == "offsets" else {"nextBatchWatermarkMs": 10}
            offsets = '\n{"in":{"0":7}}\n{"offset":3}' if log == "offsets" else ""
            (tmp_path / log / str(number)).write_text(f"v1\n{json.dumps(metadata)}{offsets}")
    return new_checkpoint


def read_all(spark: SparkSession, path: Path) -> None:
    """Read everything that a start reads."""
    checkpoint = Checkpoint(spark, str(path))
    checkpoint.check_logs()
    assert (checkpoint.origin, checkpoint.settings_history()) == (ORIGIN, HISTORY)


def overwrite(file: Path, text: str) -> None:
    file.write_text(text)
    # Delete Hadoop's checksum file. An object store has no such file.
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)


def test_a_whole_checkpoint_is_read(spark: SparkSession, checkpoint: Checkpoint, tmp_path: Path) -> None:
    read_all(spark, tmp_path)
    assert (checkpoint.planned(4).cutoff_ms, checkpoint.planned(4).offsets) == (10, {"in": {"0": 7}})
    assert json.loads((tmp_path / "delayline-origin.json").read_text())["format"] == FORMAT


def test_the_next_cutoff_is_raised_and_never_lowered(
    spark: SparkSession, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    for cutoff_ms, recorded_ms in ((9, 10), (40, 40), (30, 40)):
        checkpoint.raise_next_cutoff(3, cutoff_ms)
        assert (tmp_path / "commits/3").read_text() == f"v1\n{json.dumps({'nextBatchWatermarkMs': recorded_ms})}"
    # The written file is whole, with its checksum.
    read_all(spark, tmp_path)
    overwrite(tmp_path / "commits/3", "v1")
    with pytest.raises(CheckpointUnreadable, match="commits/3 is damaged"):
        checkpoint.raise_next_cutoff(3, 50)


@pytest.mark.parametrize("text", ["", "\0" * 64, "v1", 'v1\n{"batchTimestamp', "v1\n{}", "v1\n[]"])
@pytest.mark.parametrize("name", ["offsets/4", "offsets/3", "commits/3"])
def test_a_damaged_log_entry_is_named(
    spark: SparkSession, checkpoint: Checkpoint, tmp_path: Path, name: str, text: str
) -> None:
    overwrite(tmp_path / name, text)
    with pytest.raises(CheckpointUnreadable, match=rf"{name} is damaged.*delayline rebuild --discard-checkpoint"):
        read_all(spark, tmp_path)


def test_a_missing_offset_log_entry_is_named(spark: SparkSession, checkpoint: Checkpoint, tmp_path: Path) -> None:
    (tmp_path / "offsets/3").unlink()
    with pytest.raises(CheckpointUnreadable, match=r"offsets/3 is missing.*delayline rebuild"):
        read_all(spark, tmp_path)


@pytest.mark.parametrize("name", ["delayline-origin.json", "delayline-settings.json"])
def test_a_damaged_file_of_delayline_is_named(
    spark: SparkSession, checkpoint: Checkpoint, tmp_path: Path, name: str
) -> None:
    for text in ("", with_format('{"settings": 3}'), with_format("{}")):
        overwrite(tmp_path / name, text)
        # On one line: pydantic's own text would have several.
        with pytest.raises(CheckpointUnreadable, match=rf"{name} is damaged.*delayline rebuild"):
            read_all(spark, tmp_path)


def test_what_a_batch_refuses_is_read_for_that_batch_alone(spark: SparkSession, tmp_path: Path) -> None:
    checkpoint = Checkpoint(spark, str(tmp_path / "checkpoint"))
    refused = Refusal({"in": {"0": 5, "1": 0}}, 900)
    assert checkpoint.refused(4) == NONE_REFUSED
    checkpoint.write_refused(3, Refusal({"in": {"0": 2}}, 800))
    checkpoint.write_refused(4, refused)
    assert [checkpoint.refused(batch_id) for batch_id in (3, 4, 5)] == [NONE_REFUSED, refused, NONE_REFUSED]
    overwrite(tmp_path / "checkpoint/delayline-refused.json", with_format('{"batch": 4}'))
    with pytest.raises(CheckpointUnreadable, match=r"delayline-refused.json is damaged.*delayline rebuild"):
        checkpoint.refused(4)


def test_a_batch_that_is_planned_again_refuses_nothing_that_it_refused_before(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    checkpoint.write_refused(4, Refusal({"in": {"0": 5}}, 900))
    checkpoint.forget_planned(4)
    assert not (tmp_path / "offsets/4").exists()
    assert checkpoint.refused(4) == NONE_REFUSED


def test_a_process_that_may_not_write_changes_no_file(
    spark: SparkSession, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    def refuse() -> None:
        raise ApplicationHeld("another process holds the lease")

    checkpoint.write_refused(4, Refusal({"in": {"0": 5}}, 900))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    late = Checkpoint(spark, str(tmp_path), refuse)
    writes: list[Callable[[], None]] = [
        lambda: late.initialize(CheckpointOrigin("d", 1, 2)),
        late.retire,
        lambda: late.forget_planned(4),
        lambda: late.raise_next_cutoff(3, 40),
        lambda: late.write_read_offsets({"in": {"0": 6}}),
        lambda: late.write_planned_offsets(4, {"in": {"0": 8}}),
        lambda: late.write_settings_history(SettingsHistory(())),
        lambda: late.write_refused(4, NONE_REFUSED),
    ]
    for write in writes:
        with pytest.raises(ApplicationHeld):
            write()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("name", ["delayline-settings.json", "commits/3"])
def test_a_file_can_be_read_after_a_kill_while_it_was_replaced(
    spark: SparkSession, checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = Folder(spark, str(tmp_path))
    before = folder.read(name)
    folder.write(name, f"{before} ")
    managers = folder._file_manager

    class Killed:
        """Writes files, and dies when it has renamed one, and not its checksum."""

        def create(self, *arguments: object) -> Killed:
            self.manager = managers.create(*arguments)
            return self

        def mkdirs(self, path: object) -> None:
            self.manager.mkdirs(path)

        def createAtomic(self, *arguments: object) -> Killed:
            return self

        def write(self, text: bytearray) -> None:
            self.text = bytes(text)

        def close(self) -> None:
            (tmp_path / name).write_bytes(self.text)

    monkeypatch.setattr(folder, "_file_manager", Killed())
    folder.write(name, f"{before}  ")
    assert folder.read(name) == f"{before}  "


def test_a_file_that_does_not_fit_its_checksum_is_named(spark: SparkSession, tmp_path: Path) -> None:
    checkpoint = Checkpoint(spark, str(tmp_path / "checkpoint-2"))
    checkpoint.initialize(ORIGIN)
    file = tmp_path / "checkpoint-2" / "delayline-origin.json"
    file.write_text(file.read_text() + " ")
    with (
        pytest.raises(CheckpointUnreadable, match=rf"^checkpoint-unreadable: {file} is damaged.*delayline rebuild"),
        translate_storage_errors(Settings()),
    ):
        Checkpoint(spark, checkpoint.path).origin  # noqa: B018


def test_a_missing_history_is_named_if_there_are_batches(
    spark: SparkSession, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    (tmp_path / "delayline-settings.json").unlink()
    with pytest.raises(CheckpointUnreadable, match=r"but delayline-settings.json is missing.*delayline rebuild"):
        read_all(spark, tmp_path)
    for file in (tmp_path / "offsets").iterdir():
        file.unlink()
    assert checkpoint.settings_history() == SettingsHistory(())


def test_a_missing_origin_is_named(spark: SparkSession, checkpoint: Checkpoint, tmp_path: Path) -> None:
    (tmp_path / "delayline-origin.json").unlink()
    with pytest.raises(CheckpointUnreadable, match=r"delayline-origin.json is missing.*delayline rebuild"):
        read_all(spark, tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "mismatch"),
    [
        ("delayline-origin.json", '{"format": 1, "id": "c"}', "has format 1, but this Delayline reads format 2"),
        ("delayline-settings.json", '{"format": 1, "book": []}', "has format 1, but this Delayline reads format 2"),
        ("offsets/4", "v2\n{}", "has version v2, but the Spark of this Delayline reads v1"),
        ("commits/3", "v9\n{}", "has version v9, but the Spark of this Delayline reads v1"),
    ],
)
def test_another_version_is_not_reported_as_damage(
    spark: SparkSession, checkpoint: Checkpoint, tmp_path: Path, name: str, text: str, mismatch: str
) -> None:
    overwrite(tmp_path / name, text)
    with pytest.raises(CheckpointVersion, match=rf"{name} {mismatch}.*delayline rebuild"):
        read_all(spark, tmp_path)
