from __future__ import annotations

import sys
import zipfile
from pathlib import Path
from zipimport import zipimporter

import pytest

from streaming.spark.worker_daemon import shorten_path


@pytest.fixture
def archive(tmp_path: Path) -> str:
    with zipfile.ZipFile(tmp_path / "pyspark.zip", "w") as content:
        content.writestr("pyspark/daemon.py", "")
    return str(tmp_path / "pyspark.zip")


@pytest.fixture
def installed(tmp_path: Path) -> str:
    daemon = tmp_path / "site-packages" / "pyspark" / "daemon.py"
    daemon.parent.mkdir(parents=True)
    daemon.touch()
    return str(tmp_path / "site-packages")


def test_archives_are_removed_from_the_path_if_pyspark_is_installed(
    monkeypatch: pytest.MonkeyPatch, archive: str, installed: str, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "path", ["", archive, str(tmp_path), installed, "/nowhere"])
    monkeypatch.setattr(sys, "path_importer_cache", {archive: zipimporter(archive), installed: None})
    shorten_path()
    assert sys.path == ["", str(tmp_path), installed, "/nowhere"]
    assert list(sys.path_importer_cache) == [installed]


def test_the_path_is_kept_if_pyspark_comes_from_an_archive(
    monkeypatch: pytest.MonkeyPatch, archive: str, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "path", [archive, str(tmp_path)])
    cache = {archive: zipimporter(archive)}
    monkeypatch.setattr(sys, "path_importer_cache", dict(cache))
    shorten_path()
    assert sys.path == [archive, str(tmp_path)]
    assert sys.path_importer_cache == cache
