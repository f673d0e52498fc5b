"""The lease record: which process may deliver and seal for an application."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import replace
from datetime import UTC, datetime

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from state.checkpoint.stored_json import STORED, RecordFormat


@dataclass(frozen=True, config=STORED)
class Lease:
    """One holder's claim, with its last heartbeat.

    - `fencing_token`: one more for each new holder; the holder with the highest token has the lease
    - `heartbeat`: counts the heartbeats, which come at least every `period_ms` unless `released`
    - `since_ms`: when the holder claimed the lease, epoch ms by its host's clock; only for people to read
    - `unfenced`: whether a holder before it may still write: it did not release the lease, and nobody has fenced it
    """

    fencing_token: int
    host: str
    pid: int
    command: str
    since_ms: int
    period_ms: int
    heartbeat: int = 0
    released: bool = False
    unfenced: bool = False

    @property
    def holder(self) -> str:
        """The holder in words, so that an operator finds the process."""
        since = datetime.fromtimestamp(self.since_ms / 1000, UTC).isoformat(timespec="seconds")
        return f"process {self.pid} on host {self.host} (delayline {self.command}, since {since})"

    def is_of_claim(self, other: Lease) -> bool:
        """Return whether both are heartbeats of the same holder."""
        return (self.fencing_token, self.host, self.pid, self.since_ms) == (
            other.fencing_token, other.host, other.pid, other.since_ms,
        )  # fmt: skip

    def next_heartbeat(self, released: bool = False) -> Lease:
        """Return the same claim with its next heartbeat."""
        return replace(self, heartbeat=self.heartbeat + 1, released=released)

    def to_bytes(self) -> bytes:
        """Return the value of a lease record."""
        return _FORMAT.dump(self)

    @staticmethod
    def from_bytes(value: bytes) -> Lease:
        """Read the value of a lease record. Raises CheckpointMismatch if it is not one, and FormatMismatch."""
        return _FORMAT.read_of("lease", "a lease", value)


_FORMAT = RecordFormat(TypeAdapter(Lease), "a record of the lease topic")


def claim_after(last: Lease | None, command: str, period_ms: int) -> Lease:
    """Return this process's claim to the lease, of which `last` is the newest record."""
    since_ms = time.time_ns() // 1_000_000
    claim = Lease(1, socket.gethostname(), os.getpid(), command, since_ms, period_ms)
    if last is None:
        return claim
    # A holder that ended before it had fenced anything has released the lease all the same.
    return replace(claim, fencing_token=last.fencing_token + 1, unfenced=last.unfenced or not last.released)
