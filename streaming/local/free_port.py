"""Choosing a port for a server on this machine."""

from __future__ import annotations

import random
import socket
from collections.abc import Sequence

from conf.errors import BrokerFailed

# Below the ports that Linux (from 32768) and macOS (from 49152) give to outgoing connections: one of those could take
# a port between the choice and the start of the server, or while a server is down for a moment.
_PORTS = range(20_000, 32_768)
_TRIES = 50


def free_port(host: str = "127.0.0.1", ports: Sequence[int] = _PORTS) -> int:
    """Return one of `ports` that was free a moment ago.

    Raises BrokerFailed if `host` is not an address of this machine.
    """
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            # The address alone, so that any failure below is the port's.
            probe.bind((host, 0))
    # UnicodeError: Python cannot encode the name for the resolver, for example with two dots in a row.
    except (OSError, UnicodeError) as problem:
        raise BrokerFailed(f"cannot listen on {host!r}: {problem}. It must be an address of this machine") from problem
    tries = min(_TRIES, len(ports))
    for port in random.SystemRandom().sample(ports, tries):
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return port
    raise BrokerFailed(f"no free port found on {host!r} in {tries} tries")
