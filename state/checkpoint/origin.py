"""How a checkpoint began: what it took over from the one before, if there was one."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from pydantic import ConfigDict, Field, TypeAdapter
from pydantic.dataclasses import dataclass

# The next record of each input partition, by topic and partition, as Spark's offset log writes them.
Offsets = dict[str, dict[str, int]]

# Of values that are stored as JSON: what is read must have the very types that were written, and no other keys.
STORED = ConfigDict(strict=True, extra="forbid", populate_by_name=True)


def stored_as(name: str) -> Any:
    """Mark a field whose stored JSON key is `name`: the format keeps its keys when the code finds better words."""
    return Field(validation_alias=name, serialization_alias=name)


@dataclass(frozen=True, config=STORED)
class CheckpointOrigin:
    """Written once into a checkpoint, and with every marker of its deliveries.

    The records below `offsets` (none for a first checkpoint) were accepted by the checkpoint before: each of them is
    delivered or sealed. Of what is sealed, all below `cutoff_ms` (epoch ms) is delivered, except in the bucket just
    before `first_bucket`: there it is overdue, and comes in the first batch. Batch n seals bucket `first_bucket + n`.
    """

    checkpoint: str
    generation: int
    shards: int
    first_bucket: int = 0
    cutoff_ms: int = 0
    offsets: Offsets = field(default_factory=dict)

    @property
    def overdue_bucket(self) -> int:
        """The bucket whose messages below `cutoff_ms` were not delivered when the checkpoint began."""
        return self.first_bucket - 1

    def to_json(self) -> str:
        """Write it as one JSON object."""
        return _ORIGIN.dump_json(self).decode()

    @staticmethod
    def from_json(text: str) -> CheckpointOrigin:
        """Read what `to_json` wrote. Raises ValueError for anything else."""
        return _ORIGIN.validate_json(text)


_ORIGIN = TypeAdapter(CheckpointOrigin)
_OFFSETS = TypeAdapter(Offsets, config=STORED)


def check_offsets(offsets: object) -> None:
    """Raise ValueError if these are no `Offsets`."""
    _OFFSETS.validate_python(offsets)
