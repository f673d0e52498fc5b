"""The Spark session that Delayline runs in."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from conf.failpoints import ROOT_VARIABLE
from conf.java.cds_archive import cds_options
from conf.java.jars import JAVA_FILES, spark_jars
from conf.logs import LEVEL_VARIABLE, level_now
from conf.secrets import SECRET_PATTERN, is_secret
from conf.settings import Settings
from streaming.spark.start_failure import start_failure
from streaming.spark.startup_noise import startup_noise_dropped
from streaming.storage.paths import local_folder, storage_path

_LOG_CONFIG = JAVA_FILES / "log4j2.properties"

_POOL = "DELAYLINE_WORKER_POOL"
_environment_lock = threading.Lock()

# Java's second compiler takes most of two cores just when a job starts or comes back. It gets what has run twenty times
# as often as by default: what every batch does again.
_TIMES_LATER = 20
_TIER_4 = {
    "InvocationThreshold": 5_000,
    "MinInvocationThreshold": 600,
    "CompileThreshold": 15_000,
    "BackEdgeThreshold": 40_000,
}
# So more code of the first compiler stays, and for that there must be room: 60 MB of it are there after 80 s. Java's
# own limit is 240 MB, and 48 where a deployment leaves the second compiler out; when it is full, Spark's threads end.
_COMPILERS = " ".join(
    [
        *(f"-XX:Tier4{name}={_TIMES_LATER * default}" for name, default in _TIER_4.items()),
        "-XX:ReservedCodeCacheSize=480m",
    ]
)

# Java's own options, and what is fetched before there is a connection to it.
_NEEDED_BY_LAUNCHER = ("spark.driver.", "spark.jars")


def spark_options(settings: Settings) -> dict[str, str]:
    """Return the session's options: Delayline's own, and over them those of the `[spark]` section."""
    return {
        "spark.app.name": settings.application_id,
        "spark.master": "local[2,4]",
        # `spark.jars.packages` would put each jar on the path of every Python worker.
        "spark.jars": ",".join(str(jar) for jar in spark_jars()),
        "spark.python.daemon.module": "streaming.spark.worker_daemon",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.streaming.minBatchesToRetain": "10",
        "spark.sql.shuffle.partitions": str(settings.bucket.shards),
        # By pools: the upkeep's tasks wait for those of a batch, whichever were there first.
        "spark.scheduler.mode": "FAIR",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
        "spark.sql.execution.arrow.maxBytesPerBatch": str(32 * 1024 * 1024),
        # Stored chunks are large rows: a reader takes few at a time, and skips row groups of about eight.
        "spark.sql.parquet.columnarReaderBatchSize": "64",
        "spark.hadoop.parquet.block.size": str(1024 * 1024),
        "spark.hadoop.parquet.page.size.row.check.min": "1",
        "spark.hadoop.parquet.enable.dictionary": "false",
        # A byte that has changed in storage would be delivered; the checksums of pages are written by default.
        "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
        # An hour, as the bucket table says; the job is the only writer, so that nothing of it can be in flight so long.
        "spark.databricks.delta.retentionDurationCheck.enabled": "false",
        "spark.databricks.delta.snapshotPartitions": "2",
        # A vacuum divides what it lists into so many tasks: by default 10,000, minutes for a few files.
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
        "spark.driver.memory": "2g",
        # Not extraJavaOptions, which a deployment may need for its own.
        "spark.driver.defaultJavaOptions": " ".join(
            [f'"-Dlog4j2.configurationFile={_LOG_CONFIG}"', _COMPILERS, cds_options()]
        ),
        "spark.executor.defaultJavaOptions": _COMPILERS,
        **_file_systems(settings),
        "spark.sql.warehouse.dir": tempfile.gettempdir(),
        # Where Spark shows options (its web pages, event logs, plans): Spark's own pattern knows fewer names.
        "spark.redaction.regex": SECRET_PATTERN,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    } | settings.spark.options


def _file_systems(settings: Settings) -> dict[str, str]:
    """Let Spark handle local files inside the JVM, and a checkpoint that is local too.

    Hadoop's own class starts a `chmod` or `stat` process for each file where libhadoop is not installed: 80 a batch
    and more than half of an idle one's time. Elsewhere Spark's own choice of a manager for checkpoints stands, since
    on HDFS that one renames a file in the place of another at once.
    """
    options = {
        # The class is needed before Spark has read `spark.jars`. Of the others, those here are in the class archive.
        "spark.driver.extraClassPath": ":".join(str(jar) for jar in spark_jars()),
        "spark.hadoop.fs.file.impl": "com.globalmentor.apache.hadoop.fs.BareLocalFileSystem",
    }
    if local_folder(storage_path(settings)) is not None:
        options["spark.sql.streaming.checkpointFileManagerClass"] = (
            "org.apache.spark.sql.execution.streaming.FileSystemBasedCheckpointFileManager"
        )
    return options


def open_session(settings: Settings, options: Mapping[str, str] | None = None) -> SparkSession:
    """Start Spark. `options` go over all others but those that `spark-submit` was given, where it started the job.

    Ctrl-C stays with whoever handled it before. Raises JavaMissing, and SettingError for options that Spark or Java
    does not start with.
    """
    _silence_py4j()
    # Whatever Spark starts is of this process tree.
    os.environ.setdefault(ROOT_VARIABLE, str(os.getpid()))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    given = {**spark_options(settings), **(options or {})}
    try:
        # Spark 4.0 makes a folder `artifacts` where its JVM was started, whatever java.io.tmpdir says.
        with contextlib.chdir(tempfile.gettempdir()), startup_noise_dropped() as java_said:
            _launch_java(given)
            spark = _build(given)
    except (Py4JError, PySparkException) as problem:
        # Without its cause, which may have secrets of the options in its text.
        raise start_failure(problem, given, java_said) from None
    spark.sparkContext.setLogLevel("ERROR")
    spark.sparkContext.environment[LEVEL_VARIABLE] = level_now()
    return spark


def _build(options: Mapping[str, str]) -> SparkSession:
    submitted = _submitted()
    own = {name: value for name, value in options.items() if name not in submitted}
    with _interrupt_handler_kept():
        SparkContext.getOrCreate(SparkConf().setAll(list(own.items())))
    spark = SparkSession.builder.config(map=dict(own)).getOrCreate()
    # Makes the session's state, and that the options of Spark SQL are looked at.
    _ = spark.conf.get("spark.sql.shuffle.partitions")
    return spark


@contextlib.contextmanager
def _interrupt_handler_kept() -> Iterator[None]:
    """Put the handler of SIGINT back that a SparkContext replaces, as its last step, when the main thread makes it.

    Its own cancels the running batch, and ends the process wherever that is.
    """
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


def _silence_py4j() -> None:
    """Leave what it has to say to its exceptions, which are told once; Ctrl-C in a call it logs to the root logger."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_is_no_interruption)
    # After an interruption Spark may not hear that it is to stop; Java ends with this process in any case.
    warnings.filterwarnings("ignore", "Unable to cleanly shutdown Spark JVM", RuntimeWarning)


