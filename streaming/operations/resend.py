"""Dead letters to their input topics again: what is chosen is changed, checked, sent, and not sent a second time."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field

import pyarrow as pa

from conf.durations import format_duration
from conf.errors import MessageTooLarge, UsageError
from conf.kafka.options import librdkafka_options
from conf.settings import Settings
from sinks.delivery.record_check import compresses
from sinks.delivery.records import Record, record_bytes
from sinks.resender import Outgoing, Resender
from sinks.topics.limits import input_limits
from sinks.topics.topics import check_topics, input_retentions, partition_counts
from sources.dead_letters.letter import Choice, DeadLetter, HeaderChanges, read_letter
from sources.dead_letters.position import ResendPosition
from sources.dead_letters.reader import DeadLetterReader
from sources.intake.accept import accept
from sources.subscriber import Received
from state.checkpoint.batch_settings import BatchSettings, batch_settings_from
from state.checkpoint.origin import CheckpointOrigin
from state.message import HEADERS

# What is held in memory at a time, and sent in one transaction.
MAX_CHUNK_LETTERS = 1_000
MAX_CHUNK_BYTES = 16 * 1024 * 1024
# What a record may have used up of the time for which its topic keeps it.
_MOST_OF_RETENTION = 0.9


@dataclass(frozen=True)
class Request:
    """What is to be resent, and how.

    `again`: what was resent before, too. `stamped_now`: the records get the time of now, and not the one that they had.
    `checked`: what the job would refuse again stays a dead letter. `skips_rest`: what is not chosen is never resent,
    unless with `again`. `dry`: nothing is sent, and nothing kept.
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
    """What became of a chosen letter: sent again under `new_id`, or refused for `refusal`; of a dry run neither."""

    letter: DeadLetter
    new_id: str | None
    refusal: str | None


def resend(settings: Settings, request: Request) -> Iterator[Outcome]:
    """Resend what is chosen of what is in the dead-letter topic now; yield each letter once it is committed.

    Raises UsageError (no such partition; ids that were not found, with all others sent), TopicMissing, TopicMismatch,
    BrokerUnreachable, PublishFailed, PositionInvalid.
    """
    counts = check_topics(settings)
    choice, letters = request.choice, counts[settings.topics.dead_letter]
    if choice.partition is not None and choice.partition >= letters:
        raise UsageError(f"--partition {choice.partition}: {settings.topics.dead_letter} has 0 to {letters - 1}")
    partitions = range(letters) if choice.partition is None else range(choice.partition, choice.partition + 1)
    batch_settings = batch_settings_from(settings, partition_counts(settings), (0,), CheckpointOrigin("resend", 0, 1))
    # Before any position is read: from here on no earlier resend can move one.
    limits = input_limits(settings)
    resender = None if request.dry else Resender(settings, limits)
    unseen = set(choice.ids)
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
            unseen.discard(outcome.letter.id)
            yield outcome
    if unseen:
        raise UsageError(
            f"--id {', '.join(sorted(unseen))}: no such dead letter is waiting in {settings.topics.dead_letter}; "
            "for one that was resent before, add --again"
        )


