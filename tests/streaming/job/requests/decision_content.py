"""The content of decisions and of the table, in the form in which a run compares it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from state.answers import Undecided
from state.buckets.cancelled import NEVER_MS
from state.buckets.operator import DUE
from state.buckets.parts import IdRows
from state.cancel import MessageId
from state.kinds import REQUEST
from state.message import decode_chunk
from state.message_ids import ID
from streaming.job.requests.decision import Decision


def due_in(output: pa.Table) -> set[tuple[Any, ...]]:
    """Return the ids and due times of the due messages in the rows of a batch."""
    chunks = [decode_chunk(row["chunk"]) for row in output.to_pylist() if row["kind"] == DUE]
    return {tuple(row[name] for name in (*ID, "kind", "deliver_at_ms")) for each in chunks for row in each.to_pylist()}


def comparable(decision: Decision) -> list[Any]:
    """Return what a replay decides too: all but the time at which a request goes on."""
    answers = decision.answers.to_pylist()
    for answer in answers:
        if answer["kind"] == REQUEST:
            answer["value"] = Undecided.from_bytes(answer["value"])._replace(asked_ms=0)

    def ordered(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return sorted(rows, key=repr)

    left_out = {source: own.tolist() for source, own in decision.left_out.items()}
    every = (decision.cancelled, decision.names, decision.moves, decision.retimed)
    tables = [ordered(each.to_pylist()) for each in every]
    return [ordered(answers), *tables, left_out, dict(decision.replaced)]


def cancelled_until(table: Any, bucket: int) -> dict[MessageId, list[tuple[int, int, int]]]:
    """Return the messages that batches up to the batch of `bucket` have cancelled in buckets.

    Each message comes with the first and the last due time (epoch ms) that it may have, and the bucket of the batch.
    """
    found: dict[MessageId, list[tuple[int, int, int]]] = {}
    for ids in table.ids_before(IdRows.CANCELLED, bucket + 1):
        for row in ids.filter(pc.field("deliver_at_ms") > NEVER_MS).to_pylist():
            identity = (row["topic"], row["partition"], row["offset"])
            found.setdefault(identity, []).append((row["deliver_at_ms"], row["max_deliver_at_ms"], row["bucket"]))
    return found
