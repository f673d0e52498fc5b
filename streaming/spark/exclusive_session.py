"""A Spark session together with the lease, for the commands that deliver or seal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from subprocess import Popen, TimeoutExpired

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from conf.errors import QueryFailed
from conf.kafka.clients import check_clients
from conf.settings import Settings
from sinks.internal_topics.lease import HeldLease
from sinks.topics.topic_ids import cluster_id
from streaming.spark.session import open_session
from streaming.storage.owner import claim_storage

# How long Java may take to end after it has closed its connections.
_END_S = 10.0


@contextmanager
def exclusive_session(
    settings: Settings,
    command: str,
    options: Mapping[str, str] | None = None,
    on_claimed: Callable[[HeldLease], None] = lambda lease: None,
) -> Iterator[tuple[SparkSession, HeldLease]]:
    """Start Spark and claim the lease; release both at the end of the context.

    The two steps run at the same time, because after a crash each of them takes seconds. `options` are Spark options
    that override all others. `on_claimed` is called with the lease while Spark starts. Raises ApplicationHeld if
    another process has the lease, BrokerUnreachable, the errors of `check_clients` and `claim_storage`, and QueryFailed
    if Java ends within the context.
    """
    check_clients(settings)
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="claim") as claimer, ExitStack() as stack:
        claiming = claimer.submit(_claim, settings, command, on_claimed)
        # The lease is released last: no other process may start while a batch of this one still runs.
        stack.callback(_release, claiming)
        stack.enter_context(_end_of_java_named())
        spark = open_session(settings, options)
        stack.callback(spark.stop)
        lease = claiming.result()
        # Before the first step of any command: the lease guards this application's storage alone.
        claim_storage(spark, settings, cluster_id(settings))
        yield spark, lease


@contextmanager
def _end_of_java_named() -> Iterator[None]:
    """Raise QueryFailed for what fails because Spark's Java process has ended."""
    try:
        yield
    except (Py4JError, OSError) as problem:
        code = _exit_code_of_java()
        if code is None:
            raise
        raise QueryFailed(
            f"Spark's Java process ended with {code}. The lines that it printed before this one show the "
            "cause. If it ran out of memory (OutOfMemoryError), raise spark.driver.memory and start the job "
            "again. A single record can cause this: see docs/operate/topics.md, Memory for large records. "
            "Nothing is lost"
        ) from problem


def _exit_code_of_java() -> int | None:
    """Return the exit code of the Java process that pyspark has started; None if it runs, or another program did."""
    process = getattr(SparkContext._gateway, "proc", None)
    try:
        return process.wait(_END_S) if isinstance(process, Popen) else None
    except TimeoutExpired:
        return None


def _claim(settings: Settings, command: str, on_claimed: Callable[[HeldLease], None]) -> HeldLease:
    lease = HeldLease(settings, command)
    try:
        on_claimed(lease)
    except BaseException:
        lease.close()
        raise
    return lease


def _release(claiming: Future[HeldLease]) -> None:
    if claiming.exception() is None:
        claiming.result().close()
