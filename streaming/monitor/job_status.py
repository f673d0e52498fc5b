"""The job's own status, for `delayline status`. It comes from memory: neither Kafka nor storage is read."""

from __future__ import annotations

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from state.checkpoint.planned_batch import PlannedBatch
from streaming.monitor.estimate import WaitingInShard


@dataclass(frozen=True)
class LastMerge:
    """A finished merge of sealed buckets: when it ended (epoch ms), how long after its begin, of how many buckets."""

    at_ms: int
    took_ms: int
    buckets: int


@dataclass(frozen=True)
class Merges:
    """Merges of sealed buckets since the start of the job.

    - `running`: how many are under way
    - `finished`: how many were finished, or are about to be, and `seconds` how long the threads worked on all
    - `last`: the last that was finished
    """

    running: int = 0
    finished: int = 0
    seconds: float = 0.0
    last: LastMerge | None = None


@dataclass(frozen=True)
class JobStatus:
    """The messages that wait after the last batch and are not staged, as the job knows them. Instants are epoch ms.

    - `done`: the last batch that was done, which Spark commits a moment later
    - `running`: the batch after it, once that is planned
    - `merged`: the messages in merged buckets, which belong to no shard
    - `due`: the number of messages in each span of `state.due_spans`, estimated
    """

    application_id: str
    checkpoint: str
    now_ms: int
    done: PlannedBatch
    running: PlannedBatch | None
    shards: list[WaitingInShard]
    merged: int
    mutable_bytes: int
    sealed_bytes: int
    next_due_ms: int | None
    buckets: int
    segments: int
    due: dict[str, int]
    merges: Merges

    def to_json(self) -> bytes:
        """Return this as one JSON object."""
        return _JSON.dump_json(self)

    @classmethod
    def from_json(cls, text: bytes) -> JobStatus:
        """Read what `to_json` returned. Raises ValueError for anything else."""
        return _JSON.validate_json(text)


_JSON = TypeAdapter(JobStatus)
