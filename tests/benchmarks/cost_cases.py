"""The cases of benchmarks that count what a part costs: memory, bytes and CPU."""

from __future__ import annotations

from benchmarks import commits, idle, ids, index, plain, planning, shards, watched, window
from tests.benchmarks.aim_case import Case, faults

WORST = "memory where the index takes most, of TimeBucket's there"


def index_figures() -> dict[str, dict[str, float]]:
    """Return megabytes that just meet the aims for 10 million ids; (1, 10) of the sparse load is the worst."""
    figures: dict[str, dict[str, float]] = {load: {} for load in index.LOADS}
    for rate, bits, megabytes in index.SETTINGS:
        worst_mb = {index.CONSECUTIVE: min(megabytes, 1.63), index.SPARSE: 30.0 + (bits == 10 and rate == 1)}
        for load in index.LOADS:
            figures[load][f"({rate}, {bits}) {index.INDEX}, memory_mb"] = worst_mb.get(load, 10.0)
            figures[load][f"({rate}, {bits}) {index.TIME_BUCKET}, memory_mb"] = 31.0
    return figures


WINDOWS = (window.SEALED, window.MERGED)
COST_CASES = {
    "ids": Case(
        ids.aims_of,
        {ids.BUILD: {"bytes_each": 13, "memory_mb": 200}, ids.BY_NAME: {"bytes_each": 60, "memory_mb": 200}},
        {
            "bytes on disk for a sealed message": (ids.BUILD, "bytes_each", 13.1),
            "memory that the copy of sealed ids takes": (ids.BUILD, "memory_mb", 201),
            "bytes on disk for a name": (ids.BY_NAME, "bytes_each", 61),
            "memory that names take": (ids.BY_NAME, "memory_mb", 201),
        },
    ),
    "commits": Case(
        commits.aims_of,
        {commits.CLEANED: {"first_p50_ms": 100.0, "last_p50_ms": 120.0}},
        {"p50 of a seal after a week, of that at its beginning": (commits.CLEANED, "last_p50_ms", 120.1)},
    ),
    "planning": Case(
        planning.aims_of,
        {planning.NEAR: {"cpu": 0.02}, planning.MINUTE: {"cpu": 0.04}, planning.FAR: {"cpu": 0.04}},
        {
            f"CPU, {planning.MINUTE}, of that {planning.NEAR}": (planning.MINUTE, "cpu", 0.041),
            f"CPU, {planning.FAR}, of that {planning.NEAR}": (planning.FAR, "cpu", 0.041),
        },
    ),
    "window": Case(
        window.aims_of,
        {case: {"bytes_read": 300, "own_bytes": 100, "missing": 0} for case in WINDOWS},
        {
            **{f"bytes read, of those of the messages loaded, {case}": (case, "bytes_read", 301) for case in WINDOWS},
            **{f"messages missing, {case}": (case, "missing", 1) for case in WINDOWS},
        },
    ),
    "idle": Case(
        idle.aims_of,
        {idle.DEFAULT: {"cpu_job": 0.1}, idle.OFTEN: {"p50_s": 0.45}},
        {
            "cores of all processes, default settings": (idle.DEFAULT, "cpu_job", 0.101),
            "p50 from one batch's commit to the next, as often as it can": (idle.OFTEN, "p50_s", 0.451),
        },
    ),
    "watched": Case(
        watched.aims_of,
        {watched.CASE: {"share": 0.02}},
        {"CPU of page and metrics, of the job's": (watched.CASE, "share", 0.0201)},
    ),
    "shards": Case(
        shards.aims_of,
        {
            shards.FEW: dict.fromkeys(plain.FAULTS_OF_PLAIN, 0),
            shards.MANY: {
                "batch_steps_p50_s": 1.0,
                "daemons": 1,
                "opened": 0.02,
                "least": 0.25,
                **dict.fromkeys(plain.FAULTS_OF_PLAIN, 0),
            },
        },
        {
            "steps of a batch, p50 in s": (shards.MANY, "batch_steps_p50_s", 1.1),
            "daemons of Python workers on a worker": (shards.MANY, "daemons", 2),
            "hand-overs that opened a writer, second half": (shards.MANY, "opened", 0.03),
            "connections to the broker, of the worker with fewer": (shards.MANY, "least", 0.24),
        }
        | faults(shards.FEW, plain.FAULTS_OF_PLAIN)
        | faults(shards.MANY, plain.FAULTS_OF_PLAIN),
    ),
    "index": Case(
        lambda figures: index.aims_of(figures, index.MESSAGES),
        index_figures(),
        {
            f"({rate}, {bits}): memory": (index.CONSECUTIVE, f"({rate}, {bits}) index, memory_mb", megabytes + 0.01)
            for rate, bits, megabytes in index.SETTINGS
        }
        | {
            "(8, 15): memory of a message": (index.CONSECUTIVE, "(8, 15) index, memory_mb", 1.64),
            WORST: (index.SPARSE, "(1, 10) index, memory_mb", 31.1),
        },
    ),
}
