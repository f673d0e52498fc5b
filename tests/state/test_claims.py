"""Claims as plain values: as a lane's owner writes them, and as others read them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conf.errors import CheckpointMismatch, FormatMismatch
from conf.settings import Settings
from state.checkpoint.batch_settings import batch_settings_from
from state.checkpoint.origin import CheckpointOrigin, as_offsets
from state.claims import JOB, NO_EPOCH, Claim, Terms, check_uncut
from state.decided import Claims
from state.lanes import first_claims, lane_of, partition_of_lane

_IDS = {"in": "A", "other": "B"}
_FAR = 2**40

_PLACES = st.tuples(st.sampled_from(["in", "other"]), st.integers(0, 2))


def terms(lanes: int, epoch: int = 1) -> Terms:
    """Return terms with this number of lanes."""
    origin = CheckpointOrigin("c", 1, 1)
    return Terms(epoch, lanes, batch_settings_from(Settings(), {"out": 1}, (0,), origin, input_ids={"in": ["A"]}))


def follow(first: Claim, *steps: Mapping[int, Iterable[int]]) -> list[Claim]:
    """Return a claim on in/0 for each step: a position, and the offsets taken below it."""
    claims = [first]
    for step in steps:
        ((position, taken),) = step.items()
        claims.append(claims[-1].next("f", {("in", 0): position}, {("in", 0): taken}, _IDS))
    return claims


def places(claim: Claim) -> Iterator[tuple[tuple[str, int], int]]:
    """Yield each partition of a claim, and its position."""
    for topic, own in claim.positions.items():
        for number, position in own.items():
            yield (topic, int(number)), position


@st.composite
def decisions(draw: st.DrawFn) -> list[dict[tuple[str, int], tuple[int, set[int]]]]:
    """Return for each claim how far it goes in which partitions, and which records it takes there."""
    positions: dict[tuple[str, int], int] = {}
    steps = []
    for _ in range(draw(st.integers(1, 6))):
        step = {}
        for place in draw(st.sets(_PLACES, min_size=1, max_size=3)):
            first = positions.get(place, 0)
            # A lane goes on behind a backlog, or behind deleted records, and takes more before its next claim.
            start = first + draw(st.sampled_from([0, 0, 0, _FAR]))
            count = draw(st.integers(0, 40))
            taken = draw(st.sets(st.integers(start, start + count - 1))) if count else set()
            positions[place] = start + count
            step[place] = (positions[place], taken)
        steps.append(step)
    return steps


@given(decisions(), st.data())
def test_readers_of_claims_know_what_was_decided(
    steps: list[dict[tuple[str, int], tuple[int, set[int]]]], data: st.DataObject
) -> None:
    claims = [Claim(epoch=1)]
    positions: dict[tuple[str, int], int] = {}
    every: dict[tuple[str, int], set[int]] = {}
    for step in steps:
        reached = {place: position for place, (position, _) in step.items()}
        taken = {place: own for place, (_, own) in step.items()}
        claims.append(claims[-1].next("f", reached, taken, _IDS, due_before_ms=data.draw(st.integers(0, 9))))
        positions |= reached
        for place, own in taken.items():
            every.setdefault(place, set()).update(own)
    read = Claims()
    # Claims that are read again change nothing.
    again = data.draw(st.lists(st.sampled_from(claims), max_size=3))
    for claim in (*claims, *again):
        read.add(Claim.from_bytes(claim.to_bytes()))
    assert read.due_before_ms == claims[-1].due_before_ms == max(claim.due_before_ms for claim in claims)
    for topic, number in positions:
        identity, place = _IDS[topic], (topic, number)
        assert read.position(identity, number) == claims[-1].position(*place, identity) == positions[place]
        assert read.position("another id", number) == 0
        assert set(read.taken(identity, number, 0, 2**62)) == every[place]
        start, end = data.draw(st.tuples(st.integers(0, 60), st.integers(0, 60)))
        assert set(read.taken(identity, number, start, end)) == {each for each in every[place] if start <= each < end}
        read.forget_below(identity, number, start)
        assert set(read.taken(identity, number, 0, 2**62)) == {each for each in every[place] if start <= each}
        assert read.position(identity, number) == positions[place]


@given(decisions(), st.integers(1, 5))
def test_a_reader_may_begin_with_the_first_claim_beyond_what_is_needed(
    steps: list[dict[tuple[str, int], tuple[int, set[int]]]], needed: int
) -> None:
    claims = [Claim(epoch=1)]
    for step in steps:
        reached = {place: position for place, (position, _) in step.items()}
        claims.append(claims[-1].next("f", reached, {place: own for place, (_, own) in step.items()}, _IDS))
    from_offsets = {"in": {str(number): needed for number in range(3)}, "other": {"0": _FAR, "1": 2, "2": 0}}
    beyond = [claim.is_beyond(from_offsets, _IDS, 1) for claim in claims]
    # Once it is so, it stays so: a search may divide.
    assert beyond == sorted(beyond)
    every, some = Claims(), Claims()
    for claim, matters in zip(claims, beyond, strict=True):
        every.add(claim)
        if matters:
            some.add(claim)
    for topic, numbers in from_offsets.items():
        for number, start in numbers.items():
            place = _IDS[topic], int(number), start, 2**62
            assert some.taken(*place) == every.taken(*place)


def test_a_claim_may_decide_more_than_32_bits() -> None:
    claims = follow(Claim(1), {10: [3]}, {_FAR + 9: [_FAR, _FAR + 8]})
    read = Claims()
    for claim in claims:
        read.add(Claim.from_bytes(claim.to_bytes()))
    assert list(read.taken("A", 0, 0, 2 * _FAR)) == [3, _FAR, _FAR + 8]


def test_a_claim_that_takes_all_or_nothing_is_small() -> None:
    (_, first, last) = follow(Claim(1), {100_000: range(100_000)}, {200_000: []})
    assert len(first.to_bytes()) < 350
    assert len(last.to_bytes()) < 300


def test_a_position_does_not_go_back() -> None:
    (*_, before) = follow(Claim(1), {10: [3]})
    after = before.next("f", {("in", 0): 4, ("in", 1): 2}, {}, _IDS)
    assert after.positions == {"in": {"0": 10, "1": 2}}
    assert after.decided == {"in": {"1": 2}}
    assert after.taken == {}


def test_a_claim_says_of_itself_alone_whether_somebody_waits() -> None:
    urgent = Claim(1).next("f", {("in", 0): 4}, {}, _IDS, due_before_ms=5, is_urgent=True)
    after = urgent.next("f", {("in", 0): 5}, {}, _IDS, due_before_ms=4)
    assert (urgent.is_urgent, after.is_urgent, after.due_before_ms) == (True, False, 5)


def test_a_topic_that_was_created_again_begins_anew() -> None:
    (*_, before) = follow(Claim(1), {10: [3]})
    both = before.next("f", {("other", 0): 7}, {}, _IDS)
    anew = {"in": "C", "other": "B"}
    after = both.next("f", {("in", 0): 5, ("in", 1): 1}, {("in", 0): [3, 4]}, anew)
    assert (after.position("in", 0, "C"), after.position("in", 0, "A"), after.position("other", 0, "B")) == (5, 0, 7)
    read = Claims()
    for claim in (before, both, after):
        read.add(claim)
    assert list(read.taken("A", 0, 0, 100)) == [3]
    assert list(read.taken("C", 0, 0, 100)) == [3, 4]
    assert (read.position("A", 0), read.position("C", 0)) == (10, 5)
    # Claims on the former topic do not matter to anybody who reads the new one.
    needed = {"in": {"0": 0}}
    assert [claim.is_beyond(needed, {"in": "C"}, 1) for claim in (before, both, after)] == [False, False, True]


def test_a_leader_epoch_is_known_as_long_as_the_position_is_the_same() -> None:
    claim = Claim(1).next("f", {("in", 0): 5, ("in", 1): 6}, {}, _IDS, leader_epochs={("in", 0): 3, ("in", 1): 4})
    later = Claim.from_bytes(claim.next(JOB, {("in", 0): 5, ("in", 1): 7}, {}, _IDS).to_bytes())
    assert [later.leader_epoch("in", number, "A") for number in range(3)] == [3, NO_EPOCH, NO_EPOCH]
    assert later.leader_epoch("in", 0, "created again") == NO_EPOCH
    anew = later.next("f", {("in", 1): 1}, {}, {"in": "C"})
    assert [anew.leader_epoch("in", number, "C") for number in range(2)] == [NO_EPOCH, NO_EPOCH]


def test_a_lane_says_that_a_partition_is_cut_until_its_topic_is_created_again() -> None:
    (*_, claim) = follow(Claim(1), {10: [3]})
    claim = claim.next("f", {("in", 2): 4, ("other", 0): 7}, {}, _IDS)
    found = claim.found_cut("f", [("in", 0)]).found_cut("f", [("in", 2)])
    assert found.follows(claim)
    assert found.offsets_taken() == {}
    known = Claims()
    for each in (claim, found):
        known.add(each)
    assert known.position("A", 0) == 10
    # The next owner of the lane.
    later = first_claims(terms(1), {}, {0: found.next(JOB, {("in", 0): 12}, {}, _IDS)}, _IDS)[0]
    cuts = Claim.from_bytes(later.to_bytes()).cuts(_IDS)
    assert cuts == [
        f"in/{n} has lost records below offset {p}, and forwarders have read up to there" for n, p in ((0, 10), (2, 4))
    ]
    with pytest.raises(
        CheckpointMismatch, match=r"in/0 has lost .*; in/2 has lost .* Delete the topic, create it again"
    ):
        check_uncut(cuts)
    assert later.cuts({"in": "C", "other": "B"}) == []
    assert later.next("f", {("in", 0): 1}, {}, {"in": "C"}).cuts({"in": "C"}) == []
    check_uncut(claim.cuts(_IDS))


def test_a_partition_that_moves_to_another_lane_takes_along_what_is_known_of_its_log() -> None:
    places = {("in", number): 5 + number for number in range(6)}
    claim = Claim(1).next("f", places, {}, _IDS, leader_epochs=dict.fromkeys(places, 3)).found_cut("f", [("in", 4)])
    first = first_claims(terms(3), {"in": {"0": 9}}, {0: claim}, _IDS)
    for place in places:
        own = first[lane_of(*place, 3)]
        # The epoch of records that batches have read beyond the claim was not noted.
        assert own.leader_epoch(*place, "A") == (NO_EPOCH if place == ("in", 0) else 3)
    assert first[lane_of("in", 4, 3)].cuts(_IDS) == claim.cuts(_IDS)
    assert first_claims(terms(3), {}, {0: claim}, {"in": "C"})[0].cut == {}


def test_an_epoch_ends_what_earlier_ones_said() -> None:
    (*_, old) = follow(Claim(1, due_before_ms=9), {10: [3]})
    (*_, new) = follow(Claim(2), {6: [5]})
    read = Claims()
    for claim in (old, new, old):
        read.add(claim)
    assert list(read.taken("A", 0, 0, 100)) == [5]
    assert (read.position("A", 0), read.due_before_ms) == (6, 0)
    later = Claims(epoch=2)
    later.add(old)
    assert (later.position("A", 0), list(later.taken("A", 0, 0, 100)), later.due_before_ms) == (0, [], 0)
    # However far the earlier epoch was: the search sees that it comes before.
    assert not old.is_beyond({}, _IDS, 2)
    assert Claim(3).is_beyond({"in": {"0": _FAR}}, _IDS, 2)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (b"", CheckpointMismatch),
        (b"null", CheckpointMismatch),
        (b"{}", CheckpointMismatch),
        (b'{"format":1}', CheckpointMismatch),
        (b'{"format":1,"epoch":"1"}', CheckpointMismatch),
        (b'{"format":1,"epoch":1,"lanes":1}', CheckpointMismatch),
        (b'{"format":99,"epoch":1}', FormatMismatch),
    ],
)
@pytest.mark.parametrize("read", [Claim.from_bytes, Terms.from_bytes])
def test_any_other_record_is_refused(value: bytes, error: type[Exception], read: Any) -> None:
    with pytest.raises(error, match=r"a claim|a record of terms"):
        read(value)


def test_terms_are_read_as_they_were_written() -> None:
    assert Terms.from_bytes(terms(3).to_bytes()) == terms(3)


def test_many_topics_with_one_partition_each_spread_over_the_lanes() -> None:
    counts = [0] * 8
    for number in range(800):
        counts[lane_of(f"orders-{number}", 0, 8)] += 1
    assert min(counts) > 60
    # Forwarders of all hosts and versions, and the job, must agree.
    assert [lane_of("orders", number, 8) for number in range(8)] == [6, 7, 0, 1, 2, 3, 4, 5]
    assert len({partition_of_lane(lane) for lane in range(8)} | {0}) == 9


@given(
    st.dictionaries(_PLACES, st.integers(0, 50), max_size=6),
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 2), _PLACES, st.integers(1, 60)), max_size=12),
    st.integers(1, 5),
)
def test_lanes_begin_at_the_highest_of_what_is_known(
    positions: dict[tuple[str, int], int], claimed: list[tuple[int, int, tuple[str, int], int]], lanes: int
) -> None:
    newest: dict[int, Claim] = {}
    for lane, epoch, place, position in sorted(claimed, key=lambda each: each[1]):
        before = newest.get(lane, Claim(epoch))
        base = before if before.epoch == epoch else Claim(epoch)
        newest[lane] = base.next("f", {place: position}, {}, _IDS, position)
    present = {lane: claim for lane, claim in newest.items() if claim.epoch == 2}
    expected = {place: offset for place, offset in positions.items() if offset}
    for claim in present.values():
        for place, position in places(claim):
            expected[place] = max(position, expected.get(place, 0))
    own_offsets = as_offsets({("former", 0): 9, **positions})
    first = first_claims(terms(lanes, epoch=2), own_offsets, newest, _IDS)
    assert first.keys() == set(range(lanes))
    for lane, claim in first.items():
        assert (claim.epoch, claim.taken) == (2, {})
        assert claim.due_before_ms == max((each.due_before_ms for each in newest.values()), default=0)
        # Its positions do not go back, also if the partition is in another lane now: a search in the lane may divide.
        for place, position in places(present.get(lane, Claim(2))):
            assert claim.position(*place, _IDS[place[0]]) >= position
    for place, position in expected.items():
        assert first[lane_of(*place, lanes)].position(*place, _IDS[place[0]]) == position
