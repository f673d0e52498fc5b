"""How a look shows a message that repeats, while it waits."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from conf.settings import Settings
from state.kinds import MESSAGE, OCCURRENCE, REPEATING
from state.repeats.rule import Rule, parse_rule
from state.repeats.schedule import Schedule
from streaming.status import look as look_module
from streaming.status.look import Look, look, message_fields, not_waiting, repeat_fields
from streaming.status.waiting_rows import ROW_SCHEMA, Selection, waiting_rows
from tests.messages import headers, messages

DUE_MS = 1_798_761_600_000


def row(schedule: bytes, kind: int = REPEATING, place: str = "sealed", number: bytes = b"7") -> dict[str, Any]:
    """Return a row of a look: a message with its own header, and the headers of a schedule."""
    own = headers(("x", b"1"), ("delayline-schedule", schedule), ("delayline-occurrence", number))
    (batch,) = waiting_rows(messages([{"kind": kind, "deliver_at_ms": DUE_MS, "headers": own}]), place, Selection())
    found: list[dict[str, Any]] = batch.to_pylist()
    return found[0]


def test_rule_and_next_three_instants_are_shown_in_place_of_its_headers() -> None:
    shown = message_fields(row(Schedule(parse_rule("0 9 * * *", "Europe/Berlin")).to_bytes()))
    assert shown["headers"] == [["x", "1"]]
    assert shown["repeat"] == {
        "rule": "0 9 * * * (Europe/Berlin)",
        "number": 7,
        "next": ["2027-01-01T00:00:00.000Z", "2027-01-01T08:00:00.000Z", "2027-01-02T08:00:00.000Z"],
    }


def test_no_instant_is_shown_after_the_last_one() -> None:
    found = repeat_fields(row(Schedule(Rule(interval_ms=60_000), count=8).to_bytes()))
    assert found is not None
    assert len(found["next"]) == 2


def test_zone_that_this_host_does_not_have_is_no_reason_to_show_nothing() -> None:
    found = repeat_fields(row(Schedule(Rule(cron="0 9 * * *", zone="Europe/Atlantis")).to_bytes()))
    assert found is not None
    assert found["next"] == ["2027-01-01T00:00:00.000Z"]


@pytest.mark.parametrize(
    "forged",
    [
        b"tonight",
        b'{"every_ms": 0}',
        b'{"every_ms": "x"}',
        b'{"cron": "*"}',
        b'{"cron": "0 0 30 2 *"}',
        b'{"cron": 5}',
        Schedule(Rule(interval_ms=60_000)).to_bytes(),
    ],
)
def test_headers_of_these_names_do_not_make_a_message_repeat(forged: bytes) -> None:
    shown = message_fields(row(forged, MESSAGE))
    assert shown["repeat"] is None
    assert shown["headers"] == [
        ["x", "1"], ["delayline-schedule", forged.decode()], ["delayline-occurrence", "7"]
    ]  # fmt: skip


def test_staged_occurrence_is_shown_with_what_is_delivered() -> None:
    staged = row(b"their own", OCCURRENCE, "ready")
    assert (staged["repeats"], message_fields(staged)["repeat"]) == (True, None)
    assert len(message_fields(staged)["headers"]) == 3  # type: ignore[arg-type]


@pytest.mark.parametrize(("newest", "order"), [(False, [3, 1, 2]), (True, [3, 2, 1])])
def test_staged_occurrences_take_no_place_of_messages_that_are_looked_up_by_id(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, newest: bool, order: list[int]
) -> None:
    def of_place(place: str, *rows: tuple[int, int, int]) -> list[pa.RecordBatch]:
        fields = [
            {"kind": kind, "offset": offset, "deliver_at_ms": due_ms, "timestamp_ms": offset}
            for offset, kind, due_ms in rows
        ]
        return waiting_rows(messages(fields), place, Selection())

    staged = of_place("ready", (3, MESSAGE, 7), *((1, OCCURRENCE, due_ms) for due_ms in (5, 6, 7)))
    sealed = of_place("sealed", (1, REPEATING, 8), (2, MESSAGE, 9))
    table = pa.Table.from_batches([*staged, *sealed], ROW_SCHEMA)
    frame = spark.createDataFrame(table.to_pylist(), from_arrow_schema(ROW_SCHEMA))
    monkeypatch.setattr(look_module, "selected_messages", lambda *_: frame)
    ids = tuple(("in", 0, offset) for offset in (1, 2, 3))

    def found(limit: int) -> list[tuple[int, str]]:
        rows = look(spark, Settings(), Look(ids=ids, newest=newest, limit=limit)).to_pylist()
        return [(row["offset"], row["place"]) for row in rows]

    places = {1: "sealed", 2: "sealed", 3: "ready"}
    assert found(3) == [(offset, places[offset]) for offset in order]
    assert found(20) == [*found(3), *[(1, "ready")] * 3]


def test_an_id_that_no_row_has_does_not_wait_however_many_rows_another_one_has() -> None:
    wanted = Look(ids=(("in", 0, 10), ("in", 0, 9), ("in", 0, 9), ("in", 1, 7)))
    assert not_waiting(wanted, [{"id": "in/0/9"}] * 6) == ["in/0/10", "in/1/7"]
    assert not_waiting(Look(), []) == []
