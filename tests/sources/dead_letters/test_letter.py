from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sources.dead_letters.letter import Choice, DeadLetter, HeaderChanges, Headers, read_letter
from sources.subscriber import Received
from state.message import LAST_MS
from state.stub import Stub

SERVICE: Headers = [
    ("delayline-id", b"in/2/7"),
    ("delayline-error", b"two-delays"),
    ("delayline-error-text", b"why"),
    ("delayline-timestamp", b"1000"),
]


def record(headers: Headers) -> Received:
    return Received(
        topic="dead",
        partition=1,
        offset=5,
        timestamp_ms=5000,
        key=b"k",
        value=None,
        headers=headers,
        received_ms=0,
    )


def letter(*headers: tuple[str, bytes | None]) -> DeadLetter:
    dead_letter = read_letter(record([*headers, *SERVICE]))
    assert dead_letter is not None
    return dead_letter


def test_a_letter_separates_the_original_record_from_the_headers_that_the_service_added() -> None:
    forwarded: Headers = [("delayline-id", b"other/0/1"), ("a", None), ("a", b"\xff")]
    dead_letter = letter(*forwarded)
    assert (dead_letter.topic, dead_letter.input_partition, dead_letter.input_offset, dead_letter.id) == (
        "in",
        2,
        7,
        "in/2/7",
    )
    assert (dead_letter.code, dead_letter.text, dead_letter.timestamp_ms) == ("two-delays", "why", 1000)
    assert (dead_letter.key, dead_letter.value, dead_letter.headers) == (b"k", None, forwarded)


@pytest.mark.parametrize(
    "headers",
    [
        [],
        SERVICE[:2],
        SERVICE[::-1],
        [*SERVICE, ("x", b"")],
        [*SERVICE[:3], ("delayline-timestamp", b"soon")],
        [*SERVICE[:3], ("delayline-timestamp", None)],
        [*SERVICE[:3], ("delayline-timestamp", b"%d" % (LAST_MS + 1))],
        [*SERVICE[:3], ("delayline-timestamp", b"9" * 20)],
        [*SERVICE[:3], ("delayline-timestamp", b"1" * 5_000)],
        [("delayline-id", b"in/2"), *SERVICE[1:]],
        [("delayline-id", b"in/2/x"), *SERVICE[1:]],
        [("delayline-id", None), *SERVICE[1:]],
    ],
)
def test_a_record_that_no_job_wrote_is_not_a_letter(headers: Headers) -> None:
    assert read_letter(record(headers)) is None


def test_headers_count_by_what_they_take_in_memory_and_not_by_their_content_alone() -> None:
    assert letter(*[("", b"")] * 50_000).nbytes > 10_000_000
    with_value = replace(letter(("a", b"12"), ("b", None)), value=b"123")
    assert with_value.nbytes - replace(letter(("", b""), ("", b"")), key=None).nbytes == len(b"ka12b123")


def test_a_letter_may_have_the_last_timestamp_that_the_job_reads() -> None:
    last = read_letter(record([*SERVICE[:3], ("delayline-timestamp", b"%d" % LAST_MS)]))
    assert last is not None
    assert last.timestamp_ms == LAST_MS


@pytest.mark.parametrize(
    ("choice", "fits"),
    [
        (Choice(), True),
        (Choice(codes=frozenset({"two-delays", "x"})), True),
        (Choice(codes=frozenset({"x"})), False),
        (Choice(ids=frozenset({"in/2/7"})), True),
        (Choice(ids=frozenset({"in/2/8"})), False),
        (Choice(ids=frozenset({"in/2/7"}), codes=frozenset({"x"})), False),
        (Choice(partition=1, first=5, last=5), True),
        (Choice(partition=0), False),
        (Choice(partition=1, first=6), False),
        (Choice(partition=1, last=4), False),
        (Choice(since_ms=1000, until_ms=1001), True),
        (Choice(since_ms=1001), False),
        (Choice(until_ms=1000), False),
    ],
)
def test_a_choice_takes_letters_that_meet_all_its_conditions(choice: Choice, fits: bool) -> None:
    assert choice.fits(letter()) is fits


