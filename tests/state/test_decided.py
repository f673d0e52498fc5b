"""The decisions of claims that follow each other, in lanes with many partitions."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st

from state.claims import Claim
from state.decided import Claims

_IDS, _ANEW = {"in": "A", "other": "B"}, {"in": "C", "other": "B"}
_STEP = st.dictionaries(st.tuples(st.sampled_from(["in", "other"]), st.integers(0, 2)), st.integers(1, 5), max_size=3)


@given(st.lists(_STEP, max_size=8), st.integers(0, 8))
def test_a_chain_of_claims_is_known_by_what_moved(steps: list[dict[tuple[str, int], int]], recreated: int) -> None:
    claims = [Claim(epoch=1)]
    for number, step in enumerate(steps):
        ids = _IDS if number < recreated else _ANEW
        starts = {place: claims[-1].position(*place, ids[place[0]]) for place in step}
        reached = {place: start + step[place] for place, start in starts.items()}
        claims.append(claims[-1].next("f", reached, {place: [start] for place, start in starts.items()}, ids))
    for last, claim in combinations(claims, 2):
        assert claim.follows(last) == all(
            position - claim.decided.get(topic, {}).get(number, 0)
            == last.position(topic, int(number), claim.topic_ids[topic])
            for topic, own in claim.positions.items()
            for number, position in own.items()
        )
    chained, each = Claims(), Claims()
    for claim in claims:
        each.add(claim)
    chained.add(claims[0])
    for before, later in pairwise(claims):
        chained.add(later, before)
    for topic_id in ("A", "B", "C"):
        for number in range(3):
            assert chained.position(topic_id, number) == each.position(topic_id, number)
            assert chained.taken(topic_id, number, 0, 100) == each.taken(topic_id, number, 0, 100)


def test_positions_that_have_not_moved_are_not_looked_at_again() -> None:
    first = Claim(1).next("f", {("in", 0): 5, ("in", 1): 7}, {}, _IDS)
    later = replace(first.next("f", {("in", 0): 6}, {}, _IDS), positions={"in": {"0": 6, "1": 9}})
    known = Claims()
    known.add(first)
    known.add(later, first)
    assert [known.position("A", number) for number in range(2)] == [6, 7]
    # Claims of another epoch begin with all positions.
    known.add(replace(later, epoch=2), first)
    assert [known.position("A", number) for number in range(2)] == [6, 9]
