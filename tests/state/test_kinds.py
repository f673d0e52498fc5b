"""The kind alone says what a row of messages is. The topic that it goes to does not."""

from __future__ import annotations

from state.kinds import ANSWER, DEAD_LETTER, MESSAGE, REQUEST, is_message, is_request, kinds_of, requests_in
from tests.messages import messages

KINDS = [MESSAGE, DEAD_LETTER, REQUEST, ANSWER]


def test_rows_are_told_apart_whatever_their_topic_is() -> None:
    table = messages({"offset": kind, "kind": kind, "output_topic": "same"} for kind in KINDS)
    assert kinds_of(table).tolist() == KINDS
    assert is_message(table).tolist() == [True, False, False, False]
    assert is_request(table).tolist() == [False, False, True, True]
    assert requests_in(table).column("offset").to_pylist() == [REQUEST]


def test_without_requests_none_are_found() -> None:
    for table in (messages([]), messages([{"kind": ANSWER}])):
        assert requests_in(table).num_rows == 0
        assert requests_in(table).schema == table.schema
