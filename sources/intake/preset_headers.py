"""The parts of a preset: the headers of one scheduler's publishers, and their meanings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from state.repeats.schedule import Schedule


class Meaning(Enum):
    """The meaning of the number in a header: an instant (epoch ms), a delay (ms), or a delay level."""

    INSTANT = "instant"
    DELAY = "delay"
    LEVEL = "level"


@dataclass(frozen=True)
class ScheduleHeader:
    """A header that says when. `parse` returns the number of its `meaning`, or raises Rejected.

    - `is_appended`: whether a record may have it any number of times, and the last counts; otherwise only once
    - `may_yield`: whether 0 or less has no effect, and lets the headers after it decide
    - `may_repeat`: whether a message that repeats has it too, with another meaning
    """

    name: str
    meaning: Meaning
    parse: Callable[[bytes | None], int]
    is_appended: bool = False
    may_yield: bool = False
    may_repeat: bool = False


class Origin(Enum):
    """The property of the published record that a header has: the name of a column, except for `SECONDS`."""

    KEY = "key"
    TOPIC = "topic"
    PARTITION = "partition"
    OFFSET = "offset"
    # The record's timestamp in epoch seconds.
    SECONDS = "seconds"


@dataclass(frozen=True)
class Repeat:
    """The headers that make a message repeat. The message is kept without them.

    `parse` returns the schedule in their values, or None if they have no schedule. It raises ValueError.
    """

    headers: tuple[str, ...]
    parse: Callable[[Mapping[str, bytes | None]], Schedule | None]


@dataclass(frozen=True)
class Preset:
    """The headers of one scheduler's publishers.

    - `schedule`: the headers that say when; if a record has several, the first of these counts, as in that scheduler
    - `target`: the header that names the output topic
    - `refused`: the headers for features that Delayline does not have: more than one delivery, or delivery of another
      message. An empty value, or "0", has no effect
    - `repeat`: the headers for more than one delivery, where the policy `repeats` allows it
    - `refused_with_schedule`: the headers that are refused in a record that has one of `schedule`
    - `version`: a header, and the prefix of its value in all versions that are understood

    For schedulers with messages in an envelope (`sources.intake.envelopes`), which are `named` by their keys:

    - `key`, `partition`, `partition_key`: the headers with the key and the partition of the delivered message, or with
      the key that chooses the partition
    - `origin`: the headers that are added to the delivered message, and their meanings
    - `replaces_origin`: whether they replace the same headers that the record has from an earlier delivery
    - `cancels_by_null_value`: whether a record with a null value cancels the message with its key
    - `cancel_header`: a header, and its values by which a record does so
    """

    name: str
    schedule: tuple[ScheduleHeader, ...]
    target: str | None = None
    refused: tuple[str, ...] = ()
    refused_with_schedule: tuple[str, ...] = ()
    repeat: Repeat | None = None
    version: tuple[str, bytes] | None = None
    named: bool = False
    key: str = ""
    partition: str = ""
    partition_key: str = ""
    origin: tuple[tuple[str, Origin], ...] = ()
    replaces_origin: bool = False
    cancels_by_null_value: bool = False
    cancel_header: tuple[str, tuple[bytes, ...]] | None = None

    @property
    def delays(self) -> tuple[str, ...]:
        """The names of the headers that say when, or that request more than one delivery."""
        repeat = () if self.repeat is None else self.repeat.headers
        own = (header.name for header in self.schedule)
        return tuple(dict.fromkeys((*own, *self.refused, *self.refused_with_schedule, *repeat)))

    @property
    def others(self) -> tuple[str, ...]:
        """The names of the other headers that the preset reads."""
        single = (self.target, self.key, self.partition, self.partition_key)
        pairs = (self.version, self.cancel_header)
        return (*filter(None, single), *(pair[0] for pair in pairs if pair is not None))
