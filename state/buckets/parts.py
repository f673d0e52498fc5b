"""Parts: the units in which sealed buckets are stored, each deleted as a whole once all its messages are staged.

A bucket that a batch seals is one part. It has another part if the batch has staged messages that repeat: their next
occurrences are stored in a commit of their own (`state.repeats.occurrences`). A merged bucket has a part for each slice
of due time, which the merge commits one by one. It is live once its marker is committed, together with the removal of
the buckets that it replaces.

In the table, the Delta partition column `part` has the name of a part with a prefix: the part's chunks and its metadata
are separate Delta partitions, and so is the marker of a merged bucket. The ids of messages that were cancelled, have a
name, or have another due time are in Delta partitions of their own (`IdRows`), one for each batch until these are
joined.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

_CHUNKS, _METADATA, _LIVE = "chunks-", "metadata-", "live-"
# The name of a merged bucket, before the number of its part.
_MERGED = "[0-9]{12}-[0-9]{12}-[0-9]{12}-[0-9]{6}-"
_NAME_LENGTH = 45

# SQL conditions that Delta decides by partition alone: whether a row of the table is metadata, or a marker.
IS_METADATA = f"part LIKE '{_METADATA}%'"
IS_MARKER = f"part LIKE '{_LIVE}%'"


class IdRows(Enum):
    """A kind of rows that are not part of any bucket, and have the id of one message each.

    The value is the prefix of their Delta partitions.
    """

    # Messages that were cancelled (`state.buckets.cancelled`).
    CANCELLED = "cancelled-"
    # Messages that have a name (`state.names`).
    NAMED = "named-"
    # Messages that have taken over another due time (`state.buckets.retimed`).
    RETIMED = "retimed-"

    @property
    def condition(self) -> str:
        """The SQL condition that a row of the table is of this kind. Delta decides it by partition alone."""
        return f"part LIKE '{self.value}%'"

    def partition(self, bucket: int) -> str:
        """Return the Delta partition of the rows of the batch that seals `bucket`, or of all until then, joined."""
        return f"{self.value}{bucket:012d}"

    def bucket_of(self, delta_partition: str) -> int | None:
        """Return the bucket of a Delta partition that `partition` named; None for any other."""
        number = delta_partition.removeprefix(self.value)
        return int(number) if number != delta_partition else None


def has_ids(delta_partition: str) -> bool:
    """Return whether the rows of a Delta partition are of one of the kinds `IdRows`."""
    return any(rows.bucket_of(delta_partition) is not None for rows in IdRows)


class MergeName(NamedTuple):
    """The name of a merged bucket in the table. No two merges share it, even if one was abandoned.

    - `first`, `last`: the range of bucket numbers that it replaces; `last` is its own number
    - `token`: names the process that made it (`sinks.buckets.merge_commits.merge_token`)
    - `attempt`: how often that process has tried to merge one of its buckets before, and failed
    """

    first: int
    last: int
    token: int
    attempt: int = 0

    def __str__(self) -> str:
        return f"{self.first:012d}-{self.last:012d}-{self.token:012d}-{self.attempt:06d}"

    @property
    def live(self) -> str:
        """The Delta partition of the marker."""
        return f"{_LIVE}{self}"

    def part(self, number: int) -> str:
        """The name of the part with the slice `number`."""
        return f"{self}-{number:06d}"


def sealed_part(bucket: int) -> str:
    """Return the name of the only part of a bucket that a batch sealed."""
    return f"{bucket:012d}"


def following_part(bucket: int) -> str:
    """Return the name of the part of a bucket that has the next occurrences of messages that repeat."""
    return f"{sealed_part(bucket)}.following"


def chunks_of(part: str) -> str:
    """Return the Delta partition that has the chunks of a part."""
    return _CHUNKS + part


def metadata_of(part: str) -> str:
    """Return the Delta partition that has the metadata of a part."""
    return _METADATA + part


def has_part(delta_partition: str) -> bool:
    """Return whether a Delta partition has the chunks or the metadata of a part."""
    return delta_partition.startswith((_CHUNKS, _METADATA))


def part_of(delta_partition: str) -> str:
    """Return the part of a Delta partition with chunks or metadata. Raises ValueError for any other partition."""
    if not has_part(delta_partition):
        raise ValueError(f"{delta_partition!r} has neither chunks nor metadata")
    return delta_partition.removeprefix(_CHUNKS).removeprefix(_METADATA)


def is_metadata(delta_partition: str) -> bool:
    """Return whether a Delta partition has metadata."""
    return delta_partition.startswith(_METADATA)


def marker_of(part: str) -> str | None:
    """Return the Delta partition of the marker without which a part is not live; None if it needs none."""
    name = part.rpartition("-")[0]
    return _LIVE + name if name else None


def is_live(markers: Iterable[str]) -> str:
    """Return the SQL condition that a row, other than a marker, belongs to a live part.

    `markers` are the markers that the table has. Delta decides the condition by partition alone.
    """
    names = [marker.removeprefix(_LIVE) for marker in markers]
    conditions = [f"part NOT RLIKE '^({_CHUNKS}|{_METADATA}){_MERGED}'"]
    for prefix in (_CHUNKS, _METADATA):
        if names:
            listed = ", ".join(repr(prefix + name) for name in sorted(names))
            conditions.append(f"substring(part, 1, {len(prefix) + _NAME_LENGTH}) IN ({listed})")
    return f"({' OR '.join(conditions)})"


def abandoned(delta_partitions: Iterable[str]) -> set[str]:
    """Return the Delta partitions of a table that nothing needs: of merges that were not finished, or left nothing.

    A merged bucket without a part is a marker alone.
    """
    partitions = set(delta_partitions)
    markers = {partition: marker_of(part_of(partition)) for partition in partitions if has_part(partition)}
    unfinished = {partition for partition, marker in markers.items() if marker and marker not in partitions}
    return unfinished | {each for each in partitions if each.startswith(_LIVE)} - set(markers.values())
