"""Send dead letters to their input topics again: choose, change, check, and send each of them once."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import NamedTuple

from conf.durations import format_duration
from conf.errors import PublishFailed, UsageError
from conf.kafka.options import librdkafka_options
from conf.settings import Settings
from sinks.release.expiry import Expiry
from sinks.release.record_check import compresses
from sinks.resender import Outgoing, Resender, TransactionRefused
from sinks.topics.input_ends import input_retentions
from sinks.topics.limits import TopicLimits, input_limits
from sinks.topics.partitions import partition_counts
from sinks.topics.topics import check_topics
from sources.dead_letters.letter import Choice, DeadLetter, HeaderChanges, read_letter
from sources.dead_letters.position import ResendPosition
from sources.dead_letters.reader import DeadLetterReader
from sources.subscriber import Received
from state.checkpoint.batch_settings import BatchSettings, batch_settings_from
from state.checkpoint.origin import CheckpointOrigin
from streaming.operations.resend_check import refusals, topic_refusal

# The most that is held in memory at a time, and sent in one transaction.
MAX_CHUNK_LETTERS = 1_000
MAX_CHUNK_BYTES = 16 * 1024 * 1024
# A record is refused if its age is more than this share of its topic's retention time.
_MOST_OF_RETENTION = 0.9


@dataclass(frozen=True)
class Request:
    """Which dead letters to resend, and how.

    - `choice`, `changes`: which letters, and how their headers change.
    - `again`: include letters that were resent before.
    - `stamped_now`: give the records the present time as timestamp, not the one that they had.
    - `checked`: a letter that the job would refuse again stays a dead letter.
    - `skips_rest`: letters that are not chosen count as resent from now on.
    - `dry`: send nothing, and record nothing.
    """

    choice: Choice = field(default_factory=Choice)
    changes: HeaderChanges = field(default_factory=HeaderChanges)
    again: bool = False
    stamped_now: bool = False
    checked: bool = True
    skips_rest: bool = False
    dry: bool = False


@dataclass(frozen=True)
class Outcome:
    """The outcome for a chosen letter: its `new_id` if it was sent, the reason (`refusal`) if it was refused.

    In a dry run, a letter that would be sent has neither.
    """

    letter: DeadLetter
    new_id: str | None
    refusal: str | None


def resend(settings: Settings, request: Request) -> Iterator[Outcome]:
    """Resend the chosen letters that are in the dead-letter topic now; yield each once its transaction is committed.

    Raises UsageError for a partition that does not exist and, after all others are sent, for ids that were not found.
    Raises TopicMissing, TopicMismatch, BrokerUnreachable, PublishFailed, PositionInvalid.
    """
    counts = check_topics(settings)
    choice, count = request.choice, counts[settings.topics.dead_letter]
    if choice.partition is not None and choice.partition >= count:
        raise UsageError(
            f"--partition {choice.partition}: {settings.topics.dead_letter} has partitions 0 to {count - 1}"
        )
    partitions = range(count) if choice.partition is None else range(choice.partition, choice.partition + 1)
    batch_settings = batch_settings_from(settings, partition_counts(settings), (0,), CheckpointOrigin("resend", 0, 1))
    limits = input_limits(settings)
    # Before the positions are read: the new producer fences the producer of an earlier resend, which could move them.
    resender = None if request.dry else Resender(settings, limits)
    missing_ids = set(choice.ids)
    with closing(DeadLetterReader(settings, partitions)) as reader:
        run = _Run(
            settings,
            request,
            batch_settings,
            counts,
            reader,
            resender,
            reader.positions(),
            input_retentions(settings),
            limits,
        )
        for outcome in run.outcomes():
            missing_ids.discard(outcome.letter.id)
            yield outcome
    if missing_ids:
        raise UsageError(
            f"--id {', '.join(sorted(missing_ids))}: no such dead letter waits in "
            f"{settings.topics.dead_letter}. If it was resent before, add --again"
        )


@dataclass
class _Run:
    """One resend: its clients, what they read at the start, and how far it has come in each partition."""

    settings: Settings
    request: Request
    batch_settings: BatchSettings
    counts: dict[str, int]
    reader: DeadLetterReader
    resender: Resender | None
    positions: dict[int, ResendPosition]
    retentions: dict[str, int]
    limits: dict[str, TopicLimits]
    # For each partition: the offset up to which this run has read it, and the offsets that stay dead letters.
    read_to: dict[int, int] = field(default_factory=dict)
    left: dict[int, set[int]] = field(default_factory=dict)

    def outcomes(self) -> Iterator[Outcome]:
        starts = {number: 0 if self.request.again else position.offset for number, position in self.positions.items()}
        for chunk in chunks(self.reader.records(starts)):
            yield from self._resend(chunk)

    def _resend(self, chunk: list[Found]) -> Iterator[Outcome]:
        # 1. Divide the letters into chosen and skipped.
        chosen, skipped = [], []
        for partition, offset, letter in chunk:
            self.read_to[partition] = offset + 1
            was_done = self.positions[partition].is_done(offset)
            if letter is None or (was_done and not self.request.again):
                continue
            # A letter of another input topic belongs to another job that shares the dead-letter topic.
            if letter.topic in self.settings.topics.input and self.request.choice.fits(letter):
                chosen.append(letter)
            elif not was_done:
                skipped.append(letter)
        # 2. Change and check the chosen ones. `sent` are the indexes of those that are not refused.
        outgoing = [self._outgoing(letter) for letter in chosen]
        refusals = [
            _stub_refusal(letter) or refusal for letter, refusal in zip(chosen, self._refusals(outgoing), strict=True)
        ]
        sent = [index for index, refusal in enumerate(refusals) if refusal is None]
        # 3. Send, and record in the same transaction what is done.
        self._leave(letter for letter, refusal in zip(chosen, refusals, strict=True) if refusal is not None)
        if not self.request.skips_rest:
            self._leave(skipped)
        yield from (Outcome(letter, None, why) for letter, why in zip(chosen, refusals, strict=True) if why is not None)
        yield from self._send([(chosen[index], outgoing[index]) for index in sent], skipped * self.request.skips_rest)

    def _send(self, pairs: list[tuple[DeadLetter, Outgoing]], skipped: list[DeadLetter]) -> Iterator[Outcome]:
        """Send the record of each letter; yield what became of it. Letters that are `skipped` count as resent.

        A broker names no record for which it refuses a transaction. So its halves are sent alone, until one is left.
        """
        letters = [letter for letter, _ in pairs]
        try:
            ids = self._commit([record for _, record in pairs], [*letters, *skipped])
        except TransactionRefused as problem:
            self._leave(letters)
            if len(pairs) > 1:
                half = len(pairs) // 2
                yield from self._send(pairs[:half], skipped)
                yield from self._send(pairs[half:], [])
                return
            self._commit([], skipped)
            yield Outcome(letters[0], None, f"{letters[0].topic} refuses the record: {problem}")
            return
        # A dry run has no ids.
        yield from (Outcome(letter, ids[at] if ids else None, None) for at, letter in enumerate(letters))

    def _leave(self, letters: Iterable[DeadLetter]) -> None:
        """Let `letters` stay dead letters, until they are done."""
        for letter in letters:
            if not self.positions[letter.partition].is_done(letter.offset):
                self.left.setdefault(letter.partition, set()).add(letter.offset)

    def _commit(self, records: list[Outgoing], done: list[DeadLetter]) -> list[str]:
        """Send `records` and move the positions past `done` in one transaction; return the new ids.

        Raises TransactionRefused, with nothing done.
        """
        if self.resender is None or not done:
            return []
        by_partition: dict[int, set[int]] = {}
        for letter in done:
            by_partition.setdefault(letter.partition, set()).add(letter.offset)
        left = {number: self.left.get(number, set()) - offsets for number, offsets in by_partition.items()}
        advanced = {
            number: self.positions[number].advanced(offsets, left[number], self.read_to[number])
            for number, offsets in by_partition.items()
        }
        if self.resender.is_spent:
            self.resender.renew()
            if self.reader.positions() != self.positions:
                raise PublishFailed(
                    "another resend ran meanwhile, and has fenced this one. Run the command again. Without "
                    "--again, it sends no message twice"
                )
        stored = {number: (position.offset, position.to_text()) for number, position in advanced.items()}
        ids = self.resender.send(records, stored, self.reader.group())
        self.positions |= advanced
        self.left |= left
        return ids

    def _outgoing(self, letter: DeadLetter) -> Outgoing:
        # Keep the partition, since the publisher's partitioner may not be Kafka's. A topic that was created again may
        # have fewer partitions.
        exists = letter.input_partition < self.counts[letter.topic]
        return Outgoing(
            topic=letter.topic,
            partition=letter.input_partition if exists else None,
            timestamp_ms=_now_ms() if self.request.stamped_now else letter.timestamp_ms,
            key=letter.key,
            value=letter.value,
            headers=self.request.changes.applied(letter),
        )

    def _refusals(self, records: list[Outgoing]) -> list[str | None]:
        """Return for each record the reason not to send it, or None.

        Either its topic would not take it. Or, if `checked`, the job would refuse it again or might never read it.
        """
        may_shrink = compresses(librdkafka_options(self.settings.kafka))
        by_topic = [topic_refusal(each, self.limits[each.topic], may_shrink, _now_ms()) for each in records]
        if not self.request.checked or not records:
            return by_topic
        errors = refusals(records, self.batch_settings, Expiry.of(self.settings), _now_ms())
        reasons = zip(by_topic, errors, map(self._too_old, records), strict=True)
        return [first or error or old for first, error, old in reasons]

    def _too_old(self, record: Outgoing) -> str | None:
        kept_ms = self.retentions.get(record.topic)
        age_ms = _now_ms() - record.timestamp_ms
        if kept_ms is None or age_ms <= kept_ms * _MOST_OF_RETENTION:
            return None
        return (
            f"its timestamp is {format_duration(age_ms)} old, but {record.topic} keeps records for "
            f"{format_duration(kept_ms)} (retention.ms): the broker could delete the record before the job "
            "reads it. With --stamp now, the delay counts from now"
        )


class Found(NamedTuple):
    """The record of the dead-letter topic at an offset: a letter, or None for another record."""

    partition: int
    offset: int
    letter: DeadLetter | None


def chunks(records: Iterable[Received]) -> Iterator[list[Found]]:
    """Yield `records` as letters, `MAX_CHUNK_LETTERS` at a time, or fewer if they reach `MAX_CHUNK_BYTES`.

    Other records may be of any size, and are not kept.
    """
    chunk: list[Found] = []
    nbytes = 0
    for record in records:
        letter = read_letter(record)
        chunk.append(Found(record.partition, record.offset, letter))
        nbytes += 0 if letter is None else letter.nbytes
        if len(chunk) >= MAX_CHUNK_LETTERS or nbytes >= MAX_CHUNK_BYTES:
            yield chunk
            chunk, nbytes = [], 0
    if chunk:
        yield chunk


def _stub_refusal(letter: DeadLetter) -> str | None:
    """Return why a stub is not resent, or None for a whole dead letter."""
    if letter.stub is None:
        return None
    return (
        f"it is a stub without the record's value ({letter.stub.value_bytes} bytes). The whole record is in "
        f"partition {letter.input_partition} of {letter.topic} at offset {letter.input_offset}, until that "
        "topic deletes it. Publish it again from there: smaller, or after raising the limits"
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
