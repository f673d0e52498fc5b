"""What was published and what a subscriber received, as plain values."""

from __future__ import annotations

from dataclasses import dataclass

Header = tuple[str, bytes | None]
# The due time (epoch ms), then the input topic, partition and offset: the contract's order in an output partition.
Place = tuple[int, str, int, int]

ID_HEADER = "delayline-id"
# Stands for every error code: the dead letter is expected, and the test looks at its code itself.
ANY_ERROR = "any"


@dataclass(frozen=True, slots=True)
class Published:
    """A message as Kafka took it, and what must become of it.

    `id` is `topic/partition/offset` of the input record, `output` the topic that it must come out on. `deliver_at_ms`
    (epoch ms) is None for a plain message, which is due at its timestamp, and for one that cannot be scheduled: that
    must come out as a dead letter with the code `error`.
    """

    id: str
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    output: str
    deliver_at_ms: int | None = None
    error: str | None = None

    @property
    def due_ms(self) -> int:
        """When it is due, epoch ms."""
        return self.timestamp_ms if self.deliver_at_ms is None else self.deliver_at_ms

    @property
    def source(self) -> tuple[str, int, int]:
        """The input topic, partition and offset."""
        topic, partition, offset = self.id.rsplit("/", 2)
        return topic, int(partition), int(offset)

    @property
    def place(self) -> Place:
        """Its place in the contract's order."""
        return (self.due_ms, *self.source)


@dataclass(frozen=True, slots=True)
class Received:
    """A record as a subscriber received it at `received_ms`, epoch ms."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    received_ms: int

    def last(self, name: str) -> str | None:
        """Return the last header of that name as text, None if there is none: the service adds its own at the end."""
        value = next((value for given, value in reversed(self.headers) if given == name), None)
        return None if value is None else value.decode(errors="replace")

    @property
    def id(self) -> str:
        """The message id that the service wrote; `?` if it wrote none."""
        return self.last(ID_HEADER) or "?"
