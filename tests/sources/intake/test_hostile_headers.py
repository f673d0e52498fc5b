"""A fuzzer of `accept`: all headers that mean anything, of all presets, with hostile values, under any policies."""

from __future__ import annotations

from itertools import product
from typing import Any

import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from conf.rejected import MOST_TEXT_BYTES
from conf.topic_tables import PRESETS
from sources.intake.accept import accept
from sources.intake.preset_headers import Preset
from sources.intake.presets import presets_named
from state.cancel import (
    CANCEL_HEADER,
    CONDITION_HEADER,
    DELIVER_NOW_HEADER,
    OPERATOR_HEADER,
    REPLACES_HEADER,
    requests_of,
)
from state.checkpoint.batch_settings import BatchSettings, DelayPolicy
from state.kinds import DEAD_LETTER, REQUEST, kinds_of, requests_in
from state.message import DELIVER_AT_HEADER, HEADERS, ID_HEADER
from state.names import (
    ANSWER_HEADER,
    CANCEL_NAME_HEADER,
    FROM_HEADER,
    FROM_KEY,
    KEEP,
    KEEP_TIME,
    NAME_HEADER,
    OFF,
    REPLACE,
)
from state.repeats.schedule import REPEAT_HEADERS
from state.stub import STUB_HEADER
from tests.messages import PARTITIONS, headers, records, some_batch_settings
from tests.thorough import examples

CLOCK_MS = 1_798_000_000_000
DAY_MS = 86_400_000
RESULTS = "delayline-results"
INPUTS = ["delayline-in", "other-in", "third"]
EXPIRY_HEADER = "expirytime"


def _names_of(preset: Preset) -> list[str]:
    single = [preset.target, preset.key, preset.partition, preset.partition_key]
    several = [*(header.name for header in preset.schedule), *preset.refused, *preset.refused_with_schedule]
    pairs = [pair[0] for pair in (preset.version, preset.cancel_header, *preset.origin) if pair is not None]
    return [name for name in [*single, *several, *pairs] if name]


