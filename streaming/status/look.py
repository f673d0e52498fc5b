"""Looking at waiting messages: a choice of them, read and put into words for `delayline peek` and the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

from conf.instants import instant
from conf.settings import Settings
from streaming.status.json_values import text_or_base64
from streaming.status.messages import waiting_messages
from streaming.status.storage_reader import retry_while_files_vanish
from streaming.storage.paths import storage_path

_BY_ID = ("topic", "partition", "offset")


@dataclass(frozen=True)
class Look:
    """Which waiting messages are wanted: all conditions hold, and None is none.

    - `from_ms`, `until_ms`: due in [from_ms, until_ms), epoch ms
    - `ids`: topic, partition and offset of each
    - `key`, `topic`: the record's key, and its output topic
    - `newest`: those published last, and not those due next
    - `limit`: how many at the most
    """

    from_ms: int | None = None
    until_ms: int | None = None
    ids: tuple[tuple[str, int, int], ...] | None = None
    key: bytes | None = None
    topic: str | None = None
    newest: bool = False
    limit: int = 20


def look(spark: SparkSession, settings: Settings, wanted: Look, columns: Sequence[str] = ("*",)) -> list[Row]:
    """Return rows of `WAITING_SCHEMA`: the first by due time, or the newest first.

    `columns` are Spark's SQL expressions over these, computed before anything comes into this process.

    Raises StorageFailed, and what `waiting_messages` does.
    """
    bounds = {"from_ms": wanted.from_ms, "until_ms": wanted.until_ms}
    chosen = {name: value for name, value in bounds.items() if value is not None}
    whole_range = wanted.ids is not None or wanted.key is not None or wanted.topic is not None or wanted.newest
    at_least = None if whole_range else wanted.limit

    def read() -> list[Row]:
        waiting = waiting_messages(spark, settings, **chosen, ids=wanted.ids, at_least=at_least)
        if wanted.key is not None:
            waiting = waiting.where(F.col("key") == F.lit(wanted.key))
        if wanted.topic is not None:
            waiting = waiting.where(F.col("output_topic") == wanted.topic)
        order = (F.desc("timestamp_ms"), *_BY_ID) if wanted.newest else ("deliver_at_ms", *_BY_ID)
        return waiting.orderBy(*order).limit(wanted.limit).selectExpr(*columns).collect()

    return retry_while_files_vanish(read, storage_path(settings))


def message_fields(row: Row) -> dict[str, object]:
    """Return a row of `WAITING_SCHEMA` as JSON values; `delayline peek --help` lists them."""
    names = ("id", "place", "deliver_at_ms", "timestamp_ms", "output_topic", "error_code")
    return {
        **{name: row[name] for name in names},
        "deliver_at": instant(row["deliver_at_ms"]),
        "key": text_or_base64(row["key"]),
        "value": text_or_base64(row["value"]),
        "headers": [[header["key"], text_or_base64(header["value"])] for header in row["headers"] or ()],
    }
