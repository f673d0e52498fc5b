"""Reading Spark's checkpoint from outside: which batches are planned and committed, and at what watermark."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from conf.errors import CheckpointMismatch
from conf.rules import RuleBook


@dataclass(frozen=True)
class PlannedBatch:
    """One entry of the offset log. Instants in epoch ms; `offsets` is the Kafka source's JSON, empty before data."""

    batch_id: int
    clock_ms: int
    watermark_ms: int
    offsets: dict[str, dict[str, int]]


class Checkpoint:
    """The checkpoint at `path`, any Hadoop URI."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        jvm: Any = spark.sparkContext._jvm
        # Each step of a dotted name asks Java to look through all jars, and a batch reads several files.
        self._path_of = jvm.org.apache.hadoop.fs.Path
        self._text_of = jvm.org.apache.commons.io.IOUtils.toString
        self._file_manager = jvm.org.apache.spark.sql.execution.streaming.CheckpointFileManager
        self._conf = spark.sparkContext._jsc.hadoopConfiguration()
        self.path = path
        self._files = self._path_of(path).getFileSystem(self._conf)

    def query_id(self) -> str | None:
        """Return the id that Spark gave the checkpoint at its birth, or None if it is not born."""
        text = self._read("metadata")
        return json.loads(text)["id"] if text else None

    def last_planned(self) -> int | None:
        """Return the newest batch in the offset log, or None."""
        return self._newest("offsets")

    def last_committed(self) -> int | None:
        """Return the newest batch in the commit log, or None."""
        return self._newest("commits")

    def planned(self, batch_id: int) -> PlannedBatch:
        """Read batch `batch_id` from the offset log. Raises CheckpointMismatch if it is not there."""
        text = self._read(f"offsets/{batch_id}")
        if text is None:
            raise CheckpointMismatch(f"{self.path}/offsets/{batch_id} is missing; put back a whole checkpoint")
        _version, about, *sources = text.splitlines()
        try:
            facts = json.loads(about)
            offsets = [json.loads(source) for source in sources if source.startswith("{")]
            return PlannedBatch(
                batch_id,
                int(facts["batchTimestampMs"]),
                int(facts["batchWatermarkMs"]),
                next((entry for entry in offsets if all(isinstance(v, dict) for v in entry.values())), {}),
            )
        except (KeyError, TypeError, ValueError) as problem:
            raise CheckpointMismatch(
                f"{self.path}/offsets/{batch_id} cannot be read ({problem!r}); put back a whole checkpoint"
            ) from problem

    def rules(self) -> RuleBook:
        """Return the rules by batch that earlier starts recorded; an empty book if none did."""
        text = self._read("delayline-rules.json")
        if text is None:
            return RuleBook(())
        try:
            return RuleBook.from_json(text)
        except (KeyError, TypeError, ValueError) as problem:
            raise CheckpointMismatch(
                f"{self.path}/delayline-rules.json cannot be read ({problem!r}); it is of another version, or damaged"
            ) from problem

    def write_rules(self, rules: RuleBook) -> None:
        """Record the rules, replacing the file in one step."""
        path = self._path_of(self.path, "delayline-rules.json")
        manager = self._file_manager.create(self._path_of(self.path), self._conf)
        manager.mkdirs(self._path_of(self.path))
        stream = manager.createAtomic(path, True)
        stream.write(bytearray(rules.to_json().encode()))
        stream.close()

    def _newest(self, log: str) -> int | None:
        folder = self._path_of(self.path, log)
        if not self._files.exists(folder):
            return None
        names = [status.getPath().getName() for status in self._files.listStatus(folder)]
        return max((int(name) for name in names if name.isdigit()), default=None)

    def _read(self, name: str) -> str | None:
        path = self._path_of(self.path, name)
        if not self._files.exists(path):
            return None
        stream = self._files.open(path)
        try:
            return str(self._text_of(stream, "UTF-8"))
        finally:
            stream.close()
