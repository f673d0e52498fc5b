"""The choice of a port."""

from __future__ import annotations

import socket

import pytest

from conf.errors import BrokerFailed
from streaming.local import free_port as module
from streaming.local.free_port import free_port


def test_a_taken_port_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    free = free_port()
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        taken = other.getsockname()[1]
        monkeypatch.setattr(module, "_TRIES", 2)
        monkeypatch.setattr(module, "_PORTS", (taken, free))
        assert {free_port() for _ in range(20)} == {free}
        monkeypatch.setattr(module, "_PORTS", (taken, taken))
        with pytest.raises(BrokerFailed, match="no free port"):
            free_port()


def test_no_port_of_outgoing_connections_is_chosen() -> None:
    assert all(20_000 <= free_port() < 32_768 for _ in range(20))
