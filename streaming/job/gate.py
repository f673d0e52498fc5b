"""The gate between Spark's batches and the job's: it stops the batches that should not run any more."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame

from conf.errors import ServiceStopping


class Gate:
    """Lets batches run until it is closed. A later batch ends the query before any of its steps has run.

    Such a batch is only planned in the offset log, and the next start replays it. If the gate let it pass without
    running it, Spark would commit it, and the records that it read would be lost.
    """

    def __init__(self) -> None:
        self._open = True
        self._cut_off = False

    def close(self, cut_off: bool = False) -> None:
        """Let no further batch begin. `cut_off` means that the running batch is about to be cancelled, and may fail."""
        self._open = False
        self._cut_off = cut_off

    def guard(self, run_batch: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, int], None]:
        """Return `run_batch` behind the gate."""

        def guarded(shard_output: DataFrame, batch_id: int) -> None:
            if not self._open:
                raise ServiceStopping(f"batch {batch_id} is left to the next start")
            try:
                run_batch(shard_output, batch_id)
            except Exception:
                if not self._cut_off:
                    raise
                # A short text: Spark searches it with a pattern that overflows the stack on a long trace.
                raise ServiceStopping(f"batch {batch_id} was cut off, and is left to the next start") from None

        return guarded
