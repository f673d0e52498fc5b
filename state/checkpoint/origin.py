"""How a checkpoint began: what it took over from the one before, if there was one."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

# Of the next record of each input partition, by topic and partition, as Spark's offset log writes them.
Offsets = dict[str, dict[str, int]]


@dataclass(frozen=True)
class Birth:
    """Written once into a checkpoint, and with every marker of its deliveries.

    What the checkpoint before had accepted, the records below `offsets` (none for a first one), is delivered or
    sealed. Of what is sealed, all below `cutoff_ms` (epoch ms) is delivered, but for the bucket just before
    `first_bucket`: there it is `overdue`, and comes in the first batch. Batch n seals bucket `first_bucket + n`.
    """

    checkpoint: str
    generation: int
    shards: int
    first_bucket: int = 0
    cutoff_ms: int = 0
    offsets: Offsets = field(default_factory=dict)

    @property
    def overdue_bucket(self) -> int:
        """The bucket whose messages below `cutoff_ms` were not delivered when the checkpoint was born."""
        return self.first_bucket - 1

    def to_json(self) -> str:
        """Write it as one JSON object."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Birth:
        """Read what `to_json` wrote. Raises TypeError or ValueError for anything else."""
        return birth_of(json.loads(text))


def birth_of(facts: object) -> Birth:
    """Return a birth from parsed JSON. Raises TypeError for anything that is none."""
    if not isinstance(facts, dict):
        raise TypeError("a birth is a JSON object")
    birth = Birth(**facts)
    numbers = (birth.generation, birth.shards, birth.first_bucket, birth.cutoff_ms)
    if type(birth.checkpoint) is not str or any(type(number) is not int for number in numbers):
        raise TypeError("a birth has a checkpoint's id and four whole numbers")
    check_offsets(birth.offsets)
    return birth


def check_offsets(offsets: object) -> None:
    """Raise TypeError if these are no `Offsets`."""
    if not isinstance(offsets, dict) or not all(isinstance(each, dict) for each in offsets.values()):
        raise TypeError("offsets are objects of offsets by partition, by topic")
    if any(type(offset) is not int for each in offsets.values() for offset in each.values()):
        raise TypeError("an offset is a whole number")
