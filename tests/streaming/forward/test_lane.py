"""The records that a lane's owner has read and not claimed yet."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from state.claims import NO_EPOCH, Claim
from state.decided import Claims
from streaming.forward.lane import CLAIM_EVERY_S, MOST_BEHIND, MOST_BEHIND_S, URGENT_S, Lane, may_wait_s
from tests.thorough import examples

A, B = ("in", 0), ("in", 3)
IDS = {"in": "id", "other": "o"}
FIRST = Claim(epoch=1).next("job", {A: 10}, {}, IDS)


def lane(claim: Claim = FIRST) -> Lane:
    return Lane(claim, [A, B], IDS)


def test_a_lane_goes_on_where_the_newest_claim_ends_and_at_the_beginning_without_one() -> None:
    assert lane().positions == {A: 10, B: 0}
    assert Lane(FIRST, [A], {"in": "created again"}).positions == {A: 0}


def test_a_claim_says_what_is_read_and_taken_since_the_one_before() -> None:
    own = lane()
    own.read(A, 15, 0)
    own.take({A: [11, 13]}, due_before_ms=500, by_s=0)
    own.claimed(first := own.next_claim("north"))
    assert (first.positions, first.decided, first.owner) == ({"in": {"0": 15}}, {"in": {"0": 5}}, "north")
    own.read(B, 4, 1)
    own.leave_urgent(1)
    own.claimed(second := own.next_claim("north"))
    assert (second.decided, second.taken, second.due_before_ms) == ({"in": {"3": 4}}, {}, 500)
    assert (first.is_urgent, second.is_urgent) == (False, True)
    assert own.claim_due_s is None
    known = Claims()
    for claim in (FIRST, first, second):
        known.add(claim)
    assert [*known.taken("id", 0, 0, 99)] == [11, 13]
    assert (known.position("id", 0), known.position("id", 3)) == (15, 4)


def test_the_leader_epoch_of_the_last_record_goes_with_the_position_into_the_next_owners_lane() -> None:
    own = lane()
    own.read(A, 15, 0, leader_epoch=2)
    own.read(B, 4, 0, leader_epoch=5)
    # The end of a transaction, as an end that is reported: its epoch is not known.
    own.read(B, 5, 0)
    # An end that is reported again.
    own.read(A, 15, 0)
    assert lane(own.next_claim("north")).leader_epochs == {A: 2, B: NO_EPOCH}
    assert Lane(own.next_claim("north"), [A], {"in": "created again"}).leader_epochs == {A: NO_EPOCH}


def test_a_lane_goes_on_behind_deleted_records_and_nowhere_else() -> None:
    own = lane()
    own.read(B, 3, 0)
    assert (own.has_read(A), own.has_read(B)) == (False, True)
    # A log that was deleted up to the position can be read there, and one that begins below it too.
    assert own.resume({A: 10}, 0) == [A]
    assert own.resume({A: 4}, 0) == [A]
    assert own.positions == {A: 10, B: 3}
    assert own.resume({A: 11, B: 2}, 0) == [B]
    assert own.positions == {A: 11, B: 3}
    assert own.next_claim("north").positions == {"in": {"0": 11, "3": 3}}


def test_a_lane_takes_records_behind_more_deleted_ones_than_32_bits_before_it_has_claimed_anything() -> None:
    first, own = 5 * 10**9, lane()
    assert own.resume({B: first}, 0) == []
    own.take({B: [first + 3]}, due_before_ms=1, by_s=0)
    own.read(B, first + 4, 0)
    assert own.next_claim("north").offsets_taken() == {B: BitMap64([first + 3])}


def test_a_lane_has_nothing_to_claim_once_each_partition_is_read_and_all_of_it_is_claimed() -> None:
    own = lane()
    found = [own.has_nothing_to_claim]
    # Its end.
    own.read(A, 10, 0)
    found.append(own.has_nothing_to_claim)
    own.read(B, 3, 0)
    found.append(own.has_nothing_to_claim)
    own.claimed(own.next_claim("north"))
    assert [*found, own.has_nothing_to_claim] == [False, False, False, True]
    empty = Lane(Claim(epoch=1), [A], IDS)
    empty.read(A, 0, 0)
    assert empty.has_nothing_to_claim


def test_a_claim_waits_for_a_little_more_unless_something_of_it_cannot_wait() -> None:
    own = lane()
    assert own.claim_due_s is None
    own.read(A, 10, 3.0)
    assert own.claim_due_s is None
    own.read(A, 11, 4.0)
    own.read(A, 12, 4.01)
    assert own.claim_due_s == 4.0 + CLAIM_EVERY_S
    own.leave_urgent(4.02)
    own.take({A: [10]}, 1, by_s=4.2)
    assert own.claim_due_s == 4.02 + URGENT_S
    own.take({A: [11]}, 1, by_s=4.03)
    own.read(A, 13, 4.03)
    own.take({A: [12]}, 1, by_s=4.1)
    assert own.claim_due_s == 4.03
    own.claimed(own.next_claim("north"))
    own.read(A, 14, 5.0)
    assert own.claim_due_s == 5.0 + CLAIM_EVERY_S


@pytest.mark.parametrize(
    ("delay_ms", "wait_s"), [(-5_000, 0), (0, 0), (300, 0), (500, 0.05), (1_300, 0.25), (60_000, CLAIM_EVERY_S)]
)
def test_a_message_waits_for_others_for_a_share_of_its_delay(delay_ms: int, wait_s: float) -> None:
    assert may_wait_s(delay_ms) == pytest.approx(wait_s)


def test_what_is_far_behind_is_left_to_the_batches_at_once_and_unread() -> None:
    own = lane()
    own.ends_at(A, 10 + MOST_BEHIND)
    assert own.behind(0.0) == {}
    own.ends_at(B, 2)
    assert own.behind(0.0) == {A: 10 + MOST_BEHIND}
    own.skip(own.behind(0.0), 0.0)
    assert own.positions == {A: 10 + MOST_BEHIND, B: 0}
    claim = own.next_claim("north")
    assert (claim.decided, claim.taken, claim.is_urgent) == ({"in": {"0": MOST_BEHIND}}, {}, True)
    assert own.behind(99.0) == {}


def test_what_stays_behind_is_left_to_the_batches_after_a_while() -> None:
    own = lane()
    own.ends_at(A, 16_000)
    assert own.behind(1.0) == {}
    own.read(A, 2_000, 2.0)
    own.ends_at(A, 17_000)
    assert own.behind(1.0 + MOST_BEHIND_S) == {}
    assert own.behind(1.1 + MOST_BEHIND_S) == {A: 17_000}
    # Reading catches up in between: the time begins again.
    other = lane()
    other.ends_at(A, 16_000)
    assert other.behind(1.0) == {}
    other.read(A, 12_000, 2.0)
    assert other.behind(2.0) == {}
    other.ends_at(A, 26_000)
    assert other.behind(3.0) == {}
    assert other.behind(1.1 + MOST_BEHIND_S) == {}


STEP = st.one_of(
    st.tuples(st.just("read"), st.sampled_from([A, B]), st.integers(1, 9), st.sets(st.integers(0, 8))),
    st.tuples(st.just("claim")),
    st.tuples(st.just("crash")),
    st.tuples(st.just("skip"), st.sampled_from([A, B]), st.integers(1, 9)),
)


@given(st.lists(STEP, max_size=30))
@settings(max_examples=examples(200))
def test_claims_of_any_owners_decide_each_offset_once(steps: list[tuple[object, ...]]) -> None:
    own, claims, taken = lane(), [FIRST], {A: set[int](), B: set[int]()}
    pending: dict[tuple[str, int], set[int]] = {A: set(), B: set()}
    for step in steps:
        match step:
            case ("read", place, count, wanted):
                assert isinstance(place, tuple)
                assert isinstance(count, int)
                assert isinstance(wanted, set)
                start = own.positions[place]
                found = {start + each for each in wanted if each < count}
                own.take({place: found}, 1, by_s=0)
                own.read(place, start + count, 0.0)
                pending[place] |= found
            case ("skip", place, count):
                assert isinstance(place, tuple)
                assert isinstance(count, int)
                own.skip({place: own.positions[place] + count}, 0.0)
            case ("claim",):
                claims.append(own.next_claim("x"))
                own.claimed(claims[-1])
                for place, found in pending.items():
                    taken[place] |= found
                pending = {A: set(), B: set()}
            case _:
                own, pending = lane(claims[-1]), {A: set(), B: set()}
    known = Claims()
    for before, claim in zip([Claim(epoch=1), *claims], claims, strict=False):
        known.add(claim)
        for number, decided in claim.decided.get("in", {}).items():
            assert claim.positions["in"][number] - decided == before.position("in", int(number), "id")
    for place in (A, B):
        assert set(known.taken("id", place[1], 0, 10_000)) == taken[place]
        assert known.position("id", place[1]) == claims[-1].position(*place, "id")
