"""Looks at waiting messages for commands and the page: through the running job, or with a Spark of their own."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from http import HTTPStatus
from types import TracebackType

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from conf.errors import StorageFailed
from conf.settings import Settings
from streaming.monitor.client import NoAnswer, Post, ask
from streaming.monitor.look_door import LOOK_PATH
from streaming.status.look import Look, look
from streaming.status.look_request import decoded_rows, encoded_request
from streaming.status.storage_reader import reader_session
from streaming.storage.paths import storage_path

log = logging.getLogger(__name__)

# Longer than the job lets a look wait and take.
_PATIENCE_S = 45.0


class NotThroughTheJob(Exception):
    """The running job does not answer a look; the text says why."""


def look_through_job(settings: Settings, wanted: Look, patience_s: float = _PATIENCE_S) -> pa.Table:
    """Return what the job at `monitor.job` answers to a look within `patience_s`: a table of `ROW_SCHEMA`.

    Raises NotThroughTheJob.
    """
    address = settings.monitor.job
    if not address:
        raise NotThroughTheJob("monitor.job is not set")
    try:
        body = encoded_request(wanted, settings.application_id, storage_path(settings))
        answer = ask(address, LOOK_PATH, Post(body, settings.web.token, patience_s))
        if answer.code == HTTPStatus.OK:
            return decoded_rows(answer.body)
        why = json.loads(answer.body)["error"]
    except NoAnswer as problem:
        raise NotThroughTheJob(str(problem)) from problem
    except (ValueError, LookupError, TypeError) as problem:
        raise NotThroughTheJob(f"no look through {address}: {problem}") from problem
    raise NotThroughTheJob(f"the job at {address} refused: {why}")


class LookReader:
    """Looks through the running job. Where that does not answer, with a small Spark of its own, which then stays.

    A context manager. One look at a time uses that Spark: others wait.
    """

    def __init__(self, settings: Settings, patience_s: float = _PATIENCE_S) -> None:
        """`patience_s` is how long the job may take, in seconds."""
        self._settings = settings
        self._patience_s = patience_s
        self._spark: SparkSession | None = None
        self._lock = threading.Lock()
        self._stack = ExitStack()

    def look(self, wanted: Look, on_own_spark: Callable[[str], None] = lambda _: None) -> pa.Table:
        """Return a table of `ROW_SCHEMA`: the first by due time, or the newest first.

        `on_own_spark` is called with the reason before a Spark of its own reads. Raises StorageFailed, and what
        `reader_session` and `look` do.
        """
        try:
            return look_through_job(self._settings, wanted, self._patience_s)
        except NotThroughTheJob as problem:
            log.debug("%s", problem)
            on_own_spark(str(problem))
        with self._lock:
            if self._spark is None:
                self._spark = self._stack.enter_context(reader_session(self._settings))
            try:
                return look(self._spark, self._settings, wanted)
            except (Py4JError, OSError) as problem:
                # Java has ended, perhaps for want of memory. The next look starts another one.
                self._spark = None
                with suppress(Py4JError, OSError):
                    self._stack.close()
                raise StorageFailed(
                    f"Spark has failed ({type(problem).__name__}). Select fewer messages, or try again"
                ) from problem

    def __enter__(self) -> LookReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._stack.close()
