"""Messages for topics that refuse some of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from sinks.release.wall_clock import now_ms
from state.order import in_order
from tests.messages import messages

FEW_SECONDS = {"message.timestamp.before.max.ms": "20000"}


def due_to(topic: str, rows: Iterable[dict[str, Any]], first: int = 0) -> pa.Table:
    """Return messages to `topic` with their row numbers as values. A row changes the columns that it names."""
    defaults = {"output_topic": topic, "key": b"k", "deliver_at_ms": now_ms() - 1_000, "timestamp_ms": 30}
    table = messages(
        {**defaults, "offset": first + n, "value": b"%d" % (first + n), **row} for n, row in enumerate(rows)
    )
    return in_order(table)


def batch_to(topic: str, *values: bytes, first: int = 0) -> pa.Table:
    """Return overdue messages to `topic` with these values, and with input offsets from `first` on."""
    rows = [
        {
            "offset": first + n,
            "deliver_at_ms": 70,
            "timestamp_ms": 30,
            "output_topic": topic,
            "value": value,
            "key": b"k",
        }
        for n, value in enumerate(values)
    ]
    return messages(rows)
