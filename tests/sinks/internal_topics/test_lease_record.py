"""The lease record."""

from __future__ import annotations

import os
import socket

import pytest

from conf.errors import CheckpointMismatch
from sinks.internal_topics.lease_record import Lease, claim_after


def test_a_claim_names_this_process_and_is_one_higher() -> None:
    first = claim_after(None, "run", 10_000)
    second = claim_after(first, "rescale", 10_000)
    assert (first.fencing_token, second.fencing_token) == (1, 2)
    assert f"process {os.getpid()} on host {socket.gethostname()} (delayline rescale, since 20" in second.holder


def test_heartbeats_belong_to_one_claim_and_are_read_back_as_written() -> None:
    lease = claim_after(None, "run", 10_000)
    last = lease.next_heartbeat().next_heartbeat(released=True)
    assert last.is_of_claim(lease)
    assert (last.heartbeat, last.released) == (2, True)
    assert Lease.from_bytes(last.to_bytes()) == last
    assert not claim_after(lease, "run", 10_000).is_of_claim(lease)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"[]",
        b"null",
        b'{"number": 1}',
        b'{"number": "1", "host": "h", "pid": 1, "command": "run", "since_ms": 0, "period_ms": 1}',
        b'{"number": 1, "host": "h", "pid": 1, "command": "run", "since_ms": 0, "period_ms": 1, "more": 1}',
    ],
)
def test_a_value_that_is_not_a_lease_is_refused(value: bytes) -> None:
    with pytest.raises(CheckpointMismatch, match="not a lease"):
        Lease.from_bytes(value)
