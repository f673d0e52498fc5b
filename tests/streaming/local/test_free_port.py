"""The choice of a port."""

from __future__ import annotations

import socket

import pytest

from conf.errors import BrokerFailed
from streaming.local.free_port import free_port


def test_a_taken_port_is_not_chosen() -> None:
    free = free_port()
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        taken = other.getsockname()[1]
        assert {free_port(ports=(taken, free)) for _ in range(20)} == {free}
        with pytest.raises(BrokerFailed, match="no free port"):
            free_port(ports=(taken, taken))


def test_no_port_of_outgoing_connections_is_chosen() -> None:
    assert all(20_000 <= free_port() < 32_768 for _ in range(20))
