"""Looking at waiting messages: a choice of them, read and put into words for `delayline peek` and the page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from conf.errors import ZoneMissing
from conf.instants import instant
from conf.settings import Settings
from state.message_ids import id_text, ids_of
from state.repeats.schedule import Occurrence, Schedule
from streaming.status.json_values import text_or_base64
from streaming.status.messages import selected_messages
from streaming.status.sealed_rows import ReadLimits
from streaming.status.storage_reader import retry_while_files_vanish
from streaming.status.waiting_rows import END_MS, ROW_SCHEMA, Selection
from streaming.storage.paths import storage_path

_BY_ID = ("topic", "partition", "offset")


@dataclass(frozen=True)
class Look:
    """A query for waiting messages. All conditions hold; None means no condition.

    - `from_ms`, `until_ms`: due in [from_ms, until_ms), epoch ms
    - `ids`: topic, partition and offset of each
    - `key`, `topic`: the record's key, and its output topic
    - `newest`: the messages published last, instead of the messages due next
    - `limit`: how many at the most
    - `shown_bytes`: how many bytes of the key, of the value, and of the headers together; None: all
    """

    from_ms: int | None = None
    until_ms: int | None = None
    ids: tuple[tuple[str, int, int], ...] | None = None
    key: bytes | None = None
    topic: str | None = None
    newest: bool = False
    limit: int = 20
    shown_bytes: int | None = None


def look(spark: SparkSession, settings: Settings, wanted: Look, limits: ReadLimits | None = None) -> pa.Table:
    """Return a table of `ROW_SCHEMA`: the first by due time, or the newest first.

    A look by `ids` has staged occurrences last: the limit leaves these out before any message that waits. Raises
    StorageFailed, and what `selected_messages` does.
    """
    selection = Selection(
        0 if wanted.from_ms is None else wanted.from_ms,
        END_MS if wanted.until_ms is None else wanted.until_ms,
        None if wanted.ids is None else ids_of(wanted.ids),
        wanted.key,
        wanted.topic,
        wanted.shown_bytes,
    )
    whole_range = wanted.ids is not None or wanted.key is not None or wanted.topic is not None or wanted.newest
    at_least = None if whole_range else wanted.limit
    staged_last = () if wanted.ids is None else (F.expr("place = 'ready' AND repeats"),)
    order = (*staged_last, F.desc("timestamp_ms") if wanted.newest else F.asc("deliver_at_ms"), *_BY_ID)

    def read() -> pa.Table:
        waiting = selected_messages(spark, settings, selection, at_least, limits)
        return waiting.orderBy(*order).limit(wanted.limit).toArrow()

    return retry_while_files_vanish(read, storage_path(settings)).cast(ROW_SCHEMA)


def message_fields(row: Mapping[str, Any]) -> dict[str, object]:
    """Return a row of `WAITING_SCHEMA` as JSON values; `delayline peek --help` lists them."""
    headers = list(row["headers"] or ())
    repeating = repeat_fields(row)
    if repeating is not None:
        headers = headers[:-2]
    names = ("id", "place", "deliver_at_ms", "timestamp_ms", "output_topic", "error_code")
    return {
        **{name: row[name] for name in names},
        "deliver_at": instant(row["deliver_at_ms"]),
        "key": text_or_base64(row["key"]),
        "value": text_or_base64(row["value"]),
        "headers": [[header["key"], text_or_base64(header["value"])] for header in headers],
        "repeat": repeating,
    }


def not_waiting(wanted: Look, rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the `wanted` ids that no row of `WAITING_SCHEMA` has. One that repeats may have several rows."""
    found = {row["id"] for row in rows}
    return [text for each in sorted(set(wanted.ids or ())) if (text := id_text(each)) not in found]


def repeat_fields(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what is shown of a row of `WAITING_SCHEMA` that repeats; None for others, and for staged occurrences.

    That is its rule, the number of the next occurrence, and the next three instants.
    """
    if not row["repeats"] or row["place"] == "ready":
        return None
    schedule, first = repeat_of(row)
    try:
        upcoming = schedule.upcoming(first, 3)
    except ZoneMissing:
        # The job's hosts have the zone, and this one does not.
        upcoming = [first]
    return {"rule": str(schedule.rule), "number": first.number, "next": [instant(each.at_ms) for each in upcoming]}


def repeat_of(row: Mapping[str, Any]) -> tuple[Schedule, Occurrence]:
    """Return the schedule of a row of `WAITING_SCHEMA` that repeats and is not staged, and its occurrence."""
    schedule, number = (bytes(header["value"]) for header in row["headers"][-2:])
    return Schedule.from_bytes(schedule), Occurrence.from_bytes(number, row["deliver_at_ms"])
