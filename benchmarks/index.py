"""Index: memory and times of the message-id index, compared with Pulsar's TimeBucket and a heap.

The cases are the same as in the table of Pulsar's PR 23611: 10 million ids in segments of 50,000, by the number of
messages due in each ms and the number of low bits dropped from due times.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.aims import Figures, figure, ratio
from benchmarks.index_case import (
    CONSECUTIVE,
    HEAP,
    INDEX,
    PARTITIONS,
    PLAIN,
    SEGMENT_IDS,
    SHUFFLED,
    SPARSE,
    TIME_BUCKET,
    Case,
    run,
)
from benchmarks.outcome import Aim, Outcome
from benchmarks.plots import figure_of
from benchmarks.waiting import say
from state.index.message_index import MessageIndex, index_entries

MESSAGES = 10_000_000
# Messages due in each ms, low bits dropped, and the megabytes in Pulsar's table.
SETTINGS = ((1, 10, 25.0), (4, 10, 20.5), (8, 10, 11.0), (8, 15, 2.25))
LOADS = (CONSECUTIVE, SHUFFLED, PARTITIONS, SPARSE)
LEAST_BYTES = 0.163
TIMED_LOADS, TIMED_SETTINGS = (CONSECUTIVE, PARTITIONS), (SETTINGS[0], SETTINGS[3])
# A heap gets a tenth of the ids: it takes seconds for each million. Its smaller size makes it faster, not slower.
HEAP_SHARE = 10
SEALED = 20_000
SPREADS_S = {"10 min": 600, "1 h": 3600, "48 h": 48 * 3600, "1 year": 365 * 24 * 3600}

_Figures = dict[str, dict[str, Any]]


def measure(scale: float) -> Outcome:
    """Measure memory and times of every structure, and the metadata rows of a sealed bucket."""
    count = max(4, round(MESSAGES * scale / SEGMENT_IDS)) * SEGMENT_IDS
    figures: _Figures = {load: {} for load in LOADS}
    bytes_each = _memory(count, figures)
    _times(count, figures)
    figures["metadata rows"] = _metadata_rows()
    if worst := worst_load(figures):
        load, named, megabytes = worst
        figures["worst load"] = {"case": f"{named}, {load}", "bytes_each": round(megabytes * 1e6 / count, 3)}
    series = {
        "Pulsar's table": [[megabytes * 1e6 / MESSAGES for *_, megabytes in SETTINGS]],
        **{case: [values] for case, values in bytes_each.items()},
    }
    about = f"{count:,} message ids, 50,000 to a segment"
    return Outcome("index", about, aims_of(figures, count), figures, series)


def aims_of(figures: Figures, count: int) -> list[Aim]:
    """Return the aims for `count` ids: at most Pulsar's table for its load; at most TimeBucket for the worst load."""
    table = {_named(rate, bits): megabytes * count / MESSAGES for rate, bits, megabytes in SETTINGS}
    memory_mb = {named: _memory_mb(figures, CONSECUTIVE, named, INDEX) for named in table}
    aims = [Aim(f"{named}: memory", memory_mb[named], limit_mb, "MB") for named, limit_mb in table.items()]
    densest = list(table)[-1]
    bytes_each = ratio(memory_mb[densest], count / 1e6)
    worst = worst_load(figures)
    of_rival = worst and ratio(worst[2], _memory_mb(figures, *worst[:2], TIME_BUCKET))
    return [
        *aims,
        Aim(f"{densest}: memory of a message", bytes_each, LEAST_BYTES, "bytes"),
        Aim(f"memory where the index takes most, of {TIME_BUCKET}'s there", of_rival, 1.0),
    ]


def worst_load(figures: Figures) -> tuple[str, str, float] | None:
    """Return the load and the setting for which the index takes the most memory, and that memory in MB.

    Returns None if a case was not measured: it might be the worst one.
    """
    sizes = []
    for load in LOADS:
        for rate, bits, _ in SETTINGS:
            if (size := _memory_mb(figures, load, _named(rate, bits), INDEX)) is None:
                return None
            sizes.append((load, _named(rate, bits), size))
    return max(sizes, key=lambda each: each[2])


def draw(outcome: Outcome) -> Any:
    """Draw the bytes for each message, by setting."""
    drawn, axes = figure_of(outcome)
    width = 0.8 / len(outcome.series)
    for number, (case, (values,)) in enumerate(outcome.series.items()):
        alpha = 0.2 if case.startswith(PLAIN) else 0.45 if case.startswith(TIME_BUCKET) else 1.0
        load = next((at for at, load in enumerate(LOADS) if case.endswith(load)), None)
        colour = "black" if load is None else f"C{load}"
        positions = np.arange(len(values)) + (number - len(outcome.series) / 2) * width
        axes.bar(positions, values, width, color=colour, alpha=alpha, label=case)
    largest = max(max(values) for (values,) in outcome.series.values())
    # Leaves space for the legend.
    axes.set(yscale="log", ylim=(None, 30 * largest), ylabel="bytes of memory a message")
    axes.set_xlabel("(messages due in each ms, bits trimmed)")
    axes.set_xticks(range(len(SETTINGS)), [_named(rate, bits) for rate, bits, _ in SETTINGS])
    axes.legend(fontsize=6, ncols=2)
    return drawn


