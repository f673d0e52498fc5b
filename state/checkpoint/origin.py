"""How a checkpoint began: what it took over from the previous checkpoint, if there was one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from state.checkpoint.stored_json import STORED, read_stored

# The offset of the next record by topic and partition, as in Spark's offset log: {"orders": {"0": 17}}.
Offsets = dict[str, dict[str, int]]
# Kafka's ids of each input topic, in the order in which the job found topics of that name. It reads the last one. A
# former input topic has a mark before them (`state.checkpoint.input_ids`).
InputIds = dict[str, list[str]]


@dataclass(frozen=True, config=STORED)
class CheckpointOrigin:
    """How a checkpoint began. Written once into the checkpoint, and again with each of its markers.

    - `offsets`: the previous checkpoint accepted all records below them, and staged or sealed each; empty for a first
      checkpoint
    - `cutoff_ms`: all sealed messages due below it (epoch ms) are staged, except in the bucket before `first_bucket`.
      There they are overdue, and the first batch delivers them
    - `first_bucket`: batch n seals bucket `first_bucket + n`
    - `input_ids`: the input topics that `offsets` belong to
    - `epoch`: claims of an earlier epoch are ignored (`state.claims`). A checkpoint that does not continue an earlier
      one has a new epoch
    """

    checkpoint: str
    generation: int
    shards: int
    first_bucket: int = 0
    cutoff_ms: int = 0
    offsets: Offsets = field(default_factory=dict)
    input_ids: InputIds = field(default_factory=dict)
    epoch: int = 1

    @property
    def overdue_bucket(self) -> int:
        """The bucket with messages due below `cutoff_ms` that were not staged when the checkpoint began."""
        return self.first_bucket - 1

    def bucket_of(self, batch_id: int) -> int:
        """Return the number of the bucket that a batch seals."""
        return self.first_bucket + batch_id

    def to_json(self) -> str:
        """Return the origin as one JSON object."""
        return _ORIGIN.dump_json(self).decode()

    @staticmethod
    def from_json(text: str) -> CheckpointOrigin:
        """Read what `to_json` wrote. Raises ValueError for anything else."""
        return read_stored(_ORIGIN, text)


_ORIGIN = TypeAdapter(CheckpointOrigin)
_OFFSETS = TypeAdapter(Offsets, config=STORED)


def as_offsets(positions: Mapping[tuple[str, int], int]) -> Offsets:
    """Return the offset of each (topic, partition) as `Offsets`."""
    found: Offsets = {}
    for (topic, partition), offset in positions.items():
        found.setdefault(topic, {})[str(partition)] = offset
    return found


def by_partition(offsets: Offsets) -> dict[tuple[str, int], int]:
    """Return `offsets` by topic and number of the partition."""
    return {(topic, int(number)): offset for topic, own in offsets.items() for number, offset in own.items()}


def check_offsets(offsets: object) -> None:
    """Raise ValueError if `offsets` are not `Offsets`."""
    _OFFSETS.validate_python(offsets)
