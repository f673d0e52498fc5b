"""Which messages are held to order: those that the job accepted before they were due, by what it committed.

A batch reads the input up to some offsets and has a cutoff. It delivers what is due from the cutoff of the batch before
up to its own, in order; what was due below the cutoff before when it was accepted has been overtaken already. So a
message is held to order if it was due at or above the cutoff of the batch before the one that accepted it. The offset
log and the commit log of the checkpoint say all of that, whatever killed the job in between.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from streaming.judge.record import Published

# The next record of each input (topic, partition).
Offsets = Mapping[tuple[str, int], int]


@dataclass(frozen=True)
class CommittedBatch:
    """A batch: what falls due below `cutoff_ms` (epoch ms) is delivered with it, and it read the input up to `ends`."""

    cutoff_ms: int
    ends: Offsets


@dataclass
class CheckpointLog:
    """What is known of one checkpoint: where it began, and its committed batches by number.

    What lies below `offsets` was accepted before it began, and nothing due at or above `cutoff_ms` (epoch ms) was
    delivered before that. Both are empty for a first checkpoint.
    """

    cutoff_ms: int = 0
    offsets: Offsets = field(default_factory=dict)
    batches: dict[int, CommittedBatch] = field(default_factory=dict)

    def steps(self) -> Iterator[tuple[Offsets, int]]:
        """Give, in the order of acceptance, up to where the input was accepted and from which due time on in order."""
        yield self.offsets, self.cutoff_ms
        for number, batch in sorted(self.batches.items()):
            before = self.batches.get(number - 1)
            if number == 0:
                yield batch.ends, self.cutoff_ms
            else:
                # Cutoffs never go back: where the batch before is not known, its cutoff was not above this one.
                yield batch.ends, batch.cutoff_ms if before is None else before.cutoff_ms


class Acceptance:
    """What the job accepted, through all its checkpoints, the first one first."""

    def __init__(self, checkpoints: Iterable[CheckpointLog]) -> None:
        # By input partition: the ends of batches, ascending, and for each the due time from which order holds.
        self._ends: dict[tuple[str, int], list[int]] = {}
        self._from_ms: dict[tuple[str, int], list[int]] = {}
        for checkpoint in checkpoints:
            for offsets, from_ms in checkpoint.steps():
                for source, end in offsets.items():
                    ends = self._ends.setdefault(source, [])
                    if not ends or end > ends[-1]:
                        ends.append(end)
                        self._from_ms.setdefault(source, []).append(from_ms)

    def in_order_from_ms(self, message: Published) -> int | None:
        """Return from which due time on (epoch ms) the batch that accepted the message keeps order.

        None if no committed batch is known to have accepted it.
        """
        topic, partition, offset = message.source
        ends = self._ends.get((topic, partition), [])
        at = bisect_right(ends, offset)
        return self._from_ms[topic, partition][at] if at < len(ends) else None

    def holds_to_order(self, message: Published) -> bool:
        """Say whether the message was accepted in time, so that it must come in order."""
        from_ms = self.in_order_from_ms(message)
        return from_ms is not None and message.due_ms >= from_ms
