"""A forwarder takes records that a batch would accept, and leaves records that a batch must decide."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sources.intake.accept import accept
from sources.intake.near import accept_near
from state.checkpoint.batch_settings import DelayPolicy
from tests.messages import headers, records, some_batch_settings
from tests.thorough import examples

CLOCK_MS = 1_798_000_000_000
HORIZON_MS = 60_000
PLAIN, NAMED, BY_KEY, ETF1, KARAFKA, FIXED, CLAMPED = "plain", "named", "by-key", "etf1", "karafka", "fixed", "clamped"
BATCH_SETTINGS = some_batch_settings(
    allowed_outputs=("orders",),
    partitions={"delayline-out": 4, "orders": 3, "delayline-dead-letter": 2, "delayline-results": 2},
    presets={ETF1: ("etf1",), KARAFKA: ("karafka", "rocketmq")},
    policies={
        NAMED: DelayPolicy(names="header", expiry_header="expires"),
        BY_KEY: DelayPolicy(names="key", default_ms=1_000),
        FIXED: DelayPolicy(fixed_ms=59_000, most_waiting=1),
        CLAMPED: DelayPolicy(most_ms=10_000, clamps=True),
    },
)
DELAYS = (b"10s", b"59999ms", b"1m", b"2h", b"3", b"0", b"%d" % (CLOCK_MS + 5_000), b"soon", b"", None)
HEADER = st.one_of(
    st.tuples(st.sampled_from(["deliver-at", "deliver-after", "delay-level", "expires"]), st.sampled_from(DELAYS)),
    st.tuples(st.just("deliver-to"), st.sampled_from([b"orders", b"secret", None])),
    st.tuples(
        st.sampled_from(["delayline-cancel", "delayline-replaces"]), st.sampled_from([b"plain/0/1", b"by-key/1/5", b""])
    ),
    st.tuples(st.sampled_from(["delayline-name", "delayline-cancel-name"]), st.sampled_from([b"n", b""])),
    st.tuples(st.sampled_from(["scheduler-epoch", "schedule_target_epoch"]), st.just(b"%d" % (CLOCK_MS // 1000 + 9))),
    st.tuples(st.sampled_from(["schedule_source_type", "TIMER_DELAY_SEC"]), st.sampled_from([b"cancel", b"5"])),
    st.tuples(st.sampled_from(["x", "Deliver-After", "delayline-if", "delayline-stub"]), st.just(b"v")),
)
ROW = st.fixed_dictionaries(
    {
        "key": st.one_of(st.none(), st.binary(max_size=2)),
        "value": st.one_of(st.none(), st.binary(max_size=6)),
        "headers": st.one_of(st.none(), st.lists(HEADER, max_size=3).map(lambda pairs: headers(*pairs))),
        "topic": st.sampled_from([PLAIN, NAMED, BY_KEY, ETF1, KARAFKA, FIXED, CLAMPED]),
        "partition": st.integers(0, 3),
        "timestamp_ms": st.one_of(
            st.sampled_from([-1, 0, CLOCK_MS + 10**12]), st.integers(CLOCK_MS - 10**5, CLOCK_MS + 10**5)
        ),
    }
)


def numbered(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "offset": offset} for offset, row in enumerate(rows)]


@given(st.lists(ROW, max_size=12))
@settings(max_examples=examples(300))
def test_a_forwarder_takes_just_the_plain_messages_that_a_batch_would_stage_soon(
    rows: list[dict[str, Any]],
) -> None:
    table = records(numbered(rows))
    near = accept_near(table, BATCH_SETTINGS, CLOCK_MS, CLOCK_MS + HORIZON_MS)
    by_record: dict[int, list[dict[str, Any]]] = {}
    for message in accept(table, BATCH_SETTINGS, CLOCK_MS).messages.to_pylist():
        by_record.setdefault(message["offset"], []).append(message)
    expected, urgent = [], False
    for messages in by_record.values():
        # A request that comes with a message is a second one of its record.
        is_plain = len(messages) == 1 and messages[0]["error_code"] is None
        is_plain &= messages[0]["output_topic"] in ("delayline-out", "orders")
        is_plain &= rows[messages[0]["offset"]]["timestamp_ms"] >= 0
        urgent |= not is_plain
        if is_plain and messages[0]["deliver_at_ms"] < CLOCK_MS + HORIZON_MS:
            expected.append(messages[0])
    assert sorted(near.messages.to_pylist(), key=lambda message: message["offset"]) == expected
    assert near.is_urgent == urgent


@pytest.mark.parametrize(
    ("topic", "key", "pairs", "is_near", "is_urgent"),
    [
        (PLAIN, b"k", [("deliver-after", b"59s")], True, False),
        (PLAIN, b"k", [("deliver-after", b"61s")], False, False),
        (PLAIN, b"k", [("deliver-at", b"soon")], False, True),
        (PLAIN, b"k", [("delayline-cancel", b"plain/0/1")], False, True),
        (PLAIN, b"k", [("delayline-replaces", b"plain/0/1"), ("deliver-after", b"1h")], False, True),
        (NAMED, b"k", [], True, False),
        (NAMED, b"k", [("delayline-name", b"n")], False, True),
        (NAMED, b"k", [("delayline-cancel-name", b"n")], False, True),
        (NAMED, b"k", [("expires", b"%d" % (CLOCK_MS - 1))], False, True),
        (BY_KEY, b"k", [], False, True),
        (BY_KEY, None, [], True, False),
        (ETF1, b"k", [("scheduler-epoch", b"%d" % (CLOCK_MS // 1000 + 5))], False, True),
        (ETF1, b"k", [], True, False),
        (FIXED, b"k", [("deliver-after", b"1h")], True, False),
        (CLAMPED, b"k", [("deliver-after", b"1h")], True, False),
    ],
)
def test_what_depends_on_other_messages_is_left_to_the_batches(
    topic: str, key: bytes | None, pairs: list[tuple[str, bytes]], is_near: bool, is_urgent: bool
) -> None:
    row = {"topic": topic, "key": key, "headers": headers(*pairs), "timestamp_ms": CLOCK_MS}
    near = accept_near(records([row]), BATCH_SETTINGS, CLOCK_MS, CLOCK_MS + HORIZON_MS)
    assert (near.messages.num_rows == 1, near.is_urgent) == (is_near, is_urgent)


def test_a_message_without_a_timestamp_is_left_to_the_batches_as_this_clock_may_be_behind() -> None:
    row = {"topic": PLAIN, "key": b"k", "headers": headers(("deliver-after", b"30s")), "timestamp_ms": -1}
    behind_ms = CLOCK_MS - 3_600_000
    near = accept_near(records([row]), BATCH_SETTINGS, behind_ms, behind_ms + HORIZON_MS)
    assert (near.messages.num_rows, near.is_urgent) == (0, True)
