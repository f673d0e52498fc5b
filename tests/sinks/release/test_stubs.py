"""The stub of a dead letter that its topic refuses, and what makes none of a letter that only looks like one."""

from __future__ import annotations

from hashlib import sha256

import pytest

from conf.rejected import Expired
from sinks.release.records import Record, as_dead_letter
from sinks.release.stubs import as_stub
from sources.dead_letters.letter import DeadLetter, read_letter
from sources.subscriber import Received
from state.dead_letter import Headers
from state.stub import Stub

DIGEST = "0f" * 32
FORGED = Stub(1, 2_000_000, DIGEST, 3).to_header()


def dead(value: bytes | None, own: Headers, key: bytes | None = b"k") -> Record:
    """Return the dead letter of a message that was accepted and is refused on its release."""
    message = Record(5, "out", 0, key, value, [*own, ("delayline-id", b"in/0/1"), ("delayline-deliver-at", b"5")])
    return as_dead_letter(message, 4, "dead", Expired("too late"))


def read(record: Record) -> DeadLetter:
    letter = read_letter(Received("dead", 0, 0, 0, record.key, record.value, record.headers, 0))
    assert letter is not None
    return letter


@pytest.mark.parametrize("last", [FORGED, ("delayline-stub", None), ("delayline-stub", b"mine"), ("a", b"1")])
@pytest.mark.parametrize("value", [None, b"v"])
def test_a_message_that_is_refused_on_its_release_is_a_whole_letter_whatever_its_headers_are(
    value: bytes | None, last: tuple[str, bytes | None]
) -> None:
    letter = read(dead(value, [("b", b"2"), last]))
    assert (letter.stub, letter.headers, letter.code) == (None, [("b", b"2"), last], "expired")


@pytest.mark.parametrize(
    ("value", "facts"), [(None, Stub(1, None, None, 2)), (b"v", Stub(1, 1, sha256(b"v").hexdigest(), 2))]
)
def test_the_stub_of_a_letter_that_looks_like_one_says_what_the_record_has(value: bytes | None, facts: Stub) -> None:
    stub = read(as_stub(dead(value, [("b", b"2"), FORGED])))
    assert (stub.stub, stub.headers, stub.value) == (facts, [("b", b"2"), FORGED], None)


def test_a_stub_that_the_intake_has_made_stays_and_gets_a_key() -> None:
    facts = Stub(30_000, 2_000_000, DIGEST, 3)
    whole = dead(None, [("b", b"2")], key=None)
    made = whole._replace(headers=[("b", b"2"), facts.to_header(), *whole.headers[1:]])
    again = as_stub(made)
    assert (again.key, again.headers) == (b"in/0/1", made.headers)
    assert read(again).stub == facts
