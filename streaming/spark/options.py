"""The options that Delayline gives Spark. They override the options of a cluster; `[spark]` overrides them."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping

from conf.java.cds_archive import cds_options
from conf.java.command import JAVA_FILES
from conf.java.jars.installed import s3_jars, spark_jars
from conf.java.spark_line import checkpoint_class
from conf.secrets import SECRET_PATTERN
from conf.settings import Settings
from conf.spark_options import CHECKPOINT_FILE_MANAGER
from state.group_keys import state_partitions
from streaming.storage.paths import is_on_s3, local_folder, storage_path

# Each over those before it.
_LOG_CONFIGS = {
    "text": [JAVA_FILES / "log4j2.properties"],
    "json": [JAVA_FILES / "log4j2.properties", JAVA_FILES / "log4j2-json.properties"],
}
_POOLS = JAVA_FILES / "scheduler-pools.xml"

# When a job starts or restarts, Java's second compiler (C2) takes most of two cores. With these thresholds it compiles
# only code that has run twenty times as often as by default: the code that every batch runs.
_THRESHOLD_FACTOR = 20
_TIER_4 = {
    "InvocationThreshold": 5_000,
    "MinInvocationThreshold": 600,
    "CompileThreshold": 15_000,
    "BackEdgeThreshold": 40_000,
}
# More code of the first compiler therefore stays in the code cache: 60 MB after 80 s. Java's default limit is 240 MB,
# or 48 MB where a deployment switches the second compiler off. When the cache is full, Spark's threads end.
_COMPILERS = " ".join(
    [
        *(f"-XX:Tier4{name}={_THRESHOLD_FACTOR * default}" for name, default in _TIER_4.items()),
        "-XX:ReservedCodeCacheSize=480m",
    ]
)


def spark_options(settings: Settings) -> dict[str, str]:
    """Return the session's options: Delayline's defaults, overridden by the `[spark]` section of the settings.

    That section cannot contain the options of `FIXED_OPTIONS`.
    """
    log_configs = ",".join(map(str, _LOG_CONFIGS[settings.monitor.log_format]))
    log_option = f'"-Dlog4j2.configurationFile={log_configs}"'
    return {
        "spark.app.name": settings.application_id,
        "spark.master": "local[2,4]",
        # Not `spark.jars.packages`, which would put each jar on the import path of every Python worker.
        "spark.jars": ",".join(map(str, [*spark_jars(), *(s3_jars() if is_on_s3(settings) else [])])),
        "spark.python.daemon.module": "streaming.spark.worker_daemon",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.streaming.minBatchesToRetain": "10",
        "spark.sql.shuffle.partitions": str(state_partitions(settings.bucket.shards)),
        "spark.speculation": "false",
        # Fetching blocks from a lost executor is retried this many times, with a pause of 5 s by default. A batch that
        # needs these blocks waits for that long before the driver learns of the loss.
        "spark.shuffle.io.maxRetries": "3",
        "spark.shuffle.io.retryWait": "500ms",
        # Scheduler pools: tasks of maintenance wait for tasks of a batch, even if they were submitted first.
        "spark.scheduler.mode": "FAIR",
        "spark.scheduler.allocation.file": _POOLS.as_uri(),
        "spark.sql.adaptive.enabled": "false",
        # To cache a DataFrame, Spark clones the session unless these two are off, and Spark 4.0.0 never frees a clone
        # (SPARK-54753): half a megabyte for each batch, so that the heap of 2 GB was full after 3,000. Nothing here is
        # bucketed, or adaptive.
        "spark.sql.sources.bucketing.autoBucketedScan.enabled": "false",
        "spark.sql.adaptive.applyFinalStageShuffleOptimizations": "false",
        # The code of all that a batch with requests and a seal runs, and of what runs once a minute; each batch adds
        # some. With Spark's 100, code was forgotten before the next batch needed it, and Java compiled it again.
        "spark.sql.codegen.cache.maxEntries": "500",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
        "spark.sql.execution.arrow.maxBytesPerBatch": str(32 * 1024 * 1024),
        # Spark caches the output of the state stage, and large messages take 16 MB in an element of its cache. By
        # default it looks at the memory taken after 16 elements, and holds 100 of those that it writes to disk.
        "spark.storage.unrollMemoryCheckPeriod": "1",
        "spark.serializer.objectStreamReset": "1",
        # Stored chunks are large rows. A reader should take few at a time, and be able to skip row groups of about
        # eight rows.
        "spark.sql.parquet.columnarReaderBatchSize": "64",
        "spark.hadoop.parquet.block.size": str(1024 * 1024),
        "spark.hadoop.parquet.page.size.row.check.min": "1",
        "spark.hadoop.parquet.enable.dictionary": "false",
        # The writer of a file holds the least and the largest value of each row group, here chunks of a megabyte, until
        # it closes the file.
        "spark.hadoop.parquet.column.statistics.enabled#chunk": "false",
        # Without this check, a byte that changed in storage would be delivered. Parquet writes page checksums by
        # default.
        "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
        # The bucket table keeps deleted files for an hour, less than this check allows. That is safe: the job is the
        # only writer, and none of its writes takes that long.
        "spark.databricks.delta.retentionDurationCheck.enabled": "false",
        # A read of the newest version is allowed however old that is, and stays so if a commit comes before it begins.
        # Delta from 4.3 on would refuse it.
        "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration": "false",
        # Over what a cluster may have set for all tables.
        "spark.databricks.delta.autoCompact.enabled": "false",
        "spark.databricks.delta.optimizeWrite.enabled": "false",
        "spark.databricks.delta.stats.collect": "true",
        "spark.databricks.delta.writeChecksumFile.enabled": "true",
        "spark.sql.sources.partitionOverwriteMode": "static",
        "spark.databricks.delta.snapshotPartitions": "2",
        # The number of tasks in which a vacuum lists files: by default 10,000, which takes minutes for a few files.
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
        # Spark keeps the records of a poll of the input for the next batch, by default for five minutes. If that batch
        # does not start at the record after them, they stay next to the records of the next poll. Records of 100 MB
        # from two batches filled 2 GB.
        "spark.kafka.consumer.fetchedData.cache.timeout": "1s",
        "spark.kafka.consumer.fetchedData.cache.evictorThreadRunInterval": "1s",
        "spark.driver.memory": "2g",
        # Not extraJavaOptions: these are left to the deployment.
        "spark.driver.defaultJavaOptions": " ".join([log_option, _COMPILERS, cds_options()]),
        "spark.executor.defaultJavaOptions": (
            f"{log_option} {_COMPILERS}" if _executors_have_this_environment(settings) else _COMPILERS
        ),
        **_file_systems(settings),
        "spark.sql.warehouse.dir": tempfile.gettempdir(),
        # For all places where Spark shows options: web pages, event logs, plans. Its default pattern has fewer names.
        "spark.redaction.regex": SECRET_PATTERN,
        "spark.ui.enabled": "false",
        # Without its page nobody looks at what has run. By default Spark keeps 1,000 queries for it, in 60 MB.
        "spark.sql.ui.retainedExecutions": "100",
        "spark.ui.retainedJobs": "100",
        "spark.ui.retainedStages": "100",
        "spark.ui.retainedTasks": "1000",
        "spark.ui.showConsoleProgress": "false",
    } | settings.spark.options


def _executors_have_this_environment(settings: Settings) -> bool:
    """Return whether executors find this Python environment, and so Delayline's files, under the driver's paths.

    They do if their Python has the path of this one. An archive is unpacked elsewhere, and on a standalone cluster only
    when Java and its log have started. Without its file, the log would pass over the cluster's own configuration.
    """
    return executors_python(settings.spark.options) == sys.executable


def executors_python(options: Mapping[str, str]) -> str:
    """Return the path of the Python of the executors, which pyspark takes from a variable, whatever the options say."""
    named = [options.get("spark.pyspark.python"), os.environ.get("PYSPARK_PYTHON")]
    if is_submitted():
        # `spark-submit` has set the variable by its own options, which go over others.
        named.reverse()
    return named[0] or named[1] or sys.executable


def _file_systems(settings: Settings) -> dict[str, str]:
    """Return the options by which the JVM handles local files itself, and also a local checkpoint.

    Without libhadoop, Hadoop's own class starts a `chmod` or `stat` process for each file: 80 in a batch, and more than
    half of the time of an idle batch. S3 cannot rename: there a file of the checkpoint is one upload, which is cut off
    if the writing fails. For other file systems, Spark's default checkpoint file manager stays: on HDFS it replaces a
    file by an atomic rename.
    """
    options = {
        # Spark needs the file system class before it reads `spark.jars`. The other jars are here because the CDS
        # archive only holds classes of this class path.
        "spark.driver.extraClassPath": ":".join(str(jar) for jar in spark_jars()),
        "spark.hadoop.fs.file.impl": "com.globalmentor.apache.hadoop.fs.BareLocalFileSystem",
    }
    if local_folder(storage_path(settings)) is not None:
        manager = checkpoint_class("FileSystemBasedCheckpointFileManager")
        options[CHECKPOINT_FILE_MANAGER] = manager
    elif is_on_s3(settings):
        options[CHECKPOINT_FILE_MANAGER] = (
            "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager"
        )
    return options


def is_submitted() -> bool:
    """Return whether `spark-submit` has started this process."""
    return "PYSPARK_GATEWAY_PORT" in os.environ
