"""A dead letter as values: the record that could not be scheduled, why, and what to change before it is sent again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sources.subscriber import Received
from state.dead_letter import FIRST_ID_HEADER, Headers, split_headers


@dataclass(frozen=True)
class DeadLetter:
    """One record of the dead-letter topic, at `partition` and `offset` there.

    `topic`, `input_partition` and `input_offset` are its message id: where it was published. `headers` are those that
    it had there. `timestamp_ms` (epoch ms) is the input record's.
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

    @property
    def id(self) -> str:
        """The message id, `topic/partition/offset` of the input."""
        return f"{self.topic}/{self.input_partition}/{self.input_offset}"

    @property
    def nbytes(self) -> int:
        """How large it is: key, value and headers."""
        headers = sum(len(name) + len(value or b"") for name, value in self.headers)
        return len(self.key or b"") + len(self.value or b"") + headers


def read_letter(record: Received) -> DeadLetter | None:
    """Return the dead letter that `record` is; None for one that no Delayline has written."""
    if (found := split_headers(record.headers)) is None:
        return None
    own, verdict = found
    return DeadLetter(
        record.partition, record.offset, verdict.topic, verdict.partition, verdict.offset, verdict.timestamp_ms,
        record.key, record.value, own, verdict.code, verdict.text,
    )  # fmt: skip


@dataclass(frozen=True)
class Choice:
    """Which dead letters are meant; what is empty or None asks for nothing.

    `codes` and `ids` each name some of which one must fit. `partition`, and `first` to `last` (both included), are of
    the dead-letter topic. `since_ms` (included) and `until_ms` (not included) are epoch ms of when it was published.
    """

    codes: frozenset[str] = frozenset()
    ids: frozenset[str] = frozenset()
    partition: int | None = None
    first: int | None = None
    last: int | None = None
    since_ms: int | None = None
    until_ms: int | None = None

    def fits(self, letter: DeadLetter) -> bool:
        """Say whether `letter` is one of them."""
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
    """Headers to set, in this order and repeated names included, and names to drop."""

    to_set: Sequence[tuple[str, bytes]] = ()
    to_drop: frozenset[str] = field(default=frozenset())

    def applied(self, letter: DeadLetter) -> Headers:
        """Return the headers that `letter` is sent again with.

        What is set stands where the first header of that name stood, or behind all others. Of the headers that the
        service added none is left, and one links to the first id: it stays the same however often a record comes back.
        """
        first = next((value for name, value in letter.headers if name == FIRST_ID_HEADER), letter.id.encode())
        changed: Headers = []
        waiting = list(self.to_set)
        for name, value in letter.headers:
            if any(name == given for given, _ in self.to_set):
                changed += [each for each in waiting if each[0] == name]
                waiting = [each for each in waiting if each[0] != name]
            elif name not in self.to_drop and name != FIRST_ID_HEADER:
                changed.append((name, value))
        return [*changed, *waiting, (FIRST_ID_HEADER, first)]
