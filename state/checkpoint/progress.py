"""The marker of a batch: how far a shard's messages are staged, and which of them a replay must skip."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import Any, NamedTuple

from pydantic import SerializerFunctionWrapHandler, TypeAdapter, model_serializer, model_validator
from pydantic.dataclasses import dataclass

from conf.errors import CheckpointMismatch
from state.checkpoint.origin import CheckpointOrigin, InputIds, Offsets
from state.checkpoint.stored_json import STORED, RecordFormat
from state.order import OrderKey

# For each input partition (topic, number): a first offset, and the offset after the last.
Ranges = Mapping[tuple[str, int], tuple[int, int]]


@dataclass(frozen=True, config=STORED)
class BatchSpan:
    """A batch as its marker describes it: the checkpoint, the input range, its cutoff and the previous cutoff.

    The batch accepted the records of the topics `input_ids` from `starts` up to `ends`. An input partition that
    `starts` lacks begins at 0. `clock_ms` is the clock of the batch, and `previous_clock_ms` the clock of the batch
    before. Clocks and cutoffs are epoch ms. Occurrences that waited until before `missed_before_ms` are missed
    (`state.repeats.occurrences`). Both previous instants of a first batch are 0. `batch_id` -1 stands for a checkpoint
    that has staged nothing yet.

    Each transaction stores a marker, and there may be thousands of input partitions. So a marker has the offsets once:
    the ends, and how many records were `read` in the partitions that had any.
    """

    origin: CheckpointOrigin
    batch_id: int = -1
    previous_ms: int = 0
    cutoff_ms: int = 0
    starts: Offsets = field(default_factory=dict)
    ends: Offsets = field(default_factory=dict)
    input_ids: InputIds = field(default_factory=dict)
    previous_clock_ms: int = 0
    clock_ms: int = 0
    missed_before_ms: int = 0

    @property
    def staged_below_ms(self) -> int:
        """The cutoff below which all was staged before the batch, epoch ms: at first the previous checkpoint's."""
        return max(self.previous_ms, self.origin.cutoff_ms)

    def ranges(self) -> Ranges:
        """Return the first offset and the end of each (topic, partition) from which the batch reads records."""
        return {
            (topic, int(number)): (start, end)
            for topic, own in self.ends.items()
            for number, end in own.items()
            if (start := self.starts.get(topic, {}).get(number, 0)) < end
        }

    @model_serializer(mode="wrap")
    def _stored(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        stored: dict[str, Any] = serialize(self)
        del stored["starts"]
        return stored | {"read": _difference(self.ends, self.starts)}

    @model_validator(mode="before")
    @classmethod
    def _restored(cls, stored: Any) -> Any:
        # A span that is constructed is not a dictionary, and has its starts.
        if not isinstance(stored, dict):
            return stored
        if "starts" in stored:
            raise ValueError("starts are not stored")
        stored = dict(stored)
        try:
            read, ends = stored.pop("read"), stored["ends"]
            starts = {
                topic: {number: end - read.get(topic, {}).get(number, 0) for number, end in of_topic.items()}
                for topic, of_topic in ends.items()
            }
        except (AttributeError, KeyError, TypeError):
            raise ValueError("read and ends must be offsets") from None
        return stored | {"starts": starts}

    @property
    def bucket(self) -> int:
        """The number of the bucket that the batch seals."""
        return self.origin.bucket_of(self.batch_id)

    @property
    def read_by_topic(self) -> dict[str, int]:
        """How many records the batch reads from each input topic."""
        return {topic: sum(read.values()) for topic, read in _difference(self.ends, self.starts).items()}

    @property
    def read_partitions(self) -> int:
        """The number of input partitions from which the batch reads records."""
        return sum(map(len, _difference(self.ends, self.starts).values()))

    def same_as(self, other: BatchSpan) -> bool:
        """Return whether both are the same batch.

        The starts do not count: a batch that was cut off is replayed without the records of an input topic that was
        deleted meanwhile.
        """
        return replace(self, starts={}) == replace(other, starts={})


def _difference(ends: Offsets, starts: Offsets) -> Offsets:
    """Return how many records lie between, for the partitions in which there are any."""
    counts = {
        topic: {
            number: end - start
            for number, end in of_topic.items()
            if (start := starts.get(topic, {}).get(number, 0)) != end
        }
        for topic, of_topic in ends.items()
    }
    return {topic: of_topic for topic, of_topic in counts.items() if of_topic}


class InTable(NamedTuple):
    """The newest batch of a checkpoint with sealed rows in the table, and with following occurrences; or -1.

    A batch stores these two one after the other, and a copy of the table may be made in between.
    """

    sealed: int = -1
    followed: int = -1


NOT_IN_TABLE = InTable()


@dataclass(frozen=True, config=STORED)
class Progress:
    """A shard's progress: the first `messages` due messages of `batch` are committed, up to the order key `last`.

    `staged` counts all messages that were ever written to the shard's partition of the ready log. The batch stages
    no occurrence of messages that repeat at `occurrences_below_ms` (epoch ms) or later; None: at its cutoff or later.
    A table without the batches that were `in_table` at that time lacks rows. Earlier batches have staged all
    occurrences before `occurrences_from_ms` (epoch ms); None: before the previous cutoff.
    """

    batch: BatchSpan
    messages: int = 0
    last: OrderKey | None = None
    staged: int = 0
    occurrences_below_ms: int | None = None
    in_table: InTable = NOT_IN_TABLE
    occurrences_from_ms: int | None = None

    @property
    def occurrences_whole_below_ms(self) -> int:
        """The instant before which earlier batches have staged all occurrences of the shard, epoch ms."""
        from_ms = self.occurrences_from_ms
        return self.batch.staged_below_ms if from_ms is None else from_ms

    def to_bytes(self) -> bytes:
        """Return the value of a marker record."""
        return _FORMAT.dump(self)

    @staticmethod
    def from_bytes(value: bytes) -> Progress:
        """Read the value of a marker record. Raises CheckpointMismatch if it is not one, and FormatMismatch."""
        return _FORMAT.read_of("progress", "a marker", value)


def newest_in_table(markers: Iterable[Progress]) -> InTable:
    """Return the newest batches in the table, as far as the `markers` of one checkpoint know."""
    known = [NOT_IN_TABLE, *(marker.in_table for marker in markers)]
    return InTable(max(each.sealed for each in known), max(each.followed for each in known))


_FORMAT = RecordFormat(TypeAdapter(Progress), "a marker in the progress topic")


def occurrences_from(before: Progress | None, batch: BatchSpan) -> int | None:
    """Return `Progress.occurrences_from_ms` for the next marker of a shard, of `batch`. Its last marker is `before`."""
    if before is None or before.batch.origin != batch.origin:
        return None
    if before.batch.batch_id == batch.batch_id:
        return before.occurrences_from_ms
    # A batch in between that raised the cutoff would have staged some of what was put off, and so have left a marker.
    # One with a marker that has not raised it has staged later occurrences, of messages that were read late. They must
    # not come twice, so what was put off before is given up.
    if before.batch.cutoff_ms == batch.previous_ms and before.occurrences_below_ms is not None:
        return max(before.occurrences_whole_below_ms, before.occurrences_below_ms)
    return None


def refuse_older(last: Progress, origin: CheckpointOrigin, batch_id: int, is_own: bool = False) -> None:
    """Raise CheckpointMismatch if the checkpoint of `origin`, at `batch_id`, is older than the marker `last`.

    `is_own` is whether the marker is of one of the checkpoint's own shards, so that no earlier try has left it.
    """
    other = last.batch.origin
    # Two rebuilds have the same generation. One that was paused may have replaced the origin of the other.
    is_other = other.generation == origin.generation and other.checkpoint != origin.checkpoint
    if other.generation > origin.generation or (is_other and (is_own or last.batch.batch_id >= 0)):
        raise CheckpointMismatch(
            f"checkpoint {origin.checkpoint} was replaced by {other.checkpoint}, which has taken over. "
            "Continuing would deliver messages twice. Restore the newer checkpoint"
        )
    if other.checkpoint == origin.checkpoint and last.batch.batch_id > batch_id:
        raise CheckpointMismatch(
            f"batch {last.batch.batch_id} is already staged, but the checkpoint is at batch {batch_id}. "
            "Continuing would deliver messages twice. Restore the newest checkpoint"
        )


def committed_messages(last: Progress | None, batch: BatchSpan) -> int:
    """Return how many messages of `batch` are committed already and must be skipped in a replay.

    Raises CheckpointMismatch if a later batch was staged, or a different batch with the same number. That happens after
    an old checkpoint was restored. Also raises it if a newer checkpoint of the application has taken over.
    """
    if last is None:
        return 0
    refuse_older(last, batch.origin, batch.batch_id)
    if last.batch.origin.checkpoint != batch.origin.checkpoint or last.batch.batch_id < batch.batch_id:
        return 0
    if not last.batch.same_as(batch):
        raise CheckpointMismatch(
            f"batch {batch.batch_id} was staged up to cutoff {last.batch.cutoff_ms}, but the offset log has "
            f"cutoff {batch.cutoff_ms}. Its entry was lost, and the batch was planned again. Restore the "
            "newest checkpoint, or make a new one with `delayline rebuild --discard-checkpoint`"
        )
    return last.messages
