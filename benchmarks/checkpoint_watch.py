"""Watches Spark's checkpoint on the local disk, and records when each batch was planned and committed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from benchmarks.watch import Watch

_POLL_S = 0.05


@dataclass(frozen=True)
class Batch:
    """A committed batch. Its times (epoch s) come from its log files. `ends` are its end offsets by partition."""

    batch_id: int
    planned_s: float
    committed_s: float
    ends: dict[int, int]

    @property
    def end(self) -> int:
        """The number of messages of the input topic up to this batch."""
        return sum(self.ends.values())


class CheckpointWatch(Watch):
    """Collects every batch when it is committed; Spark keeps only the files of the last batches.

    Watches one checkpoint: no benchmark replaces its job's.
    """

    def __init__(self, checkpoint: Path, topic: str) -> None:
        super().__init__("checkpoint-watch")
        self._checkpoint = checkpoint
        self._topic = topic
        self._batches: dict[int, Batch] = {}
        # Batches of an earlier run.
        self._before = set(self._committed())

    @property
    def batches(self) -> list[Batch]:
        """The batches committed since the start, in order."""
        return [self._batches[batch_id] for batch_id in sorted(self._batches)]

    @property
    def newest(self) -> Batch | None:
        """The last batch committed since the start."""
        ids = list(self._batches)
        return self._batches[max(ids)] if ids else None

    @property
    def messages(self) -> int:
        """The number of messages of the input topic in committed batches."""
        return self.newest.end if self.newest else 0

    def between(self, start_s: float, end_s: float) -> list[Batch]:
        """The batches committed in [start_s, end_s), epoch s."""
        return [batch for batch in self.batches if start_s <= batch.committed_s < end_s]

    def taking_in(self, after: int = 0) -> list[Batch]:
        """Return the batches that accepted messages, not counting the first `after` messages of the input topic."""
        batches: list[Batch] = []
        for batch in self.batches:
            if batch.end > (batches[-1].end if batches else after):
                batches.append(batch)
        return batches

    def run(self) -> None:
        """Watch until `stop`."""
        while not self._ended.wait(_POLL_S):
            for batch_id in set(self._committed()) - self._before - set(self._batches):
                batch = self._read(batch_id)
                if batch is not None:
                    self._batches[batch_id] = batch

    def _committed(self) -> list[int]:
        folder = self._checkpoint / "commits"
        return [int(file.name) for file in folder.iterdir() if file.name.isdigit()] if folder.is_dir() else []

    def _read(self, batch_id: int) -> Batch | None:
        planned, committed = (self._checkpoint / log / str(batch_id) for log in ("offsets", "commits"))
        try:
            lines = planned.read_text().splitlines()
            times = planned.stat().st_mtime, committed.stat().st_mtime
        except FileNotFoundError:
            return None  # Spark has purged the files: the batch was committed long ago.
        sources = [json.loads(line) for line in lines[2:] if line.startswith("{")]
        ends: dict[str, int] = next((source[self._topic] for source in sources if self._topic in source), {})
        return Batch(batch_id, *times, {int(partition): end for partition, end in ends.items()})
