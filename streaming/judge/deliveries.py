"""Messages that someone requests to be due at once: their due times, as far as the judge can know them.

The time is in the header of the record that came out. It must not be later than the message was due before. After an
outage it may be earlier than the request. But the message must not come out before the request, unless it was due.
Requested messages go out at once, in no order with others that are overdue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from streaming.judge.record import Published, Received

_DUE_HEADER = "delayline-deliver-at"


def as_made_due(
    published: Mapping[str, Published], asked_ms: Mapping[str, int], received: Iterable[Received]
) -> dict[str, Published]:
    """Return the `published` messages, by id; those that were asked for as they came out, unless too late.

    `asked_ms` has the messages that were asked to be due at once, and when the first request was published (epoch ms).
    """
    messages = dict(published)
    for record in received:
        message, due_ms = messages.get(record.id), _due_ms(record)
        if record.id in asked_ms and message is not None and due_ms is not None and due_ms <= message.due_ms:
            messages[record.id] = replace(message, deliver_at_ms=due_ms, made_due=True)
    return messages


def too_early(
    published: Mapping[str, Published], asked_ms: Mapping[str, int], received: Iterable[Received]
) -> Iterator[str]:
    """Yield a sentence for each record that came out before it was due and requested. Arguments as above."""
    for record in received:
        message, since_ms = published.get(record.id), asked_ms.get(record.id)
        if message is not None and since_ms is not None and record.received_ms < min(since_ms, message.due_ms):
            yield f"{record.id} came out at {record.received_ms}, and was asked for at {since_ms}"


def too_late(
    made_due_ms: Mapping[str, int], received: Iterable[Received], shown_ms: Callable[[int], int] = lambda now_ms: now_ms
) -> Iterator[str]:
    """Yield a sentence for each record with a due time after the answer that it is due at once.

    `made_due_ms` has the time of this answer for each message (epoch ms). `shown_ms` is as in `Environment`.
    """
    for record in received:
        since_ms, due_ms = made_due_ms.get(record.id), _due_ms(record)
        if since_ms is not None and due_ms is not None and due_ms > shown_ms(since_ms):
            yield f"{record.id} was answered to be due at {since_ms}, and came out as due at {due_ms}"


def _due_ms(record: Received) -> int | None:
    text = record.last(_DUE_HEADER)
    return int(text) if text is not None and text.isdecimal() else None
