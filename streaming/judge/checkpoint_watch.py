"""Collects the job's committed batches from outside while it runs. Spark keeps only the logs of the last batches."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from streaming.judge.acceptance import Acceptance, CheckpointLog, CommittedBatch, Offsets
from streaming.judge.claims_watch import ClaimsWatch

_POLL_S = 0.05
_ORIGIN = "delayline-origin.json"
# Below the storage: the first checkpoint, and the folder of files that name the one that follows.
_FIRST, _POINTERS = "checkpoint", "checkpoints"


class CheckpointWatch:
    """Watches the checkpoint under `storage`, a folder on the local disk, in a background thread. A context manager.

    `rescale` and `rebuild` may replace the checkpoint; the watch keeps the batches of earlier checkpoints.

    `claims` watches what forwarders take; this watch closes it. Without it, batches take everything.
    """

    def __init__(self, storage: Path, claims: ClaimsWatch | None = None) -> None:
        self._storage = storage
        self._claims = claims
        # By the checkpoint's id, in the order in which they appeared.
        self._logs: dict[str, CheckpointLog] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._problem: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True, name="checkpoint-watch")
        self._thread.start()

    @property
    def seen(self) -> int:
        """The number of committed batches that have been seen."""
        return sum(len(log.batches) for log in self._logs.values())

    def acceptance(self) -> Acceptance:
        """Return the input that was accepted up to now. Raises the error of the background thread, if it failed."""
        if self._problem is not None:
            raise self._problem
        self._look()
        return Acceptance(self._logs.values(), None if self._claims is None else self._claims.forwarded())

    def drain(self) -> None:
        """Wait until all claims that are committed now have been read. Raises TimeoutError."""
        if self._claims is not None:
            self._claims.drain()

    def close(self) -> None:
        """Stop watching."""
        if self._claims is not None:
            self._claims.close()
        self._stop.set()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        try:
            while not self._stop.wait(_POLL_S):
                self._look()
        except Exception as problem:  # noqa: BLE001, `acceptance` raises it
            self._problem = problem

    def _look(self) -> None:
        with self._lock:
            folder = self._current()
            origin = _origin_of(folder)
            if origin is None:
                return
            known = self._logs.get(origin["checkpoint"])
            log = known or CheckpointLog(origin["cutoff_ms"], _by_partition(origin["offsets"]))
            new = {number: _batch(folder, number, log.cutoff_ms) for number in _committed(folder) - log.batches.keys()}
            # A lost checkpoint may be created again meanwhile, in the same place. These batches may belong to either.
            if _origin_of(folder) == origin:
                log.batches.update({number: batch for number, batch in new.items() if batch is not None})
                self._logs[origin["checkpoint"]] = log

    def _current(self) -> Path:
        """Return the folder of the current checkpoint: the newest pointer names it."""
        try:
            newest = max(int(file.name) for file in (self._storage / _POINTERS).iterdir() if file.name.isdigit())
            pointer = json.loads((self._storage / _POINTERS / str(newest)).read_text())
        except (FileNotFoundError, ValueError):
            return self._storage / _FIRST
        return self._storage / str(pointer["folder"])


def _origin_of(checkpoint: Path) -> dict[str, Any] | None:
    """Read the checkpoint origin, or return None if the checkpoint does not exist."""
    text = _text(checkpoint / _ORIGIN)
    return None if text is None else dict(json.loads(text))


def _committed(checkpoint: Path) -> set[int]:
    try:
        return {int(file.name) for file in (checkpoint / "commits").iterdir() if file.name.isdigit()}
    except FileNotFoundError:
        return set()


def _batch(checkpoint: Path, number: int, least_cutoff_ms: int) -> CommittedBatch | None:
    """Read an entry of Spark's offset log, and when the batch was committed; None if Spark has deleted them.

    The entry's lines are: the version, the metadata of the batch (JSON), and one line for each source.
    """
    text = _text(checkpoint / "offsets" / str(number))
    committed_ms = _written_ms(checkpoint / "commits" / str(number))
    if text is None or committed_ms is None:
        return None
    _, metadata, *sources = text.splitlines()
    offsets = [json.loads(line) for line in sources if line.startswith("{")]
    # The values of the clock's line are numbers. Before any data, the line of the input is empty.
    offsets = [source for source in offsets if all(isinstance(ends, dict) for ends in source.values())]
    cutoff_ms = max(json.loads(metadata)["batchWatermarkMs"], least_cutoff_ms)
    return CommittedBatch(cutoff_ms, committed_ms, _by_partition(offsets[0] if offsets else {}))


def _by_partition(offsets: dict[str, dict[str, int]]) -> Offsets:
    return {(topic, int(number)): end for topic, ends in offsets.items() for number, end in ends.items()}


def _text(file: Path) -> str | None:
    try:
        return file.read_text()
    except FileNotFoundError:
        return None


def _written_ms(file: Path) -> int | None:
    """Return when `file` was written (epoch ms), or None if it does not exist."""
    try:
        return file.stat().st_mtime_ns // 1_000_000
    except FileNotFoundError:
        return None
