"""Which messages must be in order, given the batches that a job committed, through kills and new checkpoints."""

from __future__ import annotations

from streaming.judge.acceptance import Acceptance, CheckpointLog, CommittedBatch, Held
from streaming.judge.forwarded import Forwarded
from streaming.judge.record import Published

_SOURCE = ("in", 0)


def _message(offset: int, due_ms: int, topic: str = "in", partition: int = 0) -> Published:
    return Published(f"{topic}/{partition}/{offset}", 0, None, b"", (), "out", due_ms)


def _from_ms(acceptance: Acceptance, *offsets: int) -> list[int | None]:
    return [acceptance.in_order_from_ms(_message(offset, 0)) for offset in offsets]


def _log(*batches: tuple[int, int, int, int], cutoff_ms: int = 0, start: int = 0) -> CheckpointLog:
    """Return a log of batches, each given by its number, its cutoff, when it was committed, and its end offset."""
    committed = {
        number: CommittedBatch(batch_cutoff_ms, committed_ms, {_SOURCE: end})
        for number, batch_cutoff_ms, committed_ms, end in batches
    }
    return CheckpointLog(cutoff_ms, {_SOURCE: start} if start else {}, committed)


def test_order_holds_for_what_is_due_a_second_after_its_batch_was_committed() -> None:
    # The cutoffs are a minute ahead.
    acceptance = Acceptance([_log((0, 60_000, 100, 5), (1, 60_100, 200, 5), (2, 60_200, 300, 9), (3, 60_300, 400, 12))])
    assert _from_ms(acceptance, 5, 8, 9, 11, 12) == [1_300, 1_300, 1_400, 1_400, None]
    assert acceptance.must_be_in_order(_message(5, 1_300))
    assert not acceptance.must_be_in_order(_message(5, 1_299))


def test_order_holds_for_what_is_due_from_the_cutoff_of_the_batch_before_on_however_late_it_was_committed() -> None:
    acceptance = Acceptance([_log((0, 100, 90_000, 5), (1, 200, 91_000, 5), (2, 300, 92_000, 9), (3, 400, 93_000, 12))])
    assert _from_ms(acceptance, 0, 4, 5, 8, 9, 11, 12) == [0, 0, 200, 200, 300, 300, None]


def test_what_is_due_from_the_cutoff_before_on_waited_when_a_batch_read_its_records() -> None:
    # The third batch is the first one after an outage of an hour.
    first = _log((0, 60_000, 100, 5), (1, 60_100, 200, 5), (2, 60_200, 3_600_000, 9), (3, 3_660_000, 3_601_000, 12))
    later = _log((1, 3_900_000, 3_800_000, 20), cutoff_ms=3_700_000, start=15)
    acceptance = Acceptance([first, later])
    waited = [acceptance.waited_from_ms(_message(offset, 0)) for offset in (0, 5, 9, 12, 15, 20)]
    assert waited == [0, 60_100, 60_200, 3_700_000, 3_900_000, None], "if a batch is not known, from its own cutoff on"


def test_batches_after_an_outage_stage_late_what_was_due_meanwhile() -> None:
    log = _log((0, 60_000, 100, 5), (1, 60_100, 200, 5), (2, 100_000, 90_000, 9), (3, 150_000, 91_000, 12))
    late = Acceptance([log]).staged_late
    spans = [(60_000, 60_099), (60_100, 60_100), (89_999, 89_999), (90_000, 95_000), (0, 200_000), (100_000, 149_000)]
    assert [late(*span) for span in spans] == [False, True, True, False, True, False]


def test_messages_that_no_batch_has_committed_need_no_order() -> None:
    assert not Acceptance([]).must_be_in_order(_message(0, 10**12))
    acceptance = Acceptance([_log((0, 100, 100, 5))])
    assert not acceptance.must_be_in_order(_message(5, 10**12))
    assert not acceptance.is_accepted(_message(5, 10**12))
    assert acceptance.is_accepted(_message(4, 0))
    assert acceptance.in_order_from_ms(_message(0, 0, topic="other")) is None
    assert acceptance.in_order_from_ms(_message(0, 0, partition=1)) is None


