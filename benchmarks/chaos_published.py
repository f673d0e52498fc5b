"""What a campaign has published, read back from the input topic: Kafka's own word for ids, also across its kills."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.load import read_value
from benchmarks.stand import Stand
from streaming.judge.outputs import Outputs
from streaming.judge.record import Published, Received

# Of a campaign of a day.
_READ_S = 600.0


def published_in(stand: Stand, topic: str, topic_of: Callable[[int], str]) -> dict[str, Published]:
    """Return the messages by id; `topic_of` gives, for a message's number, the topic that it must come out on.

    Raises ValueError if a message was published twice.
    """
    records: list[Received] = []
    inputs = Outputs(stand.bootstrap, [topic], records.append)
    try:
        inputs.drain(_READ_S)
    finally:
        inputs.close()
    messages = [_message(record, topic_of) for record in records]
    if len({record.value for record in records}) < len(records):
        raise ValueError(f"a message is in {topic} twice")
    return {message.id: message for message in messages}


def _message(record: Received, topic_of: Callable[[int], str]) -> Published:
    number, due_us = read_value(record.value or b"")
    return Published(
        id=f"{record.topic}/{record.partition}/{record.offset}",
        timestamp_ms=record.timestamp_ms,
        key=record.key,
        value=record.value,
        headers=record.headers,
        output=topic_of(number),
        # That of a plain message is its timestamp.
        deliver_at_ms=due_us // 1000,
    )
