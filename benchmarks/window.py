"""Window: the bytes that the prefetch window reads from the table, compared with the bytes of the messages it needs.

The messages of each bucket are due evenly over a year. In one case the table has the most buckets that may wait
unmerged. In the other case its buckets are merged.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from benchmarks.aims import Figures, figure, ratio
from benchmarks.outcome import Aim, Outcome
from benchmarks.plots import figure_of
from benchmarks.sealed_table import SealedTable, sealed_table
from benchmarks.waiting import say, wait_until
from conf.load import load_settings
from state.buckets.catalog import SegmentCatalog
from state.buckets.reach import Reach
from streaming.job.sealed.prefetch_window import PrefetchWindow
from streaming.maintenance.maintenance import Maintenance, TableContents
from streaming.maintenance.merge_plan import MergeRules

MESSAGES, SEALED_AT_ONCE = 10_000_000, 200_000
SEALED, MERGED = "unmerged buckets", "merged buckets"
OF_OWN = 3.0
_HOUR_MS = 3_600_000
_YEAR_MS = 366 * 24 * _HOUR_MS
_HOURS = 72
_TIMEOUT_S = 1800.0


def measure(scale: float) -> Outcome:
    """Load three days of both tables, hour by hour."""
    count = max(2 * SEALED_AT_ONCE, int(MESSAGES * scale))
    fan_in = load_settings(None, [], environ={}).bucket.fan_in
    figures: dict[str, dict[str, Any]] = {}
    for case, buckets in ((SEALED, fan_in - 1), (MERGED, count // SEALED_AT_ONCE)):
        with sealed_table() as table:
            figures[case] = _case(table, case, buckets, fan_in)
    series = {case: [[of_case["bytes_read"], of_case["own_bytes"]]] for case, of_case in figures.items()}
    return Outcome("window", f"{_HOURS} hours of messages that are due over a year", aims_of(figures), figures, series)


def aims_of(figures: Figures) -> list[Aim]:
    """Return the aims: little is read in addition to the needed messages, and all needed messages are read."""
    return [
        *(
            Aim(
                f"bytes read, of those of the messages loaded, {case}",
                ratio(figure(figures, case, "bytes_read"), figure(figures, case, "own_bytes")),
                OF_OWN,
            )
            for case in (SEALED, MERGED)
        ),
        *(Aim(f"messages missing, {case}", figure(figures, case, "missing"), 0) for case in (SEALED, MERGED)),
    ]


def draw(outcome: Outcome) -> Any:
    """Draw the bytes read next to the bytes of the messages, by case."""
    drawn, axes = figure_of(outcome)
    for number, (case, (sizes,)) in enumerate(outcome.series.items()):
        axes.bar([2.5 * number, 2.5 * number + 1], np.array(sizes) / 2**20, label=f"{case}: read, own")
    axes.set(ylabel="MB", xticks=[])
    axes.legend()
    return drawn


def _case(table: SealedTable, case: str, buckets: int, fan_in: int) -> dict[str, Any]:
    say(f"{case}: sealing {buckets} buckets of {SEALED_AT_ONCE:,} messages")
    chance = np.random.default_rng(1)
    catalog = SegmentCatalog()
    merging = Maintenance(table.store, catalog, TableContents(), MergeRules(table.batch_settings, 1, fan_in))
    dues = [np.sort(chance.integers(0, _YEAR_MS, SEALED_AT_ONCE)) for _ in range(buckets)]
    for number, deliver_at_ms in enumerate(dues):
        segments = table.seal(number, deliver_at_ms)
        catalog.add(segments)
        merging.sealed(segments)
        if case == MERGED:
            wait_until(lambda: _is_idle(merging, buckets), _TIMEOUT_S, "the merges", lambda: None)
    merging.close()
    say(f"{case}: {len(catalog.buckets)} buckets, {len(catalog)} segments; loading")
    live = {file["path"] for file in table.store.files()}
    stored = sum((table.folder / path).stat().st_size for path in live if "chunks-" in path)
    read, loaded = _load(table, catalog)
    own = sum(int(np.searchsorted(each, _HOURS * _HOUR_MS)) for each in dues)
    return {
        "messages": buckets * SEALED_AT_ONCE,
        "buckets": len(catalog.buckets),
        "stored_bytes_per_message": round(stored / (buckets * SEALED_AT_ONCE), 1),
        "messages_loaded": loaded,
        "missing": max(0, own - loaded),
        "bytes_read": read,
        "own_bytes": round(loaded * stored / (buckets * SEALED_AT_ONCE)),
    }


def _is_idle(merging: Maintenance, last_bucket: int) -> bool:
    merging.before_batch(last_bucket, 0)
    return not merging.busy


def _load(table: SealedTable, catalog: SegmentCatalog) -> tuple[int, int]:
    """Load the first hours; return the bytes that Spark read from files, and the messages that were loaded."""
    counts = _Counts()
    logger = logging.getLogger("streaming.job.sealed.piece")
    logger.addHandler(counts)
    logger.setLevel(logging.INFO)
    settings = load_settings(None, [], environ={})
    before = _bytes_read(table)
    window = PrefetchWindow(
        table.store,
        Reach(catalog, settings.clock.horizon, settings.window.max_bytes),
        0,
        [],
        settings.bucket.shards,
    )
    for hour in range(_HOURS):
        window.take(hour * _HOUR_MS, (hour + 1) * _HOUR_MS)
        window.advance((hour + 1) * _HOUR_MS)
    # Waits for messages that are still loading: they were read as well.
    window.take(_HOURS * _HOUR_MS, _HOURS * _HOUR_MS + 1)
    window.close()
    logger.removeHandler(counts)
    return _bytes_read(table) - before, counts.total


def _bytes_read(table: SealedTable) -> int:
    store = table.store.spark.sparkContext._jsc.sc().statusStore()
    executors = store.executorList(True)
    return sum(int(executors.apply(at).totalInputBytes()) for at in range(executors.size()))


class _Counts(logging.Handler):
    """Adds up the messages that the window's log lines name."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg.startswith("loaded ") and isinstance(record.args, tuple):
            self.total += int(str(record.args[0]))
