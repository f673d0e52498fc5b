"""Samples of the running job, taken every few seconds, for the page's charts of the last hour."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import asdict
from types import TracebackType
from typing import Any

from conf.settings import Settings
from streaming.status.figures import figures
from streaming.status.formats import as_json
from streaming.status.problems import ProcessProblems
from streaming.status.running import status_of_job
from streaming.status.sample import Sample, sample_of
from streaming.status.status import Status

log = logging.getLogger(__name__)

_EVERY_S = 5.0
# The share of one core. Each sample reads all messages that are staged and not released, which may be many.
_MOST_CPU = 0.01
_KEPT = 720


class History:
    """Samples the job in a thread until closed, and keeps the samples of the last hour. A context manager."""

    def __init__(self, settings: Settings, every_s: float = _EVERY_S, most_cpu: float = _MOST_CPU) -> None:
        """Take a sample every `every_s`, or less often if that takes more than `most_cpu` of a core."""
        self._settings = settings
        self._every_s = every_s
        self._most_cpu = most_cpu
        self._samples: deque[Sample] = deque(maxlen=_KEPT)
        self._status: dict[str, Any] | None = None
        self._figures: list[dict[str, Any]] = []
        self._problems: list[dict[str, Any]] = []
        self._asked = ProcessProblems(settings)
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)

    def now(self, since_ms: int) -> dict[str, Any]:
        """Return the newest status and its figures, samples after `since_ms`, and recent problems.

        If the job does not answer, the status is null and the list of figures is empty.
        """
        with self._lock:
            samples = [asdict(sample) for sample in self._samples if sample.at_ms > since_ms]
            return {
                "status": self._status,
                "figures": self._figures,
                "samples": samples,
                "problems": self._problems,
            }

    def __enter__(self) -> History:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.is_set():
            begun_s, begun_cpu_s = time.monotonic(), time.process_time()
            try:
                self._take()
            except Exception:
                # The page says that nothing is known, and the next sample may succeed.
                log.exception("could not take a sample")
                self._keep(None, [])
            pause_s = max(self._every_s, (time.process_time() - begun_cpu_s) / self._most_cpu)
            self._closed.wait(max(0.0, pause_s - (time.monotonic() - begun_s)))

    def _take(self) -> None:
        self._keep(status_of_job(self._settings), self._asked.newest())

    def _keep(self, status: Status | None, problems: list[dict[str, Any]]) -> None:
        with self._lock:
            self._problems = problems
            self._status = None if status is None else as_json(status)
            self._figures = [] if status is None else [asdict(figure) for figure in figures(status)]
            if status is not None:
                self._samples.append(sample_of(status))
