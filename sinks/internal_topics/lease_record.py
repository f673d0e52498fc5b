"""The lease: the record that says which process may deliver and seal for an application."""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime

from conf.errors import CheckpointMismatch


@dataclass(frozen=True)
class Lease:
    """One holder's claim, with its last sign of life.

    `number` is one more for each holder of the application, so that the highest is the one that holds. `beat` counts
    the signs of life, one at least every `period_ms` unless `released`. `since_ms` (epoch ms) is by its host's clock,
    and only for people to read.
    """

    number: int
    host: str
    pid: int
    command: str
    since_ms: int
    period_ms: int
    beat: int = 0
    released: bool = False

    @property
    def holder(self) -> str:
        """Who that is, as an operator would look for it."""
        since = datetime.fromtimestamp(self.since_ms / 1000, UTC).isoformat(timespec="seconds")
        return f"process {self.pid} on host {self.host} (delayline {self.command}, since {since})"

    def is_of_claim(self, other: Lease) -> bool:
        """Whether both are signs of life of one holder."""
        return (self.number, self.host, self.pid, self.since_ms) == (
            other.number, other.host, other.pid, other.since_ms,
        )  # fmt: skip

    def next_beat(self, released: bool = False) -> Lease:
        """The same claim a sign of life later."""
        return replace(self, beat=self.beat + 1, released=released)

    def to_bytes(self) -> bytes:
        """Write it as the value of a record."""
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def from_bytes(value: bytes) -> Lease:
        """Read what `to_bytes` wrote. Raises CheckpointMismatch for anything else."""
        try:
            lease = Lease(**json.loads(value))
            numbers = (lease.number, lease.pid, lease.since_ms, lease.period_ms, lease.beat)
            texts = (lease.host, lease.command)
            if any(type(n) is not int for n in numbers) or any(type(text) is not str for text in texts):
                raise TypeError("a lease counts in whole numbers, and names its holder")
            return lease
        except (TypeError, ValueError) as problem:
            raise CheckpointMismatch(
                f"the lease topic holds {value[:80]!r}, which is no lease of this version of Delayline; "
                "nothing but the job may write to it"
            ) from problem


def claim_after(last: Lease | None, command: str, period_ms: int) -> Lease:
    """Return this process's claim to the lease that was last seen as `last`."""
    number = 1 if last is None else last.number + 1
    return Lease(number, socket.gethostname(), os.getpid(), command, time.time_ns() // 1_000_000, period_ms)
