"""A task stages its chunks without cancelled or refused messages, and with the answers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest

from sinks.ready_log import task
from sinks.ready_log.task import Cancels, stage_chunks
from sinks.ready_log.writer_host import Sent
from state.answers import answers_to
from state.cancel import asked_by
from state.kinds import ANSWER, MESSAGE, REQUEST
from state.message import encode_chunk
from state.message_ids import ids_of
from state.order import ORDER, key_of
from state.reasons import Reason
from tests.messages import messages

TOPIC = "delayline-in"


@pytest.fixture
def staged(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The messages that the task gives to the writer. Only the choice of messages is tested here."""
    rows: list[dict[str, Any]] = []

    def give(plan: object, shard: int, tables: Iterable[pa.Table], attempt: int) -> Sent:
        rows.extend(row for table in tables for row in table.to_pylist())
        return Sent(0, (len(rows), "writer"))

    monkeypatch.setattr(task, "stage_by_host", give)
    return rows


def chunk_row(whole: bool, *rows: dict[str, Any]) -> pa.RecordBatch:
    table = messages(rows)
    bounds = (None, None) if whole else (10, 100)
    values = [0, *key_of(table), *bounds, encode_chunk(table)]
    return pa.RecordBatch.from_pylist(
        [dict(zip(("shard", *ORDER, "from_ms", "until_ms", "chunk"), values, strict=True))],
        schema=pa.schema(
            [("shard", pa.int32()), ("deliver_at_ms", pa.int64()), ("topic", pa.string()), ("partition", pa.int32()),
             ("offset", pa.int64()), ("from_ms", pa.int64()), ("until_ms", pa.int64()), ("chunk", pa.binary())]
        ),
    )  # fmt: skip


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The shards that the host has answered for: with an error for shard 1. It takes nothing of shard 3."""
    shards: list[int] = []

    class Answering(Sent):
        def __init__(self, shard: int) -> None:
            super().__init__(0, (1, "writer"))
            self._shard = shard

        def answer(self) -> tuple[int, str]:
            shards.append(self._shard)
            if self._shard == 1:
                raise RuntimeError("refused")
            return super().answer()

    def send(_: object, shard: int, *__: object) -> Sent:
        if shard == 3:
            raise BrokenPipeError
        return Answering(shard)

    monkeypatch.setattr(task, "stage_by_host", send)
    return shards


def of_shards(*shards: int) -> list[pa.RecordBatch]:
    chunk = chunk_row(True, {"offset": 1, "deliver_at_ms": 10})
    return [chunk.set_column(0, "shard", pa.array([shard], pa.int32())) for shard in shards]


def test_an_error_of_one_shard_is_raised_once_all_shards_are_answered_for(answered: list[int]) -> None:
    plan: Any = None
    with pytest.raises(RuntimeError, match="refused"):
        list(stage_chunks(plan)(of_shards(0, 1, 2)))
    assert sorted(answered) == [0, 1, 2]


def test_a_shard_that_cannot_be_sent_is_raised_once_those_before_it_are_answered_for(answered: list[int]) -> None:
    plan: Any = None
    with pytest.raises(BrokenPipeError):
        list(stage_chunks(plan)(of_shards(0, 1, 2, 3)))
    assert sorted(answered) == [0, 1, 2]


def test_an_unreadable_chunk_is_raised_once_the_shards_before_it_are_answered_for(answered: list[int]) -> None:
    plan: Any = None
    good, bad = of_shards(0, 2)
    bad = bad.set_column(bad.schema.get_field_index("chunk"), "chunk", pa.array([b"x"]))
    with pytest.raises(pa.ArrowInvalid):
        list(stage_chunks(plan)([good, bad]))
    assert answered == [0]


def run(cancels: Cancels, *chunks: pa.RecordBatch) -> None:
    plan: Any = None
    assert sum(len(reports) for reports in stage_chunks(plan, cancels)(chunks)) == 1


def test_a_refused_replacement_is_left_out_and_its_request_is_answered(staged: list[dict[str, Any]]) -> None:
    # The request of a replacement has its id.
    request = {"offset": 2, "deliver_at_ms": 20, "kind": REQUEST, "key": b"in/0/1", "value": None}
    chunk = chunk_row(True, {"offset": 1, "deliver_at_ms": 10}, request, {"offset": 2, "deliver_at_ms": 21})
    answers = answers_to(asked_by(messages([request])), [Reason.RELEASED])
    value = answers.column("value")[0].as_py()
    run(Cancels(left_out=ids_of([(TOPIC, 0, 2)]), answers=answers), chunk)
    assert [(row["offset"], row["kind"], row["value"]) for row in staged] == [
        (1, MESSAGE, b"v"),
        (2, ANSWER, value),
    ]
    staged.clear()
    run(Cancels(answers=answers), chunk)
    assert [row["offset"] for row in staged] == [1, 2, 2], "an accepted one comes out"


def test_cancelled_and_out_of_range_messages_of_the_window_are_left_out(staged: list[dict[str, Any]]) -> None:
    rows = [{"offset": at, "deliver_at_ms": due} for at, due in enumerate((5, 10, 50, 99, 100))]
    run(Cancels(cancelled=ids_of([(TOPIC, 0, 2)])), chunk_row(False, *rows))
    assert [row["offset"] for row in staged] == [1, 3]
