"""The headers of the records that confluent-kafka writes and reads."""

from __future__ import annotations

from operator import methodcaller
from typing import Protocol, cast

# The headers of a record to be written, with the type of the client's own annotations.
RecordHeaders = list[tuple[str, str | bytes | None]]


class _Message(Protocol):
    """The part of `confluent_kafka.Message` that is needed here."""

    def headers(self) -> object: ...

    def set_headers(self, headers: RecordHeaders) -> None: ...


# For a name that is not UTF-8 the client sets an exception, and returns a list all the same, with a null pointer for
# the name: whoever looks at that ends the process. Python notices both in a call of this kind, and raises a
# SystemError. It does not in `message.headers()` once it has specialised that code.
_headers = methodcaller("headers")


def read_headers(message: _Message) -> list[tuple[str, bytes | None]] | None:
    """Return the headers of `message`, which must not be an error, in their order.

    None if a name is not UTF-8, and an empty list if they are asked for again. Kafka's protocol calls names strings,
    but no broker checks that, and whoever may write to a topic can write any bytes.
    """
    try:
        # Header values read from a topic are bytes; the client's type is for headers to be written.
        return cast(list[tuple[str, bytes | None]], _headers(message) or [])
    except (UnicodeDecodeError, SystemError) as problem:
        if isinstance(problem.__cause__ or problem, UnicodeDecodeError):
            # The client keeps the list with the null pointer for the next call.
            message.set_headers([])
            return None
        raise