def _memory(count: int, figures: _Figures) -> dict[str, list[float]]:
    """Add the memory to `figures`; return the bytes for each message by structure and load, one for each setting."""
    bytes_each: dict[str, list[float]] = {}
    for load in LOADS:
        # TimeBucket without runs only repeats Pulsar's table: in that load the offsets of a time slot are consecutive.
        for structure in (INDEX, TIME_BUCKET, *([PLAIN] if load == CONSECUTIVE else [])):
            say(f"index: memory of {structure}, {load}")
            for rate, bits, _ in SETTINGS:
                measured = run(Case(structure, load, rate, bits, count), "memory")
                row = f"{_named(rate, bits)} {structure}"
                figures[load][f"{row}, memory_mb"] = round(measured["memory_bytes"] / 1e6, 3)
                figures[load][f"{row}, content_mb"] = round(measured["content_bytes"] / 1e6, 3)
                bytes_each.setdefault(f"{structure}, {load}", []).append(round(measured["memory_bytes"] / count, 4))
    heap, share = run(Case(HEAP, SHUFFLED, 1, 0, _heap_ids(count)), "memory"), count / _heap_ids(count)
    # `packed`: 24 bytes for each id, as in Pulsar. `memory`: the size of Python's heap of tuples.
    figures[SHUFFLED][f"{HEAP}, packed_mb"] = round(heap["content_bytes"] * share / 1e6, 2)
    figures[SHUFFLED][f"{HEAP}, memory_mb"] = round(heap["memory_bytes"] * share / 1e6, 2)
    return bytes_each


def _times(count: int, figures: _Figures) -> None:
    """Add the times to `figures`, and the ratio of the index's times to the heap's."""
    for load in TIMED_LOADS:
        say(f"index: times, {load}")
        heap = run(Case(HEAP, load, 1, 0, _heap_ids(count)), "times")
        figures[load] |= {f"{HEAP}, {name}": round(value, 2) for name, value in heap.items()}
        for rate, bits, _ in TIMED_SETTINGS:
            for structure in (INDEX, TIME_BUCKET):
                measured = run(Case(structure, load, rate, bits, count), "times")
                row = f"{_named(rate, bits)} {structure}"
                figures[load] |= {f"{row}, {name}": round(value, 2) for name, value in measured.items()}
                if structure == INDEX:
                    figures[load] |= {f"{row}, {name}_of_heap": _share(measured[name], heap[name]) for name in heap}


def _metadata_rows() -> dict[str, Any]:
    """Measure a bucket's metadata rows: uncompressed bytes for each message, and the time to build and read them."""
    figures: dict[str, Any] = {}
    for spread, seconds in SPREADS_S.items():
        for bits in (10, 15):
            bucket = _sealed(seconds * 1000)
            begun = time.process_time()
            entries: list[Any] = index_entries(bucket, bits)
            made, index = time.process_time(), MessageIndex(bits)
            index.add_entries(entries, bits)
            assert len(index) == SEALED
            read = time.process_time()
            # Besides the bitmap: time slot and count, 8 bytes each; partition, 4 bytes; topics are dictionary-encoded.
            size = sum(len(entry["offsets"]) + 20 for entry in entries)
            figures[f"{spread}, {bits} bits, bytes_each"] = round(size / SEALED, 2)
            figures[f"{spread}, {bits} bits, make_ns"] = round((made - begun) / SEALED * 1e9)
            figures[f"{spread}, {bits} bits, read_ns"] = round((read - made) / SEALED * 1e9)
    return figures


def _sealed(span_ms: int) -> pa.Table:
    """Return the ids of a bucket of the default size, from two partitions, with random due times within `span_ms`."""
    random = np.random.default_rng(1)
    number = random.permutation(SEALED)
    return pa.table(
        {
            "deliver_at_ms": np.sort(random.integers(0, span_ms, SEALED)),
            "topic": pa.array(["in"] * SEALED),
            "partition": pa.array(number % 2, pa.int32()),
            "offset": number // 2,
        }
    )


def _heap_ids(count: int) -> int:
    """Return the number of ids for a heap, given `count`: whole segments, at least one."""
    return max(1, count // HEAP_SHARE // SEGMENT_IDS) * SEGMENT_IDS


def _memory_mb(figures: Figures, load: str, named: str, structure: str) -> float | None:
    return figure(figures, load, f"{named} {structure}, memory_mb")


def _named(rate: int, bits: int) -> str:
    return f"({rate}, {bits})"


def _share(value: float, of: float) -> float:
    return float(f"{value / of:.3g}")
