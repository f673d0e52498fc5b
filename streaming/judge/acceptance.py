"""Decides which messages must be in order: those that the job accepted before they were due.

Each batch has a cutoff, and accepts the input up to some offsets. It delivers the messages due from the previous
batch's cutoff up to its own, in order. A message that was due below the previous cutoff when it was accepted is late:
messages with later due times may have been delivered already. A message must therefore be in order if it is due at or
above the cutoff of the batch before the one that accepted it. The offset log and the commit log of the checkpoint have
all these values, even if the job was killed in between.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from streaming.judge.record import Published

# The offset of the next record in each input (topic, partition).
Offsets = Mapping[tuple[str, int], int]


@dataclass(frozen=True)
class CommittedBatch:
    """A committed batch: it delivered messages due below `cutoff_ms` (epoch ms), and read the input up to `ends`."""

    cutoff_ms: int
    ends: Offsets


@dataclass
class CheckpointLog:
    """One checkpoint: its origin, and its committed batches by number.

    Records below `offsets` were accepted before the checkpoint began. Before that, nothing due at or above `cutoff_ms`
    (epoch ms) was delivered. For a first checkpoint, `offsets` is empty and `cutoff_ms` is 0.
    """

    cutoff_ms: int = 0
    offsets: Offsets = field(default_factory=dict)
    batches: dict[int, CommittedBatch] = field(default_factory=dict)

    def steps(self) -> Iterator[tuple[Offsets, int]]:
        """Yield (accepted up to these offsets, in order from this due time on), in the order of acceptance."""
        yield self.offsets, self.cutoff_ms
        for number, batch in sorted(self.batches.items()):
            before = self.batches.get(number - 1)
            if number == 0:
                yield batch.ends, self.cutoff_ms
            else:
                # Cutoffs never go back: if the previous batch is unknown, its cutoff was at most this batch's cutoff.
                yield batch.ends, batch.cutoff_ms if before is None else before.cutoff_ms


class Acceptance:
    """The input that the job accepted under all its checkpoints, given from the first to the last."""

    def __init__(self, checkpoints: Iterable[CheckpointLog]) -> None:
        # By input partition: the end offsets of batches, ascending, and for each the due time from which order holds.
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
        """Return the due time (epoch ms) from which on the batch that accepted the message keeps order.

        Returns None if no known committed batch accepted it.
        """
        topic, partition, offset = message.source
        ends = self._ends.get((topic, partition), [])
        index = bisect_right(ends, offset)
        return self._from_ms[topic, partition][index] if index < len(ends) else None

    def must_be_in_order(self, message: Published) -> bool:
        """Return whether the message was accepted in time, so that it must be delivered in order."""
        from_ms = self.in_order_from_ms(message)
        return from_ms is not None and message.due_ms >= from_ms
