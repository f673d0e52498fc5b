from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conf.errors import PositionInvalid
from sources.dead_letters.position import MAX_TEXT_BYTES, ResendPosition

LETTERS = 40


@given(st.lists(st.tuples(st.sets(st.integers(0, LETTERS - 1)), st.integers(0, LETTERS)), max_size=6))
def test_over_many_runs_a_letter_is_done_if_and_only_if_one_run_did_it(runs: list[tuple[set[int], int]]) -> None:
    position, done = ResendPosition(), set[int]()
    for chosen, wanted in runs:
        read_to = max(wanted, position.offset)
        now = {each for each in chosen if position.offset <= each < read_to}
        done |= now
        left = {each for each in range(read_to) if each not in done}
        position = position.advanced(now, left, read_to)
        position = ResendPosition.from_text(position.offset, position.to_text())
        assert {each for each in range(LETTERS) if position.is_done(each)} == done


def test_a_position_without_gaps_is_just_an_offset() -> None:
    position = ResendPosition(5, {7}).advanced({5}, set(), 9)
    assert (position.offset, position.to_text()) == (9, "")


def test_offsets_beyond_32_bits_are_kept() -> None:
    far = 2**40
    position = ResendPosition(far, {far + 3})
    assert ResendPosition.from_text(far, position.to_text()) == position


def test_a_position_too_large_for_kafka_is_refused_with_the_remedy() -> None:
    chance = random.Random(1)
    scattered = {each for each in range(1, 60_000) if chance.random() < 0.5}
    with pytest.raises(PositionInvalid, match=r"after offset 0 are too scattered.*--skip-rest"):
        ResendPosition(0, scattered).to_text()
    fits = {each for each in scattered if each < 15_000}
    assert len(ResendPosition(0, fits).to_text()) <= MAX_TEXT_BYTES


@pytest.mark.parametrize("text", ["x", "AAAA", "eJwDAAAAAAE=", "ü"])
def test_a_position_that_no_resend_wrote_is_refused(text: str) -> None:
    with pytest.raises(PositionInvalid, match="offset 5"):
        ResendPosition.from_text(5, text)
