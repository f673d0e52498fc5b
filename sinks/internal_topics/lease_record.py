"""The lease: the record that says which process may deliver and seal for an application."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from conf.errors import CheckpointMismatch
from state.checkpoint.origin import STORED, stored_as

# What an error shows of a value that is no lease.
_SHOWN_BYTES = 80


@dataclass(frozen=True, config=STORED)
class Lease:
    """One holder's claim, with its last heartbeat.

    `fencing_token` is one more for each holder of the application: the highest is the one that holds. `heartbeat`
    counts the heartbeats, one at least every `period_ms` unless `released`. `since_ms` (epoch ms) is by its host's
    clock, and only for people to read.
    """

    fencing_token: Annotated[int, stored_as("number")]
    host: str
    pid: int
    command: str
    since_ms: int
    period_ms: int
    heartbeat: Annotated[int, stored_as("beat")] = 0
    released: bool = False

    @property
    def holder(self) -> str:
        """Who that is, as an operator would look for it."""
        since = datetime.fromtimestamp(self.since_ms / 1000, UTC).isoformat(timespec="seconds")
        return f"process {self.pid} on host {self.host} (delayline {self.command}, since {since})"

    def is_of_claim(self, other: Lease) -> bool:
        """Whether both are signs of life of one holder."""
        return (self.fencing_token, self.host, self.pid, self.since_ms) == (
            other.fencing_token, other.host, other.pid, other.since_ms,
        )  # fmt: skip

    def next_heartbeat(self, released: bool = False) -> Lease:
        """The same claim a sign of life later."""
        return replace(self, heartbeat=self.heartbeat + 1, released=released)

    def to_bytes(self) -> bytes:
        """Write it as the value of a record."""
        return _LEASE.dump_json(self, by_alias=True)

    @staticmethod
    def from_bytes(value: bytes) -> Lease:
        """Read what `to_bytes` wrote. Raises CheckpointMismatch for anything else."""
        try:
            return _LEASE.validate_json(value)
        except ValueError as problem:
            raise CheckpointMismatch(
                f"the lease topic holds {value[:_SHOWN_BYTES]!r}, which is no lease of this version of Delayline; "
                "nothing but the job may write to it"
            ) from problem


_LEASE = TypeAdapter(Lease)


def claim_after(last: Lease | None, command: str, period_ms: int) -> Lease:
    """Return this process's claim to the lease that was last seen as `last`."""
    fencing_token = 1 if last is None else last.fencing_token + 1
    return Lease(fencing_token, socket.gethostname(), os.getpid(), command, time.time_ns() // 1_000_000, period_ms)
