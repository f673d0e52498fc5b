"""Maintenance as the batches see it. Its services run concurrently, and a failure of one does not end the job."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from sinks.buckets.bucket_table import BucketTable
from state.buckets.cancelled import NOTHING_FORGETTABLE, Forgettable
from state.buckets.catalog import SegmentCatalog
from state.buckets.parts import IdRows
from state.buckets.segments import Segment
from streaming.maintenance.bucket_merges import BucketMerges
from streaming.maintenance.clean_up import LogCleanUp, Vacuum
from streaming.maintenance.deletion import Deletion
from streaming.maintenance.failures import Failures
from streaming.maintenance.id_joins import IdJoins
from streaming.maintenance.merge_plan import MergeRules
from streaming.maintenance.step import Moment, Outcome, Service, Step
from streaming.monitor.job_status import Merges
from streaming.monitor.table_state import StepFailures
from streaming.spark.pools import MAINTENANCE, use_pool

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.2


@dataclass(frozen=True)
class TableContents:
    """The contents of the table when a job starts.

    - `parts`: the last due time in each part (epoch ms)
    - `abandoned`: the Delta partitions that merges of an earlier process have left, and nothing needs
    - `id_rows`: the bytes of each Delta partition of rows of a kind, by the bucket in its name
    """

    parts: dict[str, int] = field(default_factory=dict)
    abandoned: Collection[str] = ()
    id_rows: Mapping[IdRows, Mapping[int, int]] = field(default_factory=dict)


class Maintenance:
    """Deletes parts that are staged as a whole, merges buckets slice by slice, vacuums, and cleans the table's log.

    All of it runs in other threads: merges in theirs (`Merging`), the rest in one, a step at a time. Only the query's
    thread uses the catalog. Items of a failed step are set aside for a while (`Failures`).
    """

    def __init__(
        self,
        store: BucketTable,
        catalog: SegmentCatalog,
        contents: TableContents,
        rules: MergeRules,
        forgettable: Callable[[int], Forgettable] = lambda _: NOTHING_FORGETTABLE,
        now: Callable[[], float] = time.monotonic,
        failures: Failures | None = None,
    ) -> None:
        """Start the threads in which the steps run.

        Args:
            store: the table of sealed buckets.
            catalog: the metadata of the live segments; a merge replaces segments in it.
            contents: what the table has now.
            rules: how merges are made.
            forgettable: returns which cancelled ids are of no use any more, given the cutoff (epoch ms) below which
                everything is staged.
            now: a clock that returns seconds.
            failures: the items that are set aside, if others share them.
        """
        self._store = store
        self._now = now
        self._failures = failures or Failures(store.path, now)
        vacuum = Vacuum(store, now())

        def files_left() -> None:
            vacuum.left(now())

        self._deletion = Deletion(store, contents.parts, contents.abandoned, files_left)
        self._joins = IdJoins(store, contents.id_rows, forgettable, rules.fan_in, self._failures, files_left, now())
        self._merges = BucketMerges(
            store, catalog, rules, self._deletion, self._failures, files_left, initializer=self._set_pool
        )
        # By priority.
        self._services: tuple[Service, ...] = (vacuum, self._deletion, LogCleanUp(store, now()), self._joins)
        self._running: tuple[Step, Future[Outcome]] | None = None
        self._woken = threading.Event()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="maintenance", initializer=self._set_pool)

    def sealed(self, segments: Iterable[Segment]) -> None:
        """Add the parts of a bucket that a batch has sealed."""
        self._deletion.add(segments)
        self._merges.sealed()

    def stored(self, kind: IdRows, bucket: int, count: int) -> None:
        """Add the rows of a `kind` that the batch of `bucket` has stored, `count` of them."""
        self._joins.stored(kind, bucket, count)

    def before_batch(self, last_bucket: int, staged_before_ms: int) -> None:
        """Take over the results of steps that have ended, and start the next steps that are due.

        `last_bucket` and `staged_before_ms` are the bucket number and the cutoff of the batch before, which is
        committed: everything due before that cutoff is staged for good. The batch that begins may be replayed,
        and must then find all that it reads now. Raises ApplicationHeld if a step found that this process may not
        write; any other failure is set aside.
        """
        at = Moment(self._now(), last_bucket, staged_before_ms)
        self._take_over()
        self._merges.go_on(at)
        if self._running is None and (step := self._due_step(at)):
            self._running = step, self._worker.submit(step.run)

    def catch_up(self, last_bucket: int, staged_before_ms: int, timeout_s: float) -> float:
        """Wait until merges are not far behind, at the longest for `timeout_s` seconds, and return the seconds waited.

        A batch that takes a flood in can seal faster than one thread merges. Then it must slow down, since each bucket
        costs every window a chunk. For the other arguments, and what it raises, see `before_batch`.
        """
        if not self._merges.far_behind:
            return 0.0
        begun = time.monotonic()
        while (left_s := begun + timeout_s - time.monotonic()) > 0 and not self._woken.is_set():
            self._merges.wait(min(left_s, _LOOK_EVERY_S))
            self.before_batch(last_bucket, staged_before_ms)
            if not (self._merges.busy and self._merges.far_behind):
                break
        return time.monotonic() - begun

    def wake(self) -> None:
        """Let `catch_up` return at once, now and from now on. Any thread may call it."""
        self._woken.set()

    @property
    def busy(self) -> bool:
        """Whether something is running, or has ended and is not taken over yet."""
        return self._running is not None or self._merges.busy

    @property
    def merges(self) -> Merges:
        """The merges since the start."""
        return self._merges.since_start

    @property
    def failures(self) -> dict[str, StepFailures]:
        """The failures since the start, and the items that are set aside now, by kind of step."""
        return self._failures.by_step

    def wait(self, timeout_s: float) -> None:
        """Wait until what is running has ended, at the longest for `timeout_s` seconds."""
        if self._running is not None:
            wait([self._running[1]], timeout_s)
        self._merges.wait(timeout_s)

    def close(self) -> None:
        """Let the running steps end, and start no more."""
        self._worker.shutdown(wait=True, cancel_futures=True)
        self._merges.close()

    def _set_pool(self) -> None:
        use_pool(self._store.spark, MAINTENANCE)

    def _take_over(self) -> None:
        if self._running is None or not self._running[1].done():
            return
        (step, ended), self._running = self._running, None
        problem = ended.exception()
        if isinstance(problem, Exception):
            self._failures.add(step.kind, step.items, step.what, problem)
        else:
            self._failures.remove(step.kind, step.items)
            ended.result()()

    def _due_step(self, at: Moment) -> Step | None:
        """Return the step that is due next, other than of a merge, if there is one."""
        for service in self._services:
            if self._failures.is_over(service.kind, [service.kind]) and (step := service.due(at)):
                return step
        return None
