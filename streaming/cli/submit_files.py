"""`delayline submit-files`: what `spark-submit` needs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def submit_files(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write them; made if it is not there.")],
) -> None:
    """Write what `spark-submit` needs to start the job: Spark's properties and a launcher.

    Then: spark-submit --master ... --properties-file DIR/spark.properties DIR/delayline_job.py run ...
    Written for this machine's installation: its jars are named by their paths. docs/deploy.md has whole commands.
    """
    from streaming.spark.submit_files import write_submit_files

    for path in write_submit_files(folder):
        typer.echo(typer.format_filename(path))
