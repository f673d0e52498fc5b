"""A dead letter as values: the record, why it was rejected, and what to change before it is resent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sources.subscriber import Received
from state.dead_letter import FIRST_ID_HEADER, Headers, split_headers
from state.message import ID_HEADER
from state.stub import Stub, split_stub

# The bytes that Python takes for a header in addition to its name and value, while the letter is read, changed and
# checked: measured.
_HEADER_BYTES = 400


@dataclass(frozen=True)
class DeadLetter:
    """One record of the dead-letter topic, at `partition` and `offset` there.

    `topic`, `input_partition` and `input_offset` are its message id: where it was published. `headers` and
    `timestamp_ms` (epoch ms) come from the input record. `code` and `text` describe the error. `stub` describes the
    record if the letter is only a stub of it.
    """

    partition: int
    offset: int
    topic: str
    input_partition: int
    input_offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    code: str
    text: str
    stub: Stub | None = None

    @property
    def id(self) -> str:
        """The message id, `topic/partition/offset` of the input."""
        return f"{self.topic}/{self.input_partition}/{self.input_offset}"

    @property
    def nbytes(self) -> int:
        """Bytes that key, value and headers take in memory, about: empty headers are not free."""
        headers = sum(len(name) + len(value or b"") + _HEADER_BYTES for name, value in self.headers)
        return len(self.key or b"") + len(self.value or b"") + headers


def read_letter(record: Received) -> DeadLetter | None:
    """Return `record` as a dead letter, or None if Delayline did not write it."""
    if (parts := split_headers(record.headers)) is None:
        return None
    before, verdict = parts
    own, stub = split_stub(record.key, record.value, before, record.header(ID_HEADER) or b"")
    return DeadLetter(
        record.partition, record.offset, verdict.topic, verdict.partition, verdict.offset, verdict.timestamp_ms,
        record.key, record.value, own, verdict.code, verdict.text, stub,
    )  # fmt: skip


@dataclass(frozen=True)
class Choice:
    """Which dead letters to choose. Each field must match; an empty field or None matches every letter.

    - `codes`, `ids`: the error code and the message id are among these
    - `partition`, `first`, `last`: the place in the dead-letter topic, offsets from `first` to `last`, both inclusive
    - `since_ms` (inclusive), `until_ms` (exclusive): when the input record was published, epoch ms
    """

    codes: frozenset[str] = frozenset()
    ids: frozenset[str] = frozenset()
    partition: int | None = None
    first: int | None = None
    last: int | None = None
    since_ms: int | None = None
    until_ms: int | None = None

    def fits(self, letter: DeadLetter) -> bool:
        """Return whether `letter` is chosen."""
        return (
            (not self.codes or letter.code in self.codes)
            and (not self.ids or letter.id in self.ids)
            and (self.partition is None or letter.partition == self.partition)
            and (self.first is None or letter.offset >= self.first)
            and (self.last is None or letter.offset <= self.last)
            and (self.since_ms is None or letter.timestamp_ms >= self.since_ms)
            and (self.until_ms is None or letter.timestamp_ms < self.until_ms)
        )


@dataclass(frozen=True)
class HeaderChanges:
    """Headers to set, in this order, where a name may repeat; and names of headers to drop."""

    to_set: Sequence[tuple[str, bytes]] = ()
    to_drop: frozenset[str] = field(default=frozenset())

    def applied(self, letter: DeadLetter) -> Headers:
        """Return the headers with which `letter` is resent.

        A header that is set replaces the first header with its name, or comes after all others. The headers that the
        service added are removed. The last header has the first message id, which stays the same however often a record
        is resent.
        """
        first_id = next((value for name, value in letter.headers if name == FIRST_ID_HEADER), letter.id.encode())
        changed: Headers = []
        not_placed = list(self.to_set)
        for name, value in letter.headers:
            if any(name == set_name for set_name, _ in self.to_set):
                changed += [each for each in not_placed if each[0] == name]
                not_placed = [each for each in not_placed if each[0] != name]
            elif name not in self.to_drop and name != FIRST_ID_HEADER:
                changed.append((name, value))
        return [*changed, *not_placed, (FIRST_ID_HEADER, first_id)]
