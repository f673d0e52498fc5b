"""Follows the claims and chunks of forwarders from outside while they run: the near log is deleted once released."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from streaming.judge.forwarded import Forwarded
from streaming.judge.outputs import Outputs
from streaming.judge.record import Received

# The partition of the claims topic that has no claims.
_TERMS_PARTITION = 0


class ClaimsWatch:
    """Reads the topics `claims` and `near` in a background thread, from the beginning. A context manager.

    Partitions that are added later are not read: what is claimed there counts as what batches took.
    """

    def __init__(self, bootstrap: str, claims: str, near: str) -> None:
        """Raises KafkaException if the broker does not describe the topics."""
        self._claims = claims
        self._forwarded = Forwarded()
        self._outputs = Outputs(bootstrap, [claims, near], self._take)

    def forwarded(self) -> Forwarded:
        """Return what was read up to now; it goes on to grow. Raises the error of the background thread."""
        self._outputs.check()
        return self._forwarded

    def drain(self) -> None:
        """Wait until all that is committed now has been read. Raises TimeoutError, and as `forwarded`."""
        self._outputs.drain()

    def close(self) -> None:
        """Stop reading."""
        self._outputs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _take(self, record: Received) -> None:
        value = record.value or b""
        if record.topic != self._claims:
            # The clock of the forwarder may be ahead of the clock of this process.
            self._forwarded.add_chunk(value, max(record.received_ms, record.timestamp_ms))
        elif record.partition != _TERMS_PARTITION:
            self._forwarded.add_claim(value)
