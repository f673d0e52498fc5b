"""Finding Java."""

from __future__ import annotations

from pathlib import Path

import pytest

from conf.errors import JavaMissing
from conf.java.command import java_command


def fake_java(home: Path, version: str) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    java.chmod(0o755)
    return java


@pytest.mark.parametrize(
    ("version", "fits"), [("17.0.15", True), ("21", True), ("11.0.2", False), ("1.8.0_392", False)]
)
def test_java_of_java_home_must_be_new_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, fits: bool
) -> None:
    java = fake_java(tmp_path, version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    if fits:
        assert java_command() == str(java)
    else:
        with pytest.raises(JavaMissing, match="Java 17 or newer"):
            java_command()


def test_java_is_found_on_the_path_and_its_absence_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(JavaMissing, match="no java found in PATH"):
        java_command()
    java = fake_java(tmp_path, "17")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin:/usr/bin")
    assert java_command() == str(java)


def test_a_java_home_without_java_is_an_error_and_not_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Spark would use JAVA_HOME and fail later.
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissing, match="JAVA_HOME"):
        java_command()