@dataclass
class _Run:
    settings: Settings
    request: Request
    batch_settings: BatchSettings
    counts: dict[str, int]
    reader: DeadLetterReader
    resender: Resender | None
    positions: dict[int, ResendPosition]
    retentions: dict[str, int]
    limits: dict[str, int]
    # Of each partition: what this run has read of it, and what of that stays as it is.
    read_to: dict[int, int] = field(default_factory=dict)
    left: dict[int, set[int]] = field(default_factory=dict)

    def outcomes(self) -> Iterator[Outcome]:
        starts = {number: 0 if self.request.again else at.offset for number, at in self.positions.items()}
        for chunk in _chunks(self.reader.records(starts)):
            yield from self._resend(chunk)

    def _resend(self, chunk: list[tuple[Received, DeadLetter | None]]) -> list[Outcome]:
        chosen, skipped = [], []
        for record, letter in chunk:
            self.read_to[record.partition] = record.offset + 1
            was_done = self.positions[record.partition].is_done(record.offset)
            if letter is None or (was_done and not self.request.again):
                continue
            # Of another job, if two share the topic.
            if letter.topic in self.settings.topics.input and self.request.choice.fits(letter):
                chosen.append(letter)
            elif not was_done:
                skipped.append(letter)
        outgoing = [self._outgoing(letter) for letter in chosen]
        refusals = self._refusals(outgoing)
        sent = [at for at, refusal in enumerate(refusals) if refusal is None]
        done = [chosen[at] for at in sent]
        stays = [letter for letter, refusal in zip(chosen, refusals, strict=True) if refusal is not None]
        (done if self.request.skips_rest else stays).extend(skipped)
        ids = self._commit([outgoing[at] for at in sent], done, stays)
        new_ids = dict(zip(sent, ids, strict=False))
        return [Outcome(letter, new_ids.get(at), refusals[at]) for at, letter in enumerate(chosen)]

    def _commit(self, records: list[Outgoing], done: list[DeadLetter], stays: list[DeadLetter]) -> list[str]:
        for letter in stays:
            if not self.positions[letter.partition].is_done(letter.offset):
                self.left.setdefault(letter.partition, set()).add(letter.offset)
        if self.resender is None or not done:
            return []
        by_partition: dict[int, set[int]] = {}
        for letter in done:
            by_partition.setdefault(letter.partition, set()).add(letter.offset)
        moved = {
            number: self.positions[number].advanced(offsets, self.left.get(number, set()), self.read_to[number])
            for number, offsets in by_partition.items()
        }
        kept = {number: (position.offset, position.to_text()) for number, position in moved.items()}
        ids = self.resender.send(records, kept, self.reader.group())
        self.positions |= moved
        return ids

    def _outgoing(self, letter: DeadLetter) -> Outgoing:
        # Where it was: a publisher's own partitioner may be another than Kafka's. A topic that was made anew may be
        # smaller.
        fits = letter.input_partition < self.counts[letter.topic]
        return Outgoing(
            topic=letter.topic,
            partition=letter.input_partition if fits else None,
            timestamp_ms=_now_ms() if self.request.stamped_now else letter.timestamp_ms,
            key=letter.key,
            value=letter.value,
            headers=self.request.changes.applied(letter),
        )

    def _refusals(self, records: list[Outgoing]) -> list[str | None]:
        """Say of each record why its topic would not take it, or the job would refuse or never see it; None if not."""
        too_large = [self._too_large(record) for record in records]
        if not self.request.checked or not records:
            return too_large
        errors = accept(_table(records), self.batch_settings, _now_ms()).column("error_text").to_pylist()
        reasons = zip(too_large, errors, map(self._too_old, records), strict=True)
        return [large or error or old for large, error, old in reasons]

    def _too_large(self, record: Outgoing) -> str | None:
        nbytes = record_bytes(Record(0, record.topic, 0, record.key, record.value, record.headers))
        if nbytes <= self.limits[record.topic] or compresses(librdkafka_options(self.settings.kafka)):
            return None
        limit = f"max.message.bytes of {record.topic} is {self.limits[record.topic]}"
        return str(MessageTooLarge(f"the record takes {nbytes} bytes, and {limit}"))

    def _too_old(self, record: Outgoing) -> str | None:
        kept_ms = self.retentions.get(record.topic)
        age_ms = _now_ms() - record.timestamp_ms
        if kept_ms is None or age_ms <= kept_ms * _MOST_OF_RETENTION:
            return None
        return (
            f"it is stamped {format_duration(age_ms)} ago, and {record.topic} keeps records for "
            f"{format_duration(kept_ms)} (retention.ms): the broker could delete it before the job has read it. "
            "With --stamp now its delay counts from now"
        )


def _chunks(records: Iterable[Received]) -> Iterator[list[tuple[Received, DeadLetter | None]]]:
    chunk: list[tuple[Received, DeadLetter | None]] = []
    nbytes = 0
    for record in records:
        letter = read_letter(record)
        chunk.append((record, letter))
        nbytes += 0 if letter is None else letter.nbytes
        if len(chunk) >= MAX_CHUNK_LETTERS or nbytes >= MAX_CHUNK_BYTES:
            yield chunk
            chunk, nbytes = [], 0
    if chunk:
        yield chunk


def _table(records: list[Outgoing]) -> pa.Table:
    headers = [[{"key": name, "value": value} for name, value in record.headers] for record in records]
    return pa.table(
        {
            "key": pa.array([record.key for record in records], pa.binary()),
            "value": pa.array([record.value for record in records], pa.binary()),
            "headers": pa.array(headers, HEADERS),
            "topic": pa.array([record.topic for record in records]),
            "partition": pa.array([record.partition or 0 for record in records], pa.int32()),
            "offset": pa.array(range(len(records)), pa.int64()),
            "timestamp_ms": pa.array([record.timestamp_ms for record in records], pa.int64()),
        }
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
