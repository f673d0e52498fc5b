"""`delayline topics`: create and show the topics that a job needs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from streaming.cli.options import ConfigFile, Overrides, RecordFormat, settings_of

if TYPE_CHECKING:
    from sinks.topics.topics import TopicReport

_DEFAULT_PARTITIONS = 4

topics_app = typer.Typer(
    rich_markup_mode="markdown", no_args_is_help=True, help="Create or show the topics that the job needs."
)


@topics_app.command()
def create(
    partitions: Annotated[
        int, typer.Option(min=1, help="Number of partitions of new input, output, dead-letter and results topics.")
    ] = _DEFAULT_PARTITIONS,
    replication: Annotated[
        int | None, typer.Option(min=1, help="Replication factor.", show_default="the broker's default")
    ] = None,
    output_format: RecordFormat = "table",
    config: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Create the missing topics. Existing topics are not changed.

    The topics are: the input, output, dead-letter and results topics; the exact names on the allow-list; and seven
    internal topics: progress, ready, position and near (one partition for each shard), claims and recalled (one more),
    and lease (one partition).
    """
    from sinks.topics.roles import BROKER_DEFAULT
    from sinks.topics.topics import ensure_topics

    settings = settings_of(config, overrides)
    _print(ensure_topics(settings, partitions, replication or BROKER_DEFAULT), output_format)


@topics_app.command()
def show(output_format: RecordFormat = "table", config: ConfigFile = None, overrides: Overrides = None) -> None:
    """Show which of the needed topics exist, and how many partitions each has.

    Exit code 1 if a topic is missing, or if an internal topic has a wrong form: fewer partitions than there are shards;
    another cleanup.policy than compact (progress, position, lease, recalled) or delete (ready, near, claims); a limited
    retention (ready, near, claims); timestamps that are not the broker's (lease, claims).
    """
    from sinks.topics.topics import check_topics, show_topics

    settings = settings_of(config, overrides)
    _print(show_topics(settings), output_format)
    check_topics(settings, all_outputs=True)


def _print(reports: Sequence[TopicReport], output_format: str) -> None:
    if output_format == "json":
        for report in reports:
            typer.echo(json.dumps(asdict(report)))
        return
    width = max(len(report.name) for report in reports)
    for report in reports:
        typer.echo(f"{report.name:{width}}  {report.role:11}  {report.partitions:4} partitions  {report.state}")
