"""A lane as its owner sees it: what it has read and not claimed yet, and when it leaves a backlog to the batches.

Pure: no client, and no clock. Times are by the caller's monotonic clock, in s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from state.claims import NO_EPOCH, Claim

# Topic and number of an input partition.
Place = tuple[str, int]

# More records than these are the batches' work, and so are fewer if reading does not catch up with them in a while. A
# process that reads one lane, as by default, catches up with the first in half a second.
MOST_BEHIND = 50_000
_LITTLE_BEHIND = 10_000
MOST_BEHIND_S = 3.0
# How long a claim waits for more to be read, at the most; and if someone waits for what it leaves. Batches wait for
# claims, and each is a transaction.
CLAIM_EVERY_S, URGENT_S = 0.25, 0.1
# A message waits for others for a share of its delay beyond this. It reaches the release process long before it is due.
_SOON_MS = 300
_SHARE = 0.25


def may_wait_s(delay_ms: int) -> float:
    """Return for how long a message that is due in `delay_ms` may wait for others."""
    return min(max(0, delay_ms - _SOON_MS) / 1000 * _SHARE, CLAIM_EVERY_S)


class Lane:
    """The partitions of a lane, which the newest committed `claim` has decided up to their positions.

    `topic_ids` are Kafka's ids of the topics.
    """

    def __init__(self, claim: Claim, places: Iterable[Place], topic_ids: Mapping[str, str]) -> None:
        self.claim = claim
        self._topic_ids = topic_ids
        # Where to read on in each partition, and where it ends as far as is known.
        self.positions = {place: claim.position(*place, topic_ids[place[0]]) for place in places}
        # The leader epoch of the record just before each position.
        self.leader_epochs = {place: claim.leader_epoch(*place, topic_ids[place[0]]) for place in self.positions}
        self._begun = dict(self.positions)
        # The partitions of which nothing has come yet, neither records nor an end.
        self._unread = {*self.positions}
        self._ends = dict(self.positions)
        self._taken: dict[Place, list[int]] = {}
        self._due_before_ms = 0
        self._is_urgent = False
        # When the next claim should be written, and since when the lane is behind.
        self._claim_due_s: float | None = None
        self._behind_s: float | None = None

    def read(self, place: Place, position: int, now_s: float, leader_epoch: int = NO_EPOCH) -> None:
        """Note that all of a partition is read below `position`. Records that are not taken are left to the batches.

        `leader_epoch` is the epoch of the record just before, if it is known.
        """
        self._unread.discard(place)
        if position > self.positions[place]:
            self.positions[place], self.leader_epochs[place] = position, leader_epoch
            self._claim_by(now_s + CLAIM_EVERY_S)

    def has_read(self, place: Place) -> bool:
        """Return whether the lane has gone on in a partition since it was opened."""
        return self.positions[place] > self._begun[place]

    @property
    def has_nothing_to_claim(self) -> bool:
        """Whether each partition was read since the lane was opened, and all that is read is claimed."""
        return not self._unread and self._claim_due_s is None

    def resume(self, firsts: Mapping[Place, int], now_s: float) -> list[Place]:
        """Go on at the first offsets that partitions have now, since the lane's records were deleted unread.

        Returns the partitions of which that is not so, since they begin at or below the lane's position.
        """
        others = [place for place, first in firsts.items() if first <= self.positions[place]]
        for place, first in firsts.items():
            self.read(place, first, now_s)
        return others

    def ends_at(self, place: Place, end: int) -> None:
        """Note where a partition ends."""
        self._ends[place] = end

    def take(self, offsets: Mapping[Place, Iterable[int]], due_before_ms: int, by_s: float) -> None:
        """Note which records are taken, to be claimed `by_s`. They are due before `due_before_ms` (epoch ms)."""
        for place, own in offsets.items():
            self._taken.setdefault(place, []).extend(own)
        self._due_before_ms = max(self._due_before_ms, due_before_ms)
        self._claim_by(by_s)

    def leave_urgent(self, now_s: float) -> None:
        """Note that a record is left to the batches for which someone waits."""
        self._is_urgent = True
        self._claim_by(now_s + URGENT_S)

    @property
    def claim_due_s(self) -> float | None:
        """When the next claim should be written, by the monotonic clock; None as long as nothing is read."""
        return self._claim_due_s

    def next_claim(self, owner: str) -> Claim:
        """Return the claim on all that is read."""
        known = {topic: self._topic_ids[topic] for topic, _ in self.positions}
        return self.claim.next(
            owner, self.positions, self._taken, known, self._due_before_ms, self._is_urgent, self.leader_epochs
        )

    def claimed(self, claim: Claim) -> None:
        """Note that the claim of `next_claim` is committed."""
        self.claim = claim
        self._taken = {}
        self._is_urgent = False
        self._claim_due_s = None

    def behind(self, now_s: float) -> dict[Place, int]:
        """Return the partitions with a backlog for the batches, and their ends; empty if the lane keeps up."""
        lags, lag = self._lags(), self.lag
        if lag <= _LITTLE_BEHIND:
            self._behind_s = None
            return {}
        if self._behind_s is None:
            self._behind_s = now_s
        if lag <= MOST_BEHIND and now_s - self._behind_s <= MOST_BEHIND_S:
            return {}
        # Some may be read to their ends.
        least = _LITTLE_BEHIND / len(lags)
        return {place: self._ends[place] for place, each in lags.items() if each > least}

    @property
    def lag(self) -> int:
        """How many records are not read, as far as is known."""
        return sum(each for each in self._lags().values() if each > 0)

    def _lags(self) -> dict[Place, int]:
        return {place: end - self.positions[place] for place, end in self._ends.items()}

    def skip(self, ends: Mapping[Place, int], now_s: float) -> None:
        """Leave all below `ends` to the batches, unread. Nothing is known of it, so it is urgent."""
        for place, end in ends.items():
            self.read(place, end, now_s)
        self.leave_urgent(now_s)
        self._behind_s = None

    def _claim_by(self, at_s: float) -> None:
        self._claim_due_s = at_s if self._claim_due_s is None else min(at_s, self._claim_due_s)
