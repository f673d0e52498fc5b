"""Writes the files that `spark-submit` needs to start the job: Java's start options, and a launcher."""

from __future__ import annotations

from pathlib import Path

from conf.errors import UsageError
from conf.java.jars.installed import S3, is_complete, s3_jars
from conf.settings import Settings
from streaming.spark.options import spark_options

PROPERTIES = "spark.properties"
LAUNCHER = "delayline_job.py"
# Options that must be known before the driver's Java starts. The job sets all others itself, from its settings.
_BEFORE_START = ("spark.jars", "spark.driver.")
_LAUNCHER_TEXT = '''"""The program that spark-submit starts: the `delayline` command, with its arguments."""

from streaming.cli.app import main

main()
'''


def write_submit_files(folder: Path) -> list[Path]:
    """Write Delayline's Spark options and the launcher into `folder`, and return their paths.

    The options are Delayline's defaults. They contain no setting of a deployment, and so no secret. The jars include
    those for S3 if these are fetched. Raises JarsMissing, UsageError.
    """
    options = {name: value for name, value in spark_options(Settings()).items() if name.startswith(_BEFORE_START)}
    if is_complete(S3):
        options["spark.jars"] = ",".join([options["spark.jars"], *map(str, s3_jars())])
    texts = {
        PROPERTIES: "".join(f"{name} {_escaped(value)}\n" for name, value in sorted(options.items())),
        LAUNCHER: _LAUNCHER_TEXT,
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text)
    except OSError as problem:
        raise UsageError(f"{folder}: {problem.strerror}. Name a writable folder") from problem
    return [folder / name for name in texts]


def _escaped(value: str) -> str:
    # In Java properties a backslash is the escape character.
    return value.replace("\\", "\\\\")
