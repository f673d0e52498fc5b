from __future__ import annotations

import io
import socket
import struct
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from zipimport import zipimporter

import pytest

from streaming.spark.worker_daemon import PromptReader, read_promptly, shorten_path

# Where the kernel's `tcp_info` has the number of segments that are not acknowledged.
_UNACKNOWLEDGED = slice(24, 28)


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


@pytest.fixture
def connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of a connection. The second delays its acknowledgements."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as first:
        second, _ = listener.accept()
        second.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
        with second:
            yield first, second


def _unacknowledged(end: socket.socket) -> int:
    (count,) = struct.unpack("=I", end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 64)[_UNACKNOWLEDGED])
    return int(count)


def test_a_worker_acknowledges_what_it_reads(connection: tuple[socket.socket, socket.socket]) -> None:
    first, second = connection
    stream = second.makefile("rb")
    assert isinstance(stream, io.BufferedReader)
    first.send(b"task")
    assert PromptReader(stream, second).read(4) == b"task"
    assert _unacknowledged(first) == 0


def test_a_worker_reads_what_its_daemon_has_read_ahead(connection: tuple[socket.socket, socket.socket]) -> None:
    first, second = connection
    read = list[bytes]()
    daemon = SimpleNamespace(worker_main=lambda infile, _outfile: read.append(infile.read()))
    read_promptly(daemon)
    first.sendall(b"secret" + b"task" * 100_000)
    first.shutdown(socket.SHUT_WR)
    stream = second.makefile("rb")
    assert stream.read(6) == b"secret"
    daemon.worker_main(stream, None)
    assert read == [b"task" * 100_000]
