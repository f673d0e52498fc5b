"""The decisions of all lanes' claims, as the batches need them: how far, and which offsets are taken."""

from __future__ import annotations

from pyroaring import BitMap64

from state.claims import Claim


class Claims:
    """The decisions of claims: how far in each partition, and which offsets are taken. Not thread-safe.

    A partition is known by the topic's id, so that claims about a deleted topic do not count for the topic that has its
    name now.
    """

    def __init__(self, epoch: int = 0) -> None:
        """Claims of an epoch before `epoch` are ignored."""
        self.due_before_ms = 0
        self._epoch = epoch
        self._positions: dict[tuple[str, int], int] = {}
        self._taken: dict[tuple[str, int], BitMap64] = {}

    def add(self, claim: Claim, before: Claim | None = None) -> None:
        """Add a claim. A claim that comes again changes nothing, and a claim of an earlier epoch is ignored.

        If it follows a claim that was added, `before`, only the positions count that have moved since.
        """
        if claim.epoch < self._epoch:
            return
        if claim.epoch > self._epoch:
            self._epoch, self.due_before_ms = claim.epoch, 0
            self._positions.clear()
            self._taken.clear()
        self.due_before_ms = max(self.due_before_ms, claim.due_before_ms)
        moved = claim.positions if before is None or before.epoch != claim.epoch else claim.decided
        for topic, own in moved.items():
            for partition in own:
                key, position = (claim.topic_ids[topic], int(partition)), claim.positions[topic][partition]
                self._positions[key] = max(position, self._positions.get(key, 0))
        for (topic, number), offsets in claim.offsets_taken().items():
            self._taken.setdefault((claim.topic_ids[topic], number), BitMap64()).update(offsets)

    def position(self, topic_id: str, partition: int) -> int:
        """Return the offset of the next record of a partition that no claim has decided."""
        return self._positions.get((topic_id, partition), 0)

    def taken(self, topic_id: str, partition: int, start: int, end: int) -> BitMap64:
        """Return which offsets of [start, end) forwarders have taken."""
        found = self._of((topic_id, partition)).copy()
        if found and end <= (last := found.max()):
            # Not by `&` with a range: a bitmap of a long one takes much memory.
            found.remove_range(max(0, end), last + 1)
        found.remove_range(0, max(0, start))
        return found

    def forget_below(self, topic_id: str, partition: int, offset: int) -> None:
        """Forget which offsets below `offset` are taken."""
        if offset > 0:
            self._of((topic_id, partition)).remove_range(0, offset)

    def _of(self, key: tuple[str, int]) -> BitMap64:
        return self._taken.get(key, BitMap64())
