"""What `spark-submit` needs to start the job: the options that Java is started with, and a launcher."""

from __future__ import annotations

from pathlib import Path

from conf.errors import UsageError
from conf.settings import Settings
from streaming.spark.session import spark_options

PROPERTIES = "spark.properties"
LAUNCHER = "delayline_job.py"
# What must be known before the driver's Java starts. All else the job sets by itself, after its settings.
_BEFORE_THE_START = ("spark.jars", "spark.driver.")
_LAUNCHER_TEXT = '''"""The program that spark-submit starts: the `delayline` command, with its arguments."""

from streaming.cli.app import main

main()
'''


def write_submit_files(folder: Path) -> list[Path]:
    """Write Delayline's Spark options and the launcher into `folder`, and return their paths.

    Those options are Delayline's defaults: no setting of a deployment, so no secret. Raises JarsMissing, UsageError.
    """
    options = {name: value for name, value in spark_options(Settings()).items() if name.startswith(_BEFORE_THE_START)}
    texts = {
        PROPERTIES: "".join(f"{name} {_escaped(value)}\n" for name, value in sorted(options.items())),
        LAUNCHER: _LAUNCHER_TEXT,
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text)
    except OSError as problem:
        raise UsageError(f"{folder}: {problem.strerror}: name a folder that can be written") from problem
    return [folder / name for name in texts]


def _escaped(value: str) -> str:
    # Java's properties: a backslash escapes.
    return value.replace("\\", "\\\\")
