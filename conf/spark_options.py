"""The options of Spark that no deployment may change, each with the reason.

Delayline is wrong, or stops after a while, with another value. `streaming.spark.options` sets the values.

It sets further options, which a deployment may override:

- master, jars, Java's memory and options, class path, interface, folders: they belong to the host or the cluster. A job
  that cannot run with them does not start.
- scheduler, code cache, sizes of batches, row groups and pages, statistics, numbers of tasks, the class for local
  files, the worker daemon, the state's changelog: they decide how long a batch takes and how much memory, not what it
  delivers.
- the time zone, the name of the application, the pattern of secrets: they decide what Spark shows.
"""

from __future__ import annotations

_SESSIONS = "because otherwise Spark keeps half a megabyte of each batch in memory forever"
_DELTA = "by which Spark finds the table of sealed messages"
_FILES = "because otherwise Delta rewrites files of the table without the job"

FIXED_OPTIONS = {
    "spark.sql.shuffle.partitions": "which follows from bucket.shards: with another, two tasks would stage one shard",
    # A writer fences the one before: of two attempts at a time, each would end the other's transaction.
    "spark.speculation": "which is false: a second attempt of a running task would fence the writer of the first one",
    "spark.sql.streaming.stateStore.providerClass": "which each checkpoint keeps: others cannot read its state",
    # Commands read the state of the last committed batch, while the job commits and deletes on.
    "spark.sql.streaming.minBatchesToRetain": "which is 10: with fewer, commands would find their state deleted",
    "spark.sql.extensions": f"which is Delta's: {_DELTA}",
    "spark.sql.catalog.spark_catalog": f"which is Delta's: {_DELTA}",
    "spark.sql.adaptive.enabled": f"which is false, {_SESSIONS}",
    "spark.sql.adaptive.applyFinalStageShuffleOptimizations": f"which is false, {_SESSIONS}",
    "spark.sql.sources.bucketing.autoBucketedScan.enabled": f"which is false, {_SESSIONS}",
    "spark.hadoop.parquet.page.verify-checksum.enabled": "which is true: otherwise damaged messages would be delivered",
    "spark.databricks.delta.autoCompact.enabled": f"which is false, {_FILES}",
    "spark.databricks.delta.optimizeWrite.enabled": f"which is false, {_FILES}",
    "spark.databricks.delta.stats.collect": "which is true: otherwise each load would read the whole table",
    "spark.databricks.delta.writeChecksumFile.enabled": "which is true: it shows at the start that a log entry is lost",
    "spark.sql.sources.partitionOverwriteMode": "which is static: with dynamic, merged parts would keep their old rows",
    # The table keeps deleted files for less time than the check allows.
    "spark.databricks.delta.retentionDurationCheck.enabled": "which is false: otherwise vacuums fail",
}
"""Option names, with the text of the `bad-setting` error: what Delayline sets the option to, and why."""

# Options with this prefix are properties of new tables. The table of sealed messages has its own properties.
TABLE_DEFAULTS = "spark.databricks.delta.properties.defaults."

# Fixed as well, but on S3 alone.
CHECKPOINT_FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
