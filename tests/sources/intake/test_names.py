"""Names of messages: where they come from, and which requests are for messages that have them."""

from __future__ import annotations

from typing import Any

import pytest

from sources.intake.accept import accept
from state.cancel import ALWAYS, NOTHING, Request, requests_of
from state.checkpoint.batch_settings import DelayPolicy, SettingsHistory
from state.names import KEEP, KEEP_TIME, named
from tests.messages import PARTITIONS, headers, records, some_batch_settings

CLOCK_MS = 1_798_000_000_000
WRITTEN_MS = CLOCK_MS - 1_000
TOPIC, RESULTS = "delayline-in", "delayline-results"
WITH_RESULTS = PARTITIONS | {RESULTS: 3}
NAME, DELAY = ("delayline-name", b"order 7"), ("deliver-after", b"5s")
WANTS_ANSWER = ("delayline-answer", b"true")


def accepted(
    *rows: dict[str, Any], names: str = "header", mode: str = "replace", **changes: Any
) -> tuple[list[dict[str, Any]], list[Request]]:
    """Return the messages that `rows` become, and the requests among them."""
    table = records({"timestamp_ms": WRITTEN_MS, "offset": at, **row} for at, row in enumerate(rows))
    own = {"policies": {TOPIC: DelayPolicy(names=names, name_mode=mode)}} | changes
    found = accept(table, some_batch_settings(partitions=WITH_RESULTS, **own), CLOCK_MS)
    return found.messages.to_pylist(), requests_of(found.requests)


def test_a_message_with_a_name_is_itself_and_an_ask_for_what_has_the_name() -> None:
    given = headers(("trace", b"7"), NAME, DELAY)
    (plain, message, request), (found,) = accepted({}, {"headers": given, "key": b"k", "value": b"new"})
    assert (plain["output_topic"], plain["error_code"]) == ("delayline-out", None)
    assert (message["key"], message["value"], message["headers"]) == (b"k", b"new", given)
    assert (message["output_topic"], message["deliver_at_ms"]) == ("delayline-out", WRITTEN_MS + 5_000)
    assert (request["output_topic"], request["key"], request["deliver_at_ms"]) == (RESULTS, b"order 7", WRITTEN_MS)
    name = named(TOPIC, b"order 7")
    assert found == Request((TOPIC, 0, 1), NOTHING, ALWAYS, WRITTEN_MS + 5_000, name, WRITTEN_MS, wants_answer=False)


def test_headers_of_replacements_mean_nothing_on_a_message_with_a_name() -> None:
    given = headers(NAME, ("delayline-if", b"never"), ("delayline-operator", b"Ada"), DELAY)
    (message, _), (request,) = accepted({"headers": given}, mode="keep")
    assert (message["error_code"], message["headers"], request.condition) == (None, given, KEEP)


def test_requests_are_behind_all_messages_in_the_order_of_their_records() -> None:
    replaces = ("delayline-replaces", b"in/0/7")
    marks = [
        NAME,
        replaces,
        ("delayline-cancel", b"in/0/7"),
        ("x", b""),
        NAME,
        ("delayline-cancel-name", b"a"),
        replaces,
    ]
    messages, requests = accepted(*({"headers": headers(each)} for each in marks))
    assert [message["offset"] for message in messages] == [*range(7), 0, 1, 4, 6]
    assert [request.id[2] for request in requests] == [0, 1, 2, 4, 5, 6]


def test_the_policy_says_on_each_topic_what_a_message_keeps() -> None:
    keeping = {topic: DelayPolicy(names="header", name_mode=mode) for topic, mode in (("x", KEEP), ("y", KEEP_TIME))}
    rows = [{"topic": topic, "headers": headers(NAME)} for topic in ("x", TOPIC, "x", "y")]
    _, requests = accepted(*rows, policies=keeping, policy=DelayPolicy(names="header"))
    assert [(request.id, request.condition) for request in requests] == [
        (("x", 0, 0), KEEP), ((TOPIC, 0, 1), ALWAYS), (("x", 0, 2), KEEP), (("y", 0, 3), KEEP_TIME),
    ]  # fmt: skip


