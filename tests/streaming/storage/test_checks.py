"""A storage path that cannot be written is refused before a broker is contacted or Spark started. No file is left."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from conf.errors import CheckpointUnreadable, StorageFailed
from conf.load import load_settings
from conf.settings import Settings
from state.checkpoint.pointer import pointer_to
from streaming.cli.app import app
from streaming.storage.checks import check_storage
from tests.small_disk import SmallDisk


def settings_for(path: object) -> Settings:
    return load_settings(None, [f"storage.path={path}"], environ={})


@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}"])
def test_a_path_that_can_be_created_passes_and_is_not_created(tmp_path: Path, form: str) -> None:
    check_storage(settings_for(form.format(tmp_path / "not" / "there")))
    assert list(tmp_path.iterdir()) == []


def test_another_file_system_is_left_to_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streaming.storage.checks._check", lambda _: pytest.fail("a local folder is checked"))
    check_storage(settings_for("s3a://bucket/delayline"))


def test_existing_folders_are_checked_too(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_text("no folder")
    with pytest.raises(StorageFailed, match=rf"{tmp_path}/checkpoint is not writable: Not a directory"):
        check_storage(settings_for(tmp_path))


def test_the_folder_that_the_pointer_names_is_checked(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "10").write_text(pointer_to("checkpoint-10"))
    (tmp_path / "checkpoints" / "9").write_text(pointer_to("checkpoint-9"))
    check_storage(settings_for(tmp_path))
    (tmp_path / "checkpoint-10").write_text("no folder")
    with pytest.raises(StorageFailed, match=rf"{tmp_path}/checkpoint-10 is not writable: Not a directory"):
        check_storage(settings_for(tmp_path))


def test_a_folder_that_cannot_be_looked_at_is_named(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "2").write_text(pointer_to("c" * 300))
    with pytest.raises(StorageFailed, match=rf"{tmp_path}/ccc.* cannot be read: File name too long"):
        check_storage(settings_for(tmp_path))


@pytest.mark.parametrize(
    "text", ["", "\0\0", "\xff", "[]", "{}", '{"folder": 3}', '{"folder": ""}', '{"folder": "../other"}']
)
def test_a_damaged_pointer_is_named_with_what_to_write_there(tmp_path: Path, text: str) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "2").write_bytes(text.encode("latin-1"))
    with pytest.raises(
        CheckpointUnreadable, match=rf'{tmp_path}/checkpoints/2 is damaged.*{{"folder": "checkpoint-2"}}'
    ):
        check_storage(settings_for(tmp_path))


@pytest.mark.parametrize("command", [["run"], ["rescale", "--shards", "3"], ["rebuild"], ["repair"]])
def test_each_command_that_writes_refuses_a_path_below_a_file(tmp_path: Path, command: list[str]) -> None:
    file = tmp_path / "file"
    file.write_text("")
    # The storage is checked before the broker, which does not run here.
    sets = [f"storage.path={file}/storage", "kafka.bootstrap_servers=127.0.0.1:1"]
    refused = CliRunner().invoke(app, [*command, *(part for one in sets for part in ("--set", one))])
    assert refused.exit_code == 1
    assert refused.stderr.startswith(f"error: storage-failed: {file}/storage (only {file} exists) is not writable")
    assert "Not a directory" in refused.stderr


def test_a_full_or_a_read_only_disk_is_refused(small_disk: SmallDisk) -> None:
    check_storage(settings_for(small_disk.path))
    small_disk.fill()
    with pytest.raises(StorageFailed, match=rf"{small_disk.path} is not writable: No space left on device"):
        check_storage(settings_for(small_disk.path))
    small_disk.free()
    check_storage(settings_for(small_disk.path))
    small_disk.make_read_only()
    with pytest.raises(StorageFailed, match=rf"{small_disk.path} is not writable: Read-only file system"):
        check_storage(settings_for(small_disk.path))
