"""Reads the published messages of a campaign back from the input topic, which has the true ids despite broker kills."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.load import read_value
from benchmarks.stand import Stand
from state.cancel import CANCEL_HEADER
from streaming.judge.outputs import Outputs
from streaming.judge.record import Published, Received

# Enough for a campaign of a day.
_READ_S = 600.0


def published_in(
    stand: Stand, topic: str, topic_of: Callable[[int], str]
) -> tuple[dict[str, Published], dict[str, str]]:
    """Return the messages by id, and what each ask for a cancel asks for. Raises ValueError for a record that is twice.

    `topic_of` returns the output topic for a message's number.
    """
    records: list[Received] = []
    inputs = Outputs(stand.bootstrap, [topic], records.append)
    try:
        inputs.drain(_READ_S)
    finally:
        inputs.close()
    if len({record.value for record in records}) < len(records):
        raise ValueError(f"a message is in {topic} twice")
    asked = {_id(record): text for record in records if (text := record.last(CANCEL_HEADER)) is not None}
    messages = [_message(record, topic_of) for record in records if _id(record) not in asked]
    return {message.id: message for message in messages}, asked


def _id(record: Received) -> str:
    return f"{record.topic}/{record.partition}/{record.offset}"


def _message(record: Received, topic_of: Callable[[int], str]) -> Published:
    number, due_us = read_value(record.value or b"")
    return Published(
        id=_id(record),
        timestamp_ms=record.timestamp_ms,
        key=record.key,
        value=record.value,
        headers=record.headers,
        output=topic_of(number),
        # Plain messages have their timestamp here.
        deliver_at_ms=due_us // 1000,
    )
