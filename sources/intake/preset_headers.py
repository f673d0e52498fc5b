"""What a preset is: the headers of one scheduler's publishers, and what each of them says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from state.repeats.schedule import Schedule


class Meaning(Enum):
    """What the number in a header is: an instant (epoch ms), a delay (ms), or a delay level."""

    INSTANT = "instant"
    DELAY = "delay"
    LEVEL = "level"


@dataclass(frozen=True)
class ScheduleHeader:
    """A header that says when. `parse` returns the number of its `meaning`, or raises Rejected.

    - `is_appended`: whether a record may have it any number of times, of which the last counts; else, once
    - `may_yield`: whether 0 or less asks for nothing, and lets the headers behind it decide
    - `may_repeat`: whether a message that repeats has it too, and it says something else then
    """

    name: str
    meaning: Meaning
    parse: Callable[[bytes | None], int]
    is_appended: bool = False
    may_yield: bool = False
    may_repeat: bool = False


class Origin(Enum):
    """What a header says about the record that was published; but for `SECONDS`, the name of its column."""

    KEY = "key"
    TOPIC = "topic"
    PARTITION = "partition"
    OFFSET = "offset"
    # The record's timestamp in epoch seconds.
    SECONDS = "seconds"


@dataclass(frozen=True)
class Repeat:
    """The headers that make a message repeat: what is kept of it is without them.

    `parse` returns the schedule that their values write, or None if they write none; it raises ValueError.
    """

    headers: tuple[str, ...]
    parse: Callable[[Mapping[str, bytes | None]], Schedule | None]


@dataclass(frozen=True)
class Preset:
    """The headers of one scheduler's publishers.

    - `schedule`: those that say when; of several in one record the first of these counts, as in that scheduler
    - `target`: the one that names the output topic
    - `refused`: those that ask for what Delayline does not do: more than one delivery, or that of another message.
      Empty, or "0", they ask for nothing
    - `repeat`: those that ask for more than one delivery, where the policy `repeats` allows it
    - `refused_with_schedule`: those that do so in a record that has one of `schedule`
    - `version`: a header, and how its value begins in all versions that are understood

    Of schedulers whose messages come in an envelope (`sources.intake.envelopes`), which are `named` by their keys:

    - `key`, `partition`, `partition_key`: the headers with the key and the partition of what is delivered, or with the
      key that chooses the partition
    - `origin`: the headers that are added to what is delivered, and what they say
    - `replaces_origin`: whether they take the place of those that the record has from an earlier delivery
    - `cancels_by_null_value`: whether a record with a null value cancels what has its key
    - `cancel_header`: a header, and the values of it by which a record does so
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
        """The names of the headers that say when, or ask for more than one delivery."""
        repeat = () if self.repeat is None else self.repeat.headers
        own = (header.name for header in self.schedule)
        return tuple(dict.fromkeys((*own, *self.refused, *self.refused_with_schedule, *repeat)))

    @property
    def others(self) -> tuple[str, ...]:
        """The names of the other headers that the preset reads."""
        single = (self.target, self.key, self.partition, self.partition_key)
        pairs = (self.version, self.cancel_header)
        return (*filter(None, single), *(pair[0] for pair in pairs if pair is not None))
