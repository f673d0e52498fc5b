"""Batch settings: everything apart from its input that decides what a batch does, versioned by batch.

A batch that is replayed after a crash must repeat exactly what it did (invariant 4), even if the job was restarted
with other settings or an output topic has gained partitions meanwhile. Each start of the job therefore records the
settings that apply from its first new batch on, and a replayed batch uses the settings recorded for it.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import pydantic.dataclasses
from pydantic import TypeAdapter

from conf.errors import CheckpointMismatch
from conf.sections import HeaderSettings
from conf.settings import INTERNAL_SUFFIXES, Settings
from conf.topic_tables import Policy
from state.checkpoint.origin import CheckpointOrigin, InputIds, Offsets
from state.checkpoint.stored_json import STORED, read_stored
from state.group_keys import state_partitions
from state.taken import NONE_TAKEN, Taken


@pydantic.dataclasses.dataclass(frozen=True, config=STORED)
class DelayPolicy:
    """The policy of an input topic. Delays are in ms.

    - `default_ms`: the delay of a message without one
    - `fixed_ms`: the delay of every message, whatever its headers say; None: they decide
    - `most_ms`: the longest delay
    - `clamps`: whether a longer delay is shortened to `most_ms`; otherwise the message is rejected
    - `most_waiting`: how many messages of the topic may wait; None: any number
    - `expiry_header`: the header with the instant at which a message expires; "" without one
    - `names`: where the names of messages come from, as the policy `names` says (`state.names`)
    - `name_mode`: the result for a message if another one waits under its name, as the policy says
    - `repeats`: whether messages may repeat, and `repeat_ms`: the shortest time between two occurrences
    """

    default_ms: int = 0
    fixed_ms: int | None = None
    most_ms: int = 366 * 86_400_000
    clamps: bool = False
    expiry_header: str = ""
    names: str = "off"
    name_mode: str = "replace"
    most_waiting: int | None = None
    repeats: bool = False
    repeat_ms: int = 10_000


# The index of sealed messages drops at least so many low bits of due times: 15 make time slots of 33 s. With fewer,
# `delayline status` would be more exact, and a message would take more bytes of metadata.
PRECISION_BITS = 15
# How much of a batch the own groups of the shards in a state partition take, unless it reads hundreds of input
# partitions (`sources.intake.grouping`). A task of the state stage needs about five times this memory.
_PARTITION_BYTES = 64 * 1024 * 1024


@pydantic.dataclasses.dataclass(frozen=True, config=STORED)
class BatchSettings:
    """The settings of a range of batches. Durations in ms, sizes in bytes.

    - `forbidden_outputs`: the job's own topics, which no pattern of `allowed_outputs` can allow
    - `partitions`: the partition count of each topic that may be written to
    - `shard_keys[s]`: the key of the own group of shard `s` (`state.group_keys`)
    - `results`: the topic of the answers to cancels
    - `dead_letter_bytes`: the largest record that the dead-letter topic takes whole
    - `policy`: the policy of input topics that are not in `policies`
    - `presets`: the names of each input topic's presets, if it has any (`sources.intake.presets`)
    - `group_bytes`: how many bytes of a batch's arrivals a shard's own group takes (`state.group_keys`)
    - `horizon`: how far ahead of its clock a batch stages messages
    - `first_bucket`: batch n seals bucket `first_bucket + n`
    - `first_cutoff_ms`: no batch of the checkpoint has a lower cutoff (`state.checkpoint.origin`)
    - `input_ids`: the input topics that the batches read (`state.checkpoint.input_ids`)
    """

    headers: HeaderSettings
    levels_ms: tuple[int, ...]
    output: str
    allowed_outputs: tuple[str, ...]
    forbidden_outputs: tuple[str, ...]
    dead_letter: str
    partitions: Mapping[str, int]
    shard_keys: tuple[int, ...]
    bucket_max_messages: int
    bucket_max_bytes: int
    segment_max_messages: int
    index_precision_bits: int
    first_bucket: int
    first_cutoff_ms: int
    max_message_bytes: int
    dead_letter_bytes: int
    results: str
    group_bytes: int = _PARTITION_BYTES
    presets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    policy: DelayPolicy = DelayPolicy()
    policies: Mapping[str, DelayPolicy] = field(default_factory=dict)
    input_ids: InputIds = field(default_factory=dict)
    horizon: int = 60_000

    @property
    def shards(self) -> int:
        """The number of shards."""
        return len(self.shard_keys)

    def policy_of(self, topic: str) -> DelayPolicy:
        """Return the policy of the input topic `topic`."""
        return self.policies.get(topic, self.policy)

    def name_mode(self, topic: str) -> str:
        """Return which of several messages with the same name waits, for the input topic `topic` (`state.names`)."""
        return self.policy_of(topic).name_mode

    @property
    def limits_waiting(self) -> bool:
        """Whether the number of waiting messages of any input topic is limited."""
        return any(each.most_waiting is not None for each in (self.policy, *self.policies.values()))

    def allows(self, topic: str) -> bool:
        """Return whether `deliver-to` may name `topic`: the default output, or a topic on the allow-list.

        The job's own topics are never allowed: in an input topic the message would loop forever.
        """
        if topic in self.forbidden_outputs:
            return False
        return topic == self.output or is_listed(topic, self.allowed_outputs)


def batch_settings_from(
    settings: Settings,
    partitions: Mapping[str, int],
    shard_keys: Sequence[int],
    origin: CheckpointOrigin,
    dead_letter_bytes: int = 2**63 - 1,
    input_ids: InputIds | None = None,
) -> BatchSettings:
    """Return the part of `settings` that decides a batch's result, for the checkpoint that began as `origin`.

    `dead_letter_bytes` is the largest record that the dead-letter topic takes whole, if that is known.
    """
    return BatchSettings(
        headers=settings.headers,
        levels_ms=settings.levels.delays,
        output=settings.topics.output,
        allowed_outputs=settings.topics.allowed_outputs,
        forbidden_outputs=(
            *settings.topics.input,
            settings.topics.dead_letter,
            settings.results_topic,
            *settings.own_topics,
        ),
        dead_letter=settings.topics.dead_letter,
        partitions=dict(partitions),
        shard_keys=tuple(shard_keys),
        bucket_max_messages=settings.bucket.max_messages,
        bucket_max_bytes=settings.bucket.max_bytes,
        segment_max_messages=settings.bucket.max_messages,
        index_precision_bits=PRECISION_BITS,
        first_bucket=origin.first_bucket,
        first_cutoff_ms=origin.cutoff_ms,
        max_message_bytes=settings.limits.max_message_bytes,
        dead_letter_bytes=dead_letter_bytes,
        presets=settings.presets.by_topic,
        policy=policy_from(settings.policies.of_all),
        policies={topic: policy_from(policy) for topic, policy in settings.policies.by_topic.items()},
        results=settings.results_topic,
        group_bytes=_PARTITION_BYTES * state_partitions(len(shard_keys)) // len(shard_keys),
        input_ids=input_ids or {},
        horizon=settings.clock.horizon,
    )


def policy_from(policy: Policy) -> DelayPolicy:
    """Return the policy of an input topic from the `policy` in the settings."""
    return DelayPolicy(
        policy.default_delay,
        policy.fixed_delay,
        policy.max_delay,
        clamps=policy.over_max_delay == "clamp",
        expiry_header=policy.expiry_header or "",
        names=policy.names,
        name_mode=policy.name_mode,
        most_waiting=policy.max_waiting,
        repeats=policy.repeats,
        repeat_ms=policy.repeat_interval,
    )


@dataclass(frozen=True)
class Refusal:
    """Which records a batch refuses because too many messages of their topics wait.

    - `from_offsets`: the offset from which on records of an input partition are refused. A partition without an offset
      has no refused records
    - `due_from_ms`: only messages due then or later, epoch ms: earlier messages are staged and do not wait
    """

    from_offsets: Offsets = field(default_factory=dict)
    due_from_ms: int = 0


NONE_REFUSED = Refusal()


@dataclass(frozen=True)
class RunningBatch:
    """The batch that a task runs for.

    - `batch_id`: Spark's number of the batch
    - `settings`: its settings
    - `read_partitions`: the number of input partitions from which it reads records
    - `transfer_rows`: how many rows Spark passes to the state function at once, and takes from it
    - `clock_ms`: its clock, epoch ms, by the offset log: a replayed batch has the same
    - `refusal`: which records it refuses; a replayed batch refuses the same
    - `taken`: which records forwarders have taken, and the batch leaves out
    """

    batch_id: int
    settings: BatchSettings
    read_partitions: int
    transfer_rows: int
    clock_ms: int
    refusal: Refusal = NONE_REFUSED
    taken: Taken = NONE_TAKEN


def is_listed(topic: str, allowed_outputs: Sequence[str]) -> bool:
    """Return whether an allow-list has `topic`, by its name or by a pattern that matches it.

    No pattern matches a name with one of `INTERNAL_SUFFIXES`. It may be an internal topic of another application, which
    a stray record would stop. Such a topic must be listed by its full name.
    """
    if topic in allowed_outputs:
        return True
    return not topic.endswith(INTERNAL_SUFFIXES) and any(fnmatchcase(topic, pattern) for pattern in allowed_outputs)


@dataclass(frozen=True)
class SettingsHistory:
    """The settings of every batch that can still run: `(first batch, batch_settings)`, ascending."""

    entries: tuple[tuple[int, BatchSettings], ...]

    @property
    def newest(self) -> BatchSettings:
        """The settings of new batches."""
        return self.entries[-1][1]

    def at(self, batch_id: int) -> BatchSettings:
        """Return the settings of batch `batch_id`. Raises CheckpointMismatch if they are not recorded."""
        later = bisect_right([first for first, _ in self.entries], batch_id)
        if not later:
            raise CheckpointMismatch(
                f"the settings of batch {batch_id} are missing from the checkpoint. Restore all of its files"
            )
        return self.entries[later - 1][1]

    def amended(self, from_batch: int, batch_settings: BatchSettings, keep_from: int) -> SettingsHistory:
        """Return the history with `batch_settings` from `from_batch` on, and without batches before `keep_from`."""
        kept = [entry for entry in self.entries if entry[0] < from_batch]
        if not kept or kept[-1][1] != batch_settings:
            kept.append((from_batch, batch_settings))
        firsts = [first for first, _ in kept]
        return SettingsHistory(tuple(kept[max(0, bisect_right(firsts, keep_from) - 1) :]))

    def had_output(self, topic: str) -> bool:
        """Return whether batches under settings before the newest may have accepted messages for `topic`.

        This is known as far as the history goes back. At the release, earlier messages become dead letters. No message
        is accepted for a topic without known partitions.
        """
        return any(each.allows(topic) and topic in each.partitions for _, each in self.entries[:-1])

    def to_json(self) -> str:
        """Return the history as one JSON object."""
        return json.dumps({"settings": [_entry(first, each) for first, each in self.entries]}, indent=1)

    @staticmethod
    def from_json(text: str) -> SettingsHistory:
        """Read what `to_json` wrote. Raises KeyError, TypeError or ValueError for anything else."""
        entries = map(dict, json.loads(text)["settings"])
        return SettingsHistory(
            tuple((int(each.pop("from_batch")), read_stored(_SETTINGS, json.dumps(each))) for each in entries)
        )


def _entry(first: int, batch_settings: BatchSettings) -> dict[str, Any]:
    stored: dict[str, Any] = _SETTINGS.dump_python(batch_settings, mode="json")
    return {"from_batch": first} | stored


_SETTINGS = TypeAdapter(BatchSettings)
