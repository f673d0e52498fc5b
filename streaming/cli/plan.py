"""`delayline plan`: what a load takes."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from streaming.cli.options import ConfigFile, Overrides, duration_ms, settings_of

if TYPE_CHECKING:
    from streaming.capacity.model import Capacity

_MOST_RATE = 1e9
_LARGEST = 2**31


def plan(
    rate: Annotated[float, typer.Option("--rate", min=0, max=_MOST_RATE, help="Messages/s.", show_default=False)],
    spread: Annotated[
        str,
        typer.Option("--spread", help="Delays are spread evenly from 0 to this: 10m, 48h, 366d.", show_default=False),
    ],
    size: Annotated[
        int, typer.Option("--size", min=0, max=_LARGEST, help="Bytes of a message: value, key and headers.")
    ] = 100,
    replication: Annotated[int, typer.Option("--replication", min=1, help="Replication factor of the topics.")] = 3,
    retention: Annotated[str, typer.Option("--retention", help="How long input topics keep a record.")] = "7d",
    output_format: Annotated[
        Literal["table", "json"], typer.Option("--format", help="A table for people, or one JSON object.")
    ] = "table",
    config: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Estimate the cost of a load with these settings: storage, metadata, rewrites, files, memory, processes, restart.

    The estimate is a model with constants that were measured on two cores (docs/platform/capacity.md). It assumes that
    values do not compress. For uneven delays, give twice the mean delay as the spread.

    JSON keys: rate, spread_s, size, replication, retention_s, and the fields of the model (bytes, seconds, counts).
    """
    from streaming.capacity.model import Load, capacity_of

    settings = settings_of(config, overrides)
    spread_s, retention_s = duration_ms("--spread", spread) / 1000, duration_ms("--retention", retention) / 1000
    load = Load(rate, spread_s, size, replication, retention_s)
    capacity = capacity_of(load, settings)
    if output_format == "json":
        typer.echo(json.dumps(asdict(load) | asdict(capacity)))
        return
    for name, value in _rows(capacity):
        typer.echo(f"{name:<36}{value:>14}")


def _rows(capacity: Capacity) -> list[tuple[str, str]]:
    return [
        ("messages that wait", f"{capacity.waiting:,}"),
        ("table, live files", _size(capacity.stored)),
        ("table on disk, at the most", _size(capacity.disk)),
        ("files in the table, at the most", f"{capacity.most_files:,}"),
        ("buckets, at the most", f"{capacity.most_buckets:,}"),
        ("segments", f"{capacity.segments:,}"),
        ("segments, at the most", f"{capacity.most_segments:,}"),
        ("messages in a seal", f"{capacity.seal_messages:,}"),
        ("rewrites of a message", f"{capacity.rewrites:g}"),
        ("metadata in the driver", _size(capacity.metadata)),
        ("memory of driver and executor", _size(capacity.job_memory)),
        ("memory of a release process", _size(capacity.release_memory)),
        ("cores to take the load in", f"{capacity.cores:g}"),
        ("release processes", f"{capacity.release_processes:,}"),
        ("brokers write, all replicas", f"{_size(capacity.broker_write)}/s"),
        ("brokers store, all replicas", _size(capacity.broker_disk)),
        ("restart", f"{capacity.restart_s:g} s"),
    ]


def _size(count: float) -> str:
    """Return a number of bytes in the largest unit that fits, a power of 1024."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:,.4g} {unit}"
        count /= 1024
    return f"{count:,.4g} TiB"
