"""Decides which messages must be in order: those that the job had accepted early enough.

Each batch has a cutoff, and accepts the input up to some offsets. It hands over the messages due from the previous
batch's cutoff up to its own, and those that were due before when it accepted them. A message must be in order in two
cases:

- It is due at or above the cutoff of the batch before the one that accepted it: nothing that is due later has been
  handed over before it.
- The batch that accepted it was committed a second before it was due: it was handed over before others were released.

The offset log and the commit log of the checkpoint have all these values, even if the job was killed in between.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from streaming.judge.record import Published

# How long before it is due a message must be handed over. Up to 100 ms (release.lead) it may be written behind others;
# the rest is for a machine on which everything runs at once.
_AHEAD_MS = 1_000

# The offset of the next record in each input (topic, partition).
Offsets = Mapping[tuple[str, int], int]


@dataclass(frozen=True)
class CommittedBatch:
    """A committed batch: it handed over messages due below `cutoff_ms`, and read the input up to `ends`.

    It was committed at `committed_ms`. Both are epoch ms.
    """

    cutoff_ms: int
    committed_ms: int
    ends: Offsets


@dataclass(frozen=True)
class Step:
    """What was accepted up to the offsets `ends`, and not before. Instants are epoch ms.

    - `waited_from_ms`: what was due then or later was not handed over before
    - `in_order_from_ms`: messages that are due then or later are in order
    - `committed_ms`: when it was committed
    """

    ends: Offsets
    waited_from_ms: int
    in_order_from_ms: int
    committed_ms: int


@dataclass
class CheckpointLog:
    """One checkpoint: its origin, and its committed batches by number.

    Records below `offsets` were accepted before the checkpoint began. Before that, nothing due at or above `cutoff_ms`
    (epoch ms) was handed over. For a first checkpoint, `offsets` is empty and `cutoff_ms` is 0.
    """

    cutoff_ms: int = 0
    offsets: Offsets = field(default_factory=dict)
    batches: dict[int, CommittedBatch] = field(default_factory=dict)

    def steps(self) -> Iterator[Step]:
        """Yield what was accepted batch by batch, after what an earlier checkpoint has accepted.

        That was committed at a time which is not known here: 0.
        """
        yield Step(self.offsets, self.cutoff_ms, self.cutoff_ms, 0)
        for number, batch in sorted(self.batches.items()):
            before = self.batches.get(number - 1)
            # Cutoffs never go back: if the previous batch is unknown, its cutoff was at most this batch's cutoff.
            cutoff_ms = batch.cutoff_ms if before is None else before.cutoff_ms
            cutoff_ms = self.cutoff_ms if number == 0 else cutoff_ms
            in_order_from_ms = min(cutoff_ms, batch.committed_ms + _AHEAD_MS)
            yield Step(batch.ends, cutoff_ms, in_order_from_ms, batch.committed_ms)


class Acceptance:
    """The input that the job accepted under all its checkpoints, given from the first to the last."""

    def __init__(self, checkpoints: Iterable[CheckpointLog]) -> None:
        # By input partition: the end offsets of batches, ascending, and the steps that have them.
        self._ends: dict[tuple[str, int], list[int]] = {}
        self._steps: dict[tuple[str, int], list[Step]] = {}
        # By batch: cutoff and commit (epoch ms). Cutoffs never go back.
        self._cutoffs: list[tuple[int, int]] = []
        for checkpoint in checkpoints:
            for _, batch in sorted(checkpoint.batches.items()):
                self._cutoffs.append((batch.cutoff_ms, batch.committed_ms))
            for step in checkpoint.steps():
                for source, end in step.ends.items():
                    ends = self._ends.setdefault(source, [])
                    if not ends or end > ends[-1]:
                        ends.append(end)
                        self._steps.setdefault(source, []).append(step)

    def in_order_from_ms(self, message: Published) -> int | None:
        """Return the due time (epoch ms) from which on the batch that accepted the message keeps order.

        Returns None if no known committed batch accepted it.
        """
        step = self._step_of(message)
        return None if step is None else step.in_order_from_ms

    def committed_ms(self, message: Published) -> int | None:
        """Return when the batch that accepted the message was committed (epoch ms); None as above."""
        step = self._step_of(message)
        return None if step is None else step.committed_ms

    def waited_from_ms(self, message: Published) -> int | None:
        """Return the due time (epoch ms) from which on nothing was handed over before the message was accepted.

        None as above.
        """
        step = self._step_of(message)
        return None if step is None else step.waited_from_ms

    def handed_over_ms(self, message: Published) -> int | None:
        """Return the time by which the message was handed over (epoch ms); None if no known committed batch has.

        That is the commit of the batch that accepted it, or of a later one, whose cutoff is behind its due time.
        """
        accepted_ms = self.committed_ms(message)
        index = bisect_right(self._cutoffs, message.due_ms, key=lambda handed_over: handed_over[0])
        if accepted_ms is None or index == len(self._cutoffs):
            return None
        return max(accepted_ms, self._cutoffs[index][1])

    def _step_of(self, message: Published) -> Step | None:
        topic, partition, offset = message.source
        ends = self._ends.get((topic, partition), [])
        index = bisect_right(ends, offset)
        return self._steps[topic, partition][index] if index < len(ends) else None

    def is_accepted(self, message: Published) -> bool:
        """Return whether a known committed batch has accepted the message."""
        return self.in_order_from_ms(message) is not None

    def must_be_in_order(self, message: Published) -> bool:
        """Return whether the message was accepted in time, so that it must be delivered in order."""
        from_ms = self.in_order_from_ms(message)
        return from_ms is not None and message.due_ms >= from_ms