def test_a_replayed_batch_takes_names_by_the_mode_of_its_first_try() -> None:
    keeping, timed = (
        some_batch_settings(partitions=WITH_RESULTS, policy=DelayPolicy(names="header", name_mode=mode))
        for mode in (KEEP, KEEP_TIME)
    )
    written = SettingsHistory(((0, keeping),)).amended(6, timed, keep_from=5).to_json()
    history, table = SettingsHistory.from_json(written), records([{"headers": headers(NAME)}])
    requests = [
        request for batch in (5, 6) for request in requests_of(accept(table, history.at(batch), CLOCK_MS).requests)
    ]
    assert [request.condition for request in requests] == [KEEP, KEEP_TIME]


def test_who_wants_an_answer_says_so_in_a_header_that_is_not_delivered() -> None:
    given, plain = headers(NAME, WANTS_ANSWER, ("x", b"1")), headers(NAME)
    rows: list[dict[str, Any]] = [
        {"headers": plain},
        {"headers": given},
        {"headers": headers(WANTS_ANSWER), "key": b"k"},
    ]
    for mode in ("replace", "keep", "keep-time"):
        messages, requests = accepted(*rows, names="key", mode=mode)
        assert [message["headers"] for message in messages[:3]] == [plain, headers(NAME, ("x", b"1")), []]
        assert [request["headers"] for request in messages[3:]] == [row["headers"] for row in rows]
        assert [request.wants_answer for request in requests] == [False, True, True]


@pytest.mark.parametrize(
    "bad",
    [
        [WANTS_ANSWER],
        [NAME, WANTS_ANSWER, WANTS_ANSWER],
        [NAME, ("delayline-answer", None)],
        [NAME, ("delayline-answer", b"")],
        [NAME, ("delayline-answer", b"True")],
        [NAME, ("delayline-answer", b"false")],
        [NAME, ("delayline-answer", b"\xff")],
        [NAME, ("delayline-answer", b"true" * 10_000)],
        [WANTS_ANSWER, ("delayline-replaces", b"in/0/7")],
    ],
    ids=["no name", "two", "null", "empty", "case", "false", "no text", "long", "replaces"],
)  # fmt: skip
def test_whoever_wants_an_answer_wrongly_is_refused(bad: Any) -> None:
    given = headers(*bad)
    (message, good, _), requests = accepted({"headers": given, "value": b"v"}, {"headers": headers(NAME)})
    assert (message["error_code"], message["headers"], message["value"]) == ("bad-name", given, b"v")
    assert (good["error_code"], [request.id[2] for request in requests]) == (None, [1])


def test_a_json_string_is_a_wish_for_an_answer() -> None:
    # As Spring's header mapper writes it.
    _, (request,) = accepted({"headers": headers(NAME, ("delayline-answer", b'"true"'))})
    assert request.wants_answer


def test_the_policy_says_where_names_come_from() -> None:
    rows: list[dict[str, Any]] = [{"key": b"k"}, {"key": b"k", "headers": headers(NAME)}, {"key": b""}, {"key": None}]
    _, by_header = accepted(*rows)
    assert [request.name for request in by_header] == [named(TOPIC, b"order 7")]
    _, by_key = accepted(*rows, names="key")
    assert [(request.id[2], request.name) for request in by_key] == [
        (0, named(TOPIC, b"k")),
        (1, named(TOPIC, b"order 7")),
    ]
    messages, none = accepted(*rows, names="off")
    assert none == []
    assert [message["error_code"] for message in messages] == [None, "bad-name", None, None]


