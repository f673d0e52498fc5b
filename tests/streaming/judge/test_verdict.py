"""The judge finds no fault in a run that keeps the contract, and finds each planted fault as exactly that fault."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from streaming.judge.acceptance import Acceptance, CheckpointLog, Held
from streaming.judge.contract import Environment, Fault
from streaming.judge.record import ANY_ERROR, Published, Received
from streaming.judge.verdict import Verdict, judge
from tests.streaming.judge.runs import PARTITIONS, Run, numbered, record_of, runs
from tests.thorough import examples

Plant = Callable[[Run, int], list[Received]]


def _faults(verdict: Verdict) -> dict[str, int]:
    return {fault.name: count for fault, count in verdict.faults.items() if count}


@given(runs())
def test_a_run_that_keeps_the_contract_has_no_fault(run: Run) -> None:
    verdict = run.judged()
    assert _faults(verdict) == {}
    assert verdict.problems(least_checked=0) == []
    assert (verdict.delivered, verdict.dead_lettered) == (verdict.deliverable, verdict.bad)
    assert verdict.published == verdict.deliverable + verdict.bad == len(run.published)
    assert verdict.order_checked == sum(map(run.is_held, run.received))
    assert verdict.forwarded == len(run.forwarded.sources)


def _changed(run: Run, at: int, record: Received) -> list[Received]:
    return [*run.received[:at], record, *run.received[at + 1 :]]


def _moved(run: Run, at: int, record: Received) -> list[Received]:
    """Append the record to its partition, at an offset that no other record has had."""
    kept = [*run.received[:at], *run.received[at + 1 :]]
    last = max((r.offset for r in kept if (r.topic, r.partition) == (record.topic, record.partition)), default=-1)
    return [*kept, replace(record, offset=last + 1)]


def _other_headers(run: Run, at: int) -> list[Received]:
    record = run.received[at]
    return _changed(run, at, replace(record, headers=(("a", b"2"), *record.headers[1:])))


def _other_delayline_header(run: Run, at: int) -> list[Received]:
    record = run.received[at]
    name, value = record.headers[-1]
    return _changed(run, at, replace(record, headers=(*record.headers[:-1], (name, b"0" + (value or b"")))))


def _extra_header(run: Run, at: int) -> list[Received]:
    record = run.received[at]
    return _changed(run, at, replace(record, headers=(*record.headers, ("delayline-x", b""))))


def _other_topic(run: Run, at: int) -> list[Received]:
    record = run.received[at]
    return _moved(run, at, replace(record, topic="dead" if record.topic == "out" else "out"))


def _other_partition(run: Run, at: int) -> list[Received]:
    record = run.received[at]
    return _moved(run, at, replace(record, partition=(record.partition + 1) % PARTITIONS[record.topic]))


_ANYWHERE: list[tuple[Fault, Plant]] = [
    (Fault.LOST, lambda run, at: [*run.received[:at], *run.received[at + 1 :]]),
    (Fault.DOUBLED, lambda run, at: numbered([*run.received, run.received[at]])),
    (Fault.ALTERED, lambda run, at: _changed(run, at, replace(run.received[at], key=b"other"))),
    (Fault.ALTERED, lambda run, at: _changed(run, at, replace(run.received[at], value=None))),
    (Fault.ALTERED, _other_headers),
    (Fault.ALTERED, _other_delayline_header),
    (Fault.ALTERED, _extra_header),
    (Fault.MISPLACED, _other_topic),
]


@pytest.mark.parametrize(("fault", "plant"), _ANYWHERE)
@settings(max_examples=examples(30))
@given(run=runs(), data=st.data())
def test_a_fault_planted_in_any_record_is_found_as_that_fault_only(
    fault: Fault, plant: Plant, run: Run, data: st.DataObject
) -> None:
    assume(run.received)
    at = data.draw(st.integers(0, len(run.received) - 1))
    verdict = run.judged(plant(run, at))
    assert _faults(verdict) == {fault.name: 1}
    (finding,) = verdict.findings
    assert finding.id == run.received[at].id
    assert verdict.problems(least_checked=0) == [f"1 {fault}, such as {finding.id}: {finding.text}"]


def _early(run: Run, at: int) -> list[Received]:
    record = run.received[at]
    return _changed(run, at, replace(record, received_ms=run.published[record.id].due_ms - 1))


def _other_timestamp(run: Run, at: int) -> list[Received]:
    record = run.received[at]
    return _changed(run, at, replace(record, timestamp_ms=record.timestamp_ms + 1))


_DELIVERED: list[tuple[Fault, Plant]] = [
    (Fault.EARLY, _early),
    (Fault.ALTERED, _other_timestamp),
    (Fault.MISPLACED, _other_partition),
]


@pytest.mark.parametrize(("fault", "plant"), _DELIVERED)
@settings(max_examples=examples(30))
@given(run=runs(), data=st.data())
def test_a_fault_planted_in_a_delivered_record_is_found_as_that_fault_only(
    fault: Fault, plant: Plant, run: Run, data: st.DataObject
) -> None:
    delivered = [at for at, record in enumerate(run.received) if run.published[record.id].error is None]
    assume(delivered)
    at = data.draw(st.sampled_from(delivered))
    verdict = run.judged(plant(run, at))
    assert _faults(verdict) == {fault.name: 1}
    assert verdict.findings[0].id == run.received[at].id


def _is_held(run: Run, record: Received, after: Received) -> bool:
    """Return whether `record` is held to its place before `after`."""
    message, other = run.published[record.id], run.published[after.id]
    held = Held.NOT if message.error is not None else run.acceptance.held(message)
    return held is Held.AMONG_ALL or (held is Held.AMONG_BATCHES and not run.acceptance.is_forwarded(other))


@given(run=runs(), data=st.data())
def test_swapping_an_ordered_record_with_the_next_of_its_partition_is_out_of_order(
    run: Run, data: st.DataObject
) -> None:
    neighbours = [
        (at, after)
        for at, record in enumerate(run.received)
        for after in range(at + 1, len(run.received))
        if (record.topic, record.partition) == (run.received[after].topic, run.received[after].partition)
        and record.offset + 1 == run.received[after].offset
        and _is_held(run, record, run.received[after])
        and run.published[record.id].order_key < run.published[run.received[after].id].order_key
    ]
    assume(neighbours)
    at, after = data.draw(st.sampled_from(neighbours))
    swapped = list(run.received)
    swapped[at], swapped[after] = swapped[after], swapped[at]
    verdict = run.judged(numbered(swapped))
    assert _faults(verdict) == {"OUT_OF_ORDER": 1}
    assert verdict.findings[0].id == run.received[at].id


MESSAGE = Published("in/0/0", 1_000, b"abc", b"v", (), "out", 2_000)
_ENVIRONMENT = Environment({"out": {1}, "dead": {1}})


def _judged(messages: list[Published], received: list[Received], environment: Environment = _ENVIRONMENT) -> Verdict:
    log = CheckpointLog(offsets={("in", 0): 100})
    return judge({message.id: message for message in messages}, received, Acceptance([log]), environment)


def test_a_record_with_an_unknown_id_was_never_published() -> None:
    foreign = replace(record_of(MESSAGE, 0), headers=(("delayline-id", b"in/7/7"),))
    assert _faults(_judged([MESSAGE], [foreign])) == {"FOREIGN": 1, "LOST": 1}
    assert _faults(_judged([], [replace(foreign, headers=())])) == {"FOREIGN": 1}


@given(runs())
def test_in_an_incomplete_run_nothing_is_lost_or_foreign(run: Run) -> None:
    foreign = replace(record_of(MESSAGE, 0), headers=(("delayline-id", b"in/7/7"),))
    assert _faults(run.judged([*run.received[: len(run.received) // 2], foreign], complete=False)) == {}


def test_input_topics_are_ordered_by_name_and_partitions_by_number() -> None:
    ids = ["a-in/0/5", "in/0/9", "in/0/10", "in/2/0", "in/10/0"]
    messages = [replace(MESSAGE, id=identity) for identity in ids]
    log = CheckpointLog(offsets={("a-in", 0): 99, ("in", 0): 99, ("in", 2): 99, ("in", 10): 99})

    def faults_of(chosen: list[Published]) -> dict[str, int]:
        records = numbered([record_of(message, 0) for message in chosen])
        return _faults(judge({m.id: m for m in chosen}, records, Acceptance([log]), _ENVIRONMENT))

    assert faults_of(messages) == {}
    for first, second in pairwise(messages):
        assert faults_of([second, first]) == {"OUT_OF_ORDER": 1}


def test_any_error_code_fits_where_any_is_expected_and_only_the_expected_one_elsewhere() -> None:
    bad = replace(MESSAGE, output="dead", deliver_at_ms=None, error="two-delays")
    record = record_of(bad, 0)
    assert _faults(_judged([bad], [record])) == {}
    assert _faults(_judged([replace(bad, error=ANY_ERROR)], [record])) == {}
    verdict = _judged([replace(bad, error="bad-deliver-at")], [record])
    assert (_faults(verdict), verdict.dead_lettered) == ({"ALTERED": 1}, 0)


def test_a_dead_letter_in_place_of_a_message_is_no_delivery() -> None:
    dead = record_of(replace(MESSAGE, output="dead", deliver_at_ms=None, error="record-refused"), 0)
    verdict = _judged([MESSAGE], [replace(dead, received_ms=MESSAGE.due_ms)])
    assert _faults(verdict) == {"MISPLACED": 1, "ALTERED": 1}
    assert verdict.delivered == 0


def test_in_a_topic_that_has_grown_the_partition_of_either_count_is_right() -> None:
    keyless = replace(MESSAGE, id="in/3/0", key=None)
    grown = Environment({"out": {2, 4}})
    for partition, faults in ((0, {"MISPLACED": 1}), (1, {}), (2, {"MISPLACED": 1}), (3, {})):
        assert _faults(_judged([keyless], [record_of(keyless, partition)], grown)) == faults


def test_early_is_decided_by_the_clock_of_the_jobs_host() -> None:
    behind = Environment({"out": {1}}, shown_ms=lambda now_ms: now_ms - 10)
    record = record_of(MESSAGE, 0)
    assert _faults(_judged([MESSAGE], [record], behind)) == {"EARLY": 1}
    assert _faults(_judged([MESSAGE], [replace(record, received_ms=MESSAGE.due_ms + 10)], behind)) == {}


@pytest.mark.parametrize(
    ("after_due_ms", "altered"),
    [(-1, True), (1, True), (60_000, True), (60_001, False), (90_000, False), (90_001, True)],
)
def test_a_timestamp_is_the_due_time_or_when_the_record_was_written_overdue(after_due_ms: int, altered: bool) -> None:
    # The host's clock is behind the subscriber's.
    environment = Environment({"out": {1}}, shown_ms=lambda now_ms: now_ms - 10)
    record = replace(record_of(MESSAGE, 0), received_ms=MESSAGE.due_ms + 90_010)
    stamped = replace(record, timestamp_ms=MESSAGE.due_ms + after_due_ms)
    assert _faults(_judged([MESSAGE], [stamped], environment)) == ({"ALTERED": 1} if altered else {})


def test_too_few_messages_that_must_be_in_order_are_a_problem() -> None:
    other = replace(MESSAGE, id="in/1/0")
    verdict = _judged([MESSAGE, other], numbered([record_of(MESSAGE, 0), record_of(other, 0)]))
    assert (verdict.order_checked, verdict.deliverable) == (1, 2)
    assert verdict.problems(least_checked=0.5) == []
    (problem,) = verdict.problems(least_checked=0.6)
    assert problem == "only 1 of 2 messages were checked for order; at least 60% are required"


def test_a_problem_shows_only_a_few_ids() -> None:
    messages = [replace(MESSAGE, id=f"in/0/{number}") for number in range(1_000)]
    (problem,) = _judged(messages, []).problems(least_checked=0)
    assert problem.startswith("1,000 lost, such as in/0/0: ")
    assert problem.count("in/0/") == 5


_LARGE = Published("in/0/7", 5, b"abc", b"v" * 9_000, (("a", b"1"), ("b", b"2")), "dead", error="bad-deliver-at")
_FORGED = replace(_LARGE, value=None, headers=(("delayline-stub", b"{}"),))


def _stub(message: Published, kept: tuple[tuple[str, bytes | None], ...], **facts: object) -> Received:
    whole = record_of(message, partition=1)
    told = {"key_bytes": 3, "value_bytes": 9_000, "value_sha256": sha256(b"v" * 9_000).hexdigest(), "headers": 2}
    stub = ("delayline-stub", json.dumps(told | facts).encode())
    return replace(whole, value=None, headers=(*kept, stub, *whole.headers[-4:]))


def _marked(whole: Received) -> Received:
    return replace(whole, headers=(*whole.headers[:-4], ("delayline-stub", None), *whole.headers[-4:]))


@pytest.mark.parametrize(
    ("message", "record", "is_altered"),
    [
        (_LARGE, _stub(_LARGE, _LARGE.headers), False),
        (_LARGE, _stub(_LARGE, _LARGE.headers[1:]), False),
        (_LARGE, replace(_stub(_LARGE, ()), key=None, partition=1), False),
        (_LARGE, _stub(_LARGE, _LARGE.headers[::-1]), True),
        (_LARGE, _stub(_LARGE, (("a", b"2"),)), True),
        (_LARGE, _stub(_LARGE, (), value_bytes=8_999), True),
        (_LARGE, _stub(_LARGE, (), value_sha256="0"), True),
        (_LARGE, _stub(_LARGE, (), headers=1), True),
        (_LARGE, replace(_stub(_LARGE, ()), key=b"foobar"), True),
        (_LARGE, replace(_stub(_LARGE, ()), value=b"v"), True),
        (replace(_LARGE, value=b"v" * 4_000), _stub(_LARGE, ()), True),
        (_FORGED, _marked(record_of(_FORGED, partition=1)), False),
        (_FORGED, record_of(_FORGED, partition=1), True),
        (_LARGE, _marked(record_of(_LARGE, partition=1)), True),
        (replace(_LARGE, error=None, output="out"), replace(_stub(_LARGE, ()), topic="out"), True),
    ],
)
def test_a_stub_stands_for_a_dead_letter_that_is_too_large_and_says_what_it_has(
    message: Published, record: Received, is_altered: bool
) -> None:
    run = Run({message.id: message}, [record], CheckpointLog())
    assert (run.judged().faults[Fault.ALTERED] > 0) == is_altered
