"""Messages that come too late to be of use."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from conf.settings import Settings
from conf.topic_tables import Policy
from sinks.release.expiry import Expiry
from sinks.release.known_topics import Topics
from sinks.release.records import records
from sinks.release.room import Limits, Room
from sinks.release.wall_clock import now_ms
from state.kinds import DUE_NOW
from tests.messages import headers, messages
from tests.sinks.release.bench import ReleaseBench
from tests.sinks.release.conftest import MakeBench
from tests.sinks.release.topic_records import ids

DUE_MS, MINUTE = 1_798_000_000_000, 60_000
UNTIL = ("until", b"%d" % (DUE_MS + 2 * MINUTE))
NEVER = frozenset(("delayline-dead-letter", "delayline-results"))
AFTER, HEADER, BOTH = (
    Policy.model_validate(table)
    for table in ({"expire_after": "1m"}, {"expiry_header": "until"}, {"expire_after": "1m", "expiry_header": "until"})
)
OWN = Expiry(AFTER, {"other": HEADER, "both": BOTH}, NEVER)


def batch_of(*rows: dict[str, Any]) -> pa.RecordBatch:
    (batch,) = messages([{"deliver_at_ms": DUE_MS, **row} for row in rows]).combine_chunks().to_batches()
    return batch


@pytest.mark.parametrize(
    ("row", "overdue_ms", "why"),
    [
        ({}, 0, None),
        ({}, MINUTE, None),
        ({}, MINUTE + 1, "expire_after of delayline-in is 1 min"),
        ({"headers": headers(UNTIL)}, MINUTE, None),
        ({"topic": "other"}, 10**10, None),
        ({"topic": "other", "headers": headers(UNTIL)}, 2 * MINUTE, None),
        ({"topic": "other", "headers": headers(UNTIL)}, 2 * MINUTE + 1, "the instant in its until"),
        # Accepted before there was the policy.
        ({"topic": "other", "headers": headers(("until", b"soon"))}, 10**10, None),
        ({"topic": "other", "headers": headers(("until", None))}, 10**10, None),
        ({"topic": "both", "headers": headers(UNTIL)}, MINUTE + 1, "expire_after"),
        ({"output_topic": "delayline-results"}, 10**10, None),
    ],
)  # fmt: skip
def test_a_message_expires_by_the_policies_of_its_input_topic(
    row: dict[str, Any], overdue_ms: int, why: str | None
) -> None:
    batch, clock_ms = batch_of(row), DUE_MS + overdue_ms
    (record,) = records(batch)
    found = OWN.objection(record, clock_ms)
    assert (found is None) == (why is None)
    assert found is None or (why or "") in str(found)
    # Every expired message is doubted.
    assert found is None or OWN.doubted(batch, clock_ms).tolist() == [True]
    assert OWN.expired(batch, clock_ms).tolist() == [why is not None]


def test_dead_letters_and_what_is_in_time_are_not_doubted() -> None:
    letter = {"output_topic": "delayline-dead-letter", "error_code": "e"}
    batch = batch_of({}, {"deliver_at_ms": DUE_MS - MINUTE}, letter)
    assert OWN.doubted(batch, DUE_MS + 1).tolist() == [False, True, False]
    assert OWN.doubted(batch, DUE_MS + 10 * MINUTE).tolist() == [True, True, False]


def test_a_message_that_somebody_wants_now_never_expires() -> None:
    batch = batch_of({"kind": DUE_NOW}, {"kind": DUE_NOW, "topic": "other", "headers": headers(UNTIL)}, {})
    assert OWN.may_expire(batch).tolist() == [False, False, True]
    assert OWN.doubted(batch, DUE_MS + 10 * MINUTE).tolist() == [False, False, True]
    assert OWN.expired(batch, DUE_MS + 10 * MINUTE).tolist() == [False, False, True]


def test_of_several_messages_those_are_expired_to_whose_policy_it_is_too_late() -> None:
    batch = batch_of(
        {}, {"topic": "other", "headers": headers(UNTIL)}, {"topic": "other"}, {"topic": "both"}, {"topic": "other"}
    )
    assert OWN.expired(batch, DUE_MS + MINUTE).tolist() == [False] * 5
    assert OWN.expired(batch, DUE_MS + 3 * MINUTE).tolist() == [True, True, False, True, False]


def test_nothing_expires_without_a_policy() -> None:
    assert not Expiry.of(Settings()).exists
    assert OWN.exists


def test_what_is_expired_goes_to_the_dead_letter_topic_and_costs_nothing_of_a_rate() -> None:
    settings = Settings.model_validate({"policies": {"expire_after": "1m"}})
    topics = Topics(settings, {})
    old, recent = {"deliver_at_ms": DUE_MS - 2 * MINUTE}, {"deliver_at_ms": DUE_MS}
    rows = messages([{**old, "offset": n} for n in range(4)] + [{**recent, "offset": n} for n in range(4, 9)])
    goes_to = partial(topics.goes_to, clock_ms=DUE_MS)
    assert goes_to(rows).to_pylist() == ["delayline-dead-letter"] * 4 + ["delayline-out"] * 5
    room = Room(Limits(100, 10**6, 20, {"delayline-out": 2, None: 3}, goes_to))
    assert room.first_of(rows, np.ones(9, np.int64)) == 6
    # Others may have expired, or have been refused, when they are written.
    replaced = dict.fromkeys((0, 8), "expired")
    assert topics.went_to(rows, replaced).to_pylist() == [
        "delayline-dead-letter", *["delayline-out"] * 7, "delayline-dead-letter",
    ]  # fmt: skip
    assert topics.went_to(rows, {}).to_pylist() == ["delayline-out"] * 9


def test_what_is_expired_does_not_wait_for_the_rate_of_its_output_topic_and_the_others_are_not_late_for_it(
    make_bench: MakeBench, broker: Any
) -> None:
    bench: ReleaseBench = make_bench(broker)
    output = bench.settings.topics.output
    bench.change("policies.expire_after=1m", f"rates.{output}=10", "release.messages_per_second=20")
    due_ms = now_ms() - 10 * MINUTE
    old = [{"offset": n, "deliver_at_ms": due_ms + n} for n in range(2_000)]
    recent = [{"offset": n, "deliver_at_ms": now_ms() - 1_000 + n} for n in range(2_000, 2_025)]
    begun_s = time.monotonic()
    assert bench.release(messages({"output_topic": output, **row} for row in old + recent)) == 2_025
    # Those of the rest: ten at once, ten a second later, and five after another second.
    assert 2 <= time.monotonic() - begun_s < 60
    assert ids(bench.read(output)) == [*range(2_000, 2_025)]


def test_what_expired_is_a_dead_letter_with_all_that_it_had_and_the_others_come_out_in_order(
    make_bench: MakeBench, broker: Any
) -> None:
    bench: ReleaseBench = make_bench(broker, "policies.expire_after=1m")
    due_ms = now_ms() - 10 * MINUTE
    old = [
        {"offset": n, "deliver_at_ms": due_ms + n, "value": b"old", "headers": headers(("h", b"1"))} for n in range(5)
    ]
    recent = [{"offset": n, "deliver_at_ms": now_ms() - 1_000 + n} for n in range(5, 10)]
    output = bench.settings.topics.output
    assert bench.release(messages({"output_topic": output, **row} for row in old + recent)) == 10
    assert ids(bench.read(output)) == [5, 6, 7, 8, 9]
    letters = bench.read(bench.dead_letter)
    assert sorted(ids(letters)) == [0, 1, 2, 3, 4]
    found = dict(letters[0].headers() or [])
    assert (letters[0].value(), found["h"], found["delayline-error"]) == (b"old", b"1", b"expired")
