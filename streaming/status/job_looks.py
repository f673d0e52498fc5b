"""Looks at waiting messages through the running job's Spark, so that nobody has to start another one for half a minute.

Without a JVM nobody can read the mutable bucket, which is in RocksDB in Spark's own form.

A look costs the batches little:

- Its tasks run in the scheduler pool of maintenance, so tasks of batches get free cores first.
- Few of its tasks wait for brokers, and none does if the look begins behind all that is staged.
- There is one look at a time. The next one waits for a few seconds, and is then refused.
- It is bounded: in messages, in bytes of each message, in bytes of sealed messages that it reads, in metadata, and in
  time.

A look that is refused for its size needs its own Spark (`look_reader`). A look does not delay cleaning. Files that it
reads are kept for a while (`messages.waiting_messages`), and it begins again if files have vanished.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import replace
from http import HTTPStatus

import pyarrow.compute as pc
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from conf.errors import DelaylineError
from conf.settings import Settings
from streaming.monitor.look_door import Reply, refusal
from streaming.spark.pools import MAINTENANCE, use_pool
from streaming.status.look import Look, look
from streaming.status.look_request import ARROW_STREAM, decoded_request, encoded_rows
from streaming.status.sealed_rows import ReadLimits, TooMuchToRead
from streaming.storage.paths import storage_path

_GROUP = "delayline-look"
_TURN_S, _MOST_S = 5.0, 30.0
# A look that has to end is told so again and again: between two jobs of Spark it hears nothing.
_CANCEL_EVERY_S, _END_S = 0.5, 5.0
# All rows together may have so many bytes, in the key, value and headers of each.
_MOST_ROW_BYTES, _PARTS = 12 * 1024 * 1024, 3
# A core reads so many bytes of sealed messages, uncompressed, in some seconds.
_MOST_READ_BYTES = 128 * 1024 * 1024


class JobLooks:
    """Answers requests for waiting messages as long as the job has a session. Any thread may call `reply`."""

    def __init__(self, settings: Settings, turn_s: float = _TURN_S, most_s: float = _MOST_S) -> None:
        """`turn_s` is how long a look waits for the one before, `most_s` how long it may take, both in seconds."""
        self._settings = settings
        self._turn_s, self._most_s = turn_s, most_s
        self._turn = threading.Lock()
        self._open: tuple[SparkSession, ThreadPoolExecutor, Callable[[], int]] | None = None
        self._running: Future[Reply] | None = None

    @contextmanager
    def through(self, spark: SparkSession, forwarded_before_ms: Callable[[], int]) -> Iterator[None]:
        """Answer through this session. At the end, cancel the look that is running.

        `forwarded_before_ms` returns before when all is due (epoch ms) that forwarders have taken so far.
        """

        def prepare() -> None:
            use_pool(spark, MAINTENANCE)
            spark.sparkContext.setJobGroup(_GROUP, "a look at waiting messages", interruptOnCancel=True)

        thread = ThreadPoolExecutor(1, thread_name_prefix="look", initializer=prepare)
        self._open = spark, thread, forwarded_before_ms
        try:
            yield
        finally:
            self._open = None
            thread.shutdown(wait=False, cancel_futures=True)
            if self._running is not None:
                _end(spark, self._running)

    def reply(self, body: bytes) -> Reply:
        """Return the answer to the request `body`: rows of `ROW_SCHEMA` as an Arrow IPC stream, or a refusal."""
        try:
            request = decoded_request(body)
        except ValueError as problem:
            return refusal(HTTPStatus.BAD_REQUEST, str(problem))
        if (request.application_id, request.storage) != (self._settings.application_id, storage_path(self._settings)):
            return refusal(HTTPStatus.CONFLICT, "this job is of another application (application_id, storage.path)")
        if not self._turn.acquire(timeout=self._turn_s):
            return refusal(HTTPStatus.TOO_MANY_REQUESTS, "another look is running. Try again")
        try:
            if self._open is None:
                raise RuntimeError("no session")
            spark, thread, forwarded_before_ms = self._open
            running = thread.submit(self._look, spark, request.wanted(), forwarded_before_ms)
        except RuntimeError:
            self._turn.release()
            return refusal(HTTPStatus.SERVICE_UNAVAILABLE, "the job is starting or stopping")
        self._running = running
        running.add_done_callback(lambda _: self._turn.release())
        try:
            return running.result(self._most_s)
        except CancelledError:
            return refusal(HTTPStatus.SERVICE_UNAVAILABLE, "the job is stopping")
        except TimeoutError:
            _end(spark, running)
            return refusal(HTTPStatus.GATEWAY_TIMEOUT, f"the look took longer than {self._most_s:.0f} s")

    def _look(self, spark: SparkSession, wanted: Look, forwarded_before_ms: Callable[[], int]) -> Reply:
        most_bytes = _MOST_ROW_BYTES // (_PARTS * wanted.limit)
        shown_bytes = most_bytes if wanted.shown_bytes is None else min(wanted.shown_bytes, most_bytes)
        try:
            limits = ReadLimits(_MOST_READ_BYTES, forwarded_before_ms)
            rows = look(spark, self._settings, replace(wanted, shown_bytes=shown_bytes), limits)
        except TooMuchToRead:
            why = "too many sealed messages lie in the range. Give a shorter range of due times"
            return refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, why)
        except (DelaylineError, Py4JError, OSError) as problem:
            return refusal(HTTPStatus.SERVICE_UNAVAILABLE, str(problem).partition("\n")[0])
        if shown_bytes != wanted.shown_bytes and pc.any(rows.column("is_cut")).as_py():
            why = "the messages are too large for one answer. Look at fewer"
            return refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, why)
        return Reply(HTTPStatus.OK, encoded_rows(rows), ARROW_STREAM)


def _end(spark: SparkSession, running: Future[Reply]) -> None:
    """Cancel a look, and wait for its end, at the longest for `_END_S`."""
    end_s = time.monotonic() + _END_S
    while not running.done() and time.monotonic() < end_s:
        spark.sparkContext.cancelJobGroup(_GROUP)
        wait([running], _CANCEL_EVERY_S)
