"""The headers of a dead letter, written and read: the service adds them after the record's own headers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from state.message import ID_HEADER, LAST_MS
from state.message_ids import parse_id

ERROR_HEADER = "delayline-error"
ERROR_TEXT_HEADER = "delayline-error-text"
# The input record's Kafka timestamp, epoch ms; the dead letter's own is the time at which it was written.
TIMESTAMP_HEADER = "delayline-timestamp"
# On a dead letter that was resent: its first message id.
FIRST_ID_HEADER = "delayline-first-id"

Headers = list[tuple[str, bytes | None]]

# In this order, after all others.
_SERVICE_HEADERS = [ID_HEADER, ERROR_HEADER, ERROR_TEXT_HEADER, TIMESTAMP_HEADER]
# How many headers of a dead letter are the service's.
SERVICE_HEADERS = len(_SERVICE_HEADERS)


class Verdict(NamedTuple):
    """Why a record is a dead letter: its message id, the error, and when it was published (epoch ms)."""

    topic: str
    partition: int
    offset: int
    code: str
    text: str
    timestamp_ms: int


def error_headers(code: str, text: str, timestamp_ms: int) -> Headers:
    """Return the headers after the message id on a dead letter. `timestamp_ms` is the input record's, epoch ms."""
    return [
        (ERROR_HEADER, code.encode()),
        (ERROR_TEXT_HEADER, text.encode()),
        (TIMESTAMP_HEADER, b"%d" % timestamp_ms),
    ]


def error_code(headers: Sequence[tuple[str, bytes | None]]) -> str:
    """Return the error code from the headers of a dead letter, which end with the service's headers."""
    return (headers[1 - SERVICE_HEADERS][1] or b"").decode(errors="replace")


def split_headers(headers: Sequence[tuple[str, bytes | None]]) -> tuple[Headers, Verdict] | None:
    """Return the record's own headers and its verdict, or None if the service did not write the last headers.

    A timestamp later than `LAST_MS` is not the service's: a record that is resent with one would end the job.
    """
    own, service = list(headers[:-SERVICE_HEADERS]), headers[-SERVICE_HEADERS:]
    if [name for name, _ in service] != _SERVICE_HEADERS:
        return None
    identity, code, text, stamp = ((value or b"").decode(errors="replace") for _, value in service)
    try:
        place = parse_id(identity)
    except ValueError:
        return None
    # By its length first, since Python refuses to parse a number of thousands of digits.
    is_number = stamp.isascii() and stamp.isdigit() and len(stamp) <= len(str(LAST_MS))
    if not is_number or int(stamp) > LAST_MS:
        return None
    return own, Verdict(*place, code, text, int(stamp))
