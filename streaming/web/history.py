"""What the page samples from the running job every few seconds, for charts over the last hour."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any

from conf.settings import Settings
from streaming.monitor.client import NoAnswer, ask, other_application, release_addresses
from streaming.status.formats import as_json
from streaming.status.running import status_of_job
from streaming.status.status import Status

log = logging.getLogger(__name__)

_EVERY_S = 5.0
# Of one core. What is handed over and not released is read each time, which may be much.
_MOST_CPU = 0.01
_KEPT = 720


@dataclass(frozen=True)
class Sample:
    """One look at the job.

    - `at_ms`: when, epoch ms
    - `waiting`, `ready`, `lag`: numbers of messages: all that wait, handed over of these, and not read yet
    - `read`, `released`: how many were ever read from the input, and released; differences of two samples are rates
    - `p99_ms`, `max_ms`: the lateness of the shard that was latest in the minute before its last release
    - `buckets`, `segments`: of the sealed messages

    None is unknown: the broker did not answer.
    """

    at_ms: int
    waiting: int
    ready: int
    lag: int | None
    read: int | None
    released: int | None
    p99_ms: int | None
    max_ms: int | None
    buckets: int
    segments: int


class History:
    """Samples in a thread until it is closed; keeps those of the last hour. A context manager."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._samples: deque[Sample] = deque(maxlen=_KEPT)
        self._status: dict[str, Any] | None = None
        self._problems: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)

    def now(self, since_ms: int) -> dict[str, Any]:
        """Return the newest status (null if the job does not answer), samples after `since_ms`, and recent problems."""
        with self._lock:
            samples = [asdict(sample) for sample in self._samples if sample.at_ms > since_ms]
            return {"status": self._status, "samples": samples, "problems": self._problems}

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
                log.exception("no sample was taken")
                self._keep(None, [])
            pause_s = max(_EVERY_S, (time.process_time() - begun_cpu_s) / _MOST_CPU)
            self._closed.wait(max(0.0, pause_s - (time.monotonic() - begun_s)))

    def _take(self) -> None:
        self._keep(status_of_job(self._settings), _problems(self._settings))

    def _keep(self, status: Status | None, problems: list[dict[str, Any]]) -> None:
        with self._lock:
            self._problems = problems
            self._status = None if status is None else as_json(status)
            if status is not None and self._status is not None:
                self._samples.append(_sample(status, self._status["waiting"]["total"]))


def _sample(status: Status, waiting: int) -> Sample:
    lag, ready = status.broker.lag, status.broker.ready
    late = [shard.lateness for shard in ready or () if shard.at_ms is not None]
    return Sample(
        at_ms=status.now_ms,
        waiting=waiting,
        ready=sum(shard.ready for shard in status.shards),
        lag=None if lag is None else sum(part.lag for part in lag),
        read=None if lag is None else sum(part.read_offset for part in lag),
        released=None if ready is None else sum(shard.released for shard in ready),
        p99_ms=max((lateness.p99_ms for lateness in late), default=None),
        max_ms=max((lateness.max_ms for lateness in late), default=None),
        buckets=status.buckets,
        segments=status.segments,
    )


def _problems(settings: Settings) -> list[dict[str, Any]]:
    """Return the newest warnings and errors of the job and of the release processes that it starts, newest first."""
    found: list[dict[str, Any]] = []
    for name, address in _addresses(settings):
        try:
            answer = ask(address, "/problems")
            # Another job may have the address.
            if other_application(answer, settings) is None:
                found += [problem | {"process": name} for problem in json.loads(answer.body)]
        except (NoAnswer, ValueError, TypeError, AttributeError) as problem:
            log.debug("%s did not say its problems: %s", name, problem)
    return sorted(found, key=lambda problem: -int(problem["at_ms"]))


def _addresses(settings: Settings) -> list[tuple[str, str]]:
    addresses = [("job", settings.monitor.job)] if settings.monitor.job else []
    return addresses + [(f"release {number}", address) for number, address in enumerate(release_addresses(settings))]