_KNOWN = [
    "deliver-at", "deliver-after", "delay-level", "deliver-to", EXPIRY_HEADER,
    CANCEL_HEADER, REPLACES_HEADER, CONDITION_HEADER, OPERATOR_HEADER, NAME_HEADER, CANCEL_NAME_HEADER,
    ANSWER_HEADER, ID_HEADER, DELIVER_AT_HEADER, STUB_HEADER, DELIVER_NOW_HEADER, *REPEAT_HEADERS,
    *(name for preset in presets_named(PRESETS) for name in _names_of(preset)),
]  # fmt: skip
_PLAIN = [
    None, b"", b"0", b"7", b"-7", b'"7"', b"1.", b"cancel", b"schedule", b"waiting", b"always", b"a name", b"\xff\xfe",
    b"@at 2026-12-24T18:00:00Z", b"%d" % CLOCK_MS, b"%d" % (CLOCK_MS // 1000), b"2026-12-24T18:00:00Z", b"PT1H",
    b"1h30m", b"orders", b"delayline-in", b"delayline-in/0/3", b"third/1/99999", b"x/0/1", b"\0\0\0\0\0\0\0\x05",
    CLOCK_MS.to_bytes(6), b"true", b"every 10m", b"PT1M", b"0 9 * * MON-FRI", b"0 0 29 2 *", b"@yearly", b"all",
    b"none", b"Europe/Berlin", b"9999-12-31T23:59:59Z",
]  # fmt: skip
# Values that a pattern might search again and again, or that a number might grow with.
_LONG = [
    piece * 600_000 for piece in (b" ", b"1", b"-", b'"', b"a/", b"1h", b"\0", b"\xc3\xa9", b"PT", b"9", b"\t\n", b"{")
]
_VALUES = st.one_of(st.sampled_from(_PLAIN), st.binary(max_size=20), st.text(max_size=12).map(str.encode))
_NAMES = st.one_of(st.sampled_from(_KNOWN), st.text(max_size=5))
# Random headers are hardly ever all of an envelope.
_ENVELOPES = [
    [("scheduler-epoch", b"%d" % (CLOCK_MS // 1000)), ("scheduler-target-topic", b"orders")],
    [
        ("schedule_schema_version", b"1.0.0"),
        ("schedule_target_epoch", b"%d" % (CLOCK_MS // 1000)),
        ("schedule_target_topic", b"orders"),
    ],
]
_HEADER_LISTS = st.one_of(
    st.none(),
    st.sampled_from(_ENVELOPES),
    st.lists(st.tuples(_NAMES, _VALUES), max_size=5),
    st.tuples(st.sampled_from(_KNOWN), st.sampled_from(_PLAIN), st.integers(2, 200)).map(lambda a: [a[:2]] * a[2]),
)
# The last two are about the largest that Spark reads: beyond 2^53, where floats leave out whole numbers.
_STAMPS_MS = [
    -1, 0, CLOCK_MS // 1000, CLOCK_MS - 5, CLOCK_MS * 1000, 2**62, -9_100_000_000_000_000, 9_100_000_000_000_000,
]  # fmt: skip
_PAYLOADS = st.one_of(st.none(), st.binary(max_size=8), st.just(b"k"))
_RECORDS = st.lists(
    st.fixed_dictionaries(
        {
            "key": _PAYLOADS,
            "value": _PAYLOADS,
            "headers": _HEADER_LISTS.map(lambda pairs: None if pairs is None else headers(*pairs)),
            "topic": st.sampled_from(INPUTS),
            "partition": st.integers(0, 3),
            "timestamp_ms": st.sampled_from(_STAMPS_MS),
        }
    ),
    min_size=1,
    max_size=4,
).map(lambda rows: [row | {"offset": offset} for offset, row in enumerate(rows)])
_POLICIES = st.builds(
    DelayPolicy,
    default_ms=st.sampled_from([0, 5_000]),
    fixed_ms=st.sampled_from([None, None, 0, 7_000]),
    most_ms=st.sampled_from([1_000, 30 * DAY_MS, 366 * DAY_MS]),
    clamps=st.booleans(),
    expiry_header=st.sampled_from(["", EXPIRY_HEADER]),
    names=st.sampled_from([OFF, FROM_HEADER, FROM_KEY]),
    repeats=st.booleans(),
    name_mode=st.sampled_from([REPLACE, KEEP, KEEP_TIME]),
)
_PRESETS = st.dictionaries(
    st.sampled_from(INPUTS), st.lists(st.sampled_from(PRESETS), min_size=1, max_size=7, unique=True).map(tuple)
)
_BATCH_SETTINGS = st.builds(
    lambda presets, policy, policies: some_batch_settings(
        presets=presets,
        policy=policy,
        policies=policies,
        allowed_outputs=("orders",),
        partitions=PARTITIONS | {RESULTS: 3},
    ),
    _PRESETS,
    _POLICIES,
    st.dictionaries(st.sampled_from(INPUTS), _POLICIES, max_size=2),
)


def _ids(table: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(table.column(name).to_pylist() for name in ("topic", "partition", "offset")), strict=True))


@example(
    [
        {
            "key": b"k", "value": b"v", "headers": headers(*envelope), "topic": INPUTS[0], "partition": 0,
            "timestamp_ms": stamp_ms, "offset": offset,
        }
        for offset, (envelope, stamp_ms) in enumerate(product(_ENVELOPES, _STAMPS_MS))
    ],
    some_batch_settings(
        presets={INPUTS[0]: ("etf1", "karafka")}, allowed_outputs=("orders",), partitions=PARTITIONS | {RESULTS: 3}
    ),
)  # fmt: skip
@given(_RECORDS, _BATCH_SETTINGS)
@settings(max_examples=examples(60), deadline=None)
def test_each_record_becomes_one_message_ask_or_dead_letter(
    rows: list[dict[str, Any]], batch_settings: BatchSettings
) -> None:
    accepted, requests = accept(records(rows), batch_settings, CLOCK_MS)
    own, more = accepted.slice(0, len(rows)), accepted.slice(len(rows))
    assert _ids(own) == [(row["topic"], row["partition"], row["offset"]) for row in rows]
    # Beside them, requests of messages that replace others: one of each at the most.
    assert set(kinds_of(more)) <= {REQUEST}
    assert len(set(_ids(more))) == more.num_rows
    request_rows = requests_in(accepted)
    assert request_rows.column("value").null_count == request_rows.num_rows
    assert sorted(request.id for request in requests_of(requests)) == sorted(_ids(request_rows))
    for row in accepted.to_pylist():
        _check(row, batch_settings)
    # A record is treated as if it had come alone.
    alone = accept(records(rows[:1]), batch_settings, CLOCK_MS).messages
    assert alone.to_pylist()[0] == own.to_pylist()[0]


def _check(row: dict[str, Any], batch_settings: BatchSettings) -> None:
    dead = row["kind"] == DEAD_LETTER
    assert dead == (row["error_code"] is not None)
    assert (row["kind"] == REQUEST) == (row["output_topic"] == batch_settings.results)
    assert (row["output_topic"] == batch_settings.dead_letter) == dead
    assert (row["error_text"] is not None) == dead
    assert len((row["error_text"] or "").encode()) <= MOST_TEXT_BYTES
    # The broker's client may choose the partition of a dead letter.
    assert dead or 0 <= row["output_partition"] < batch_settings.partitions[row["output_topic"]]
    assert 0 <= row["deliver_at_ms"] <= max(CLOCK_MS, row["timestamp_ms"]) + 368 * DAY_MS
    assert dead or row["deliver_at_ms"] <= CLOCK_MS + 368 * DAY_MS


@given(st.sampled_from(_KNOWN), st.sampled_from(_LONG), st.sampled_from(PRESETS))
@settings(max_examples=examples(100), deadline=None)
def test_a_header_of_600_kb_and_more_is_read_in_linear_time(name: str, value: bytes, preset: str) -> None:
    policy = DelayPolicy(expiry_header=EXPIRY_HEADER, names=FROM_HEADER)
    batch_settings = some_batch_settings(
        presets={"delayline-in": (preset,)}, policy=policy, partitions=PARTITIONS | {RESULTS: 3}
    )
    long = pa.array([[{"key": name, "value": value}]], HEADERS)
    table = records([{"timestamp_ms": CLOCK_MS}])
    table = table.set_column(table.schema.get_field_index("headers"), "headers", long)
    # A search that is quadratic takes an hour, and the limit of a test's time ends it.
    for row in accept(table, batch_settings, CLOCK_MS).messages.to_pylist():
        _check(row, batch_settings)
