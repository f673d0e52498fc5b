"""What the contract says of one record, whatever came before or after it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from kafka.partitioner.default import murmur2

from streaming.judge.record import ANY_ERROR, ID_HEADER, Header, Published, Received

_DEAD_LETTER_HEADERS = [ID_HEADER, "delayline-error", "delayline-error-text", "delayline-timestamp"]


class Fault(StrEnum):
    """What can be wrong with a delivery. `MISPLACED` is another topic or partition than the contract names."""

    LOST = "lost"
    DOUBLED = "doubled"
    FOREIGN = "never published"
    EARLY = "early"
    OUT_OF_ORDER = "out of order"
    ALTERED = "altered"
    MISPLACED = "misplaced"


@dataclass(frozen=True)
class Finding:
    """One fault of the message `id`, in a sentence."""

    fault: Fault
    id: str
    text: str


@dataclass(frozen=True)
class Surroundings:
    """What the judge has to know beside messages and records.

    `partitions` are, by topic, the numbers of partitions that the topic had since the first message: each start of the
    job goes by the number at that time. `shown_ms` gives the latest time that the clock of the job's host showed up to
    an instant of the subscriber's clock, both epoch ms; where both run on one host, that is the same clock.
    """

    partitions: Mapping[str, Collection[int]]
    shown_ms: Callable[[int], int] = lambda now_ms: now_ms


def misplacement(record: Received, message: Published, partitions: Mapping[str, Collection[int]]) -> Finding | None:
    """Say if the record lies in another topic or partition than the contract names."""
    if record.topic != message.output:
        return Finding(Fault.MISPLACED, record.id, f"came out on {record.topic}, not on {message.output}")
    if message.key is None and message.error is not None:
        # A keyless message that is refused when it is delivered goes to any partition of the dead-letter topic.
        return None
    _, input_partition, _ = message.source
    by = input_partition if message.key is None else _key_number(message.key)
    right = {by % count for count in partitions[record.topic]}
    if record.partition in right:
        return None
    belongs = " or ".join(map(str, sorted(right)))
    return Finding(Fault.MISPLACED, record.id, f"lies in {record.topic}/{record.partition}, belongs in {belongs}")


@lru_cache(maxsize=100_000)
def _key_number(key: bytes) -> int:
    """Return what Kafka's default partitioner takes modulo the partitions of a topic."""
    return int(murmur2(key)) & 0x7FFFFFFF


def alteration(record: Received, message: Published) -> Finding | None:
    """Say which of key, value, headers and timestamp are not what the contract makes of the message."""
    count = len(message.headers)
    own = record.headers[count:]
    wrong = {
        "key": record.key != message.key,
        "value": record.value != message.value,
        "headers": record.headers[:count] != message.headers,
        "headers of the service": not _are_right(own, message),
        # A dead letter is stamped when it is written.
        "timestamp": message.error is None and record.timestamp_ms != message.due_ms,
    }
    named = ", ".join(name for name, is_wrong in wrong.items() if is_wrong)
    return Finding(Fault.ALTERED, record.id, f"altered in its {named}") if named else None


def _are_right(own: tuple[Header, ...], message: Published) -> bool:
    """Say whether these are the headers that the service adds to the message."""
    identity, due = message.id.encode(), str(message.due_ms).encode()
    if message.error is None:
        return own == ((ID_HEADER, identity), ("delayline-deliver-at", due))
    if [name for name, _ in own] != _DEAD_LETTER_HEADERS:
        return False
    _, code, text, timestamp = (value or b"" for _, value in own)
    return (
        own[0][1] == identity
        and (message.error == ANY_ERROR or code == message.error.encode())
        and text.startswith(code)
        and timestamp == str(message.timestamp_ms).encode()
    )


def earliness(record: Received, message: Published, shown_ms: Callable[[int], int]) -> Finding | None:
    """Say if the record was received before the message was due. Dead letters are due at once."""
    early_ms = message.due_ms - shown_ms(record.received_ms)
    if message.error is not None or early_ms <= 0:
        return None
    return Finding(Fault.EARLY, record.id, f"came {early_ms} ms early")


def faults_alone(record: Received, message: Published, surroundings: Surroundings) -> Iterator[Finding]:
    """Give what is wrong with the record by itself, each kind of fault once."""
    found = (
        misplacement(record, message, surroundings.partitions),
        alteration(record, message),
        earliness(record, message, surroundings.shown_ms),
    )
    yield from (finding for finding in found if finding is not None)
