"""The versions that writers have in the table: the newest batch of each, and the fence behind which it writes no more.

A commit to Delta can name its writer and a version (`SetTransaction`). Delta skips a write if its version is not above
the writer's newest one. It refuses a write that began before that newest version was committed.
"""

from __future__ import annotations

from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

# The same writer has committed in the meantime.
_CONCURRENT_TRANSACTION = "io.delta.exceptions.ConcurrentTransactionException"
# The first version of a fence. Batches have lower numbers.
_FENCE = 1 << 62


def newest_version(log: Any, writer_id: str) -> int:
    """Return the newest version of a writer that this process knows of; -1 if it wrote nothing.

    `log` is a Delta table's log (`DeltaLog`).
    """
    snapshot = log.unsafeVolatileSnapshot()
    checksum = snapshot.checksumOpt()
    named = checksum.get().setTransactions() if checksum.isDefined() else checksum
    if not named.isDefined():
        # After a crash between a commit and its checksum; and of more writers than Delta puts there.
        newest = snapshot.transactions().get(writer_id)
        return int(newest.get()) if newest.isDefined() else -1
    # The snapshot's own `transactions` read the whole log in a Spark job, which takes as long as a commit.
    writers = named.get()
    versions = (each.version() for each in map(writers.apply, range(writers.size())) if each.appId() == writer_id)
    return int(next(versions, -1))


def newest_batch(version: int) -> int | None:
    """Return the newest batch that a writer with the newest `version` has written, or None if it wrote no batch."""
    batch_id = version - _FENCE - 1 if is_fence(version) else version
    return batch_id if batch_id >= 0 else None


def is_fence(version: int) -> bool:
    """Return whether `version` belongs to a fence."""
    return version >= _FENCE


def fence_writer(spark: SparkSession, log: Any, writer_id: str) -> None:
    """Commit a version that no batch of `writer_id` has. Its newest batch stays known (`newest_batch`).

    Not an empty write with a version: the newest batch must be read in the transaction that fences. If the writer
    commits at the same time, one of the two is refused.
    """
    jvm: Any = spark.sparkContext._jvm
    actions = jvm.org.apache.spark.sql.delta.actions
    operation = getattr(jvm.org.apache.spark.sql.delta, "DeltaOperations$ManualUpdate$")
    while True:
        transaction = log.startTransaction()
        version = int(transaction.txnVersion(writer_id))
        if is_fence(version):
            return
        fence = actions.SetTransaction(writer_id, _FENCE + 1 + version, jvm.scala.Option.empty())
        try:
            transaction.commit(jvm.PythonUtils.toSeq([fence]), getattr(operation, "MODULE$"))
            return
        except Py4JJavaError as problem:
            if not is_concurrent(problem):
                raise


def is_concurrent(problem: Py4JJavaError) -> bool:
    """Return whether Delta refused a write because its writer had committed in the meantime."""
    return str(problem.java_exception.getClass().getName()) == _CONCURRENT_TRANSACTION
