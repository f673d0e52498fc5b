"""A Spark session together with the lease, for the commands that deliver or seal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

from pyspark.sql import SparkSession

from conf.kafka.clients import check_clients
from conf.settings import Settings
from sinks.internal_topics.lease import HeldLease
from streaming.spark.session import open_session


@contextmanager
def exclusive_session(
    settings: Settings, command: str, options: Mapping[str, str] | None = None
) -> Iterator[tuple[SparkSession, HeldLease]]:
    """Start Spark and claim the lease; release both at the end of the context.

    The two steps run at the same time, because after a crash each of them takes seconds. `options` are Spark options
    that override all others. Raises ApplicationHeld if another process has the lease, BrokerUnreachable, and the errors
    of `check_clients`.
    """
    check_clients(settings)
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="claim") as claimer, ExitStack() as stack:
        claiming = claimer.submit(HeldLease, settings, command)
        # The lease is released last: no other process may start while a batch of this one still runs.
        stack.callback(_release, claiming)
        spark = open_session(settings, options)
        stack.callback(spark.stop)
        yield spark, claiming.result()


def _release(claiming: Future[HeldLease]) -> None:
    if claiming.exception() is None:
        claiming.result().close()
