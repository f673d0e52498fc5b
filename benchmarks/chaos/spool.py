"""Keeps received records on disk, because the records of a long campaign do not fit into memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from streaming.judge.record import Received


class Spool:
    """A list of records in a file, in the order of arrival; supports append and iteration."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._out = file.open("w")

    def append(self, record: Received) -> None:
        """Add a record at the end."""
        headers = [(name, _text(value)) for name, value in record.headers]
        numbers = (record.topic, record.partition, record.offset, record.timestamp_ms, record.received_ms)
        self._out.write(json.dumps([*numbers, _text(record.key), _text(record.value), headers]) + "\n")

    def __iter__(self) -> Iterator[Received]:
        self._out.flush()
        with self._file.open() as lines:
            for line in lines:
                topic, partition, offset, timestamp_ms, received_ms, key, value, headers = json.loads(line)
                content = (_bytes(key), _bytes(value), tuple((name, _bytes(text)) for name, text in headers))
                yield Received(topic, partition, offset, timestamp_ms, *content, received_ms)


def _text(content: bytes | None) -> str | None:
    # Latin-1 has a character for every byte.
    return None if content is None else content.decode("latin-1")


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode("latin-1")
