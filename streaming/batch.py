"""One batch, from the state stage to the last commit: the steps of DESIGN.md's flow, in order."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, reduce

from pyspark import inheritable_thread_target
from pyspark.sql import DataFrame, Row
from pyspark.sql.pandas.types import from_arrow_schema

from conf.errors import CheckpointMismatch, CutoffMismatch
from conf.failpoints import failpoint
from conf.kafka_options import librdkafka_options
from conf.settings import Settings
from sinks.bucket_store import CHUNK_KEY
from sinks.delivery import DUE_TYPES, REPORT_SCHEMA, deliver_chunks
from sinks.transactional_writer import DeliveryPlan
from state.adapter import DUE, KEPT, SEALED
from state.segments import Segment
from state.stored import STORED_SCHEMA, stored_rows
from streaming.due_window import DueWindow
from streaming.recovery import Recovered
from streaming.session import worker_pool
from streaming.upkeep import Upkeep

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Cutoffs:
    """A batch delivers what is due in [previous_ms, cutoff_ms), and what came too late for an earlier batch."""

    previous_ms: int
    cutoff_ms: int


class BatchRunner:
    """Runs batches, one after the other, in the query's thread."""

    def __init__(self, state: Recovered, settings: Settings) -> None:
        self._checkpoint = state.checkpoint
        self._rules = state.rules
        self._store = state.store
        self._window = DueWindow(
            state.store,
            state.catalog,
            state.delivered_before_ms,
            settings.window.ahead,
            settings.window.max_messages,
            settings.bucket.shards,
        )
        self._upkeep = Upkeep(state.store, state.catalog, state.partitions, settings.bucket.limit, state.rules.newest)
        self._settings = settings
        self._last: tuple[int, int] | None = None
        self._last_writers: dict[int, str] = {}
        self._beside = ThreadPoolExecutor(max_workers=2, thread_name_prefix="batch")

    def run(self, held: DataFrame, batch_id: int) -> None:
        """Deliver and seal what the state stage of batch `batch_id` gives out; `held` has `HELD_SCHEMA`.

        Called by `foreachBatch`. Whatever fails here fails the batch, which is then replayed whole: each step
        either leaves nothing behind or knows on the second time that it is done.
        """
        failpoint("batch-begun")
        begun = time.monotonic()
        cutoffs = self._cutoffs(batch_id)
        # Here and not at the end: the catalog knows all that this batch reads, which a merge must keep.
        self._upkeep.before_batch(batch_id - 1, cutoffs.previous_ms)
        held = held.persist()
        try:
            outcome = held.drop("chunk").collect()
            _check(outcome, cutoffs)
            failpoint("state-held")
            sealed = [row for row in outcome if row["kind"] == SEALED]
            due = self._due(held, outcome, batch_id, cutoffs)
            steps: list[Future[None]] = []
            if due is not None:
                steps.append(self._start(self._deliver, due))
            if sealed:
                steps.append(self._start(self._seal, held, batch_id))
            for done in steps:
                done.result()
            self._window.add(_segments(sealed))
            self._upkeep.sealed_into({row["time_partition"] for row in sealed})
        finally:
            held.unpersist()
        self._window.advance(cutoffs.cutoff_ms)
        self._last = (batch_id, cutoffs.cutoff_ms)
        if due is not None or sealed:
            log.info(
                "batch %d: delivered below %d, sealed %d messages in %d segments, %.2f s",
                batch_id, cutoffs.cutoff_ms, sum(row["count"] for row in sealed), len(sealed),
                time.monotonic() - begun,
            )  # fmt: skip
        failpoint("batch-done")

    def close(self) -> None:
        """Stop what runs beside the batches."""
        self._beside.shutdown(wait=False, cancel_futures=True)
        self._window.close()
        self._upkeep.close()

    @cached_property
    def _checkpoint_id(self) -> str:
        # Spark gives a new checkpoint its id when the query starts, and not before.
        checkpoint_id = self._checkpoint.query_id()
        if checkpoint_id is None:
            raise CheckpointMismatch(f"the checkpoint at {self._checkpoint.path} has lost its metadata file")
        return checkpoint_id

    def _start(self, step, *arguments) -> Future[None]:  # type: ignore[no-untyped-def]
        # Spark's local properties, the batch id among them, must reach the tasks of either step.
        return self._beside.submit(inheritable_thread_target(self._store.spark)(step), *arguments)

    def _cutoffs(self, batch_id: int) -> Cutoffs:
        """Read both cutoffs from the offset log, which a replayed batch finds as it left it."""
        cutoff = self._checkpoint.planned(batch_id).watermark_ms
        if self._last is not None and self._last[0] == batch_id - 1:
            previous = self._last[1]
        else:
            previous = self._checkpoint.planned(batch_id - 1).watermark_ms if batch_id else 0
        if cutoff < previous:
            raise CutoffMismatch(f"batch {batch_id} has cutoff {cutoff}, behind {previous} of the batch before")
        return Cutoffs(previous, cutoff)

    def _due(self, held: DataFrame, outcome: list[Row], batch_id: int, cutoffs: Cutoffs) -> DataFrame | None:
        """Return the plan that delivers the batch, a task for each shard, or None if nothing is due.

        Chunks of a mutable bucket have no key, and are delivered whole; those of the window are cut to the batch's
        range. Each task merges both kinds.
        """
        shards = sorted({row["shard"] for row in outcome if row["kind"] == DUE})
        loaded = self._window.take(cutoffs.previous_ms, cutoffs.cutoff_ms)
        if not loaded and not shards:
            return None
        # Expressions as text: pyspark asks Java a dozen questions for each column that is built in Python.
        whole = (f"CAST(NULL AS {kind}) AS {name}" for name, kind in DUE_TYPES.items() if name != "chunk")
        due = held.where(f"kind = '{DUE}'").selectExpr("shard", *whole, "chunk")
        if loaded:
            shards = list(range(self._settings.bucket.shards))
            span = (f"{cutoffs.previous_ms}L AS from_ms", f"{cutoffs.cutoff_ms}L AS until_ms")
            sealed = (piece.selectExpr("shard", *CHUNK_KEY, *span, "chunk") for piece in loaded)
            due = reduce(DataFrame.union, sealed, due)
        return self._delivery(due, shards, batch_id)

    def _delivery(self, due: DataFrame, shards: Iterable[int], batch_id: int) -> DataFrame:
        plan = DeliveryPlan(
            application_id=self._settings.application_id,
            checkpoint=self._checkpoint_id,
            batch_id=batch_id,
            progress_topic=self._settings.progress_topic,
            slice_ms=self._settings.delivery.slice,
            transaction_messages=self._settings.delivery.transaction_messages,
            transaction_timeout_ms=self._settings.delivery.transaction_timeout,
            options=librdkafka_options(self._settings.kafka),
            last_writers=self._last_writers,
        )
        tasks = []
        for shard in shards:
            chunks = due.where(f"shard = {shard}").coalesce(1).sortWithinPartitions(*CHUNK_KEY)
            # A pool of its own for each shard, so that its task comes back to the process with its producer.
            with worker_pool(due.sparkSession, f"shard-{shard}"):
                tasks.append(chunks.select(*DUE_TYPES).mapInArrow(deliver_chunks(plan, shard), REPORT_SCHEMA))
        return reduce(DataFrame.union, tasks)

    def _deliver(self, due: DataFrame) -> None:
        self._last_writers.update({report["shard"]: report["writer"] for report in due.collect()})
        failpoint("delivered")

    def _seal(self, held: DataFrame, batch_id: int) -> None:
        rows = held.where(f"kind = '{SEALED}'").mapInArrow(stored_rows, from_arrow_schema(STORED_SCHEMA))
        failpoint("sealing")
        self._store.append(rows, self._checkpoint_id, batch_id)
        failpoint("sealed")


def _check(outcome: Iterable[Row], cutoffs: Cutoffs) -> None:
    """Hold invariants 2 and 3 against what the state stage says."""
    for row in outcome:
        if row["cutoff_ms"] != cutoffs.cutoff_ms:
            raise CutoffMismatch(f"shard {row['shard']} ran at {row['cutoff_ms']}, its batch at {cutoffs.cutoff_ms}")
        if row["kind"] in (SEALED, KEPT) and row["count"] and row["min_deliver_at_ms"] < cutoffs.cutoff_ms:
            raise CutoffMismatch(f"shard {row['shard']} holds back a message due at {row['min_deliver_at_ms']}")


def _segments(sealed: Iterable[Row]) -> list[Segment]:
    return [Segment(**{name: row[name] for name in Segment.__dataclass_fields__}) for row in sealed]
