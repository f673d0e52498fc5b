"""The files of a job's checkpoint: what they record, and how a test changes one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def newest(log: Path) -> int:
    """Return the newest batch in the offset log or the commit log; -1 if the log is empty."""
    return max((int(entry.name) for entry in log.glob("*") if entry.name.isdigit()), default=-1)


def accepted(checkpoint: Path) -> int:
    """Return how many input records the committed batches have accepted."""
    committed = newest(checkpoint / "commits")
    if committed < 0:
        return 0
    lines = (checkpoint / "offsets" / str(committed)).read_text().splitlines()
    sources = [json.loads(line) for line in lines if line.startswith("{")]
    by_topic = [offsets for source in sources for offsets in source.values() if isinstance(offsets, dict)]
    return sum(offset for offsets in by_topic for offset in offsets.values() if isinstance(offset, int))


@contextmanager
def replaced(file: Path, old: str, new: str) -> Iterator[None]:
    """Replace `old` with `new` in `file` inside the context, and restore the file after it."""
    text = file.read_text()
    assert old in text, text
    _write(file, text.replace(old, new, 1))
    try:
        yield
    finally:
        _write(file, text)


def _write(file: Path, text: str) -> None:
    file.write_text(text)
    # Hadoop's checksum would no longer match.
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)


def sealed_files(table: Path) -> list[Path]:
    """Return the message files that the log of the table of sealed buckets names."""
    added = [
        json.loads(line)["add"]
        for entry in (table / "_delta_log").glob("*.json")
        for line in entry.read_text().splitlines()
        if line.startswith('{"add"')
    ]
    return [table / file["path"] for file in added if file["partitionValues"]["part"] != "metadata"]
