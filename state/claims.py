"""Claims: which records of the input topics a forwarder has taken, so that no batch takes them as well.

The input partitions are divided among *lanes*. Each lane has one owner at a time: a forwarder, or the job. The owner
decides each record of its partitions once, in order: it takes the record, or leaves it to the batches. It writes these
decisions as a *claim*, in the same transaction as the messages that it takes. The newest claim of a lane says where its
next owner continues. A batch waits until claims have decided all records that it reads.

Forwarders accept records by the *terms*, which the job writes.
"""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterable, Mapping
from dataclasses import field, replace
from types import MappingProxyType

import pydantic.dataclasses
from pydantic import TypeAdapter
from pyroaring import BitMap64

from conf.errors import CheckpointMismatch
from state.checkpoint.batch_settings import BatchSettings
from state.checkpoint.input_ids import newest_ids
from state.checkpoint.origin import Offsets
from state.checkpoint.stored_json import STORED, RecordFormat

# The owner of a lane that the job itself has taken.
JOB = "the job"
# Kafka's value for an unknown leader epoch.
NO_EPOCH = -1
_NO_EPOCHS: Mapping[tuple[str, int], int] = MappingProxyType({})


@pydantic.dataclasses.dataclass(frozen=True, config=STORED)
class Terms:
    """The rules by which forwarders accept records.

    - `epoch`: batches ignore claims of an earlier epoch, as after `delayline run --fresh`
    - `lanes`: the number of lanes among which the input partitions are divided; 0: forwarders take nothing
    - `settings`: the settings by which records are accepted and routed
    """

    epoch: int
    lanes: int
    settings: BatchSettings

    @property
    def topic_ids(self) -> dict[str, str]:
        """Kafka's id of each input topic that the batches read."""
        # Ids of former input topics are kept. These are no longer among the job's own topics, or are its outputs.
        own = {*self.settings.forbidden_outputs} - {self.settings.dead_letter, self.settings.results}
        return {topic: known for topic, known in newest_ids(self.settings.input_ids).items() if topic in own}

    def to_bytes(self) -> bytes:
        """Return the value of a record of terms."""
        return _TERMS.dump(self)

    @staticmethod
    def from_bytes(value: bytes) -> Terms:
        """Read the value of a record of terms. Raises CheckpointMismatch if it is not one, and FormatMismatch."""
        return _TERMS.read_of("claims", "a record of terms", value)


