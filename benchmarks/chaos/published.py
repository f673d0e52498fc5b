"""Reads the published messages of a campaign back from the input topic, which has the true ids despite broker kills."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.load import read_value
from benchmarks.stand import Stand
from streaming.judge.outputs import Outputs
from streaming.judge.record import Published, Received

# Enough for a campaign of a day.
_READ_S = 600.0


def published_in(stand: Stand, topic: str, topic_of: Callable[[int], str]) -> dict[str, Published]:
    """Return the messages by id. Raises ValueError if a message was published twice.

    `topic_of` returns the output topic for a message's number.
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
        # Plain messages have their timestamp here.
        deliver_at_ms=due_us // 1000,
    )
