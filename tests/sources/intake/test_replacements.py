"""Records that replace waiting messages."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sources.intake.accept import accept
from state.cancel import ALWAYS, WAITING, Request, requests_of
from state.checkpoint.batch_settings import DelayPolicy
from tests.messages import PARTITIONS, headers, records, some_batch_settings

CLOCK_MS = 1_798_000_000_000
WRITTEN_MS = CLOCK_MS - 1_000
BATCH_SETTINGS = some_batch_settings(partitions=PARTITIONS | {"delayline-results": 3})
RESULTS = BATCH_SETTINGS.results
REPLACES, DELAY = ("delayline-replaces", b"in/0/7"), ("deliver-after", b"5s")


def accepted(*rows: dict[str, Any], **changes: Any) -> list[dict[str, Any]]:
    table = records({"timestamp_ms": WRITTEN_MS, "offset": at, **row} for at, row in enumerate(rows))
    settings = some_batch_settings(partitions=BATCH_SETTINGS.partitions, **changes)
    found: list[dict[str, Any]] = accept(table, settings, CLOCK_MS).messages.to_pylist()
    return found


def test_a_replacement_is_a_message_without_the_headers_and_an_ask_with_all_of_them() -> None:
    given = headers(("trace", b"7"), REPLACES, DELAY, ("delayline-if", b"always"), ("delayline-operator", b"Ada"))
    plain, message, request = accepted({}, {"headers": given, "key": b"k", "value": b"new"})
    assert plain["output_topic"] == "delayline-out"
    assert (message["key"], message["value"], message["output_topic"]) == (b"k", b"new", "delayline-out")
    assert message["deliver_at_ms"] == WRITTEN_MS + 5_000
    assert message["headers"] == headers(("trace", b"7"), DELAY)
    assert (request["key"], request["output_topic"], request["headers"]) == (b"in/0/7", RESULTS, given)
    assert request["deliver_at_ms"] == WRITTEN_MS
    assert [(each["topic"], each["partition"], each["offset"]) for each in (message, request)] == [
        ("delayline-in", 0, 1)
    ] * 2


def test_the_condition_is_waiting_by_default_and_asks_carry_it_with_the_due_time() -> None:
    rows = [{"headers": headers(REPLACES, DELAY)}, {"headers": headers(REPLACES, DELAY, ("delayline-if", b" always "))}]
    requests = accept(records({"timestamp_ms": WRITTEN_MS, "offset": at, **row} for at, row in enumerate(rows)),
                   BATCH_SETTINGS, CLOCK_MS).requests  # fmt: skip
    due = WRITTEN_MS + 5_000
    assert requests_of(requests) == [
        Request(("delayline-in", 0, 0), ("in", 0, 7), WAITING, due),
        Request(("delayline-in", 0, 1), ("in", 0, 7), ALWAYS, due),
    ]


@pytest.mark.parametrize("condition", [WAITING, ALWAYS])
@pytest.mark.parametrize("offset", [1, 2, 2**40])
def test_a_message_that_replaces_itself_or_a_later_one_is_refused(offset: int, condition: str) -> None:
    requests = headers(
        ("delayline-replaces", b"delayline-in/0/%d" % offset), ("delayline-if", condition.encode()), DELAY
    )
    before, message = accepted({}, {"headers": requests})
    assert before["error_code"] is None
    assert message["error_code"] == "bad-replaces"
    # In other partitions, offsets do not tell which record comes later.
    for place in (b"delayline-in/1/%d", b"other/0/%d"):
        elsewhere = headers(("delayline-replaces", place % offset), DELAY)
        assert [row["error_code"] for row in accepted({}, {"headers": elsewhere})] == [None] * 3


def test_tens_of_thousands_of_headers_of_a_replacement_stay_in_arrow() -> None:
    many = headers(REPLACES, DELAY, *[("h", b"")] * 40_000)
    table = records([{"timestamp_ms": WRITTEN_MS, "headers": many} for _ in range(5)])
    tracemalloc.start()
    try:
        messages = accept(table, BATCH_SETTINGS, CLOCK_MS).messages
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert messages.num_rows == 10
    assert len(messages.column("headers")[0]) == 40_001
    # As Python objects they would take more than ten times as much. Arrow's own memory is not traced; numpy's is.
    assert peak < 5 * table.nbytes


def test_message_and_ask_never_have_the_same_place_in_the_order() -> None:
    # A message without a delay is due when it was written, and so is its ask.
    message, request = accepted({"headers": headers(REPLACES)})
    assert (message["deliver_at_ms"], request["deliver_at_ms"]) == (WRITTEN_MS, WRITTEN_MS + 1)


@pytest.mark.parametrize(
    "bad",
    [
        [("delayline-replaces", b"in/0")],
        [("delayline-replaces", None)],
        [("delayline-replaces", b"x" * 600_000)],
        [REPLACES, REPLACES],
        [REPLACES, ("delayline-if", b"never")],
        [REPLACES, ("delayline-if", None)],
        [REPLACES, ("delayline-if", b"waiting"), ("delayline-if", b"waiting")],
    ],
    ids=["short", "null", "large", "two", "no condition", "null condition", "two conditions"],
)  # fmt: skip
def test_a_replacement_that_cannot_be_followed_is_a_dead_letter_and_asks_for_nothing(bad: Any) -> None:
    message, good, request = accepted({"headers": headers(*bad), "value": b"v"}, {"headers": headers(REPLACES)})
    assert (message["error_code"], message["output_topic"]) == ("bad-replaces", "delayline-dead-letter")
    assert len(message["error_text"]) < 500
    assert message["headers"] == headers(*bad), "whoever sends it again finds what it asked for"
    assert (good["error_code"], request["key"]) == (None, b"in/0/7")


def test_a_replacement_that_is_no_valid_message_replaces_nothing() -> None:
    (message,) = accepted({"headers": headers(REPLACES, ("deliver-after", b"10 parsecs"))})
    assert message["error_code"] == "bad-deliver-after"


def test_a_condition_alone_is_a_header_like_any_other() -> None:
    alone = headers(("delayline-if", b"never"))
    message, _, _ = accepted({"headers": alone}, {"headers": headers(REPLACES)})
    assert (message["error_code"], message["headers"]) == (None, alone)


def test_messages_stay_in_place_where_topics_have_policies_of_their_own() -> None:
    replacement = {"headers": headers(REPLACES, DELAY)}
    rows: list[dict[str, Any]] = [
        {"topic": "a"},
        {"topic": "b", **replacement},
        {"topic": "a", **replacement},
        {"topic": "b"},
    ]
    found = accepted(*rows, policies={"a": DelayPolicy()})
    assert [(row["offset"], row["output_topic"]) for row in found[:4]] == [(at, "delayline-out") for at in range(4)]
    assert sorted(row["offset"] for row in found[4:]) == [1, 2]
    assert {row["output_topic"] for row in found[4:]} == {RESULTS}


HEADER = st.one_of(
    st.tuples(st.just("delayline-replaces"), st.sampled_from([b"in/0/7", b"in/0/8", b"in", None])),
    st.tuples(st.just("delayline-if"), st.sampled_from([b"waiting", b"always", b"never", None])),
    st.tuples(st.sampled_from(["deliver-after", "x", "delayline-cancel"]), st.sampled_from([b"1s", b"in/0/9"])),
)
ROWS = st.lists(st.one_of(st.none(), st.lists(HEADER, max_size=4)), max_size=12)


@given(ROWS)
def test_a_table_gives_the_same_messages_and_asks_as_its_records_one_by_one(
    rows: list[list[tuple[str, bytes | None]] | None],
) -> None:
    given_rows = [{"offset": at, "headers": None if row is None else headers(*row)} for at, row in enumerate(rows)]
    whole = accepted(*given_rows)
    single = [accepted(row) for row in given_rows]
    assert whole[: len(rows)] == [found[0] for found in single]
    assert whole[len(rows) :] == [request for found in single for request in found[1:]]
