"""Mixed load: every form of message, so that every code path of the service runs."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial

from tests.system.conftest import Application
from tests.system.ledger import Header, Ledger


def publish_mixed(ledger: Ledger, application: Application, count: int, seed: int, longest_ms: int = 8_000) -> None:
    """Publish `count` messages: plain, after, at, by level, to a second topic, with and without keys, some bad.

    Args:
        ledger: Publishes the messages.
        application: Has the names of the topics.
        count: The number of messages.
        seed: The seed of all random choices.
        longest_ms: The longest delay.
    """
    chance = random.Random(seed)
    for number in range(count):
        key = None if chance.random() < 0.2 else f"k{chance.randrange(40)}".encode()
        value = f"{seed}/{number}".encode()
        output, trace = application.output, ("trace", str(number).encode())
        headers: list[Header] = [trace]
        if chance.random() < 0.2:
            output = application.other
            headers.append(("deliver-to", output.encode()))
        form = chance.random()
        publish = partial(ledger.publish, application.input, value, key=key)
        if form < 0.1:
            publish(headers, output=output)
        elif form < 0.2:
            publish([*headers, ("delay-level", b"1")], output=output, delay_ms=1000)
        elif form < 0.6:
            delay = chance.randrange(1500, longest_ms)
            headers.append(("deliver-after", f"{delay}ms".encode()))
            publish(headers, output=output, delay_ms=delay)
        elif form < 0.97:
            due = time.time_ns() // 1_000_000 + chance.randrange(1500, longest_ms)
            publish([*headers, ("deliver-at", str(due).encode())], output=output, deliver_at_ms=due)
        else:
            publish([*headers, ("deliver-after", b"soon")], output=application.dead)
    ledger.flush()


def cancel_some(ledger: Ledger, application: Application, seed: int, share: float = 0.3) -> None:
    """Request to cancel some of all messages that were ever published, a few of them twice."""
    _ask_for_some(ledger.cancel, ledger, application, seed, share)


def deliver_some(ledger: Ledger, application: Application, seed: int, share: float = 0.3) -> None:
    """Request to deliver some of all messages that were ever published now, a few of them twice."""
    _ask_for_some(ledger.deliver_now, ledger, application, seed, share)


def _ask_for_some(
    ask: Callable[[str, int | None], None], ledger: Ledger, application: Application, seed: int, share: float
) -> None:
    ledger.flush()
    chosen = random.Random(seed)
    for identity in sorted(ledger.sent):
        if chosen.random() < share:
            ask(identity, None)
            if chosen.random() < 0.2:
                ask(identity, chosen.randrange(2))
    # Nothing was published there.
    ask(f"{application.input}/0/{10**12}", None)


def replace_some(ledger: Ledger, application: Application, seed: int, count: int = 30) -> None:
    """Replace some of all messages that were ever published: replacements as well, and a few of them twice."""
    ledger.flush()
    chosen = random.Random(seed)
    known = sorted(ledger.sent)
    for at in range(count):
        old = chosen.choice(known)
        for _ in range(1 + (chosen.random() < 0.3)):
            delay_ms = chosen.choice([0, 500, 4_000, 15_000])
            headers = [("deliver-after", b"%dms" % delay_ms)] if delay_ms else []
            ledger.publish(
                application.input, b"%d-%d" % (seed, at), headers, output=application.output, delay_ms=delay_ms,
                partition=int(old.split("/")[1]) if chosen.random() < 0.8 else None,
                replaces=old, condition=chosen.choice(["waiting", "waiting", "always"]),
            )  # fmt: skip
