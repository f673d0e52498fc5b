"""Refusing messages that would wait when too many others do."""

from __future__ import annotations

from sources.intake.accept import accept
from state.checkpoint.batch_settings import DelayPolicy, Refusal
from tests.messages import PARTITIONS, headers, records, some_batch_settings

CLOCK_MS = 1_798_000_000_000
REFUSAL = Refusal({"delayline-in": {"0": 12, "1": 0}}, due_from_ms=CLOCK_MS + 60_000)


def refused(*rows: tuple[str, int, int, bytes]) -> list[bool]:
    """Return which of the records with this topic, partition, offset and `deliver-after` are refused."""
    table = records(
        {"topic": topic, "partition": partition, "offset": offset, "timestamp_ms": CLOCK_MS,
         "headers": headers(("deliver-after", delay))}
        for topic, partition, offset, delay in rows
    )  # fmt: skip
    settings = some_batch_settings(policy=DelayPolicy(most_waiting=5))
    messages = accept(table, settings, CLOCK_MS, REFUSAL).messages.to_pylist()
    found = [message["error_code"] == "too-many-waiting" for message in messages]
    assert all(
        message["error_code"] is None for message, is_refused in zip(messages, found, strict=True) if not is_refused
    )
    assert all("max_waiting" in message["error_text"] for message in messages if message["error_code"])
    return found


def test_records_are_refused_from_an_offset_of_their_partition_on() -> None:
    rows = [("delayline-in", 0, 11), ("delayline-in", 0, 12), ("delayline-in", 0, 13), ("delayline-in", 1, 0),
            ("delayline-in", 2, 99), ("other", 0, 99)]  # fmt: skip
    assert refused(*((*row, b"1h") for row in rows)) == [False, True, True, True, False, False]


def test_what_is_staged_at_once_is_not_refused() -> None:
    delays = [b"0", b"59999", b"60000", b"60001"]
    assert refused(*(("delayline-in", 0, 20, delay) for delay in delays)) == [False, False, True, True]


def test_a_refused_replacement_leaves_what_it_would_replace() -> None:
    requests = headers(("deliver-after", b"1h"), ("delayline-replaces", b"delayline-in/0/3"))
    row = {"offset": 20, "timestamp_ms": CLOCK_MS, "headers": requests}
    partitions = PARTITIONS | {"delayline-results": 1}
    policy = DelayPolicy(most_waiting=5)
    settings = some_batch_settings(policy=policy, partitions=partitions, results="delayline-results")
    (message,) = accept(records([row]), settings, CLOCK_MS, REFUSAL).messages.to_pylist()
    assert message["error_code"] == "too-many-waiting"
    assert accept(records([row]), settings, CLOCK_MS, REFUSAL).requests.num_rows == 0
    assert accept(records([row]), settings, CLOCK_MS).requests.num_rows == 1
