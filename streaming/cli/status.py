"""`delayline status`: show the waiting messages and the job's progress."""

from __future__ import annotations

import json
import sys
import time
from typing import Annotated, Literal

import typer

from streaming.cli.options import ConfigFile, Overrides, settings_of


def status(
    output_format: Annotated[
        Literal["table", "json"], typer.Option("--format", help="Tables for people, or one JSON object.")
    ] = "table",
    exact: Annotated[
        bool, typer.Option("--exact", help="Read the checkpoint and the table, even if the running job could answer.")
    ] = False,
    config: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Show how many messages wait, when they are due, the job's last batch, and its input lag.

    Works while the job runs and while it is down; changes nothing. With monitor.job set, the running job answers.
    Otherwise, or with --exact, the command reads the checkpoint and the table, and takes several seconds, because it
    starts Spark. Call it with the job's settings: it finds the checkpoint by storage.path. See docs/operate/status.md.

    JSON keys: read_from (job or storage), checkpoint, now_ms, committed_batch, planned_batch (batch_id, clock_ms,
    age_ms, cutoff_ms; or null), waiting (total, ready, mutable, sealed, merged, mutable_bytes, sealed_bytes),
    next_due_ms, shards (shard, ready, mutable, sealed, next_due_ms), sealed (buckets, segments), merges (running,
    finished, seconds, last: at_ms, took_ms, buckets; or null if the job did not answer), due (messages by time to the
    due time: overdue, 10s, 1m, 10m, 1h, 6h, 1d, 7d, 30d, 90d, 366d, later), due_is_estimated, input_lag (total, held,
    partitions; or null if Kafka does not answer), holder (of the lease: host, pid, command, since_ms; or null),
    release (processes: name, host, shards; shards: shard, ready, member, at_ms, lateness of the last minute; or null),
    forward (processes: name, host, lanes; lanes: lane, owner of the newest claim, undecided: records that no claim
    has decided; or null).
    """
    from conf.printable import printable
    from streaming.status.formats import as_json, as_lines
    from streaming.status.running import status_of_job

    settings = settings_of(config, overrides)
    current = None if exact else status_of_job(settings)
    if current is None:
        from streaming.status.read import read_status

        if sys.stderr.isatty():
            typer.echo("reading the checkpoint...", err=True)
        current = read_status(settings, clock_ms=lambda: time.time_ns() // 1_000_000)
    if output_format == "json":
        typer.echo(json.dumps(as_json(current)))
        return
    for line in as_lines(current):
        typer.echo(printable(line))