def _is_no_interruption(record: logging.LogRecord) -> bool:
    return record.msg != "KeyboardInterrupt while sending command."


def _submitted() -> set[str]:
    """Return the names of the options that `spark-submit` has given Java; none where it did not start this process."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return set()
    # Its own guess from the launcher's name.
    return {name for name, _ in SparkConf().getAll()} - {"spark.app.name"}


def _launch_java(options: Mapping[str, str]) -> None:
    """Start Java, unless there is one already, with those `options` on its command line that are no secrets.

    Every user of the host can read a command line, on which pyspark would put them all. It gives Java the rest over
    their connection, when the session is built.
    """
    shown = [
        (name, value)
        for name, value in options.items()
        if name.startswith(_NEEDED_BY_LAUNCHER) or not is_secret(name, value)
    ]
    SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False).setAll(shown))


@contextlib.contextmanager
def worker_pool(spark: SparkSession, name: str | None = None) -> Iterator[None]:
    """Let the Python functions that are given to Spark inside run in worker processes that no others use.

    Spark keeps its idle Python workers by the environment they were started with, and hands out the one that
    has been idle longest. Without a `name` they run in those that all share. That is to be said as well where another
    thread may be inside: pyspark reads one environment for all, and must not find it changing.
    """
    environment = spark.sparkContext.environment
    with _environment_lock:
        if name is not None:
            environment[_POOL] = name
        try:
            yield
        finally:
            environment.pop(_POOL, None)
