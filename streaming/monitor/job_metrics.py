"""The metrics and the health of the job: what its batches have done, and what waits in its state and its buckets."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from conf.settings import Settings
from state.buckets.segments import Segment
from streaming.monitor.server import Health, monitored

# Spans from now on, by their ends in seconds: what is due within one is due within the longer ones too.
WITHIN_S = {
    "1m": 60, "10m": 600, "1h": 3_600, "6h": 21_600, "1d": 86_400, "7d": 604_800, "30d": 2_592_000, "366d": 31_622_400,
}  # fmt: skip
# How often what waits is counted anew.
_COUNT_EVERY_S = 5.0
# A batch may wait for brokers as long as `kafka.outage_limit`, and then ends the job; a replay may take so much longer.
_REPLAY_S = 600.0


class JobCounts(Collector):
    """Counts what batches have done. The query's thread writes it, and the server's threads read it.

    Instants are epoch s. What counts messages begins at zero with each start of the job.
    """

    def __init__(self, now_s: Callable[[], float] = time.time) -> None:
        self._now_s = now_s
        self._lock = threading.Lock()
        self._read: Counter[str] = Counter()
        self._sealed = self._cancelled = 0
        self._step_counts: Counter[str] = Counter()
        self._step_seconds: defaultdict[str, float] = defaultdict(float)
        self._mutable: dict[int, int] = {}
        self._counted_s = 0.0
        self._waiting: dict[str, int] = {}
        self._within: dict[str, int] = {}
        self._next_due_s: float | None = None
        self._last_due_s: float | None = None
        self._shape: dict[str, int] = {}
        self.batch_done_s: float | None = None
        self._cutoff_s: float | None = None
        self.started_s = now_s()

    def took(self, step: str, seconds: float) -> None:
        """Add the time that one step of a batch took."""
        with self._lock:
            self._step_counts[step] += 1
            self._step_seconds[step] += seconds

    @contextmanager
    def timed(self, step: str) -> Iterator[None]:
        """Add the time that the block takes, if it raises nothing."""
        begun_s = time.monotonic()
        yield
        self.took(step, time.monotonic() - begun_s)

    def batch_done(
        self,
        read: Mapping[str, int],
        sealed: int,
        cancelled: int,
        mutable: Mapping[int, int],
        cutoff_ms: int,
    ) -> None:
        """Add a batch: the records that it read by topic, the messages that it sealed and cancelled, and its cutoff.

        `mutable` has what is left in the mutable buckets of the shards that it changed.
        """
        with self._lock:
            self._read.update(read)
            self._sealed += sealed
            self._cancelled += cancelled
            self._mutable |= mutable
            self._cutoff_s = cutoff_ms / 1000
            self.batch_done_s = self._now_s()

    def count_sealed(self, buckets: Mapping[int, Collection[Segment]], merging: int, merges: int) -> None:
        """Count what waits in sealed `buckets`, if that is some seconds ago.

        A segment's messages are taken for evenly spread between its first and its last due time.
        `merging` merges are under way, and `merges` were finished.
        """
        now_s = self._now_s()
        if now_s - self._counted_s < _COUNT_EVERY_S:
            return
        segments = [segment for own in buckets.values() for segment in own]
        within = {name: sum(_due_before(each, (now_s + s) * 1000) for each in segments) for name, s in WITHIN_S.items()}
        firsts = [each.min_deliver_at_ms for each in segments]
        lasts = [each.max_deliver_at_ms for each in segments]
        with self._lock:
            self._counted_s = now_s
            self._waiting["sealed"] = sum(each.count for each in segments)
            self._within = {name: round(count) for name, count in within.items()}
            self._next_due_s = min(firsts) / 1000 if firsts else None
            self._last_due_s = max(lasts) / 1000 if lasts else None
            self._shape = {
                "buckets": len(buckets),
                "segments": len(segments),
                "bytes": sum(each.bytes for each in segments),
                "merging": merging,
                "merges": merges,
            }

    def collect(self) -> Iterator[Metric]:
        """Return the metrics of now."""
        with self._lock:
            return iter([*self._batches(), *self._what_waits()])

    def _batches(self) -> Iterable[Metric]:
        read = CounterMetricFamily("delayline_read_records", "Records read from an input topic.", labels=["topic"])
        for topic, count in sorted(self._read.items()):
            read.add_metric([topic], count)
        sealed = CounterMetricFamily("delayline_sealed_messages", "Messages written to sealed buckets.")
        sealed.add_metric([], self._sealed)
        cancelled = CounterMetricFamily("delayline_cancelled_messages", "Messages that batches have cancelled.")
        cancelled.add_metric([], self._cancelled)
        seconds = SummaryMetricFamily("delayline_batch_seconds", "Time that batches took, by step.", labels=["step"])
        for step, count in sorted(self._step_counts.items()):
            seconds.add_metric([step], count, self._step_seconds[step])
        yield from (read, sealed, cancelled, seconds)
        if self.batch_done_s is not None:
            yield _gauge("delayline_batch_done_timestamp_seconds", "When the last batch was done.", self.batch_done_s)
        if self._cutoff_s is not None:
            yield _gauge(
                "delayline_handed_over_until_timestamp_seconds",
                "Up to when messages are handed over to the release processes: clock.horizon ahead, if all is well.",
                self._cutoff_s,
            )

    def _what_waits(self) -> Iterable[Metric]:
        waiting = GaugeMetricFamily(
            "delayline_waiting_messages", "Messages that wait and are not handed over, about.", labels=["place"]
        )
        for place, count in {"mutable": sum(self._mutable.values()), **self._waiting}.items():
            waiting.add_metric([place], count)
        within = GaugeMetricFamily(
            "delayline_sealed_due_messages",
            "Sealed messages that are due within a span from now, about.",
            labels=["within"],
        )
        for name, count in self._within.items():
            within.add_metric([name], count)
        yield from (waiting, within)
        for name, text, due_s in (
            ("next", "When the first sealed message is due.", self._next_due_s),
            ("last", "When the last sealed message is due.", self._last_due_s),
        ):
            if due_s is not None:
                yield _gauge(f"delayline_sealed_{name}_due_timestamp_seconds", text, due_s)
        if self._shape:
            shape = self._shape
            yield _gauge("delayline_sealed_buckets", "Sealed buckets.", shape["buckets"])
            yield _gauge("delayline_sealed_segments", "Segments, whose metadata the driver holds.", shape["segments"])
            yield _gauge("delayline_sealed_bytes", "Bytes of the sealed messages, uncompressed.", shape["bytes"])
            yield _gauge("delayline_merges_running", "Merges of sealed buckets under way.", shape["merging"])
            merges = CounterMetricFamily("delayline_merges", "Merges of sealed buckets that were finished.")
            merges.add_metric([], shape["merges"])
            yield merges


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _due_before(segment: Segment, at_ms: float) -> float:
    span_ms = segment.max_deliver_at_ms + 1 - segment.min_deliver_at_ms
    return segment.count * min(1.0, max(0.0, (at_ms - segment.min_deliver_at_ms) / span_ms))


def monitored_job(counts: JobCounts, settings: Settings) -> AbstractContextManager[object]:
    """Return a context in which the job answers at `monitor.job`, if that is set. Raises SettingError."""
    health = partial(job_health, counts, settings.clock.horizon, settings.kafka.outage_limit)
    return monitored("monitor.job", settings.monitor.job, counts, health)


def job_health(
    counts: JobCounts, horizon_ms: int, outage_limit_ms: int, now_s: Callable[[], float] = time.time
) -> Health:
    """Return whether batches are done often enough.

    Without a batch for `horizon_ms` messages leave late: the job is not ready. Without one for longer than an outage
    and a replay take, it is not live.
    """
    done_s = counts.batch_done_s
    silent_s = now_s() - (counts.started_s if done_s is None else done_s)
    live = silent_s <= outage_limit_ms / 1000 + _REPLAY_S
    if done_s is None:
        return Health(live, ready=False, reasons=[f"no batch is done since the start, {silent_s:.0f} s ago"])
    ready = silent_s <= horizon_ms / 1000
    return Health(live, ready, [] if ready else [f"no batch is done for {silent_s:.0f} s"])