@pydantic.dataclasses.dataclass(frozen=True, config=STORED)
class Claim:
    """The decisions of a lane's owner since the lane's last claim, and its positions after them.

    - `owner`: who wrote it, for people to read
    - `positions`: the offset of the next undecided record of each partition of the lane; 0 where it lacks one
    - `decided`: how many offsets before its position this claim decides, for the partitions where that is not 0
    - `taken`: which of these the owner has taken, as a Roaring bitmap of 64 bits in Base64; a partition without a
      bitmap has no taken records
    - `topic_ids`: Kafka's ids of the topics that the positions belong to
    - `leader_epochs`: Kafka's leader epoch of the record just before each position; NO_EPOCH, or no entry, if it is not
      known. It tells that record from another one that gets its offset after a log was cut
    - `cut`: the partitions that an owner has found to be cut, and the position below which decided records are lost
    - `due_before_ms`: all messages that were ever taken in the lane are due before this instant (epoch ms)
    - `is_urgent`: whether it leaves a record to the batches that someone waits for
    """

    epoch: int
    owner: str = ""
    positions: Offsets = field(default_factory=dict)
    decided: Offsets = field(default_factory=dict)
    taken: dict[str, dict[str, str]] = field(default_factory=dict)
    topic_ids: dict[str, str] = field(default_factory=dict)
    leader_epochs: Offsets = field(default_factory=dict)
    cut: Offsets = field(default_factory=dict)
    due_before_ms: int = 0
    is_urgent: bool = False

    def to_bytes(self) -> bytes:
        """Return the value of a claim record."""
        return _CLAIM.dump(self)

    @staticmethod
    def from_bytes(value: bytes) -> Claim:
        """Read the value of a claim record. Raises CheckpointMismatch if it is not one, and FormatMismatch."""
        return _CLAIM.read_of("claims", "a claim", value)

    def position(self, topic: str, partition: int, topic_id: str) -> int:
        """Return the offset of the next undecided record; 0 for a topic with another id than the claim knows."""
        if self.topic_ids.get(topic) != topic_id:
            return 0
        return self.positions.get(topic, {}).get(str(partition), 0)

    def leader_epoch(self, topic: str, partition: int, topic_id: str) -> int:
        """Return the leader epoch of the record just before the position; NO_EPOCH if it is not known."""
        if self.topic_ids.get(topic) != topic_id:
            return NO_EPOCH
        return self.leader_epochs.get(topic, {}).get(str(partition), NO_EPOCH)

    def cuts(self, topic_ids: Mapping[str, str]) -> list[str]:
        """Return a sentence for `check_uncut` on each partition of the topics that is known to be cut."""
        return [
            f"{topic}/{number} has lost records below offset {position}, and forwarders have read up to there"
            for topic, own in self.cut.items()
            if topic_ids.get(topic) == self.topic_ids[topic]
            for number, position in own.items()
        ]

    def found_cut(self, owner: str, places: Iterable[tuple[str, int]]) -> Claim:
        """Return the claim that follows this one, and marks the (topic, partition)s `places` as cut."""
        cut = {topic: dict(own) for topic, own in self.cut.items()}
        for topic, partition in places:
            cut.setdefault(topic, {})[str(partition)] = self.positions[topic][str(partition)]
        return replace(self, owner=owner, decided={}, taken={}, cut=cut, is_urgent=False)

    def is_beyond(self, needed: Offsets, topic_ids: Mapping[str, str], epoch: int) -> bool:
        """Return whether the lane has decided offsets at or above `needed`, by this claim or an earlier one.

        Once it has in `epoch`, all of its later claims say so. `topic_ids` are the present ids of the relevant topics.
        A later epoch is beyond anything.
        """
        if self.epoch != epoch:
            return self.epoch > epoch
        return any(
            position > needed.get(topic, {}).get(partition, 0)
            for topic, own in self.positions.items()
            if topic_ids.get(topic) == self.topic_ids[topic]
            for partition, position in own.items()
        )

    def follows(self, last: Claim) -> bool:
        """Return whether this is the next claim of the lane after `last`: it begins where that one ends."""
        if self.epoch != last.epoch:
            return self.epoch > last.epoch
        for topic, own in self.positions.items():
            before = last.positions.get(topic, {}) if last.topic_ids.get(topic) == self.topic_ids[topic] else {}
            decided = self.decided.get(topic, {}).items()
            starts = own | {number: own.get(number, 0) - count for number, count in decided}
            # Usually they are equal, and a lane may have thousands of partitions.
            if starts != before and any(start != before.get(number, 0) for number, start in starts.items()):
                return False
        return True

    def offsets_taken(self) -> dict[tuple[str, int], BitMap64]:
        """Return the offsets that this claim takes, by topic and partition."""
        return {
            (topic, int(partition)): BitMap64.deserialize(base64.b64decode(text))
            for topic, bitmaps in self.taken.items()
            for partition, text in bitmaps.items()
        }

    def next(
        self,
        owner: str,
        reached: Mapping[tuple[str, int], int],
        taken: Mapping[tuple[str, int], Iterable[int]],
        topic_ids: Mapping[str, str],
        due_before_ms: int = 0,
        is_urgent: bool = False,
        leader_epochs: Mapping[tuple[str, int], int] = _NO_EPOCHS,
    ) -> Claim:
        """Return the claim that follows this one in its lane.

        `reached` has the new position of each (topic, partition) that has moved. `taken` has the offsets that the owner
        takes, from the previous position up to the new one. `topic_ids` are the present ids of these topics.
        `leader_epochs` has the leader epochs of the records just before the new positions, as far as they are known.
        """
        positions = {
            topic: dict(own)
            for topic, own in self.positions.items()
            if topic_ids.get(topic, self.topic_ids.get(topic)) == self.topic_ids.get(topic)
        }
        epochs = {topic: dict(own) for topic, own in self.leader_epochs.items() if topic in positions}
        cut = {topic: own for topic, own in self.cut.items() if topic in positions}
        decided: Offsets = {}
        bitmaps: dict[str, dict[str, str]] = {}
        for (topic, partition), position in reached.items():
            first = self.position(topic, partition, topic_ids[topic])
            if position <= first:
                continue
            positions.setdefault(topic, {})[str(partition)] = position
            epochs.setdefault(topic, {})[str(partition)] = leader_epochs.get((topic, partition), NO_EPOCH)
            decided.setdefault(topic, {})[str(partition)] = position - first
            offsets = BitMap64(taken.get((topic, partition), ()))
            if offsets:
                offsets.run_optimize()
                bitmaps.setdefault(topic, {})[str(partition)] = base64.b64encode(offsets.serialize()).decode()
        known = dict(self.topic_ids) | {topic: topic_ids[topic] for topic, _ in reached}
        return replace(
            self,
            owner=owner,
            positions=positions,
            decided=decided,
            taken=bitmaps,
            topic_ids=known,
            leader_epochs=epochs,
            cut=cut,
            due_before_ms=max(self.due_before_ms, due_before_ms),
            is_urgent=is_urgent,
        )


_CLAIM = RecordFormat(TypeAdapter(Claim), "a claim in the claims topic")
_TERMS = RecordFormat(TypeAdapter(Terms), "a record of terms in the claims topic")


def check_uncut(cuts: Collection[str]) -> None:
    """Raise CheckpointMismatch if there are `cuts`: sentences on input partitions that have lost decided records.

    A log is cut if a replica without its newest records becomes its leader, or a broker comes back without them. New
    records then have the offsets of lost ones. Batches leave out records at offsets that claims have taken.
    """
    if cuts:
        raise CheckpointMismatch(
            f"{'; '.join(cuts)}. The topic has lost its newest records, and the claims would count for new "
            "records with their offsets. Delete the topic, create it again, and start with "
            "topics.skip_expired=true. Publish the unread messages again, unless subscribers have their ids in "
            "delayline-id"
        )
