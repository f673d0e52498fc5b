"""Records of an ordinary client that could stop a job, each with what must become of it under `SETTINGS`.

"Huge" is larger than what the job carries, "large" is larger than what a dead-letter topic takes. All are small on
their way, since they are compressed.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.system.ledger import Header

MB = 1_000_000
# Settings of the job. The input and the output topic take messages of this size. Every other topic takes 1 MB.
SETTINGS = ("limits.max_message_bytes=25000000",)
LARGEST = "25000000"
# A topic that takes 1 MB.
ELSEWHERE = "elsewhere"


@dataclass(frozen=True)
class Awkward:
    """A record, and the code of its dead letter, which is whole or a stub; no code: it is delivered `delay_ms` later.

    `make` returns its key and value: they are large. In a header value, `ELSEWHERE` stands for the small topic.
    """

    name: str
    make: Callable[[], tuple[bytes | None, bytes | None]] = lambda: (None, b"v")
    headers: tuple[Header, ...] = ()
    error: str | None = None
    is_stub: bool = False
    delay_ms: int | None = None
    # The record's timestamp is the time of publication times this: in microseconds, or seconds, instead of ms.
    stamp_factor: float = 1


def _zeros(value_bytes: int, key_bytes: int = 0) -> Callable[[], tuple[bytes | None, bytes | None]]:
    return lambda: (bytes(key_bytes) if key_bytes else None, bytes(value_bytes))


def _document() -> tuple[bytes | None, bytes | None]:
    return b"k", json.dumps([{"id": number, "state": "waiting"} for number in range(90_000)]).encode()


def _noise() -> tuple[bytes | None, bytes | None]:
    return b"k", random.Random(1).randbytes(20 * MB)


_LONG = b"\x01" * 600_000
_TO_ELSEWHERE: Header = ("deliver-to", ELSEWHERE.encode())


def awkward_records() -> Iterator[Awkward]:
    """Yield every record, the largest last."""
    for name in ("deliver-at", "deliver-after", "delay-level", "deliver-to"):
        yield Awkward(f"{name} of 600 kB", headers=((name, _LONG),), error=f"bad-{name}")
        yield Awkward(f"null {name}", headers=((name, None),), error=f"bad-{name}")
        yield Awkward(f"empty {name}", headers=((name, b""),), error=f"bad-{name}")
    yield Awkward("a delay in the wrong header", headers=(("deliver-at", b"60000"),), error="bad-deliver-at")
    yield Awkward("a header in the wrong case", headers=(("Deliver-After", b"1h"),), error="header-case")
    for name in ("cancel", "replaces"):
        header, error = f"delayline-{name}", f"bad-{name}"
        yield Awkward(f"{header} of 600 kB", headers=((header, _LONG),), error=error)
        yield Awkward(f"null {header}", headers=((header, None),), error=error)
        yield Awkward(f"empty {header}", headers=((header, b""),), error=error)
        yield Awkward(f"30,000 times {header}", headers=((header, b"a/0/1"),) * 30_000, error=error)
    yield Awkward(
        "30,000 conditions",
        headers=(("delayline-replaces", b"a/0/1"), *((("delayline-if", b"always"),) * 30_000)),
        error="bad-replaces",
    )
    yield Awkward("topic name of 600 kB", headers=(("deliver-to", b"t" * 600_000),), error="bad-deliver-to")
    yield Awkward("header of 600 kB", headers=(("x", _LONG), ("deliver-after", b"1s")), delay_ms=1_000)
    yield Awkward("header name of 600 kB", headers=(("x" * 600_000, None),))
    yield Awkward("key of 600 kB", _zeros(0, 600_000))
    yield Awkward("null everything", lambda: (None, None), headers=(("", None), ("", b""), ("x", None)))
    yield Awkward("no headers", lambda: (None, None))
    yield Awkward("empty everything", lambda: (b"", b""), headers=(("", b""),))
    yield Awkward("50,000 headers", headers=(("h", b""),) * 50_000)
    yield Awkward("90,000 headers", headers=(("h", b""),) * 90_000, error="message-too-large", is_stub=True)
    repeated = tuple(("deliver-after", b"%d" % number) for number in range(30_000))
    for number in range(30):
        yield Awkward(f"30,000 delays, {number}", headers=repeated, error="two-delays")
    topics = tuple(("deliver-to", b"%d" % number) for number in range(30_000))
    yield Awkward("30,000 topics", headers=topics, error="bad-deliver-to")
    yield Awkward("microseconds", headers=(("deliver-after", b"1s"),), error="delay-too-long", stamp_factor=1_000)
    yield Awkward("seconds", headers=(("deliver-after", b"1s"),), error="bad-timestamp", stamp_factor=0.001)
    yield Awkward("forged stub", headers=(("delayline-stub", b"{}"), ("deliver-at", b"soon")), error="bad-deliver-at")
    facts = b'{"key_bytes":null,"value_bytes":2,"value_sha256":"%s","headers":3}' % (b"0f" * 32)
    for name, content in (("facts", facts), ("null", None)):
        forged: tuple[Header, ...] = (("deliver-at", b"soon"), ("delayline-stub", content))
        yield Awkward(f"stub forged with {name}", lambda: (None, None), forged, "bad-deliver-at")
    yield Awkward("3 MB of JSON", _document, headers=(("deliver-after", b"1s"),), delay_ms=1_000)
    yield Awkward("3 MB of JSON for 1 MB", _document, (_TO_ELSEWHERE,), "message-too-large", is_stub=True)
    yield Awkward("large and bad", _zeros(20 * MB), (("deliver-at", b"soon"),), "bad-deliver-at", is_stub=True)
    yield Awkward("20 MB", _noise, headers=(("deliver-after", b"2s"),), delay_ms=2_000)
    yield Awkward("huge value of 40 MB", _zeros(40 * MB), error="message-too-large", is_stub=True)
    yield Awkward("huge value of 100 MB", _zeros(100 * MB), error="message-too-large", is_stub=True)
    yield Awkward("huge key", _zeros(0, 100 * MB), error="message-too-large", is_stub=True)
    yield Awkward("huge header", headers=(("x", bytes(100 * MB)),), error="message-too-large", is_stub=True)