@pytest.mark.parametrize(
    ("to_set", "to_drop", "after"),
    [
        ([], [], [("a", b"1"), ("b", None), ("a", b"2")]),
        ([("a", b"3")], [], [("a", b"3"), ("b", None)]),
        ([("b", b"3"), ("b", b"4")], [], [("a", b"1"), ("b", b"3"), ("b", b"4"), ("a", b"2")]),
        ([("c", b"3")], ["a"], [("b", None), ("c", b"3")]),
        ([], ["a", "b", "absent"], []),
    ],
)
def test_changed_headers_do_not_move_the_others(to_set: Any, to_drop: list[str], after: Headers) -> None:
    changed = HeaderChanges(to_set, frozenset(to_drop)).applied(letter(("a", b"1"), ("b", None), ("a", b"2")))
    assert changed == [*after, ("delayline-first-id", b"in/2/7")]


def test_a_letter_that_comes_back_keeps_the_link_to_its_first_id() -> None:
    returned = letter(("delayline-first-id", b"in/0/1"), ("a", b"1"))
    assert HeaderChanges().applied(returned) == [("a", b"1"), ("delayline-first-id", b"in/0/1")]


DIGEST = "0f" * 32
STUB = Stub(1, 2_000_000, DIGEST, 3)


def test_a_stub_is_told_from_a_whole_letter_with_such_a_header() -> None:
    own: Headers = [("a", b"1"), STUB.to_header()]
    read = letter(*own)
    assert (read.stub, read.headers) == (STUB, [("a", b"1")])
    whole = read_letter(replace(record([*own, *SERVICE]), value=b"v"))
    assert whole is not None
    assert (whole.stub, whole.headers) == (None, own)
    assert letter(("delayline-stub", b"mine")).stub is None
    assert letter(("delayline-stub", None)).stub is None


@pytest.mark.parametrize(
    "last", [STUB.to_header(), ("delayline-stub", None), ("delayline-stub", b"mine")], ids=["facts", "null", "text"]
)
def test_the_mark_of_the_service_makes_a_letter_whole_whatever_its_publisher_has_written(
    last: tuple[str, bytes | None],
) -> None:
    own: Headers = [("a", b"1"), last]
    read = letter(*own, ("delayline-stub", None))
    assert (read.stub, read.headers) == (None, own)
    assert HeaderChanges().applied(read) == [*own, ("delayline-first-id", b"in/2/7")]


@pytest.mark.parametrize(
    ("stub", "key", "is_stub"),
    [
        (Stub(1, None, None, 1), b"k", True),
        (Stub(None, 0, DIGEST, 50_001), None, True),
        # A topic that demands a key gets the message id as one.
        (Stub(None, 2_000_000, DIGEST, 1), b"in/2/7", True),
        (Stub(30_000, 2, DIGEST, 1), b"in/2/7", True),
        (Stub(30_000, 2, DIGEST, 1), None, True),
        # No stub is like these.
        (Stub(1, 2, "a", 3), b"k", False),
        (Stub(1, 2, None, 3), b"k", False),
        (Stub(1, None, DIGEST, 3), b"k", False),
        (Stub(2, 2, DIGEST, 3), b"k", False),
        (Stub(1, 2, DIGEST, 3), None, False),
        (Stub(None, 2, DIGEST, 3), b"k", False),
        (Stub(30_000, 2, DIGEST, 3), b"k", False),
        (Stub(1, 2, DIGEST, 0), b"k", False),
    ],
)
def test_a_letter_from_before_the_mark_is_a_stub_unless_it_contradicts_itself(
    stub: Stub, key: bytes | None, is_stub: bool
) -> None:
    own: Headers = [("a", b"1"), stub.to_header()]
    read = read_letter(replace(record([*own, *SERVICE]), key=key))
    assert read is not None
    assert (read.stub, read.headers) == ((stub, own[:1]) if is_stub else (None, own))
