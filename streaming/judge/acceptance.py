"""Decides which messages must be in order: the messages that the service had accepted early enough.

Each batch has a cutoff, and accepts the input up to some offsets. It stages the messages due from the previous batch's
cutoff up to its own, and overdue messages when it accepts them. Among all messages that batches stage, a message must
be in order in two cases:

- It is due at or above the cutoff of the batch before the one that accepted it: no batch has staged before it a message
  that is due later.
- The batch that accepted it was committed a second before it was due: it was staged before others were released.

Forwarders stage messages without the batches, from the near future on. So if they take messages, the first case says
nothing about these. While the job is down, a forwarder may stage a message that is due later than a message that waits
in a bucket. The time at which a batch accepted the message does not help then: it counts when a batch has staged it.
Among all messages, including messages of forwarders, a message must be in order in these cases:

- A batch had staged it a second before it was due.
- A forwarder had staged it 300 ms before it was due.

The offset log and the commit log of the checkpoint, the claims and the near log have all these values, even if the job
or a forwarder was killed in between.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from streaming.judge.forwarded import Forwarded
from streaming.judge.record import Published

# How long before it is due a message must be staged. Up to 100 ms (release.lead) it may be written behind others;
# the rest is for a machine on which everything runs at once.
_AHEAD_MS = 1_000
# The same for a message that a forwarder took: it was seen in the near log, and the lead is a third of this.
_FORWARDED_AHEAD_MS = 300

# The offset of the next record in each input (topic, partition).
Offsets = Mapping[tuple[str, int], int]


@dataclass(frozen=True)
class CommittedBatch:
    """A committed batch: it staged messages due below `cutoff_ms`, and read the input up to `ends`.

    It was committed at `committed_ms`. Both are epoch ms.
    """

    cutoff_ms: int
    committed_ms: int
    ends: Offsets


@dataclass(frozen=True)
class Step:
    """The records that were accepted up to the offsets `ends`, and not before. Instants are epoch ms.

    - `waited_from_ms`: messages that were due then or later were not staged before
    - `staged_below_ms`: of messages accepted before, those that were due earlier than this were staged; None: unknown
    - `in_order_from_ms`: messages that are due then or later are in order
    - `committed_ms`: when it was committed
    """

    ends: Offsets
    waited_from_ms: int
    staged_below_ms: int | None
    in_order_from_ms: int
    committed_ms: int


@dataclass
class CheckpointLog:
    """One checkpoint: its origin, and its committed batches by number.

    Records below `offsets` were accepted before the checkpoint began. Before that, nothing due at or above `cutoff_ms`
    (epoch ms) was staged. For a first checkpoint, `offsets` is empty and `cutoff_ms` is 0.
    """

    cutoff_ms: int = 0
    offsets: Offsets = field(default_factory=dict)
    batches: dict[int, CommittedBatch] = field(default_factory=dict)

    def steps(self) -> Iterator[Step]:
        """Yield the steps batch by batch, after a step for records that an earlier checkpoint has accepted.

        The time of that commit is not known here: 0.
        """
        yield Step(self.offsets, self.cutoff_ms, None, self.cutoff_ms, 0)
        for number, batch in sorted(self.batches.items()):
            before = self.batches.get(number - 1)
            # Cutoffs never go back: if the previous batch is unknown, its cutoff was at most this batch's cutoff.
            cutoff_ms = batch.cutoff_ms if before is None else before.cutoff_ms
            cutoff_ms = self.cutoff_ms if number == 0 else cutoff_ms
            in_order_from_ms = min(cutoff_ms, batch.committed_ms + _AHEAD_MS)
            below_ms = None if before is None else before.cutoff_ms
            yield Step(batch.ends, cutoff_ms, below_ms, in_order_from_ms, batch.committed_ms)


class Held(Enum):
    """The order that a message must keep: none, the order among messages that batches took, or among all messages."""

    NOT = auto()
    AMONG_BATCHES = auto()
    AMONG_ALL = auto()


class Acceptance:
    """The input that the job accepted under all its checkpoints, given from the first to the last, and forwarders."""

    def __init__(self, checkpoints: Iterable[CheckpointLog], forwarded: Forwarded | None = None) -> None:
        self._forwarded = forwarded or Forwarded()
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

    def is_forwarded(self, message: Published) -> bool:
        """Return whether a forwarder took the message, and no batch."""
        return message.source in self._forwarded.sources

    def held(self, message: Published) -> Held:
        """Return to which order the message is held."""
        from_ms = self.in_order_from_ms(message)
        if from_ms is not None and message.due_ms >= from_ms:
            return Held.AMONG_ALL
        step = None if self.is_forwarded(message) else self._step_of(message)
        return Held.AMONG_BATCHES if step is not None and message.due_ms >= step.in_order_from_ms else Held.NOT

    def must_be_in_order(self, message: Published) -> bool:
        """Return whether the message was accepted in time, so that it must be in order among all messages."""
        return self.held(message) is Held.AMONG_ALL

    def in_order_from_ms(self, message: Published) -> int | None:
        """Return the due time (epoch ms) from which on the message must be in order among all messages.

        Returns None if it is not known who accepted it. If forwarders took messages, also returns None if it is not
        known that it was staged.
        """
        if not self._forwarded.sources:
            step = self._step_of(message)
            return None if step is None else step.in_order_from_ms
        staged_ms = self.staged_ms(message)
        ahead_ms = _FORWARDED_AHEAD_MS if self.is_forwarded(message) else _AHEAD_MS
        return None if staged_ms is None else staged_ms + ahead_ms

    def committed_ms(self, message: Published) -> int | None:
        """Return when the batch that accepted the message was committed (epoch ms); None if no known one has.

        A batch passes over what a forwarder took, but has read it.
        """
        step = self._step_of(message)
        return None if step is None else step.committed_ms

    def waited_from_ms(self, message: Published) -> int | None:
        """Return the due time (epoch ms) from which on no batch staged anything before the message was accepted.

        None as above.
        """
        step = self._step_of(message)
        return None if step is None else step.waited_from_ms

    def staged_below_ms(self, message: Published) -> int | None:
        """Return the due time (epoch ms) below which earlier batches had staged all that they had accepted, or None."""
        step = self._step_of(message)
        return None if step is None else step.staged_below_ms

    def staged_ms(self, message: Published) -> int | None:
        """Return the time by which the message was staged (epoch ms); None if that is not known.

        That is when it was seen in the near log, if a forwarder took it. Otherwise it is the commit of the batch that
        accepted it, or of a later batch: the first with a cutoff behind its due time.
        """
        if self.is_forwarded(message):
            return self._forwarded.seen_ms.get(message.source)
        accepted_ms = self.committed_ms(message)
        index = bisect_right(self._cutoffs, message.due_ms, key=lambda staged: staged[0])
        if accepted_ms is None or index == len(self._cutoffs):
            return None
        return max(accepted_ms, self._cutoffs[index][1])

    def staged_late(self, start_ms: int, end_ms: int) -> bool:
        """Return whether batches staged something due in [start_ms, end_ms] (epoch ms) once it was due."""
        previous_ms = 0
        for cutoff_ms, committed_ms in self._cutoffs:
            if max(start_ms, previous_ms) < min(cutoff_ms, committed_ms, end_ms + 1):
                return True
            previous_ms = cutoff_ms
        return False

    def _step_of(self, message: Published) -> Step | None:
        topic, partition, offset = message.source
        ends = self._ends.get((topic, partition), [])
        index = bisect_right(ends, offset)
        return self._steps[topic, partition][index] if index < len(ends) else None

    def is_accepted(self, message: Published) -> bool:
        """Return whether a forwarder or a known committed batch has accepted the message."""
        return self.is_forwarded(message) or self._step_of(message) is not None
