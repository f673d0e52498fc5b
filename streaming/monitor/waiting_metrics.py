"""The metrics of what waits in the job's state and in its table, and of the maintenance of the table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from state.buckets.catalog import metadata_bytes
from streaming.monitor.estimate import WaitingEstimate
from streaming.monitor.table_state import StepFailures, TableState

# Spans from now on, by their ends in seconds: what is due within one is due within the longer ones too.
WITHIN_S = {
    "1m": 60, "10m": 600, "1h": 3_600, "6h": 21_600, "1d": 86_400, "7d": 604_800, "30d": 2_592_000, "90d": 7_776_000,
    "366d": 31_622_400,
}  # fmt: skip


def waiting_metrics(
    table: TableState, all_waiting: WaitingEstimate, knows_mutable: bool, now_s: float
) -> Iterable[Metric]:
    """Yield the metrics of now (epoch s). `knows_mutable` says whether it is known what all mutable buckets hold."""
    yield gauge("delayline_sealed_buckets", "Sealed buckets.", table.buckets)
    yield gauge("delayline_sealed_segments", "Segments of sealed buckets.", len(table.segments))
    yield gauge("delayline_metadata_bytes", "Memory of segment metadata in the driver.", metadata_bytes(table.segments))
    yield gauge(
        "delayline_sealed_bytes",
        "Bytes of the sealed messages, uncompressed, approximately.",
        all_waiting.sealed_bytes,
    )
    if table.size is not None:
        size, files = table.size
        yield gauge("delayline_table_bytes", "Bytes of the table's files, without replaced ones.", size)
        yield gauge("delayline_table_files", "Files of the table, without replaced ones.", files)
    yield gauge("delayline_merges_running", "Running merges of sealed buckets.", table.merges.running)
    yield CounterMetricFamily("delayline_merges", "Finished merges of sealed buckets.", table.merges.finished)
    yield CounterMetricFamily("delayline_merging_seconds", "Duration of finished merges.", table.merges.seconds)
    yield from _failures(table.failures)
    waiting = GaugeMetricFamily(
        "delayline_waiting_messages", "Waiting messages that are not staged, approximately.", labels=["place"]
    )
    waiting.add_metric(["sealed"], all_waiting.sealed)
    repeating = all_waiting.repeating
    yield gauge("delayline_repeating_messages", "Waiting messages that repeat, approximately.", repeating)
    if knows_mutable:
        waiting.add_metric(["mutable"], all_waiting.mutable)
        yield from _when_due(all_waiting, now_s)
    yield waiting


def _when_due(waiting: WaitingEstimate, now_s: float) -> Iterable[Metric]:
    due = GaugeMetricFamily(
        "delayline_due_messages",
        "Waiting messages that are not staged and are due within a span from now, approximately.",
        labels=["within"],
    )
    for name, span_s in WITHIN_S.items():
        due.add_metric([name], waiting.due_before(int((now_s + span_s) * 1000)))
    yield due
    if waiting.next_due_ms is not None:
        yield gauge(
            "delayline_next_due_timestamp_seconds",
            "Due time of the first waiting message that is not staged.",
            waiting.next_due_ms / 1000,
        )
    if waiting.last_due_ms is not None:
        yield gauge(
            "delayline_last_due_timestamp_seconds",
            "Due time of the last waiting message that is not staged.",
            waiting.last_due_ms / 1000,
        )


def _failures(by_step: Mapping[str, StepFailures]) -> Iterable[Metric]:
    failed = CounterMetricFamily(
        "delayline_maintenance_failures", "Failed steps of the maintenance of the table.", labels=["step"]
    )
    aside = GaugeMetricFamily(
        "delayline_maintenance_set_aside",
        "Parts of its work, such as buckets, that the step has set aside after a failure.",
        labels=["step"],
    )
    for step, failures in by_step.items():
        failed.add_metric([step], failures.failed)
        aside.add_metric([step], failures.set_aside)
    yield from (failed, aside)


def gauge(name: str, text: str, value: float) -> Metric:
    """Return a gauge with one value."""
    return GaugeMetricFamily(name, text, value=value)
