"""The lease record."""

from __future__ import annotations

import json
import os
import socket

import pytest

from conf.errors import CheckpointMismatch, FormatMismatch
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


def _changed(**fields: object) -> bytes:
    return json.dumps(json.loads(Lease(1, "h", 1, "run", 0, 1).to_bytes()) | fields).encode()


def test_a_lease_of_another_format_names_both() -> None:
    with pytest.raises(FormatMismatch, match=r"a record of the lease topic has format 2, but .* reads format 1"):
        Lease.from_bytes(_changed(format=2, more=1))


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"[]",
        b"null",
        b'{"fencing_token": 1}',
        _changed(heartbeat="1"),
        _changed(more=1),
    ],
)
def test_a_value_that_is_not_a_lease_is_refused(value: bytes) -> None:
    with pytest.raises(CheckpointMismatch, match="not a lease"):
        Lease.from_bytes(value)