def test_a_global_policy_gives_each_topic_names_of_its_own() -> None:
    cancel = ("delayline-cancel-name", b"order 7")
    rows = [{"topic": topic, "headers": headers(each)} for each in (NAME, cancel) for topic in (TOPIC, "other")]
    _, requests = accepted(*rows, policies={}, policy=DelayPolicy(names="header"))
    own, other = named(TOPIC, b"order 7"), named("other", b"order 7")
    assert {request.id[2]: request.name for request in requests} == {0: own, 1: other, 2: own, 3: other}
    assert own != other


@pytest.mark.parametrize(
    "bad",
    [
        [("delayline-name", b"")],
        [("delayline-name", None)],
        [("delayline-name", b"x" * 1_025)],
        [NAME, NAME],
        [NAME, ("delayline-replaces", b"in/0/7")],
    ],
    ids=["empty", "null", "long", "two", "replaces"],
)  # fmt: skip
def test_a_wrong_name_is_a_dead_letter_that_asks_for_nothing(bad: Any) -> None:
    (message, good, _), requests = accepted({"headers": headers(*bad), "value": b"v"}, {"headers": headers(NAME)})
    assert (message["error_code"], message["output_topic"]) == ("bad-name", "delayline-dead-letter")
    assert (message["headers"], message["value"]) == (headers(*bad), b"v")
    assert good["error_code"] is None
    assert [request.id[2] for request in requests] == [1]


def test_what_is_rejected_for_another_reason_asks_for_nothing() -> None:
    (message,), requests = accepted({"headers": headers(NAME, ("deliver-after", b"soon"))})
    assert (message["error_code"], requests) == ("bad-deliver-after", [])


def test_an_ask_for_a_cancel_by_name_is_no_message() -> None:
    given = headers(("delayline-cancel-name", b"order 7"), ("trace", b"7"))
    (request,), (found,) = accepted({"headers": given, "key": b"k", "value": b"v"})
    assert (request["output_topic"], request["key"], request["headers"]) == (RESULTS, b"order 7", given)
    assert found == Request((TOPIC, 0, 0), NOTHING, None, None, named(TOPIC, b"order 7"))


@pytest.mark.parametrize(
    ("names", "bad"),
    [
        ("off", [("delayline-cancel-name", b"order 7")]),
        ("key", [("delayline-cancel-name", b"")]),
        ("key", [("delayline-cancel-name", None)]),
        ("key", [("delayline-cancel-name", b"order 7")] * 2),
        ("key", [("delayline-cancel-name", b"order 7"), NAME]),
        ("key", [("delayline-cancel-name", b"order 7"), ("delayline-cancel", b"in/0/7")]),
        ("key", [("delayline-cancel-name", b"order 7"), ("delayline-replaces", b"in/0/7")]),
    ],
    ids=["off", "empty", "null", "two", "name", "id", "replaces"],
)  # fmt: skip
def test_a_wrong_ask_by_name_is_a_dead_letter(names: str, bad: Any) -> None:
    (message,), requests = accepted({"headers": headers(*bad), "key": b"k", "value": b"v"}, names=names)
    assert (message["error_code"], message["key"], message["value"], requests) == ("bad-cancel", b"k", b"v", [])


def test_a_long_key_is_a_name_and_its_ask_is_not_as_large() -> None:
    long = b"k" * 100_000
    (_, request), (found,) = accepted({"key": long}, names="key")
    assert found.name == named(TOPIC, long)
    assert len(request["key"]) == 32


def test_many_names_of_many_records_each_find_their_own() -> None:
    rows = [{"key": b"%d" % (at % 7), "headers": headers(DELAY, ("x", b"%d" % at))} for at in range(50)]
    messages, requests = accepted(*rows, names="key")
    assert [message["key"] for message in messages[:50]] == [row["key"] for row in rows]
    assert [(request.id[2], request.name) for request in requests] == [
        (at, named(TOPIC, b"%d" % (at % 7))) for at in range(50)
    ]
