"""Records that are too large to be carried, and what stands for them."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conf.rejected import MOST_TEXT_BYTES
from conf.sections import MOST_MESSAGE_BYTES
from sinks.release.records import records as written
from sources.dead_letters.letter import read_letter
from sources.intake import accept as accepting
from sources.intake import due_times
from sources.intake.accept import accept
from sources.subscriber import Received
from state.message import LAST_MS
from state.stub import MOST_STUB_BYTES, STUB_HEADER, Stub, read_stub
from tests.messages import headers, records, some_batch_settings
from tests.thorough import examples

CLOCK_MS = 1_798_000_000_000
# A message may have 10,000 bytes, and a dead letter 20,000.
BATCH_SETTINGS = some_batch_settings(
    allowed_outputs=("orders", "new-*"), max_message_bytes=10_000, dead_letter_bytes=20_000
)


def accept_one(**record: Any) -> dict[str, Any]:
    row: dict[str, Any] = accept(records([record]), BATCH_SETTINGS, CLOCK_MS).messages.to_pylist()[0]
    return row


def split(message: dict[str, Any]) -> tuple[list[dict[str, Any]], Stub | None]:
    *own, last = message["headers"]
    assert last["key"] == STUB_HEADER
    return own, read_stub(last["value"])


@pytest.mark.parametrize(
    ("value_bytes", "code", "is_whole"),
    [
        (9_999, None, True),
        (10_000, "message-too-large", True),
        (19_999, "message-too-large", True),
        (20_000, "message-too-large", False),
    ],
)
def test_a_record_larger_than_message_and_dead_letter_may_be_becomes_a_stub(
    value_bytes: int, code: str | None, is_whole: bool
) -> None:
    message = accept_one(value=b"x" * value_bytes, key=b"k", headers=None)
    assert (message["error_code"], message["value"] is not None) == (code, is_whole)
    assert message["key"] == b"k"
    if not is_whole:
        own, stub = split(message)
        assert (own, stub) == ([], Stub(1, value_bytes, sha256(b"x" * value_bytes).hexdigest(), 0))


def test_a_stub_keeps_short_headers_and_a_short_key_and_the_partition_of_that() -> None:
    short, long = ("trace", b"7"), ("deliver-after", b"x" * 30_000)
    kept, _ = split(accept_one(key=b"k", headers=headers(short, long, ("n", None))))
    assert kept == headers(short, ("n", None))
    assert accept_one(key=b"k", headers=headers(long))["output_partition"] == accept_one(key=b"k")["output_partition"]
    many, stub = split(accept_one(headers=headers(*[short] * 30_000), partition=1))
    assert 0 < len(many) < 500
    assert stub is not None
    assert stub.headers == 30_000
    by_key = accept_one(key=b"k" * 30_000, partition=1)
    assert (by_key["key"], by_key["output_partition"]) == (None, 1)


@pytest.mark.parametrize(("count", "code"), [(50_000, None), (50_001, "message-too-large")])
def test_more_headers_than_subscribers_can_read_make_a_stub(count: int, code: str | None) -> None:
    batch_settings = some_batch_settings(max_message_bytes=10_000_000)
    table = records([{"headers": headers(*[("h", b"")] * count)}])
    (message,) = accept(table, batch_settings, CLOCK_MS).messages.to_pylist()
    assert (message["error_code"], len(message["headers"]) == count) == (code, code is None)


def test_what_the_reader_has_left_out_becomes_a_stub_with_what_it_says() -> None:
    left_out = {"value": None, "value_bytes": MOST_MESSAGE_BYTES + 1, "value_sha256": "ab", "key": None}
    message = accept_one(**left_out, key_bytes=MOST_MESSAGE_BYTES + 2)
    assert message["error_code"] == "message-too-large"
    assert split(message) == ([], Stub(MOST_MESSAGE_BYTES + 2, MOST_MESSAGE_BYTES + 1, "ab", 0))


def test_settings_without_limits_still_carry_no_more_than_the_ready_log_does() -> None:
    unlimited = some_batch_settings(max_message_bytes=2**63 - 1, dead_letter_bytes=2**63 - 1)
    table = records([{"value": None, "value_bytes": MOST_MESSAGE_BYTES + 1, "value_sha256": "ab"}, {"value": b"v"}])
    assert accept(table, unlimited, CLOCK_MS).messages.column("error_code").to_pylist() == ["message-too-large", None]


def test_none_of_many_repeated_headers_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes | None] = []
    monkeypatch.setattr(due_times, "parse_deliver_after", parsed.append)
    monkeypatch.setattr(accepting, "parse_deliver_to", parsed.append)
    rows = [
        {"headers": headers(*((name, b"%d" % number) for number in range(500)))}
        for name in ("deliver-after", "deliver-to")
    ]
    assert accept(records(rows), BATCH_SETTINGS, CLOCK_MS).messages.column("error_code").to_pylist() == [
        "two-delays",
        "bad-deliver-to",
    ]
    assert parsed == []


FORGED = Stub(1, 2_000_000, "0f" * 32, 3).to_header()
BAD = ("deliver-at", b"soon")


@pytest.mark.parametrize("last", [FORGED, (STUB_HEADER, None), (STUB_HEADER, b"mine")], ids=["facts", "null", "text"])
@pytest.mark.parametrize(
    ("value", "first", "is_marked"), [(None, BAD, True), (b"v", BAD, False), (None, ("a", b"1"), False)]
)
def test_no_header_of_its_publisher_makes_a_stub_of_a_whole_dead_letter(
    value: bytes | None, first: tuple[str, bytes], last: tuple[str, bytes | None], is_marked: bool
) -> None:
    given = headers(first, last)
    others: list[dict[str, Any]] = [{"value": None, "headers": None}, {"value": None, "headers": headers(last, BAD)}]
    table = records([*others, {"key": b"k", "value": value, "headers": given}])
    accepted = accept(table, BATCH_SETTINGS, CLOCK_MS).messages
    found = accepted.column("headers").to_pylist()
    assert found == [None, others[1]["headers"], [*given, *headers((STUB_HEADER, None))] if is_marked else given]
    if first == BAD:
        *_, record = written(accepted.combine_chunks().to_batches()[0])
        read = read_letter(Received("dead", 0, 0, 0, record.key, record.value, record.headers, 0))
        assert read is not None
        assert (read.stub, headers(*read.headers)) == (None, given)


def test_a_stub_is_not_marked_as_whole_whatever_its_record_ends_with() -> None:
    for value, key in ((None, b"k" * 30_000), (b"x" * 30_000, b"k")):
        _, stub = split(accept_one(key=key, value=value, headers=headers(BAD, FORGED)))
        assert stub is not None
        assert (stub.key_bytes, stub.headers) == (len(key), 2)


NAMES = st.one_of(
    st.sampled_from(["deliver-at", "deliver-after", "delay-level", "deliver-to", "", STUB_HEADER]),
    st.text(st.characters(codec="utf-8"), max_size=2_000),
)
SIZES = st.one_of(st.integers(0, 50), st.integers(0, 50_000))
CONTENTS = st.one_of(
    st.none(),
    st.binary(max_size=60),
    st.sampled_from([b"10s", b"3", b"orders", b"new-x", b"1798000005000", b"2026-12-24T18:00:00Z", b'"10s"']),
    st.text(max_size=40).map(lambda text: text.encode(errors="replace")),
    st.tuples(st.sampled_from([b"\x01", b"9", b" ", b"1s", b"-", "٣".encode(), b"\xff", b'"', b"P1"]), SIZES).map(
        lambda repeated: repeated[0] * repeated[1]
    ),
)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "key": CONTENTS,
            "value": CONTENTS,
            "headers": st.one_of(
                st.none(),
                st.lists(st.tuples(NAMES, CONTENTS), max_size=6).map(lambda pairs: headers(*pairs)),
                st.tuples(NAMES, CONTENTS, st.integers(0, 3_000)).map(
                    lambda repeated: headers(*[(repeated[0], (repeated[1] or b"")[:10])] * repeated[2])
                ),
            ),
            "timestamp_ms": st.one_of(
                st.sampled_from([-1, 0, CLOCK_MS, CLOCK_MS * 1_000, LAST_MS]),
                st.integers(-LAST_MS, LAST_MS),
            ),
        }
    ),
    min_size=1,
    max_size=6,
)


def seems_a_stub(row: dict[str, Any]) -> bool:
    return row["value"] is None and bool(row["headers"]) and row["headers"][-1]["key"] == STUB_HEADER


@given(ROWS)
@settings(max_examples=examples(400))
def test_whatever_the_records_are_each_comes_out_whole_or_as_a_stub_with_a_short_error(
    rows: list[dict[str, Any]],
) -> None:
    accepted = accept(records(rows), BATCH_SETTINGS, CLOCK_MS).messages.to_pylist()
    assert len(accepted) == len(rows)
    for row, message in zip(rows, accepted, strict=True):
        is_dead = message["error_code"] is not None
        assert message["output_topic"] == "delayline-dead-letter" if is_dead else message["output_topic"] != ""
        assert len((message["error_text"] or "").encode()) <= MOST_TEXT_BYTES
        assert is_dead or message["deliver_at_ms"] <= CLOCK_MS + 367 * 86_400_000
        # A timestamp near the end of 64 bits does not wrap a due time into the past of 1970.
        assert message["deliver_at_ms"] >= 0
        marks = headers((STUB_HEADER, None)) if is_dead and seems_a_stub(row) else []
        whole = row | {"headers": [*row["headers"], *marks] if marks else row["headers"]}
        if all(message[name] == whole[name] for name in ("key", "value", "headers")):
            continue
        assert is_dead
        kept, stub = split(message)
        assert stub is not None
        assert (stub.key_bytes, stub.value_bytes) == tuple(
            None if row[name] is None else len(row[name]) for name in ("key", "value")
        )
        nbytes = sum(len(each["key"].encode()) + len(each["value"] or b"") for each in kept)
        assert nbytes + len(message["key"] or b"") < MOST_STUB_BYTES - MOST_TEXT_BYTES
