"""The files of a checkpoint: how it began, which batches are planned and committed, and their cutoffs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from functools import cached_property

from pyspark.sql import SparkSession

from conf.errors import CheckpointUnreadable
from state.checkpoint.batch_settings import NONE_REFUSED, Refusal, SettingsHistory
from state.checkpoint.file_format import with_format, without_format
from state.checkpoint.origin import CheckpointOrigin, Offsets
from state.checkpoint.planned_batch import PlannedBatch
from streaming.checkpoint.logs import next_cutoff, planned_entry, with_input_offsets, with_next_cutoff
from streaming.storage.failures import CHECKPOINT_REMEDY
from streaming.storage.folder import Folder

ORIGIN, _SETTINGS_HISTORY, _RETIRED = "delayline-origin.json", "delayline-settings.json", "delayline-retired"
_REFUSED = "delayline-refused.json"
# Spark's Kafka source, which is source 0 of the query, writes this file before its first batch.
_FIRST_OFFSETS = "sources/0/0"


class Checkpoint:
    """The checkpoint at `path`, any Hadoop URI."""

    def __init__(self, spark: SparkSession, path: str, before_write: Callable[[], None] = lambda: None) -> None:
        """Take a callback that raises if this process may not write: the storage does not fence an earlier process."""
        self.path = path
        self._files = Folder(spark, path, before_write)

    def exists(self) -> bool:
        """Return whether there is anything at `path`."""
        return self._files.exists()

    @cached_property
    def origin(self) -> CheckpointOrigin:
        """How the checkpoint began. Raises CheckpointUnreadable, CheckpointVersion."""
        text = self._files.read(ORIGIN)
        if text is None:
            raise CheckpointUnreadable(f"{self.path}/{ORIGIN} is missing. {CHECKPOINT_REMEDY}")
        try:
            return CheckpointOrigin.from_json(without_format(text, f"{self.path}/{ORIGIN}"))
        except (TypeError, ValueError) as problem:
            raise CheckpointUnreadable(
                f"{self.path}/{ORIGIN} is damaged ({problem!r}). {CHECKPOINT_REMEDY}"
            ) from problem

    def is_initialized(self) -> bool:
        """Return whether the checkpoint has an origin."""
        return self._files.has(ORIGIN)

    def initialize(self, origin: CheckpointOrigin, replace: bool = True) -> None:
        """Write the origin, and the id for Spark. May be repeated after a crash.

        Raises FileExistsError if there is an origin, but not with `replace`.
        """
        self._files.write(ORIGIN, with_format(origin.to_json()), replace)
        # Spark uses the id that it finds here as the query's.
        self._files.write("metadata", json.dumps({"id": origin.checkpoint}))
        self.__dict__.pop("origin", None)

    def is_retired(self) -> bool:
        """Return whether another checkpoint takes over from this one."""
        return self._files.has(_RETIRED)

    def retire(self) -> None:
        """Mark the checkpoint, so that no job runs from it again."""
        self._files.write(_RETIRED, "{}")

    def last_planned(self) -> int | None:
        """Return the newest batch in the offset log, or None."""
        return self._newest("offsets")

    def last_committed(self) -> int | None:
        """Return the newest batch in the commit log, or None."""
        return self._newest("commits")

    def planned(self, batch_id: int) -> PlannedBatch:
        """Read batch `batch_id` from the offset log. Raises CheckpointUnreadable, CheckpointVersion."""
        clock_ms, watermark_ms, offsets = planned_entry(
            self._files.read(f"offsets/{batch_id}"), f"{self.path}/offsets/{batch_id}"
        )
        cutoff_ms = max(watermark_ms, self.origin.cutoff_ms)
        return PlannedBatch(batch_id, clock_ms, cutoff_ms, offsets or self.origin.offsets)

    def forget_planned(self, batch_id: int) -> None:
        """Delete the newest batch from the offset log, and what it refuses: Spark plans it again.

        It may have left nothing.
        """
        # First: of the batch that is planned in its place, this would refuse records which that takes in.
        self._files.delete(_REFUSED)
        self._files.delete(f"offsets/{batch_id}")

    def raise_next_cutoff(self, batch_id: int, cutoff_ms: int) -> None:
        """Let the batch after `batch_id`, the last one planned and committed, have the cutoff `cutoff_ms` (epoch ms).

        Changes nothing if Spark has recorded a higher one for it. Spark must not run. Raises CheckpointUnreadable,
        CheckpointVersion.
        """
        name, file = f"commits/{batch_id}", f"{self.path}/commits/{batch_id}"
        text = self._files.read(name)
        if next_cutoff(text, file) < cutoff_ms:
            self._files.write(name, with_next_cutoff(text, file, cutoff_ms))

    def check_logs(self) -> None:
        """Read the entries of both logs that Spark will read: the newest ones, and those before them.

        Raises CheckpointUnreadable if one is missing or damaged, CheckpointVersion if another Spark wrote it.
        """
        planned, committed = self.last_planned(), self.last_committed()
        if committed is not None:
            next_cutoff(self._files.read(f"commits/{committed}"), f"{self.path}/commits/{committed}")
        needed = {max(number - 1, 0) for number in (planned, committed) if number is not None}
        for batch_id in sorted(needed | {number for number in (planned, committed) if number is not None}):
            self.planned(batch_id)

    def first_offsets(self) -> Offsets:
        """Return the offsets at which the first batch began to read; empty if no batch has been planned."""
        text = self._files.read(_FIRST_OFFSETS)
        if text is None:
            return self.origin.offsets
        offsets: Offsets = json.loads(text[text.index("{") :])
        return offsets

    def read_offsets(self) -> Offsets:
        """Return the offsets up to which committed batches have read; without committed batches, `first_offsets`."""
        committed = self.last_committed()
        return self.first_offsets() if committed is None else self.planned(committed).offsets

    def write_read_offsets(self, offsets: Offsets) -> None:
        """Let the first batch that is not committed begin to read at `offsets`. Spark must not run."""
        committed = self.last_committed()
        self._write_offsets(_FIRST_OFFSETS if committed is None else f"offsets/{committed}", offsets)

    def write_planned_offsets(self, batch_id: int, offsets: Offsets) -> None:
        """Let the planned batch `batch_id` read up to `offsets`. Spark must not run."""
        self._write_offsets(f"offsets/{batch_id}", offsets)

    def settings_history(self) -> SettingsHistory:
        """Return the batch settings that earlier starts recorded; an empty history before the first batch.

        Raises CheckpointUnreadable, CheckpointVersion.
        """
        text = self._files.read(_SETTINGS_HISTORY)
        if text is None and self.last_planned() is not None:
            raise CheckpointUnreadable(
                f"{self.path} has batches, but {_SETTINGS_HISTORY} is missing. {CHECKPOINT_REMEDY}"
            )
        if text is None:
            return SettingsHistory(())
        try:
            return SettingsHistory.from_json(without_format(text, f"{self.path}/{_SETTINGS_HISTORY}"))
        except (KeyError, TypeError, ValueError) as problem:
            raise CheckpointUnreadable(
                f"{self.path}/{_SETTINGS_HISTORY} is damaged ({problem!r}). {CHECKPOINT_REMEDY}"
            ) from problem

    def write_settings_history(self, settings_history: SettingsHistory) -> None:
        """Record the history. Replaces the file in one step."""
        self._files.write(_SETTINGS_HISTORY, with_format(settings_history.to_json()))

    def refused(self, batch_id: int) -> Refusal:
        """Return what batch `batch_id` refuses. Raises CheckpointUnreadable, CheckpointVersion."""
        text = self._files.read(_REFUSED)
        if text is None:
            return NONE_REFUSED
        try:
            stored = json.loads(without_format(text, f"{self.path}/{_REFUSED}"))
            refusal = Refusal(stored["from_offsets"], int(stored["due_from_ms"]))
            return refusal if int(stored["batch"]) == batch_id else NONE_REFUSED
        except (KeyError, TypeError, ValueError) as problem:
            raise CheckpointUnreadable(
                f"{self.path}/{_REFUSED} is damaged ({problem!r}). {CHECKPOINT_REMEDY}"
            ) from problem

    def write_refused(self, batch_id: int, refusal: Refusal) -> None:
        """Record what batch `batch_id` refuses, in place of what an earlier batch did."""
        self._files.write(_REFUSED, with_format(json.dumps({"batch": batch_id, **asdict(refusal)})))

    def _write_offsets(self, file: str, offsets: Offsets) -> None:
        text = self._files.read(file)
        if text is not None:
            self._files.write(file, with_input_offsets(text, offsets))

    def _newest(self, log: str) -> int | None:
        return max((int(name) for name in self._files.names(log) if name.isdigit()), default=None)
