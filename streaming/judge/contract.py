"""The checks of the contract that need a single record, regardless of the records before and after it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from kafka.partitioner.default import murmur2

from streaming.judge.record import ANY_ERROR, ID_HEADER, Header, Published, Received

# A message that is overdue by more than this when it is written has the time of writing as its timestamp.
_OVERDUE_MS = 60_000
_STUB_HEADER = "delayline-stub"
_MOST_STUB_BYTES = 8_192
# Every dead-letter topic takes a message of this size whole.
_NEVER_A_STUB_BYTES = 4_096
_DEAD_LETTER_HEADERS = [ID_HEADER, "delayline-error", "delayline-error-text", "delayline-timestamp"]


class Fault(StrEnum):
    """The kinds of faults of a delivery. `MISPLACED` means in a wrong topic or partition."""

    LOST = "lost"
    DOUBLED = "doubled"
    FOREIGN = "never published"
    EARLY = "early"
    OUT_OF_ORDER = "out of order"
    ALTERED = "altered"
    MISPLACED = "misplaced"


@dataclass(frozen=True)
class Finding:
    """One fault of the message `id`; `text` describes it."""

    fault: Fault
    id: str
    text: str


@dataclass(frozen=True)
class Environment:
    """The facts that the judge knows in addition to messages and records.

    - `partitions`: for each topic, all partition counts it has had since the first message. Each start of the job uses
      the count at that time.
    - `shown_ms`: takes an instant of the subscriber's clock and returns the latest time that the clock of the job's
      host had shown up to that instant, both epoch ms. On a single host the two clocks are the same.
    """

    partitions: Mapping[str, Collection[int]]
    shown_ms: Callable[[int], int] = lambda now_ms: now_ms


def misplacement(record: Received, message: Published, partitions: Mapping[str, Collection[int]]) -> Finding | None:
    """Return a finding if the record is in a wrong topic or partition."""
    if record.topic != message.output:
        return Finding(Fault.MISPLACED, record.id, f"was delivered to {record.topic}, not to {message.output}")
    if message.error is not None and (message.key is None or record.key != message.key):
        # A keyless message that the broker refuses at delivery may go to any partition of the dead-letter topic, and so
        # may a stub with another key than the message.
        return None
    _, input_partition, _ = message.source
    number = input_partition if message.key is None else _key_hash(message.key)
    allowed = {number % count for count in partitions[record.topic]}
    if record.partition in allowed:
        return None
    expected = " or ".join(map(str, sorted(allowed)))
    return Finding(Fault.MISPLACED, record.id, f"is in {record.topic}/{record.partition}, belongs in {expected}")


@lru_cache(maxsize=100_000)
def _key_hash(key: bytes) -> int:
    """Return the hash that Kafka's default partitioner takes modulo the partition count of a topic."""
    return int(murmur2(key)) & 0x7FFFFFFF


def alteration(record: Received, message: Published, shown_ms: Callable[[int], int]) -> Finding | None:
    """Return a finding if key, value, headers or timestamp differ from what the contract requires."""
    if message.error is not None and is_stub(record, message):
        return stub_alteration(record, message)
    own = message.headers if message.error is None else (*message.headers, *_mark(message))
    count = len(own)
    added = record.headers[count:]
    altered = {
        "key": record.key != message.key,
        "value": record.value != message.value,
        "headers": record.headers[:count] != own,
        "headers of the service": not _are_service_headers(added, message),
        # The timestamp of a dead letter is the time at which it was written.
        "timestamp": message.error is None and not _is_stamp(record, message.due_ms, shown_ms),
    }
    names = ", ".join(name for name, is_altered in altered.items() if is_altered)
    return Finding(Fault.ALTERED, record.id, f"altered in its {names}") if names else None


def _is_stamp(record: Received, due_ms: int, shown_ms: Callable[[int], int]) -> bool:
    """Return whether the record's timestamp is the due time, or one at which it was written overdue."""
    written_overdue = due_ms + _OVERDUE_MS < record.timestamp_ms <= shown_ms(record.received_ms)
    return record.timestamp_ms == due_ms or written_overdue


def _are_service_headers(added: tuple[Header, ...], message: Published) -> bool:
    """Return whether `added` are the headers that the service adds to the message."""
    identity, due = message.id.encode(), str(message.due_ms).encode()
    if message.error is None:
        return added == ((ID_HEADER, identity), ("delayline-deliver-at", due))
    if [name for name, _ in added] != _DEAD_LETTER_HEADERS:
        return False
    _, code, text, timestamp = (value or b"" for _, value in added)
    return (
        added[0][1] == identity
        and (message.error == ANY_ERROR or code == message.error.encode())
        and text.startswith(code)
        and timestamp == str(message.timestamp_ms).encode()
    )


def is_stub(record: Received, message: Published) -> bool:
    """Return whether the record is a dead letter that has the message's facts in place of the message."""
    own = record.headers[: -len(_DEAD_LETTER_HEADERS)]
    # A publisher may have set that header, too.
    is_whole = (own, record.value) == ((*message.headers, *_mark(message)), message.value)
    return record.value is None and not is_whole and bool(own) and own[-1][0] == _STUB_HEADER


def _mark(message: Published) -> tuple[Header, ...]:
    """Return what is behind the message's headers on its whole dead letter, which would look like a stub without it."""
    looks_so = message.value is None and bool(message.headers) and message.headers[-1][0] == _STUB_HEADER
    return ((_STUB_HEADER, None),) if looks_so else ()


def stub_alteration(record: Received, message: Published) -> Finding | None:
    """Return a finding if a stub does not stand for the message: it is the dead letter of one that is too large."""
    own, service = record.headers[: -len(_DEAD_LETTER_HEADERS)], record.headers[-len(_DEAD_LETTER_HEADERS) :]
    *kept, (_, stub) = own
    facts = {
        "key_bytes": None if message.key is None else len(message.key),
        "value_bytes": None if message.value is None else len(message.value),
        "value_sha256": None if message.value is None else hashlib.sha256(message.value).hexdigest(),
        "headers": len(message.headers),
    }
    rest = iter(message.headers)
    wrong = {
        "key": record.key not in (message.key, None, message.id.encode()),
        "facts": json.loads(stub or b"null") != facts,
        "headers": not all(header in rest for header in kept),
        "headers of the service": not _are_service_headers(service, message),
        "size": _nbytes(record) > _MOST_STUB_BYTES or _nbytes(message) <= _NEVER_A_STUB_BYTES,
    }
    names = ", ".join(name for name, is_wrong in wrong.items() if is_wrong)
    return Finding(Fault.ALTERED, record.id, f"altered in the {names} of its stub") if names else None


def _nbytes(record: Received | Published) -> int:
    headers = sum(len(name.encode()) + len(value or b"") for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers


def earliness(record: Received, message: Published, shown_ms: Callable[[int], int]) -> Finding | None:
    """Return a finding if the record was received before the message was due. Dead letters are due immediately."""
    early_ms = message.due_ms - shown_ms(record.received_ms)
    if message.error is not None or early_ms <= 0:
        return None
    return Finding(Fault.EARLY, record.id, f"came {early_ms} ms early")


def record_faults(record: Received, message: Published, environment: Environment) -> Iterator[Finding]:
    """Yield the faults of a single record, at most one of each kind."""
    findings = (
        misplacement(record, message, environment.partitions),
        alteration(record, message, environment.shown_ms),
        earliness(record, message, environment.shown_ms),
    )
    yield from (finding for finding in findings if finding is not None)
