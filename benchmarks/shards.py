"""Shards: the cost of a batch of 64 shards, compared with 2 shards, on a cluster with two workers on two hosts.

Each shard gets messages in every batch, and no forwarder takes them. A job must not open its writers again from batch
to batch, nor start a daemon of Python workers for each shard, and its tasks must be on both workers.
"""

from __future__ import annotations

import re
from typing import Any

from benchmarks.aims import Figures, fault_aims, figure
from benchmarks.cluster import Cluster
from benchmarks.outcome import Aim, Outcome
from benchmarks.plain import FAULTS_OF_PLAIN
from benchmarks.plots import lateness_figure
from benchmarks.stand import Stand
from benchmarks.traffic import Traffic, curve, run_through

FEW, MANY = "2 shards", "64 shards"
_SHARDS = {FEW: 2, MANY: 64}
RATE = 1_000
LOAD_S, WARM_UP_S = 60.0, 60.0
# Enough that each of 64 shards owns some.
_OUTPUT_PARTITIONS = 128
_MOST_DAEMONS = 1
_MOST_OPENED = 0.02
_LEAST_SHARE = 0.25
_MOST_STEPS_S = 1.0
_OPENED_LINE = re.compile(r"opened writers for shards \[(?P<shards>[\d, ]*)\]")
_BATCH_LINE = re.compile(r"batch \d+: staged messages")


def measure(stand: Stand, scale: float) -> Outcome:
    """Send plain messages through a job with two shards, and then through one with 64."""
    traffic = Traffic(RATE, 0.0, 0.0, max(30.0, WARM_UP_S * scale), max(20.0, LOAD_S * scale))
    figures, series = {}, {}
    cluster = Cluster(stand.folder)
    try:
        cluster.start()
        for case in _SHARDS:
            figures[case], series[case] = _measured(stand, cluster, case, traffic)
    finally:
        cluster.stop()
    return Outcome("shards", f"{traffic}, two workers", aims_of(figures), figures, series)


def aims_of(figures: Figures) -> list[Aim]:
    """Return the aims of the job with many shards, and no fault in either."""
    return [
        Aim("steps of a batch, p50 in s", figure(figures, MANY, "batch_steps_p50_s"), _MOST_STEPS_S),
        Aim("daemons of Python workers on a worker", figure(figures, MANY, "daemons"), _MOST_DAEMONS),
        Aim("hand-overs that opened a writer, second half", figure(figures, MANY, "opened"), _MOST_OPENED),
        Aim(
            "connections to the broker, of the worker with fewer",
            figure(figures, MANY, "least"),
            _LEAST_SHARE,
            at_least=True,
        ),
        *(aim for case in _SHARDS for aim in fault_aims(figures, case, names=FAULTS_OF_PLAIN)),
    ]


def draw(outcome: Outcome) -> Any:
    """Draw the share of messages that came within a time."""
    return lateness_figure(outcome, 1_000, "a second")


def opened_share(log: str, shards: int) -> float | None:
    """Return the share of a job's hand-overs that opened a writer, in the second half of the batches of its log.

    Each batch is assumed to stage messages of all `shards`. Returns None without batches.
    """
    opened, of_batches = 0, []
    for line in log.splitlines():
        if match := _OPENED_LINE.search(line):
            opened += len(match["shards"].split(","))
        elif _BATCH_LINE.search(line):
            of_batches.append(opened)
            opened = 0
    half = of_batches[len(of_batches) // 2 :]
    return round(sum(half) / (len(half) * shards), 4) if half else None


def _measured(stand: Stand, cluster: Cluster, case: str, traffic: Traffic) -> tuple[dict[str, Any], list[list[float]]]:
    shards = _SHARDS[case]
    application = stand.application(
        f"shards-{shards}",
        f"bucket.shards={shards}",
        "forward.processes=0",
        f"spark.spark.master={cluster.url}",
        "spark.spark.driver.host=127.0.0.1",
        "spark.spark.executor.cores=1",
        "spark.spark.cores.max=2",
        "spark.spark.executor.memory=1g",
        output_partitions=_OUTPUT_PARTITIONS,
    )
    job = stand.job(application)
    lateness_ms, measured = run_through(stand, application, job, traffic)
    broker_port = int(stand.bootstrap.rpartition(":")[2])
    connections = [cluster.connections(worker, broker_port) for worker in cluster.workers]
    figures = {
        **measured,
        "opened": opened_share(job.log, shards),
        "daemons": max(cluster.daemons(worker) for worker in cluster.workers),
        "connections": sum(connections),
        "least": round(min(connections) / max(1, sum(connections)), 2),
    }
    job.stop()
    return figures, curve(lateness_ms)
