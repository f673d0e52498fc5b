"""`delayline submit-files`: write the files that `spark-submit` needs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def submit_files(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for the files; created if it does not exist.")],
) -> None:
    """Write the files that `spark-submit` needs to start the job: Spark properties and a launcher.

    Then: spark-submit --master ... --properties-file DIR/spark.properties DIR/delayline_job.py run ...
    The files are valid for this installation only: they name its jars by path.
    docs/platform/standalone.md has complete commands.
    """
    from streaming.spark.submit_files import write_submit_files

    for path in write_submit_files(folder):
        typer.echo(typer.format_filename(path))
