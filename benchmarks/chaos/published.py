"""Reads the published messages of a campaign back from the input topic, which has the true ids despite broker kills."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from benchmarks.load import read_value
from benchmarks.stand import Stand
from state.cancel import CANCEL_HEADER, CONDITION_HEADER, DELIVER_NOW_HEADER, REPLACES_HEADER
from streaming.judge.outputs import Outputs
from streaming.judge.record import Published, Received

# Enough for a campaign of a day.
_READ_S = 600.0


@dataclass(frozen=True)
class Records:
    """The records that were published to an input topic, by id.

    - `messages`: all but requests to cancel or deliver a message
    - `requests`: the id that each record is to cancel, replace or deliver
    - `conditions`: the condition of each replacement
    - `delivering`: when each deliver-now request was published, epoch ms
    """

    messages: dict[str, Published]
    requests: dict[str, str]
    conditions: dict[str, str]
    delivering: dict[str, int]

    @property
    def asked_ms(self) -> dict[str, int]:
        """When a deliver-now request for each message was published first, epoch ms."""
        pairs = ((at_ms, self.requests[request]) for request, at_ms in self.delivering.items())
        return {asked: at_ms for at_ms, asked in sorted(pairs, reverse=True)}


def read_back(stand: Stand, topic: str) -> list[Received]:
    """Return the published records of an input topic."""
    records: list[Received] = []
    with closing(Outputs(stand.bootstrap, [topic], records.append)) as inputs:
        inputs.drain(_READ_S)
    return records


def published_in(stand: Stand, topic: str, topic_of: Callable[[int], str]) -> Records:
    """Return the records of an input topic. Raises ValueError for a record that is there twice.

    `topic_of` returns the output topic for a message's number.
    """
    records = read_back(stand, topic)
    if len({record.value for record in records}) < len(records):
        raise ValueError(f"a message is in {topic} twice")
    cancels, delivers, replaces, conditions = (
        {_id(record): text for record in records if (text := record.last(name)) is not None}
        for name in (CANCEL_HEADER, DELIVER_NOW_HEADER, REPLACES_HEADER, CONDITION_HEADER)
    )
    requests = cancels | delivers
    messages = [_message(record, topic_of) for record in records if _id(record) not in requests]
    delivering = {_id(record): record.timestamp_ms for record in records if _id(record) in delivers}
    return Records({message.id: message for message in messages}, requests | replaces, conditions, delivering)


def _id(record: Received) -> str:
    return f"{record.topic}/{record.partition}/{record.offset}"


def _message(record: Received, topic_of: Callable[[int], str]) -> Published:
    number, due_us = read_value(record.value or b"")
    return Published(
        id=_id(record),
        timestamp_ms=record.timestamp_ms,
        key=record.key,
        value=record.value,
        # A replacement comes out without these.
        headers=tuple(each for each in record.headers if each[0] not in (REPLACES_HEADER, CONDITION_HEADER)),
        output=topic_of(number),
        # Plain messages have their timestamp here.
        deliver_at_ms=due_us // 1000,
    )
