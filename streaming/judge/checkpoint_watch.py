"""What the job commits, collected from outside while it runs: Spark itself keeps the logs of the last batches only."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from streaming.judge.acceptance import Acceptance, CheckpointLog, CommittedBatch, Offsets

_POLL_S = 0.05


class CheckpointWatch:
    """Watches the checkpoint in `folder` on the local disk, in a thread of its own. A context, which ends that.

    Another checkpoint may come into its place, by `rescale` or `rebuild`: what was known of the earlier ones stays.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # By the checkpoint's id, in the order in which they were met.
        self._found: dict[str, CheckpointLog] = {}
        self._look_now = threading.Lock()
        self._stop = threading.Event()
        self._problem: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True, name="checkpoint-watch")
        self._thread.start()

    @property
    def seen(self) -> int:
        """The number of committed batches that have been seen."""
        return sum(len(log.batches) for log in self._found.values())

    def acceptance(self) -> Acceptance:
        """Return what has been committed up to now. Raises what went wrong with the watching."""
        if self._problem is not None:
            raise self._problem
        self._look()
        return Acceptance(self._found.values())

    def close(self) -> None:
        """Watch no more."""
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
        except Exception as problem:  # noqa: BLE001, the thread that waits raises it
            self._problem = problem

    def _look(self) -> None:
        with self._look_now:
            origin = self._origin()
            if origin is None:
                return
            known = self._found.get(origin["checkpoint"])
            log = known or CheckpointLog(origin["cutoff_ms"], _by_partition(origin["offsets"]))
            new = {number: self._batch(number, log.cutoff_ms) for number in self._committed() - log.batches.keys()}
            # Put into the place of another meanwhile: those may be either's.
            if self._origin() == origin:
                log.batches.update({number: batch for number, batch in new.items() if batch is not None})
                self._found[origin["checkpoint"]] = log

    def _origin(self) -> dict[str, Any] | None:
        """Read how the checkpoint began, None if there is none."""
        text = _text(self._folder / "delayline-birth.json")
        return None if text is None else dict(json.loads(text))

    def _committed(self) -> set[int]:
        try:
            return {int(file.name) for file in (self._folder / "commits").iterdir() if file.name.isdigit()}
        except FileNotFoundError:
            return set()

    def _batch(self, number: int, least_cutoff_ms: int) -> CommittedBatch | None:
        """Read an entry of the offset log: the version, the times, and a line for each source. None if it is gone."""
        text = _text(self._folder / "offsets" / str(number))
        if text is None:
            return None
        _, about, *sources = text.splitlines()
        read = [json.loads(line) for line in sources if line.startswith("{")]
        # The clock's line has numbers; before any data that of the input has nothing.
        read = [source for source in read if all(isinstance(ends, dict) for ends in source.values())]
        cutoff_ms = max(json.loads(about)["batchWatermarkMs"], least_cutoff_ms)
        return CommittedBatch(cutoff_ms, _by_partition(read[0] if read else {}))


def _by_partition(offsets: dict[str, dict[str, int]]) -> Offsets:
    return {(topic, int(number)): end for topic, ends in offsets.items() for number, end in ends.items()}


def _text(file: Path) -> str | None:
    try:
        return file.read_text()
    except FileNotFoundError:
        return None
