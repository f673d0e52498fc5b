"""The entries of Spark's two logs in the checkpoint: the offset log (planned batches) and the commit log."""

from __future__ import annotations

import json
import re
from typing import Any

from conf.errors import CheckpointUnreadable, CheckpointVersion
from state.checkpoint.origin import Offsets, check_offsets
from streaming.storage.failures import CHECKPOINT_REMEDY

# The version of both logs in Spark 4.0.
_VERSION = "v1"
# In an entry of the commit log: with which watermark Spark plans the next batch, as it goes on and after a start.
_NEXT_WATERMARK = "nextBatchWatermarkMs"


def planned_entry(text: str | None, file: str) -> tuple[int, int, Offsets]:
    """Read an entry of the offset log. `text` is the content of `file`, or None if the file is missing.

    Returns the batch's time and its watermark (epoch ms), and the offset up to which it reads each input partition,
    which is empty before any data. Raises CheckpointUnreadable, CheckpointVersion.
    """
    header, *sources = _lines(text, file)
    try:
        facts = json.loads(header)
        offsets: Offsets = next(map(json.loads, filter(_has_offsets, sources)), {})
        check_offsets(offsets)
        return int(facts["batchTimestampMs"]), int(facts["batchWatermarkMs"]), offsets
    except (KeyError, TypeError, ValueError) as problem:
        raise CheckpointUnreadable(f"{file} is damaged ({problem!r}). {CHECKPOINT_REMEDY}") from problem


def with_input_offsets(text: str, offsets: Offsets) -> str:
    """Return `text`, an entry of the offset log or the first offsets of the Kafka source, with other `offsets`."""
    lines = text.splitlines()
    return "\n".join(json.dumps(offsets) if _has_offsets(line) else line for line in lines)


def _has_offsets(line: str) -> bool:
    return line.startswith("{") and all(isinstance(value, dict) for value in json.loads(line).values())


def next_cutoff(text: str | None, file: str) -> int:
    """Return the watermark (epoch ms) of the batch after a committed one, by its entry of the commit log.

    `text` is the content of `file`, or None if the file is missing. Raises CheckpointUnreadable, CheckpointVersion.
    """
    return _commit(text, file)[1]


def with_next_cutoff(text: str | None, file: str, cutoff_ms: int) -> str:
    """Return `text`, an entry of the commit log, with `cutoff_ms` as the watermark (epoch ms) of the batch after it.

    Raises CheckpointUnreadable, CheckpointVersion.
    """
    facts, _ = _commit(text, file)
    return f"{_VERSION}\n{json.dumps({**facts, _NEXT_WATERMARK: cutoff_ms})}"


def _commit(text: str | None, file: str) -> tuple[dict[str, Any], int]:
    try:
        facts = json.loads(_lines(text, file)[0])
        return facts, int(facts[_NEXT_WATERMARK])
    except (KeyError, TypeError, ValueError) as problem:
        raise CheckpointUnreadable(f"{file} is damaged ({problem!r}). {CHECKPOINT_REMEDY}") from problem


def _lines(text: str | None, file: str) -> list[str]:
    """Return the lines below the version line."""
    if text is None:
        raise CheckpointUnreadable(f"{file} is missing. {CHECKPOINT_REMEDY}")
    version, *lines = text.splitlines() or [""]
    if re.fullmatch(r"v\d+", version) and version != _VERSION:
        raise CheckpointVersion(
            f"{file} has version {version}, but the Spark of this Delayline reads {_VERSION}. Run the "
            f"version that wrote it. {CHECKPOINT_REMEDY}"
        )
    if version != _VERSION or not lines:
        raise CheckpointUnreadable(f"{file} is damaged (it begins with {version[:20]!r}). {CHECKPOINT_REMEDY}")
    return lines