def test_if_the_batch_before_is_unknown_order_holds_from_the_cutoff_of_the_batch_itself_on() -> None:
    acceptance = Acceptance([_log((4, 500, 90_000, 5), (7, 700, 91_000, 9), (8, 800, 92_000, 12))])
    assert _from_ms(acceptance, 0, 5, 9) == [500, 700, 700]


def test_a_later_checkpoint_continues_where_the_previous_one_ended() -> None:
    # The last batch of the first checkpoint was cut off. Its records were accepted again when the second was made.
    late_ms = 90_000
    first = _log((0, 100, late_ms, 5), (1, 200, late_ms, 8))
    second = _log((0, 350, late_ms, 20), (1, 450, late_ms, 30), cutoff_ms=300, start=12)
    acceptance = Acceptance([first, second])
    assert _from_ms(acceptance, 4, 5, 7, 8, 11) == [0, 100, 100, 300, 300]
    assert _from_ms(acceptance, 12, 19, 20, 29, 30) == [300, 300, 350, 350, None]


def test_records_that_are_read_again_were_accepted_when_they_were_first_read() -> None:
    first = _log((0, 100, 90_000, 5), (1, 200, 90_000, 8))
    acceptance = Acceptance([first, _log((0, 350, 90_000, 20), cutoff_ms=250, start=5)])
    assert _from_ms(acceptance, 7, 8) == [100, 250]


def test_a_message_is_staged_by_a_batch_that_has_accepted_it_with_a_cutoff_behind_its_due_time() -> None:
    first = _log((0, 60_000, 100, 5), (1, 60_100, 200, 9))
    second = _log((0, 60_200, 300, 20), cutoff_ms=60_100, start=9)
    acceptance = Acceptance([first, second])
    expected = {(0, 1_000): 100, (8, 1_000): 200, (0, 59_999): 100, (0, 60_000): 200, (0, 60_100): 300, (12, 0): 300}
    assert {at: acceptance.staged_ms(_message(*at)) for at in expected} == expected
    # No batch has staged it, or accepted it.
    assert acceptance.staged_ms(_message(0, 60_200)) is None
    assert acceptance.staged_ms(_message(20, 1_000)) is None


def _forwarded(*seen: tuple[int, int]) -> Forwarded:
    """Return what forwarders took, given by the offset, and when it was seen in the near log."""
    seen_ms = {(*_SOURCE, offset): at_ms for offset, at_ms in seen}
    return Forwarded(set(seen_ms), seen_ms)


def test_what_a_forwarder_took_is_in_order_300_ms_after_it_was_seen_in_the_near_log() -> None:
    # No batch has read it yet.
    acceptance = Acceptance([], _forwarded((5, 1_000)))
    assert acceptance.held(_message(5, 1_300)) is Held.AMONG_ALL
    assert acceptance.held(_message(5, 1_299)) is Held.NOT
    assert acceptance.is_accepted(_message(5, 0))
    assert not acceptance.is_accepted(_message(6, 0))


def test_what_a_forwarder_took_is_not_in_order_because_a_batch_has_read_it() -> None:
    forwarded = Forwarded({(*_SOURCE, 4)})
    acceptance = Acceptance([_log((0, 60_000, 100, 5))], forwarded)
    assert acceptance.held(_message(4, 59_000)) is Held.NOT, "its chunk was not seen"
    forwarded.seen_ms[*_SOURCE, 4] = 58_000
    assert acceptance.held(_message(4, 59_000)) is Held.AMONG_ALL


def test_beside_forwarders_a_message_is_in_order_a_second_after_a_batch_has_handed_it_over() -> None:
    acceptance = Acceptance([_log((0, 60_000, 100, 5), (1, 60_100, 90_000, 5))], _forwarded((5, 1_000)))
    assert acceptance.held(_message(4, 59_999)) is Held.AMONG_ALL
    assert acceptance.held(_message(4, 1_100)) is Held.AMONG_ALL
    # It waited for the second batch, which was late.
    assert acceptance.held(_message(4, 60_000)) is Held.AMONG_BATCHES
    # No batch has staged it, and other messages staged meanwhile come from forwarders.
    assert acceptance.held(_message(4, 60_100)) is Held.AMONG_BATCHES
    assert Acceptance([_log((0, 60_000, 100, 5))]).held(_message(4, 60_100)) is Held.AMONG_ALL
