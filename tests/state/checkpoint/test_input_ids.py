from __future__ import annotations

from state.checkpoint.input_ids import (
    left_out,
    newest_ids,
    recreated,
    same_topic,
    shared_ids,
    unread_topics,
    with_left_out,
    with_offsets,
    with_present,
)


def test_a_topic_is_recreated_if_its_id_is_not_the_last_known_one() -> None:
    known = {"a": ["1"], "b": ["1", "2"], "gone": ["9"]}
    assert recreated(known, {"a": "1", "b": "2", "new": "3"}) == []
    assert recreated(known, {"b": "1", "a": "4"}) == ["a", "b"]


def test_ids_are_kept_in_the_order_in_which_they_were_found() -> None:
    known = with_present({}, {"a": "1"})
    assert with_present(known, {"a": "1"}) == known
    later = with_present(known, {"a": "2", "b": "3"})
    assert later == {"a": ["1", "2"], "b": ["3"]}
    # Those of a topic that is an input no longer stay: its messages may still wait.
    assert with_present(later, {"b": "3"}) == later
    assert shared_ids(known) == []
    assert shared_ids(later) == ["a"]


def test_the_id_of_a_topic_that_was_not_read_is_replaced() -> None:
    known = {"a": ["1"], "b": ["2", "3"], "c": ["4"]}
    unread = unread_topics(known, {"a": {"0": 0, "1": 0}, "b": {"0": 0}, "c": {"0": 0}}, {"c": {"0": 0, "1": 5}})
    assert unread == {"a", "b"}
    later = with_present(known, {"a": "5", "b": "6", "c": "7", "new": "8"}, unread)
    assert later == {"a": ["5"], "b": ["2", "6"], "c": ["4", "7"], "new": ["8"]}
    assert shared_ids(with_present({"a": ["1"]}, {"a": "2"}, ["a"])) == []


def test_a_topic_is_the_same_if_its_last_id_is() -> None:
    assert same_topic({"a": ["1", "2"]}, {"a": ["2"]}, "a")
    assert not same_topic({"a": ["1", "2"]}, {"a": ["1"]}, "a")
    assert not same_topic({"a": ["1"]}, {}, "a")


def test_the_offsets_of_some_topics_are_replaced() -> None:
    offsets = {"a": {"0": 5, "1": 6}, "b": {"0": 7}}
    new = {"a": {"0": 0}, "b": {"0": 0}, "c": {"0": 0}}
    assert with_offsets(offsets, ["a"], new) == {"a": {"0": 0}, "b": {"0": 7}}
    assert with_offsets(offsets, ["a"], {}) == {"b": {"0": 7}}
    assert with_offsets(offsets, [], new) == offsets


def test_a_topic_that_was_read_and_is_no_input_any_more_is_left_out_until_it_is_one_again() -> None:
    known = {"a": ["1"], "b": ["2", "3"], "c": ["4"]}
    offsets = {"a": {"0": 5}, "b": {"0": 0, "1": 7}, "c": {"0": 0}}
    later = with_left_out(known, ["a"], {"a": {"0": 1}}, offsets)
    assert left_out(later) == {"b"}
    # Nothing was read of c. It may come back, and so may another topic of its name.
    assert unread_topics(later, {"a": {"0": 5}}) == {"c"}
    assert with_left_out(later, ["a"], {"a": {"0": 5}}) == later
    assert with_left_out(later, ["a", "b"], {"a": {"0": 5}}) == known
    # Its ids are the same as before for all else.
    assert newest_ids(later) == newest_ids(known)
    assert shared_ids(later) == shared_ids(known) == ["b"]
    assert shared_ids(with_left_out({"a": ["1"]}, [], offsets)) == []
    assert with_present(later, {"a": "6"}) == later | {"a": ["1", "6"]}
