"""Published messages and received records, as plain values."""

from __future__ import annotations

from dataclasses import dataclass

Header = tuple[str, bytes | None]
# The due time (epoch ms), then the input topic, partition and offset: the contract's order in an output partition.
OrderKey = tuple[int, str, int, int]

ID_HEADER = "delayline-id"
# Matches every error code: a dead letter is expected, and the test checks its code itself.
ANY_ERROR = "any"


@dataclass(frozen=True, slots=True)
class Published:
    """A published message, and the delivery that the contract requires.

    - `id`: `topic/partition/offset` of the input record.
    - `output`: the topic that the message must be delivered to.
    - `deliver_at_ms`: the due time (epoch ms). None for a plain message, which is due at its timestamp, and for a
      message that cannot be scheduled.
    - `error`: for a message that cannot be scheduled, the code of its dead letter.
    - `made_due`: whether somebody asks for it to be due at once: then it is in no order with others.
    """

    id: str
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    output: str
    deliver_at_ms: int | None = None
    error: str | None = None
    made_due: bool = False

    @property
    def due_ms(self) -> int:
        """The due time, epoch ms."""
        return self.timestamp_ms if self.deliver_at_ms is None else self.deliver_at_ms

    @property
    def source(self) -> tuple[str, int, int]:
        """The input topic, partition and offset."""
        topic, partition, offset = self.id.rsplit("/", 2)
        return topic, int(partition), int(offset)

    @property
    def order_key(self) -> OrderKey:
        """The message's key in the contract's order."""
        return (self.due_ms, *self.source)


@dataclass(frozen=True, slots=True)
class Received:
    """A record that a subscriber received at `received_ms`, epoch ms."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    received_ms: int

    def last(self, name: str) -> str | None:
        """Return the last header of that name as text, or None. The last one, as the service adds its headers last."""
        value = next((value for given, value in reversed(self.headers) if given == name), None)
        return None if value is None else value.decode(errors="replace")

    @property
    def id(self) -> str:
        """The message id that the service wrote, or `?` without one."""
        return self.last(ID_HEADER) or "?"
