"""Mixed load: every way in, so that every path of the service is walked."""

from __future__ import annotations

import random
import time

from tests.system.conftest import Application
from tests.system.ledger import Ledger


def publish_mixed(ledger: Ledger, application: Application, count: int, seed: int, longest_ms: int = 8_000) -> None:
    """Publish `count` messages: plain, after, at, by level, to a second topic, with and without keys, some bad."""
    chance = random.Random(seed)
    for number in range(count):
        key = None if chance.random() < 0.2 else f"k{chance.randrange(40)}".encode()
        value = f"{seed}/{number}".encode()
        output, headers = application.output, [("trace", str(number).encode())]
        if chance.random() < 0.2:
            output = application.other
            headers.append(("deliver-to", output.encode()))
        form = chance.random()
        common = {"key": key, "output": output}
        if form < 0.1:
            ledger.publish(application.input, value, headers, **common)
        elif form < 0.2:
            ledger.publish(application.input, value, [*headers, ("delay-level", b"1")], delay_ms=1000, **common)
        elif form < 0.6:
            delay = chance.randrange(1500, longest_ms)
            headers.append(("deliver-after", f"{delay}ms".encode()))
            ledger.publish(application.input, value, headers, delay_ms=delay, **common)
        elif form < 0.97:
            due = time.time_ns() // 1_000_000 + chance.randrange(1500, longest_ms)
            ledger.publish(
                application.input, value, [*headers, ("deliver-at", str(due).encode())], deliver_at_ms=due, **common
            )
        else:
            bad = [*headers, ("deliver-after", b"soon")]
            ledger.publish(application.input, value, bad, key=key, output=application.dead)
    ledger.flush()
